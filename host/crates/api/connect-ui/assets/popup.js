// Connects in another window, which shows the provider's page. The outcome arrives over a WebSocket, or as a message of
// the last page in that window.

const WIDTH = 520;
const HEIGHT = 680;
const SOCKET_TIMEOUT_MS = 5000;
const POLL_INTERVAL_MS = 500;
/** Wait for the outcome after the window has been closed. */
const CLOSED_TIMEOUT_MS = 2500;

export class PopupError extends Error {
    /** `code` is reported to the parent page. `message` comes from the provider or the service and can be empty. */
    constructor(code, message = '') {
        super(message);
        this.code = code;
    }
}

/**
 * Opens the window at once, because browsers allow it only in a click handler. Returns `null` if it was blocked.
 */
export function openPopup() {
    const left = Math.max(0, window.screenX + (window.outerWidth - WIDTH) / 2);
    const top = Math.max(0, window.screenY + (window.outerHeight - HEIGHT) / 2);
    const popup = window.open('', '_blank', `popup,width=${WIDTH},height=${HEIGHT},left=${left},top=${top}`);
    return popup && !popup.closed ? popup : null;
}

/**
 * Navigates the window to `url` and waits for the outcome: `{connectionId, providerConfigKey, isPending}`. Calls
 * `onClosed` when the window seems to be closed. A page can remove the reference to its opener, which looks the same, so
 * the function keeps listening. `signal` aborts it.
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
        const socketTimeout = setTimeout(send, SOCKET_TIMEOUT_MS);
        let closedTimer = setInterval(() => {
            if (!popup.closed) return;
            clearInterval(closedTimer);
            closedTimer = setTimeout(onClosed, CLOSED_TIMEOUT_MS);
        }, POLL_INTERVAL_MS);

        const settle = (decide, value) => {
            clearTimeout(socketTimeout);
            clearInterval(closedTimer);
            clearTimeout(closedTimer);
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
                setTimeout(() => popup.close(), POLL_INTERVAL_MS);
            } else if (message.message_type === 'error') {
                fail(message.error_type, message.error_desc);
            }
        });
        socket.addEventListener('error', send);

        // Only failures are accepted here: a success counts only from the WebSocket.
        const onOutcome = (data) => {
            if (data?.type !== 'nango_oauth_callback_error') return;
            fail(data.payload?.errorType ?? 'unknown_error', data.payload?.message);
        };
        function onMessage(event) {
            if (event.source === popup && event.origin === url.origin) onOutcome(event.data);
        }
        window.addEventListener('message', onMessage);
        // Used when the window lost its reference to this page. Outcomes of other windows arrive here too, so it only counts
        // if the window seems to be closed.
        channel.addEventListener('message', (event) => popup.closed && onOutcome(event.data));
        signal.addEventListener('abort', () => {
            popup.close();
            fail('window_closed');
        });
    });
}
