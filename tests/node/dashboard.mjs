// Uses the dashboard of a host in Chromium: `node dashboard.mjs '{"host": …, "pages": …, "screenshots": …}'`.
//
// Opens each page on a desktop in light colours and on a phone in dark ones, and for screenshots also the other way round.
// A page is a path, or an object with `path` and some of these members:
//
// - `status`: the status of the response, if it is not 200.
// - `signed_out`: the page is opened by a person who is not signed in.
// - `fill` (`{name: value}`) and `button`: the page is the result of the form. `{view}` in a value becomes the name of the
//   screen and the colours, so that each value is used once.
// - `shows`: a text of the page.
//
// Fails if a page has an error, loads something from another server, moves its content while it loads, is too wide, is
// larger than 150 kB, or if axe finds a problem.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { launch } from './browser.mjs';

const { host, cookie, pages, screenshots } = JSON.parse(process.argv[2]);
const MAX_BYTES = 150_000;
/** The sum of layout shifts that https://web.dev/articles/cls calls good. */
const MAX_SHIFT = 0.1;
const screens = { desktop: { width: 1280, height: 900 }, phone: { width: 390, height: 844 } };
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

const failures = [];
const browser = await launch();
try {
    const views = [['desktop', 'light'], ['phone', 'dark'], ['desktop', 'dark'], ['phone', 'light']];
    for (const [screen, colorScheme] of screenshots ? views : views.slice(0, 2)) {
        await check(screen, screens[screen], colorScheme);
    }
} finally {
    await browser.close();
}
assert.equal(failures.length, 0, failures.join('\n'));

async function check(screen, viewport, colorScheme) {
    const open = () => browser.newContext({ viewport, colorScheme, reducedMotion: 'reduce', bypassCSP: false });
    const [signedIn, signedOut] = [await open(), await open()];
    const [name, value] = cookie.split('=');
    await signedIn.addCookies([{ name, value, url: `${host}/dashboard` }]);
    for (const [label, target] of Object.entries(pages)) {
        const { path, status = 200, signed_out: isSignedOut, fill, button, shows } =
            typeof target === 'string' ? { path: target } : target;
        const context = isSignedOut ? signedOut : signedIn;
        const page = await context.newPage();
        const where = `${label} (${path}), ${screen}, ${colorScheme}`;
        const problems = [];
        let bytes = 0;
        page.on('pageerror', (error) => problems.push(error.stack));
        page.on('console', (message) => {
            // The browser reports an error page itself as a file that it failed to load.
            const isStatus = status !== 200 && message.location().url === host + path;
            if (message.type() === 'error' && !isStatus) problems.push(message.text());
        });
        page.on('request', (request) => {
            if (!request.url().startsWith(host)) problems.push(`a request left the host: ${request.url()}`);
        });
        page.on('response', async (response) => {
            if (response.headers()['content-type'] === 'text/event-stream') return;
            bytes += (await response.body().catch(() => '')).length;
        });
        const expect = (condition, failure) => condition || failures.push(`${where}: ${failure}`);
        const response = await page.goto(host + path);
        expect(response.status() === status, `status ${response.status()}`);
        const shift = await page.evaluate(layoutShift);
        expect(shift < MAX_SHIFT, `the content moved by ${shift} while the page loaded`);
        for (const [name, value] of Object.entries(fill ?? {})) {
            await page.locator(`[name="${name}"]`).fill(value.replace('{view}', `${screen}-${colorScheme}`));
        }
        if (button) await page.getByRole('button', { name: button }).click();
        if (shows) await page.locator('main').getByText(shows).first().waitFor();
        expect((await page.locator('h1').count()) === 1, 'there must be one main heading');
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        expect(overflow <= 0, `${overflow} px too wide`);
        // Through the protocol of the browser, because the page's policy forbids scripts of others.
        const client = await context.newCDPSession(page);
        await client.send('Runtime.evaluate', { expression: axe });
        const checked = await client.send('Runtime.evaluate', {
            expression: "axe.run(document, { resultTypes: ['violations'] }).then((found) => JSON.stringify(found.violations.map((violation) => [violation.id, violation.help, violation.nodes.map((node) => node.html).slice(0, 3)])))",
            awaitPromise: true,
            returnByValue: true,
        });
        expect(checked.result.value === '[]', checked.result.value);
        expect(bytes < MAX_BYTES, `${bytes} bytes`);
        expect(problems.length === 0, problems.join('; '));
        if (screenshots) {
            const path = join(screenshots, `${label}-${screen}-${colorScheme}.jpg`);
            await page.screenshot({ path, type: 'jpeg', quality: 70 });
        }
        await page.close();
    }
    await signedIn.close();
    await signedOut.close();
}

/** The sum of the layout shifts so far. Runs in the page. */
function layoutShift() {
    return new Promise((resolve) => {
        let sum = 0;
        const add = (entries) => entries.forEach((entry) => (sum += entry.value));
        const observer = new PerformanceObserver((list) => add(list.getEntries()));
        observer.observe({ type: 'layout-shift', buffered: true });
        // The browser hands over earlier entries in a task of its own.
        requestAnimationFrame(() => setTimeout(() => resolve((add(observer.takeRecords()), sum)), 50));
    });
}
