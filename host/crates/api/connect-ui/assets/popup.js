// Connecting in another window: the provider's own page, whose outcome comes back over a web socket, and by a
// message of the page that the window ends on.

const WIDTH = 520;
const HEIGHT = 680;
const SOCKET_PATIENCE_MS = 5000;
const LOOK_EVERY_MS = 500;
/** How long an outcome may still be on its way when the window is gone. */
const CLOSED_PATIENCE_MS = 2500;

export class PopupError extends Error {
    /** `code` is what the parent is told; `message` is the provider's or the service's own, and may be empty. */
    constructor(code, message = '') {
        super(message);
        this.code = code;
    }
}

/**
 * Opens the window at once: browsers allow it only in answer to a click. `null`: the browser does not allow it.
 */
export function openPopup() {
    const left = Math.max(0, window.screenX + (window.outerWidth - WIDTH) / 2);
    const top = Math.max(0, window.screenY + (window.outerHeight - HEIGHT) / 2);
    const popup = window.open('', '_blank', `popup,width=${WIDTH},height=${HEIGHT},left=${left},top=${top}`);
    return popup && !popup.closed ? popup : null;
}

/**
 * Sends the window to `url` and waits for what comes of it: `{connectionId, providerConfigKey, isPending}`.
 * `onClosed` is called when the window seems to be closed. It may only seem so: a page can cut itself off from
 * whoever opened it, so we go on listening. `signal` ends the waiting.
 */
export function authorize(popup, url, socketUrl, { onClosed, signal }) {
    return new Promise((resolve, reject) => {
        const socket = new WebSocket(socketUrl);
        const channel = new BroadcastChannel('nango-oauth-callback');
        let isSent = false;

        const send = () => {
            if (isSent) return;
            isSent = true;
            popup.location.replace(url);
        };
        const patience = setTimeout(send, SOCKET_PATIENCE_MS);
        let lookedAt = setInterval(() => {
            if (!popup.closed) return;
            clearInterval(lookedAt);
            lookedAt = setTimeout(onClosed, CLOSED_PATIENCE_MS);
        }, LOOK_EVERY_MS);

        const settle = (decide, value) => {
            clearTimeout(patience);
            clearInterval(lookedAt);
            clearTimeout(lookedAt);
            window.removeEventListener('message', onMessage);
            channel.close();
            socket.close();
            decide(value);
        };
        const fail = (code, message) => settle(reject, new PopupError(code, message));

        socket.addEventListener('message', (event) => {
            const message = JSON.parse(event.data);
            if (message.message_type === 'connection_ack') {
                url.searchParams.set('ws_client_id', message.ws_client_id);
                send();
            } else if (message.message_type === 'success') {
                settle(resolve, {
                    connectionId: message.connection_id,
                    providerConfigKey: message.provider_config_key,
                    ...(message.is_pending && { isPending: true }),
                });
                setTimeout(() => popup.close(), LOOK_EVERY_MS);
            } else if (message.message_type === 'error') {
                fail(message.error_type, message.error_desc);
            }
        });
        socket.addEventListener('error', send);

        // Only failures are taken from here: who connected what is told by the socket alone.
        const onOutcome = (data) => {
            if (data?.type !== 'nango_oauth_callback_error') return;
            fail(data.payload?.errorType ?? 'unknown_error', data.payload?.message);
        };
        function onMessage(event) {
            if (event.source === popup && event.origin === url.origin) onOutcome(event.data);
        }
        window.addEventListener('message', onMessage);
        // The way of a window that was cut off from us. Another's outcome is told here too, so it counts only then.
        channel.addEventListener('message', (event) => popup.closed && onOutcome(event.data));
        signal.addEventListener('abort', () => {
            popup.close();
            fail('window_closed');
        });
    });
}
