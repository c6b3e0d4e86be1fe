// Support for the scenarios: a browser, connect sessions, a customer's page that embeds the Connect UI, and checks
// that apply to every state.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { chromium } from 'playwright-core';

const require = createRequire(import.meta.url);
const AXE = await readFile(require.resolve('axe-core/axe.min.js'), 'utf8');
const CLIENT = new URL('../node_modules/@nangohq/frontend/dist/', import.meta.url);

const ARGUMENTS = [
    '--no-sandbox',
    '--disable-gpu',
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
];

export class Stage {
    /** `options`: `host` and `secretKey` of the API, and `screenshots`, a folder for them. */
    static async start(options) {
        const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ARGUMENTS });
        const customer = await CustomerSite.start(options.host);
        return new Stage(options, browser, customer);
    }

    constructor({ host, secretKey, screenshots }, browser, customer) {
        Object.assign(this, { host, secretKey, screenshots, browser, customer });
    }

    async stop() {
        await this.browser.close();
        this.customer.stop();
    }

    /** Sends a request with the secret key, and returns the response. */
    async api(method, path, body) {
        const headers = { Authorization: `Bearer ${this.secretKey}`, 'Content-Type': 'application/json' };
        const response = await fetch(this.host + path, { method, headers, body: body && JSON.stringify(body) });
        const text = await response.text();
        assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
        return text && JSON.parse(text);
    }

    /** `{token, connect_link}` of a new session. */
    async session(body = {}) {
        return (await this.api('POST', '/connect/sessions', { tags: {}, ...body })).data;
    }

    /** A page in a new browser context. Its errors are collected in `page.mishaps`. */
    async page({ width = 900, height = 760, theme = 'light', locale = 'en-GB' } = {}) {
        const viewport = { width, height };
        const context = await this.browser.newContext({ viewport, colorScheme: theme, locale, reducedMotion: 'reduce' });
        const page = await context.newPage();
        page.mishaps = [];
        page.on('pageerror', (error) => page.mishaps.push(error.stack));
        page.on('console', (message) => {
            if (/Content Security Policy|TrustedHTML/.test(message.text())) page.mishaps.push(message.text());
        });
        return page;
    }

    /** The Connect UI as a plain link, with a new session. */
    async open(body, { query = '', ...look } = {}) {
        const page = await this.page(look);
        const { connect_link: link } = await this.session(body);
        await page.goto(link + query);
        return page;
    }

    /** Checks the rules for every state, and takes a screenshot. */
    async inspect(page, name, frame = page) {
        assert.deepEqual(page.mishaps, [], 'the page reports no errors');
        const overflow = await frame.evaluate(() => {
            const panel = document.getElementById('panel');
            return Math.max(panel.scrollWidth - panel.clientWidth, document.documentElement.scrollWidth - innerWidth);
        });
        assert.ok(overflow <= 0, `${name} scrolls sideways by ${overflow}`);
        const focused = await frame.evaluate(() => document.activeElement.tagName);
        assert.notEqual(focused, 'BODY', `${name} lost the focus`);
        await frame.evaluate(AXE);
        const { violations } = await frame.evaluate(() =>
            axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] }),
        );
        const found = violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => node.html)}`);
        assert.deepEqual(found, [], `${name} is accessible`);
        if (this.screenshots) await page.screenshot({ path: join(this.screenshots, `${name}.png`), scale: 'css' });
    }
}

/** Another website, which embeds the Connect UI. */
class CustomerSite {
    static async start(host) {
        const site = new CustomerSite();
        site.server = createServer((request, response) => site.#answer(request, response, host));
        await new Promise((resolve) => site.server.listen(0, '127.0.0.1', resolve));
        site.url = `http://127.0.0.1:${site.server.address().port}`;
        return site;
    }

    stop() {
        this.server.close();
        this.server.closeAllConnections();
    }

    async #answer(request, response, host) {
        const { pathname } = new URL(request.url, 'http://customer');
        const send = (type, body) => response.writeHead(200, { 'Content-Type': type }).end(body);
        if (pathname.startsWith('/client/')) {
            // The published client, unmodified.
            return send('text/javascript', await readFile(new URL(pathname.slice('/client/'.length), CLIENT)));
        }
        if (pathname === '/with-client') return send('text/html', page(withClient(host)));
        if (pathname === '/with-connect-js') return send('text/html', page(withConnectJs(host)));
        response.writeHead(404).end();
    }
}

const page = (script) => `<!doctype html>
<html lang="en">
    <title>A customer's page</title>
    <h1>Settings</h1>
    <button id="open">Connect an account</button>
    ${script}
</html>`;

const withClient = (host) => `<script type="module">
    import Nango from '/client/index.js';
    window.events = [];
    window.openConnect = (sessionToken) => {
        const client = new Nango({ host: '${host}' });
        window.ui = client.openConnectUI({
            baseURL: '${host}/connect',
            apiURL: '${host}',
            sessionToken,
            onEvent: (event) => window.events.push(event),
        });
    };
</script>`;

const withConnectJs = (host) => `<script src="${host}/connect/connect.js"></script>
<script>
    window.events = [];
    window.openConnect = (sessionToken) => {
        document.getElementById('open').focus();
        window.ui = Syncline.connect({ sessionToken, onEvent: (event) => window.events.push(event) });
    };
</script>`;
