// Opens the API reference of a host in Chromium and checks the page:
// `node api_reference.mjs '{"host": …, "screenshots": …}'`.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { launch } from './browser.mjs';

const { host, screenshots } = JSON.parse(process.argv[2]);
const screens = { desktop: { width: 1280, height: 900 }, phone: { width: 390, height: 844 } };

const browser = await launch();
try {
    for (const [screen, viewport] of Object.entries(screens)) {
        for (const colorScheme of ['light', 'dark']) {
            await check(screen, viewport, colorScheme);
        }
    }
} finally {
    await browser.close();
}

async function check(screen, viewport, colorScheme) {
    const context = await browser.newContext({ viewport, colorScheme, reducedMotion: 'reduce' });
    const page = await context.newPage();
    const problems = [];
    page.on('pageerror', (error) => problems.push(error.stack));
    page.on('console', (message) => message.type() === 'error' && problems.push(message.text()));
    page.on('request', (request) => {
        const url = request.url();
        if (!url.startsWith(host) && !/^(data|blob):/.test(url)) problems.push(`a request left the host: ${url}`);
    });
    await page.goto(`${host}/docs`);
    await page.getByText('/records/changes').filter({ visible: true }).first().waitFor();
    const background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const [red] = background.match(/\d+/g).map(Number);
    assert.equal(red < 128, colorScheme === 'dark', `the background is ${background} in the ${colorScheme} scheme`);
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    assert.ok(overflow <= 0, `the page is ${overflow} px too wide on a ${screen}`);
    // The text gets the colours of the scheme a moment after the background.
    await page.waitForFunction((isDark) => {
        const paragraph = [...document.querySelectorAll('p')].find((p) => p.textContent.startsWith('Syncline connects'));
        return paragraph && Number(getComputedStyle(paragraph).color.match(/\d+/)[0]) > 128 === isDark;
    }, colorScheme === 'dark');
    if (screenshots) await page.screenshot({ path: join(screenshots, `api-reference-${screen}-${colorScheme}.png`) });
    assert.deepEqual(problems, [], `${screen}, ${colorScheme}`);
    await context.close();
}
