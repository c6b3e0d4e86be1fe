// What end users do in the Connect UI, in a browser, with a real host and real providers.
//
// The host has the integrations `stripe` (whose API is localstripe), `desk` (which asks for a subdomain, an email
// address and a token), `open` (which asks for nothing) and `fill-1` to `fill-4`. Or it has only `crm`, with a
// certified OAuth server.

import assert from 'node:assert/strict';

const connect = (page) => page.getByRole('button', { name: 'Connect', exact: true });
const heading = (page, name) => page.getByRole('heading', { level: 1, name }).waitFor();
const onlyStripe = { allowed_integrations: ['stripe'] };

/** Picks an integration from the list. */
async function choose(page, name) {
    await page.getByRole('button', { name }).click();
}

/** An API key that the provider rejects, and then one that it accepts. */
export async function an_api_key_is_typed_and_checked(stage, { shopKey }) {
    const page = await stage.open({ end_user: { id: 'u-typed', email: 'ada@example.com' }, tags: { Plan: 'pro' } });
    await heading(page, 'Connect your account');
    assert.ok(!page.url().includes('session_token'), 'the token is removed from the address');
    await page.getByRole('searchbox').fill('strip');
    assert.equal(await page.locator('.entry:visible').count(), 1);
    await choose(page, 'Stripe');
    await heading(page, 'Connect Stripe');
    await page.getByLabel('API key', { exact: true }).fill('no-key-of-this-shop');
    await connect(page).click();
    await page.getByRole('alert').getByText('Stripe was not connected').waitFor();
    await page.getByLabel('API key', { exact: true }).fill(shopKey);
    await connect(page).click();
    await heading(page, 'Stripe is connected');
    assert.deepEqual(page.mishaps, []);

    const { connections } = await stage.api('GET', '/connections?endUserId=u-typed');
    assert.equal(connections.length, 1);
    assert.equal(connections[0].provider_config_key, 'stripe');
    assert.equal(connections[0].tags.plan, 'pro');
    const path = `/connections/${connections[0].connection_id}?provider_config_key=stripe`;
    assert.deepEqual((await stage.api('GET', path)).credentials, { type: 'BASIC', username: shopKey, password: '' });
}

/** Values are checked before a request is sent, and each mistake is shown at its field. */
export async function mistakes_are_shown_at_their_fields(stage) {
    const page = await stage.open({ allowed_integrations: ['desk'] });
    await heading(page, 'Connect Zendesk');
    const requests = [];
    page.on('request', (request) => request.method() === 'POST' && requests.push(request.url()));
    await connect(page).click();
    await page.getByText('Zendesk subdomain is required.').waitFor();
    const subdomain = page.getByLabel('Zendesk subdomain');
    assert.ok(await subdomain.evaluate((input) => input === document.activeElement), 'the first invalid field has the focus');
    assert.equal(await subdomain.getAttribute('aria-invalid'), 'true');
    await subdomain.fill('not a name');
    await page.getByText('It should look like acme').waitFor();
    // The subdomain is extracted from a pasted URL.
    await subdomain.fill('https://acme.zendesk.com/');
    await page.getByText('It should look like acme').waitFor({ state: 'detached' });
    await page.getByLabel('Email address').fill('nobody');
    await page.getByText('It should look like agent@example.com').waitFor();
    assert.deepEqual(requests.filter((url) => !url.includes('telemetry')), []);

    const token = page.getByLabel('API token', { exact: true });
    await token.fill('secret');
    assert.equal(await token.getAttribute('type'), 'password');
    await page.getByRole('button', { name: 'Show API token' }).click();
    assert.equal(await token.getAttribute('type'), 'text');
}

/** Values that the backend has set are not asked for. An integration without fields is a single button. */
export async function predefined_values_are_not_asked_for(stage) {
    const settled = { desk: { connection_config: { subdomain: 'acme' } } };
    const page = await stage.open({ allowed_integrations: ['desk'], integrations_config_defaults: settled });
    await page.getByLabel('Email address').waitFor();
    assert.equal(await page.getByLabel('Zendesk subdomain').count(), 0);

    const open = await stage.open({ allowed_integrations: ['open'] });
    await connect(open).click();
    await heading(open, 'Unauthenticated is connected');
}

/** Keys are shown only for integrations whose display name is not unique. */
export async function integrations_with_the_same_name_show_their_keys(stage) {
    const page = await stage.open({});
    await heading(page, 'Connect your account');
    const keys = await page.locator('.entry-key').allTextContents();
    assert.deepEqual(keys.sort(), ['fill-1', 'fill-2', 'fill-3', 'fill-4']);
}

/** From the list to a connection without a pointer. */
export async function everything_works_with_the_keyboard(stage, { shopKey }) {
    const page = await stage.open({ allowed_integrations: ['stripe', 'open'] });
    await heading(page, 'Connect your account');
    await page.keyboard.press('Tab');
    await page.keyboard.press('Enter');
    await heading(page, 'Connect Stripe');
    const focused = () => page.evaluate(() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.id);
    await page.keyboard.press('Tab');
    assert.equal(await focused(), 'field-credentials-username');
    await page.keyboard.type(shopKey);
    await page.keyboard.press('Enter');
    await heading(page, 'Stripe is connected');
}

/** An unknown session, one that ends meanwhile, and a page without a session. */
export async function an_ended_session_shows_a_message(stage) {
    const unknown = await stage.page();
    await unknown.goto(`${stage.host}/connect/?session_token=nango_connect_session_${'0'.repeat(64)}`);
    await heading(unknown, 'This session has ended');

    const page = await stage.open(onlyStripe);
    await heading(page, 'Connect Stripe');
    const token = await page.evaluate(() => sessionStorage.getItem('syncline.session_token'));
    const headers = { Authorization: `Bearer ${token}` };
    assert.equal((await fetch(`${stage.host}/connect/session`, { method: 'DELETE', headers })).status, 204);
    await page.getByLabel('API key', { exact: true }).fill('any');
    await connect(page).click();
    await heading(page, 'This session has ended');

    const none = await stage.page();
    await none.goto(`${stage.host}/connect/`);
    await heading(none, 'The session is missing');
}

/** The page changes by itself when the session expires after half an hour. */
export async function an_expiring_session_updates_the_page(stage) {
    const page = await stage.page();
    await page.clock.install();
    await page.goto((await stage.session(onlyStripe)).connect_link);
    await heading(page, 'Connect Stripe');
    await page.clock.fastForward('30:05');
    await heading(page, 'This session has ended');
}

/** The published client opens the page, unmodified. */
export async function the_published_client_opens_the_page(stage, { shopKey }) {
    await embedded(stage, `${stage.customer.url}/with-client`, shopKey);
}

export async function connect_js_opens_the_page(stage, { shopKey }) {
    const page = await embedded(stage, `${stage.customer.url}/with-connect-js`, shopKey);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'open', 'the focus returns to its former element');
}

/** The browser denies storage, as it can to a frame of another site. */
export async function the_page_works_without_storage(stage, { shopKey }) {
    const deny = async (page) => {
        await page.addInitScript(() => {
            const get = () => {
                throw new DOMException('Access is denied for this document.', 'SecurityError');
            };
            Object.defineProperty(window, 'sessionStorage', { get });
        });
        return page;
    };
    await embedded(stage, `${stage.customer.url}/with-connect-js`, shopKey, await deny(await stage.page()));

    const page = await deny(await stage.page());
    await page.goto((await stage.session({ allowed_integrations: ['open'] })).connect_link);
    await connect(page).click();
    await heading(page, 'Unauthenticated is connected');
    await page.goto(`${stage.host}/connect/`);
    await heading(page, 'The session is missing');
    assert.deepEqual(page.mishaps, []);
}

async function embedded(stage, address, shopKey, page) {
    page ??= await stage.page();
    await page.goto(address);
    const { token } = await stage.session(onlyStripe);
    await page.evaluate((token) => window.openConnect(token), token);
    const frame = page.frameLocator('iframe');
    await frame.getByLabel('API key', { exact: true }).fill(shopKey);
    await frame.getByRole('button', { name: 'Connect', exact: true }).click();
    await frame.getByRole('heading', { name: 'Stripe is connected' }).waitFor();
    await stage.inspect(page, address.split('/').at(-1), page.frames()[1]);
    await frame.getByRole('button', { name: 'Done' }).click();
    await page.locator('iframe').waitFor({ state: 'detached' });

    const events = await page.evaluate(() => window.events);
    assert.deepEqual(events.map((event) => event.type), ['ready', 'connect', 'close']);
    const { connectionId, providerConfigKey } = events[1].payload;
    assert.equal(providerConfigKey, 'stripe');
    await stage.api('GET', `/connections/${connectionId}?provider_config_key=stripe`);

    // Escape, the button and a click outside of the panel close it.
    for (const leave of [
        () => page.keyboard.press('Escape'),
        () => frame.getByRole('button', { name: 'Close' }).click(),
        () => page.mouse.click(20, 20),
    ]) {
        await page.evaluate((token) => window.openConnect(token), token);
        await frame.getByRole('heading', { name: 'Connect Stripe' }).waitFor();
        await leave();
        await page.locator('iframe').waitFor({ state: 'detached' });
    }
    return page;
}

/** The embedding page provides no token. */
export async function a_frame_without_a_token_shows_an_error(stage) {
    const page = await stage.page();
    await page.clock.install();
    await page.goto(`${stage.customer.url}/with-client`);
    await page.evaluate(() => window.openConnect(undefined));
    const frame = page.frameLocator('iframe');
    await frame.getByRole('heading', { name: 'Loading' }).waitFor();
    await page.clock.fastForward('00:11');
    await frame.getByRole('heading', { name: 'The session is missing' }).waitFor();
    const types = (await page.evaluate(() => window.events)).map((event) => event.type);
    assert.deepEqual(types, ['ready', 'error']);
    // A late token is still accepted.
    const { token } = await stage.session(onlyStripe);
    await page.evaluate((token) => window.ui.setSessionToken(token), token);
    await frame.getByRole('heading', { name: 'Connect Stripe' }).waitFor();
}

/** A manipulated link cannot send the token to another server. */
export async function the_token_is_sent_only_to_the_api(stage) {
    const page = await stage.page();
    const asked = [];
    page.on('request', (request) => asked.push(new URL(request.url()).origin));
    const { connect_link: link } = await stage.session(onlyStripe);
    await page.goto(`${link}&apiURL=${encodeURIComponent(stage.customer.url)}`);
    await heading(page, 'Connect Stripe');
    assert.deepEqual([...new Set(asked)], [stage.host]);
    const sent = await page.evaluate(async (url) => {
        const sending = fetch(url, { mode: 'no-cors' });
        return sending.then(() => 'sent', () => 'refused');
    }, stage.customer.url);
    assert.equal(sent, 'refused', 'the policy allows the page to reach only the API');
}

/** The title and the color of the environment, readable with any color. */
export async function the_environment_sets_title_and_color(stage) {
    const look = (title, color) =>
        stage.api('PATCH', '/environment', { connect_ui_title: title, connect_ui_primary_color: color });
    for (const [color, theme] of [['#ffe600', 'light'], ['#1a1033', 'dark'], ['#808080', 'light']]) {
        await look('Acme & Sons <b>', color);
        const page = await stage.open({}, { theme });
        await heading(page, 'Acme & Sons <b>');
        await stage.inspect(page, `look-${color.slice(1)}`);
        await choose(page, 'Zendesk');
        await connect(page).click();
        await stage.inspect(page, `look-${color.slice(1)}-form`);
    }
    await look(null, null);
}

/** The languages that have a translation file. */
export async function the_page_uses_the_browsers_language(stage) {
    const german = await stage.open({}, { locale: 'de-AT' });
    await heading(german, 'Konto verbinden');
    assert.equal(await german.evaluate(() => document.documentElement.lang), 'de');
    const asked = await stage.open({}, { locale: 'de-AT', query: '&lang=fr' });
    await heading(asked, 'Connecter votre compte');
    const unknown = await stage.open({}, { locale: 'is-IS' });
    await heading(unknown, 'Connect your account');
}

/** Each state in both themes, and on a phone. */
export async function every_state_is_accessible(stage, { shopKey }) {
    const looks = [
        { suffix: 'light', theme: 'light' },
        { suffix: 'dark', theme: 'dark' },
        { suffix: 'phone', theme: 'light', width: 360, height: 740 },
    ];
    for (const { suffix, ...look } of looks) {
        const page = await stage.open({}, look);
        const inspect = (name) => stage.inspect(page, `${name}-${suffix}`);
        await heading(page, 'Connect your account');
        await inspect('list');
        await page.getByRole('searchbox').fill('no such thing');
        await inspect('nothing-found');
        await page.getByRole('button', { name: 'Clear' }).click();
        await choose(page, 'Zendesk');
        await heading(page, 'Connect Zendesk');
        await inspect('form');
        await connect(page).click();
        await inspect('mistakes');
        await page.getByRole('button', { name: 'Back' }).click();
        await choose(page, 'Stripe');
        await page.getByLabel('API key', { exact: true }).fill('no-key-of-this-shop');
        await connect(page).click();
        await page.getByRole('alert').getByText('was not connected').waitFor();
        await inspect('refused');
        await page.getByLabel('API key', { exact: true }).fill(shopKey);
        await connect(page).click();
        await heading(page, 'Stripe is connected');
        await inspect('success');
        await page.goto(`${stage.host}/connect/?session_token=nango_connect_session_${'0'.repeat(64)}`);
        await heading(page, 'This session has ended');
        await inspect('expired');
        await page.evaluate(() => sessionStorage.clear());
        await page.goto(`${stage.host}/connect/`);
        await heading(page, 'The session is missing');
        await inspect('no-token');
        await page.context().close();
    }
}

const crm = { allowed_integrations: ['crm'] };

/** Clicks a button that opens a popup, and returns the popup. */
async function openWindow(page, button) {
    const [popup] = await Promise.all([page.waitForEvent('popup'), button.click()]);
    return popup;
}

/** Signs in at the OAuth server, and gives or denies consent. */
async function answer(popup, name) {
    await popup.locator('input[name=login]').fill('ada');
    await popup.locator('input[name=password]').fill('any');
    await popup.getByRole('button', { name: 'Sign-in' }).click();
    await popup.getByText(name).click();
}

/** Sign-in and consent at a certified server. */
export async function consent_is_given_in_a_popup(stage) {
    for (const [theme, suffix] of [['light', 'light'], ['dark', 'dark']]) {
        const user = { id: `u-${theme}` };
        const page = await stage.open({ ...crm, end_user: user }, { theme });
        await heading(page, 'Connect Test OAuth');
        await page.getByText('offline_access').waitFor();
        await stage.inspect(page, `oauth-${suffix}`);
        const popup = await openWindow(page, connect(page));
        await heading(page, 'Continue in the other window');
        await stage.inspect(page, `waiting-${suffix}`);
        const closed = popup.waitForEvent('close');
        await answer(popup, 'Continue');
        await heading(page, 'Test OAuth is connected');
        await closed;
        const { connections } = await stage.api('GET', `/connections?endUserId=${user.id}`);
        assert.equal(connections.length, 1);
        assert.equal(connections[0].provider_config_key, 'crm');
    }
}

/** The end user denies consent, and then gives it. */
export async function consent_is_denied_in_a_popup(stage) {
    const page = await stage.open(crm);
    await answer(await openWindow(page, connect(page)), 'Cancel');
    await heading(page, 'Test OAuth was not connected');
    await page.getByText('Access was not allowed at Test OAuth.').waitFor();
    await stage.inspect(page, 'denied-light');
    await page.getByRole('button', { name: 'Try again' }).click();
    // The user is signed in by now, so the server asks only for consent.
    await (await openWindow(page, connect(page))).getByText('Continue').click();
    await heading(page, 'Test OAuth is connected');
}

/** The popup is closed too early. With `detectClosedAuthWindow`, the page reports it at once. */
export async function the_popup_is_closed_early(stage) {
    const page = await stage.open(crm);
    await (await openWindow(page, connect(page))).close();
    await heading(page, 'Is the window closed?');
    await stage.inspect(page, 'closed-light');
    const again = page.getByRole('button', { name: 'Open the window again' });
    await answer(await openWindow(page, again), 'Continue');
    await heading(page, 'Test OAuth is connected');

    const strict = await stage.open(crm, { query: '&detectClosedAuthWindow=true' });
    await (await openWindow(strict, connect(strict))).close();
    await heading(strict, 'Test OAuth was not connected');
    await strict.getByText('The window was closed before you were done.').waitFor();
}

/** The browser blocks the popup. */
export async function the_popup_is_blocked(stage) {
    const page = await stage.page();
    await page.addInitScript(() => {
        window.allow = window.open;
        window.open = () => null;
    });
    await page.goto((await stage.session(crm)).connect_link);
    await connect(page).click();
    await heading(page, 'Your browser blocked the window');
    await stage.inspect(page, 'blocked-light');
    await page.evaluate(() => (window.open = window.allow));
    const popup = await openWindow(page, page.getByRole('button', { name: 'Open the window' }));
    await answer(popup, 'Continue');
    await heading(page, 'Test OAuth is connected');
}

/** A connection is reconnected and keeps its id. */
export async function a_connection_is_reconnected(stage) {
    const first = await stage.open({ ...crm, end_user: { id: 'u-again' } });
    await answer(await openWindow(first, connect(first)), 'Continue');
    await heading(first, 'Test OAuth is connected');
    const find = async () => (await stage.api('GET', '/connections?endUserId=u-again')).connections;
    const [{ connection_id: id }] = await find();
    const body = { connection_id: id, integration_id: 'crm', tags: { round: '2' } };
    const { connect_link: link } = (await stage.api('POST', '/connect/sessions/reconnect', body)).data;
    const page = await stage.page();
    await page.goto(link);
    await heading(page, 'Reconnect Test OAuth');
    await answer(await openWindow(page, page.getByRole('button', { name: 'Reconnect' })), 'Continue');
    await heading(page, 'Test OAuth is connected');
    const after = await find();
    assert.deepEqual(after.map((connection) => [connection.connection_id, connection.tags.round]), [[id, '2']]);
}
