// Reports the outcome to the window that opened this one. Published clients expect these names. The message contains
// no secrets, so a window of any origin can read it.
(() => {
    const { code, message } = document.body.dataset;
    const failed = code !== undefined;
    const outcome = failed
        ? { type: 'nango_oauth_callback_error', payload: { message, errorType: code } }
        : { type: 'nango_oauth_callback_success' };
    const close = () => window.close();
    const closeOnAcknowledgement = (event) => {
        if (event.data && event.data.type === 'nango_oauth_callback_ack') close();
    };
    if (window.opener) {
        window.addEventListener('message', (event) => {
            if (event.source === window.opener) closeOnAcknowledgement(event);
        });
        window.opener.postMessage(outcome, '*');
    }
    // A provider's page can remove the reference to the opener. Pages of this host receive the outcome here instead.
    if (typeof BroadcastChannel === 'function') {
        const channel = new BroadcastChannel('nango-oauth-callback');
        channel.addEventListener('message', closeOnAcknowledgement);
        channel.postMessage(outcome);
    }
    if (!failed) setTimeout(close, 500);
    const button = document.getElementById('close');
    button.addEventListener('click', close);
    button.hidden = false;
})();
