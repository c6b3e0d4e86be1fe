// Messages from and to the page that shows this one in a frame, if any.

const listeners = {};
/** The origin that sent the session token. Until then, `ready` is sent to any origin. */
let origin = '*';

export const isFramed = window.parent !== window;

/** Calls `listener` with each message of a type. */
export function onParent(type, listener) {
    listeners[type] = listener;
}

export function postToParent(message) {
    if (isFramed) window.parent.postMessage(message, origin);
}

window.addEventListener('message', (event) => {
    if (!isFramed || event.source !== window.parent || typeof event.data?.type !== 'string') return;
    // A sandboxed page has the origin `null`, which cannot be a target.
    if (event.data.type === 'session_token' && event.origin !== 'null') origin = event.origin;
    listeners[event.data.type]?.(event.data);
});
