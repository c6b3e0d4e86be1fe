// The published frontend client, in a simulated browser.
//
//     node --experimental-websocket frontend_auth.mjs HOST SESSION_TOKEN INTEGRATION
//
// Prints `open URL` when the client opens a URL in its window, and then `connected JSON` or `failed JSON`.
const [host, connectSessionToken, integration] = process.argv.slice(2);

globalThis.window = {
    screen: { width: 1280, height: 720 },
    open: () => ({
        closed: false,
        set location(url) {
            console.log(`open ${url}`);
        },
        close() {
            this.closed = true;
        },
    }),
};
const { default: Nango } = await import('@nangohq/frontend');
const client = new Nango({ host, connectSessionToken });
try {
    console.log(`connected ${JSON.stringify(await client.auth(integration))}`);
} catch (error) {
    console.log(`failed ${JSON.stringify({ type: error.type, message: error.message })}`);
}
process.exit(0);
