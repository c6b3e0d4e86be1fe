// Uses the dashboard in Chromium on a phone without a pointer: `node dashboard_keyboard.mjs '{"host": …, "link": …}'`.
// `link` is the one-time link of an account.
//
// Fails if a control cannot be reached with the Tab key, if the focus cannot be seen, or if a page has an error.

import assert from 'node:assert/strict';
import { launch } from './browser.mjs';

const { host, link } = JSON.parse(process.argv[2]);
const password = 'correct horse battery staple';
/** More than the controls of any page here. */
const MAX_PRESSES = 100;

const browser = await launch();
const page = await browser.newPage({ viewport: { width: 390, height: 844 }, reducedMotion: 'reduce' });
page.setDefaultTimeout(20_000);
const problems = [];
page.on('pageerror', (error) => problems.push(error.stack));

try {
    await page.goto(`${host}/dashboard/link${new URL(link).search}`);
    await type('New password', password);
    await page.keyboard.press('Enter');
    await heading('Overview');

    await menu();
    await press('Sign out', 'Space');
    await heading('Sign in');
    await type('Email address', 'ada@example.com');
    await type('Password', password);
    await press('Sign in', 'Enter');
    await heading('Overview');

    // The skip link leads past the navigation.
    await press('Skip to the content', 'Enter');
    assert.equal(await page.evaluate(() => document.activeElement.id), 'content');

    await page.goto(`${host}/dashboard`);
    await menu();
    await page.keyboard.press('Escape');
    assert.equal((await focused()).name, 'Menu', 'the focus returns to the menu');
    await page.keyboard.press('Enter');
    await press('Secret keys', 'Enter');
    await heading('Secret keys');
    await type('Name', 'backend');
    await tabTo('The key allows');
    await page.keyboard.press('ArrowDown');
    await press('Create the key', 'Space');
    await heading('The key was created');
    await press('Back to the keys', 'Enter');
    await heading('Secret keys');
    // The arrow key chose the keys that only read.
    await page.locator('tbody tr', { hasText: 'backend' }).getByText('environment:logs:read').waitFor();
} finally {
    await browser.close();
}
assert.deepEqual(problems, []);

async function heading(name) {
    await page.getByRole('heading', { level: 1, name, exact: true }).waitFor();
    await page.waitForLoadState();
}

/** Opens the menu. Its links follow it in the order of focus. */
async function menu() {
    await press('Menu', 'Enter');
    await page.locator('details.menu[open]').waitFor();
}

/** Goes to a control and presses a key on it. */
async function press(name, key) {
    await tabTo(name);
    await page.keyboard.press(key);
}

async function type(field, text) {
    await tabTo(field);
    await page.keyboard.type(text);
}

/** Presses Tab until the control with this name has the focus. */
async function tabTo(name) {
    const passed = [];
    while (passed.length < MAX_PRESSES) {
        await page.keyboard.press('Tab');
        const found = await focused();
        assert(found.isVisible, `the focus is not visible on "${found.name}" at ${page.url()}`);
        if (found.name === name) return;
        passed.push(found.name);
    }
    assert.fail(`Tab did not reach "${name}" at ${page.url()}, only ${passed.join(', ')}`);
}

/** The control with the focus, and whether a person can see that it has it. */
async function focused() {
    return page.evaluate(() => {
        const element = document.activeElement;
        const { outlineStyle, outlineWidth } = getComputedStyle(element);
        const { width, height, top, bottom, left, right } = element.getBoundingClientRect();
        const isOnScreen = width > 0 && height > 0 && bottom > 0 && right > 0 && top < innerHeight && left < innerWidth;
        const label = element.labels?.[0]?.querySelector('.label') ?? element;
        return {
            name: (element.getAttribute('aria-label') ?? label.innerText).trim(),
            isVisible: isOnScreen && outlineStyle === 'solid' && parseFloat(outlineWidth) >= 2,
        };
    });
}
