// The page that shows this one in a frame, if any: what it says, and what it is told.

const listeners = {};
/** Where the session's token came from; until then everybody may hear that we are ready. */
let origin = '*';

export const isFramed = window.parent !== window;

/** Calls `listener` with each message of that type. */
export function onParent(type, listener) {
    listeners[type] = listener;
}

export function tellParent(message) {
    if (isFramed) window.parent.postMessage(message, origin);
}

window.addEventListener('message', (event) => {
    if (!isFramed || event.source !== window.parent || typeof event.data?.type !== 'string') return;
    // A sandboxed page has no origin of its own that could be named.
    if (event.data.type === 'session_token' && event.origin !== 'null') origin = event.origin;
    listeners[event.data.type]?.(event.data);
});
