// Presses buttons of the dashboard in Chromium: `node dashboard_buttons.mjs '{"host": …, "link": …, "steps": [{"page":
// …, "options": {…}, "button": …, "expected": …}]}'`. `link` is the one-time link of an account. `options` are chosen in the
// fields with these labels before the button is pressed.
//
// Fails if a button does not lead to the expected text, or a page has an error.

import assert from 'node:assert/strict';
import { launch } from './browser.mjs';

const { host, link, steps } = JSON.parse(process.argv[2]);

const browser = await launch();
const page = await browser.newPage({ viewport: { width: 1280, height: 900 }, reducedMotion: 'reduce' });
page.setDefaultTimeout(20_000);
const problems = [];
page.on('pageerror', (error) => problems.push(error.stack));
page.on('dialog', (dialog) => dialog.accept());
const main = page.locator('main');

try {
    await page.goto(`${host}/dashboard/link${new URL(link).search}`);
    await main.getByLabel('New password').fill('correct horse battery staple');
    await main.getByRole('button', { name: 'Choose a password' }).click();
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    for (const step of steps) await press(step);
} finally {
    await browser.close();
}
assert.deepEqual(problems, []);

async function press({ page: path, options, button, expected }) {
    await page.goto(`${host}${path}`);
    assert.equal(await main.getByText(expected).count(), 0, `"${expected}" is shown before "${button}" is pressed`);
    for (const [label, option] of Object.entries(options ?? {})) {
        const named = page.locator('.label', { hasText: new RegExp(`^${label}$`) });
        // Filters of a list can have the same labels as the form below it.
        await main.locator('form[method=post] label', { has: named }).locator('select').selectOption(option);
    }
    await main.getByRole('button', { name: button, exact: true }).click();
    try {
        await main.getByText(expected).first().waitFor();
    } catch {
        assert.fail(`"${button}" did not lead to "${expected}" but to ${page.url()}:\n${await main.innerText()}`);
    }
}
