// Uses the forms and buttons of the dashboard in Chromium, as a person does: `node dashboard_actions.mjs '{"host": …,
// "link": …}'`. The host has the integration `hostile` with the connection `customer-1` and two dead letters. `link` is the
// one-time link of the first account.
//
// Fails if a button does not lead to the expected text, or a page has an error.

import assert from 'node:assert/strict';
import { launch } from './browser.mjs';

const { host, link } = JSON.parse(process.argv[2]);
const environment = `${host}/dashboard/environments/dev`;
const password = 'correct horse battery staple';

const browser = await launch();
const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: 'reduce' });
const page = await context.newPage();
page.setDefaultTimeout(20_000);
const problems = [];
page.on('pageerror', (error) => problems.push(error.stack));
page.on('dialog', (dialog) => dialog.accept());
const main = page.locator('main');

try {
    await account();
    await environmentsAndKeys();
    await settings();
    await integrations();
    await syncs();
    await actions();
    await deadLetters();
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
    await fill({ 'New password': password });
    await press('Choose a password', 'Overview');
    await menu('Sign out');
    await fill({ 'Email address': 'ada@example.com', Password: 'wrong password' });
    await press('Sign in', 'wrong');
    await fill({ Password: password });
    await press('Sign in', 'Overview');
    await page.goto(`${host}/dashboard/profile`);
    await fill({ 'Current password': password, 'New password': `${password}!` });
    await press('Change the password', 'The password was changed');
}

async function environmentsAndKeys() {
    await page.goto(`${host}/dashboard/environments`);
    await fill({ Name: 'staging' });
    await press('Create the environment', 'The environment staging was created');
    await page.goto(`${host}/dashboard/environments`);
    await pressIn(row('staging'), 'Delete', 'The environment staging was deleted');

    await page.goto(`${environment}/keys`);
    await fill({ Name: 'backend' });
    await press('Create the key', 'The key was created');
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

async function syncs() {
    await page.goto(`${environment}/syncs`);
    await main.getByRole('link', { name: 'commit-raw' }).first().click();
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

async function actions() {
    await page.goto(`${environment}/actions/hostile/fail?mode=json`);
    await fill({ Connection: 'customer-1', 'Input as JSON; leave it empty for no input': '{"code": 7, "message": ""}' });
    await press('Run the action', 'expected string, got integer');
    await page.goto(`${environment}/actions/hostile/fail`);
    await fill({ Connection: 'customer-1', code: 'permanent', message: 'planted message' });
    await main.getByLabel('Run in the background').check();
    await press('Run the action', 'planted message');
}

async function deadLetters() {
    await page.goto(`${environment}/dead-letters`);
    await pressIn(main.locator('tbody tr').first(), 'Discard', 'The dead letter was discarded');
    await main.locator('tbody tr').first().getByRole('button', { name: 'Replay' }).click();
    await page.getByText('still does not match').waitFor();
}

async function connections() {
    await page.goto(`${environment}/integrations/hostile`);
    const [popup] = await Promise.all([
        context.waitForEvent('page'),
        main.getByRole('button', { name: 'Connect a test account' }).click(),
    ]);
    await popup.getByRole('button', { name: 'Connect' }).click();
    await popup.getByText('is connected').waitFor();
    await popup.close();
    await page.goto(`${environment}/connections/hostile/customer-1`);
    await press('Show the credentials', 'Back to the connection');
    await page.getByRole('link', { name: 'Back to the connection' }).click();
    await fill({ Metadata: '{"plan":"pro"}' });
    await press('Replace the metadata', 'The metadata was replaced');
    await press('Delete the connection', 'The connection customer-1 was deleted');
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
    const [download] = await Promise.all([page.waitForEvent('download'), main.getByRole('link', { name: /Export/ }).click()]);
    assert.equal(await download.failure(), null);
    await choose('Action', 'account.created');
    await main.getByRole('button', { name: 'Apply' }).click();
    await page.waitForURL(/action=account\.created/);
    await row('grace@example.com').waitFor();
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
