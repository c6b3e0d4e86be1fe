// Tells the window that opened this one how it ended. The names are those that published clients listen for. There
// is nothing secret in the message, so it may be read by whichever site has opened the window.
(() => {
    const { code, message } = document.body.dataset;
    const failed = code !== undefined;
    const told = failed
        ? { type: 'nango_oauth_callback_error', payload: { message, errorType: code } }
        : { type: 'nango_oauth_callback_success' };
    const close = () => window.close();
    const closeOnceHeard = (event) => {
        if (event.data && event.data.type === 'nango_oauth_callback_ack') close();
    };
    if (window.opener) {
        window.addEventListener('message', (event) => {
            if (event.source === window.opener) closeOnceHeard(event);
        });
        window.opener.postMessage(told, '*');
    }
    // A provider's page may have cut the tie to the opener; pages of this host hear it here.
    if (typeof BroadcastChannel === 'function') {
        const channel = new BroadcastChannel('nango-oauth-callback');
        channel.addEventListener('message', closeOnceHeard);
        channel.postMessage(told);
    }
    if (!failed) setTimeout(close, 500);
    const button = document.getElementById('close');
    button.addEventListener('click', close);
    button.hidden = false;
})();
