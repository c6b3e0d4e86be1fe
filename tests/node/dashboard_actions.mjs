// Uses the forms, buttons and lists of the dashboard in Chromium, as a person does: `node dashboard_actions.mjs
// '{"host": …, "link": …}'`. `link` is the one-time link of the first account. The host has
//
// - the integration `hostile` with the connection `customer-1`, and with two versions,
// - the dead letters `bad` and `worse`, which match their model now, and `hopeless`, which does not,
// - more than 50 runs, one of which is of `log-flood`, and more than 50 connections, most of them of `crowd`.
//
// Fails if a button does not lead to the expected text, or a page has an error.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { launch } from './browser.mjs';

const { host, link } = JSON.parse(process.argv[2]);
const environment = `${host}/dashboard/environments/dev`;
const password = 'correct horse battery staple';

const browser = await launch();
const context = await browser.newContext({
    viewport: { width: 1280, height: 900 },
    reducedMotion: 'reduce',
    permissions: ['clipboard-read', 'clipboard-write'],
});
const page = await context.newPage();
page.setDefaultTimeout(20_000);
const problems = [];
page.on('pageerror', (error) => problems.push(error.stack));
page.on('dialog', (dialog) => dialog.accept());
const main = page.locator('main');

try {
    await account();
    await sessions();
    await environmentsAndKeys();
    await settings();
    await integrations();
    await deployments();
    await deadLetters();
    await syncs();
    await runs();
    await actions();
    await connections();
    await accounts();
    await audit();
    await menu('Sign out');
    await page.getByRole('heading', { name: 'Sign in' }).waitFor();
} finally {
    await browser.close();
}
assert.deepEqual(problems, []);

async function account() {
    await page.goto(`${host}/dashboard/link${new URL(link).search}`);
    await fill({ 'Your name': 'Ada', 'Email address': 'ada@example.com', 'New password': password });
    await press('Create the first account', 'Overview');
    await menu('Sign out');
    await fill({ 'Email address': 'ada@example.com', Password: 'wrong password' });
    await press('Sign in', 'wrong');
    await fill({ Password: password });
    await press('Sign in', 'Overview');
    await page.goto(`${host}/dashboard/profile`);
    await fill({ 'Current password': password, 'New password': `${password}!` });
    await press('Change the password', 'The password was changed');
}

async function sessions() {
    const other = await browser.newContext();
    const form = { email: 'ada@example.com', password: `${password}!` };
    await other.request.post(`${host}/dashboard/sign-in`, { form, maxRedirects: 0 });
    const visit = async () => (await other.request.get(`${host}/dashboard/profile`, { maxRedirects: 0 })).status();
    assert.equal(await visit(), 200);
    await page.goto(`${host}/dashboard/profile`);
    const others = main.locator('tbody tr').filter({ hasNotText: 'this browser' });
    await pressIn(others, 'Sign out', 'The browser was signed out');
    assert.equal(await visit(), 303, 'the other browser is sent to the sign-in page');
    await other.close();
}

async function environmentsAndKeys() {
    await page.goto(`${host}/dashboard/environments`);
    await fill({ Name: 'staging' });
    await press('Create the environment', 'The environment staging was created');
    await page.goto(`${environment}/keys`);
    await page.locator('.switcher > summary').click();
    await page.locator('.switcher').getByRole('link', { name: 'staging' }).click();
    await page.waitForURL(`${host}/dashboard/environments/staging/keys`);
    await page.goto(`${host}/dashboard/environments`);
    await pressIn(row('staging'), 'Delete', 'The environment staging was deleted');

    await page.goto(`${environment}/keys`);
    await fill({ Name: 'backend' });
    await press('Create the key', 'The key was created');
    const copy = main.getByRole('button', { name: 'Copy' }).first();
    const key = await copy.getAttribute('data-copy');
    await copy.click();
    await main.getByRole('button', { name: 'Copied' }).waitFor();
    assert.match(key, /^sk_/);
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), key);
    await page.getByRole('link', { name: 'Back to the keys' }).click();
    await pressIn(row('backend'), 'Revoke', 'The key was revoked');

    await page.goto(`${environment}/variables`);
    await fill({ Name: 'REGION', Value: 'eu-1' });
    await press('Set the variable', 'The variable REGION was set');
    assert(!(await main.innerText()).includes('eu-1'), 'values are hidden');
    await press('Show values', 'eu-1');
    await page.goto(`${environment}/variables`);
    await pressIn(row('REGION'), 'Delete', 'The variable REGION was deleted');
}

async function settings() {
    await page.goto(`${environment}/settings`);
    await preview();
    await fill({ 'Webhook URL': 'https://example.com/hook' });
    await press('Save the webhooks', 'The webhooks were saved');
    await fill({ 'Own callback URL': 'https://example.com/callback' });
    await press('Save the callback URL', 'The callback URL was saved');
    await press('Save the look', 'The look of the Connect UI was saved');
    await press('Restore the defaults', 'has its default look again');
    await press('Show the keys', 'Back to the settings');
    await page.goto(`${environment}/settings`);
    await press('Rotate the key', 'The key was rotated');
}

/** The preview shows the title that is typed, also after it was loaded again. */
async function preview() {
    const frame = page.frameLocator('iframe.preview');
    await frame.getByRole('heading', { name: 'Connect your account' }).waitFor();
    await fill({ Title: 'Join us' });
    const title = frame.getByRole('heading', { name: 'Join us' });
    await title.waitFor();
    await title.evaluate((heading) => heading.classList.add('old'));
    await main.getByRole('button', { name: 'Load the preview again' }).click();
    await frame.locator('h1:not(.old)', { hasText: 'Join us' }).waitFor();
}

async function integrations() {
    await page.goto(`${environment}/providers`);
    await fill({ Search: 'github' });
    await main.getByRole('button', { name: 'Apply' }).click();
    await main.getByRole('link', { name: 'GitHub', exact: true }).click();
    await fill({ Key: 'code', 'Client id': 'planted-id', 'Client secret': 'planted-secret' });
    await press('Create the integration', 'The integration code was created');
    await press('Show the credentials', 'Back to the integration');
    assert(!(await main.innerText()).includes('planted-secret'), 'the secret of an app is never shown');
    await page.getByRole('link', { name: 'Back to the integration' }).click();
    await main.locator('summary', { hasText: 'Replace' }).click();
    await fill({ 'Client secret': 'another-secret' });
    await press('Replace the credentials', 'The credentials were replaced');
    await fill({ Name: 'Our code' });
    await press('Save', 'The integration code was changed');
    await fill({ 'Type the key of the integration': 'code' });
    await press('Delete the integration', 'The integration code was deleted');
}

async function deployments() {
    await page.goto(`${environment}/deployments`);
    await main.getByRole('link', { name: 'Restore this version…' }).click();
    await page.getByRole('heading', { name: 'Restore version 1 of hostile' }).waitFor();
    await main.getByRole('link', { name: 'Cancel' }).click();
    await page.waitForURL(`${environment}/deployments`);
}

async function syncs() {
    await page.goto(`${environment}/syncs`);
    await main.getByRole('link', { name: 'commit-raw' }).first().click();
    await choose('Record', 'every_run');
    await press('Save', 'Every run is recorded');
    await press('Pause', 'The sync was paused');
    await press('Start', 'The sync was started');
    await press('Run now', 'A run was requested');
    await press('Run in full', 'A full run was requested');
    await press('Delete the records and run in full', 'The stored records are deleted when it begins');
    // The page follows the run without being loaded again.
    await main.getByText('running').first().waitFor({ state: 'detached' });
    await fill({ 'How often the sync runs for this connection': 'every 2 hours' });
    await press('Change the frequency', 'The sync now runs at the frequency “every 2 hours”');
    await press('Use the deployed frequency', 'The sync now runs at the frequency “every 1 hour”');
    await fill({ 'Name of the new variant': 'extra' });
    await press('Create the variant', 'The variant extra was created');
    await pressIn(row('extra'), 'Delete', 'The variant extra and its records were deleted');
}

async function runs() {
    // Only runs of the base variant are recorded.
    await page.goto(`${environment}/runs?variant=base`);
    await turnPages();
    await choose('State', 'success');
    await fill({ Function: 'commit-raw' });
    await apply({ state: 'success', function: 'commit-raw', variant: 'base' });
    await open('commit-raw', 'Run of commit-raw');
    const recording = await download(main.getByRole('link', { name: 'Download' }));
    assert.equal(JSON.parse(readFileSync(recording)).function, 'commit-raw');

    await page.goto(`${environment}/runs?function=log-flood`);
    await open('log-flood', 'Run of log-flood');
    await main.getByRole('link', { name: 'Older lines' }).click();
    await main.getByRole('link', { name: 'First page' }).waitFor();
    await choose('Level', 'error');
    await fill({ Text: 'nowhere' });
    await apply({ level: 'error', search: 'nowhere' });
    await main.getByText('No line matches').waitFor();
    await choose('Level', 'debug');
    await fill({ Text: '17 xxx' });
    await apply({ level: 'debug', search: '17 xxx' });
    const lines = await main.locator('table.log tr').allInnerTexts();
    assert(lines.length > 0 && lines.every((line) => line.includes('17 xxx')), lines.join('\n'));
}

async function actions() {
    await page.goto(`${environment}/actions/hostile/fail`);
    await main.getByRole('link', { name: 'JSON', exact: true }).click();
    await fill({ 'Input as JSON; leave it empty for no input': '{"code": 7, "message": ""}', Connection: 'customer-1' });
    await press('Run the action', 'expected string, got integer');
    await main.getByRole('link', { name: 'Form', exact: true }).click();
    await fill({ code: 'permanent', message: 'planted message', Connection: 'customer-1' });
    await main.getByLabel('Run in the background').check();
    await press('Run the action', 'planted message');
    await page.goto(`${environment}/actions/hostile/print`);
    await fill({ input: 'hello', Connection: 'customer-1' });
    await press('Run the action', 'The function returned nothing');
    await main.getByText('success', { exact: true }).waitFor();
}

async function deadLetters() {
    await page.goto(`${environment}/dead-letters`);
    await row('hopeless').getByRole('button', { name: 'Replay' }).click();
    await row('hopeless').getByText('still does not match').waitFor();
    await pressIn(row('hopeless'), 'Discard', 'The dead letter was discarded');
    await open('bad', 'bad');
    await press('Replay', 'The record was added');
    await open('worse', 'worse');
    await press('Discard', 'The dead letter was discarded');
    await main.getByText('There is no dead letter').waitFor();
}

async function connections() {
    await page.goto(`${environment}/connections`);
    await turnPages();
    await fill({ Search: 'SER-07' });
    await apply({ search: 'SER-07' });
    assert.equal(await main.locator('tbody tr').count(), 1);
    await row('user-07').waitFor();
    await fill({ Search: '' });
    await choose('Integration', 'hostile');
    await apply({ integration: 'hostile', search: '' });
    assert.equal(await main.locator('tbody tr').count(), 1);
    await connect('Connect a test account', 'hostile');
    await page.goto(`${environment}/integrations/hostile`);
    await connect('Connect a test account');

    await page.goto(`${environment}/connections/hostile/customer-1`);
    await connect('Reconnect');
    await press('Show the credentials', 'Back to the connection');
    await page.getByRole('link', { name: 'Back to the connection' }).click();
    await press('Refresh now', 'These credentials cannot be refreshed');
    await fill({ Metadata: '{"steps":3000,"pause_ms":5}' });
    await press('Replace the metadata', 'The metadata was replaced');
    await runInProgress();
    await page.goto(`${environment}/connections/hostile/customer-1`);
    await press('Delete the connection', 'The connection customer-1 was deleted');
}

/** The page of a run follows its progress without being loaded again. */
async function runInProgress() {
    await page.goto(`${environment}/syncs/hostile/customer-1/steps/base`);
    await press('Run now', 'A run was requested');
    await main.getByText('running', { exact: true }).first().waitFor();
    await page.goto(`${environment}/runs?state=running`);
    await open('steps', 'Run of steps');
    const fact = main.locator('.facts div', { has: page.locator('dt', { hasText: /^Progress$/ }) });
    const before = await fact.locator('dd').innerText();
    const later = fact.locator('dd', { hasNotText: new RegExp(`^${before}$`) });
    await later.waitFor();
    assert.match(await later.innerText(), /^[\d,]+ of 3,000$/);
}

async function accounts() {
    await page.goto(`${host}/dashboard/accounts`);
    await fill({ Name: 'Grace', 'Email address': 'grace@example.com' });
    await press('Create the invitation', 'Back to the accounts');
    await page.getByRole('link', { name: 'Back to the accounts' }).click();
    await row('grace@example.com').getByRole('combobox').selectOption('developer');
    await pressIn(row('grace@example.com'), 'Change', 'The role was changed');
    await pressIn(row('grace@example.com'), 'New password link', 'Back to the accounts');
    await page.getByRole('link', { name: 'Back to the accounts' }).click();
    await pressIn(row('grace@example.com'), 'Delete', 'The account was deleted');
}

async function audit() {
    await page.goto(`${host}/dashboard/audit-log`);
    await download(main.getByRole('link', { name: /Export/ }));
    await choose('Action', 'account.created');
    await apply({ action: 'account.created' });
    await row('grace@example.com').waitFor();
}

/** Presses a button that opens the Connect UI in a new tab, and connects an account there. */
async function connect(button, integration) {
    const pressed = main.getByRole('button', { name: `${button} in a new tab` });
    const [tab] = await Promise.all([context.waitForEvent('page'), pressed.click()]);
    if (integration) await tab.getByRole('button', { name: integration }).click();
    await tab.getByRole('button', { name: /^(Connect|Reconnect)$/ }).click();
    await tab.getByText('is connected').waitFor();
    await tab.close();
}

/** Opens the page of the first row with this text, and waits for its heading. */
async function open(text, heading) {
    await row(text).getByRole('link').first().click();
    await page.getByRole('heading', { level: 1, name: heading, exact: true }).waitFor();
}

/** Applies the filters of a list, which become this query. */
async function apply(query) {
    await main.getByRole('button', { name: 'Apply' }).click();
    await page.waitForURL(({ searchParams }) => {
        return Object.entries(query).every(([name, value]) => searchParams.get(name) === value);
    });
}

/** Opens the second page of a list, and the first one again. */
async function turnPages() {
    const first = () => main.locator('tbody tr a').first().getAttribute('href');
    const newest = await first();
    assert.equal(await main.locator('tbody tr').count(), 50);
    await main.getByRole('link', { name: 'Next page' }).click();
    await main.getByRole('link', { name: 'First page' }).waitFor();
    assert.notEqual(await first(), newest);
    await main.getByRole('link', { name: 'First page' }).click();
    await main.getByRole('link', { name: 'Next page' }).waitFor();
    assert.equal(await first(), newest);
}

/** Follows a link to a file. Returns the path of the downloaded file. */
async function download(link) {
    await link.waitFor().catch(async () => {
        assert.fail(`no link to a file at ${page.url()}:\n${await main.innerText()}`);
    });
    const [started] = await Promise.all([page.waitForEvent('download'), link.click()]);
    assert.equal(await started.failure(), null);
    return started.path();
}

/** The row of a table with this text. */
function row(text) {
    return main.locator('tbody tr').filter({ hasText: text }).first();
}

/** The field with this label. */
async function field(label) {
    const named = page.locator('.label', { hasText: new RegExp(`^${label}( optional)?$`) });
    const found = main.locator('label', { has: named }).locator('input, textarea, select').first();
    await found.waitFor().catch(async () => {
        assert.fail(`no field "${label}" at ${page.url()}:\n${await main.innerText()}`);
    });
    return found;
}

async function fill(fields) {
    for (const [label, value] of Object.entries(fields)) await (await field(label)).fill(value);
}

async function choose(label, option) {
    await (await field(label)).selectOption(option);
}

/** Presses a button of the page and waits for the text that it leads to. */
async function press(button, expected) {
    await pressIn(main, button, expected);
}

async function pressIn(place, button, expected) {
    assert.equal(await main.getByText(expected).count(), 0, `"${expected}" is shown before ${button} is pressed`);
    await place.getByRole('button', { name: button, exact: true }).first().click();
    try {
        await main.getByText(expected).first().waitFor();
        await page.waitForLoadState();
    } catch {
        assert.fail(`${button} did not lead to "${expected}" but to ${page.url()}:\n${await main.innerText()}`);
    }
}

async function menu(button) {
    await page.getByRole('button', { name: button }).first().click();
}
