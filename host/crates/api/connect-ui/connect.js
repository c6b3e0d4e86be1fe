// Opens the Connect UI above a page, for sites that use no client library:
//
//     <script src="https://syncline.example.com/connect/connect.js"></script>
//     const ui = Syncline.connect({ sessionToken, onEvent: (event) => … });
//
// `sessionToken` is a token or a promise of one. `onEvent` is called with `{type: 'ready' | 'connect' | 'error' |
// 'close', payload}`. Further options: `lang`, `theme` (`light`, `dark`, `system`), `detectClosedAuthWindow`, and
// `baseURL`, if this script is served from another place. Returns `{ close() }`.
(() => {
    const ownURL = document.currentScript && new URL('.', document.currentScript.src).href;

    function connect({ sessionToken, onEvent = () => {}, baseURL = ownURL, ...options }) {
        const url = new URL(baseURL);
        if (!url.pathname.endsWith('/')) url.pathname += '/';
        for (const name of ['lang', 'theme', 'detectClosedAuthWindow']) {
            if (options[name]) url.searchParams.set(name, options[name]);
        }
        const frame = document.createElement('iframe');
        frame.src = url.href;
        frame.title = 'Connect';
        frame.allow = 'clipboard-write';
        Object.assign(frame.style, {
            position: 'fixed',
            inset: '0',
            width: '100%',
            height: '100%',
            border: '0',
            zIndex: '2147483647',
            background: 'transparent',
            colorScheme: 'normal',
        });
        const { activeElement } = document;
        const { overflow } = document.body.style;

        async function sendToken() {
            const token = await sessionToken;
            // The target origin ensures that only the Connect UI receives the token, whatever the frame shows.
            frame.contentWindow?.postMessage({ type: 'session_token', sessionToken: token }, url.origin);
        }

        function close() {
            if (!frame.isConnected) return;
            window.removeEventListener('message', listen);
            frame.remove();
            document.body.style.overflow = overflow;
            activeElement?.focus?.();
        }

        function listen(event) {
            if (event.source !== frame.contentWindow || event.origin !== url.origin || !event.data?.type) return;
            if (event.data.type === 'ready') {
                frame.focus();
                sendToken();
            }
            if (event.data.type === 'close') close();
            onEvent(event.data);
        }

        window.addEventListener('message', listen);
        document.body.append(frame);
        document.body.style.overflow = 'hidden';
        return { close };
    }

    window.Syncline = { ...window.Syncline, connect };
})();
