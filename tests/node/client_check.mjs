// Uses the published Node client with a host, as a customer's backend does. Expects an environment with the example
// `minimal` and one connection `customer-1`, whose sync has saved 10 numbers. Every method of the client is either
// called here or listed with the reason why not. A new method fails the check.

import assert from 'node:assert/strict';
import { Nango } from '@nangohq/node';

const host = process.env.CHECK_HOST;
const client = new Nango({ host, secretKey: process.env.CHECK_KEY });
const [key, id] = ['minimal', 'customer-1'];
const called = new Set();

/** Calls a method and records its name. */
async function call(method, ...args) {
    called.add(method);
    return await client[method](...args);
}

/** The status and code of the error that a call returns. */
async function refusal(method, ...args) {
    try {
        await call(method, ...args);
    } catch (error) {
        return [error.response?.status, error.response?.data?.error?.code];
    }
    assert.fail(`${method} was not rejected`);
}

async function eventually(what, look) {
    for (let tries = 0; tries < 300; tries += 1) {
        const seen = await look();
        if (seen) return seen;
        await new Promise((done) => setTimeout(done, 100));
    }
    assert.fail(`not true in time: ${what}`);
}

const secret = { type: 'OAUTH2', client_id: 'id', client_secret: 'secret', scopes: 'a,b' };

const subjects = {
    async providers() {
        const { data } = await call('listProviders', { search: 'hubspot' });
        assert.ok(data.some((provider) => provider.name === 'hubspot' && provider.auth_mode === 'OAUTH2'));
        const one = await call('getProvider', { provider: 'hubspot' });
        assert.equal(one.data.display_name, 'HubSpot');
        const logo = await fetch(one.data.logo_url);
        assert.equal(logo.headers.get('content-type'), 'image/svg+xml');
        assert.deepEqual(await call('getProviderTemplates', { provider: 'hubspot' }), { data: [] });
        assert.deepEqual(await refusal('getProvider', { provider: 'acme' }), [404, 'unknown_provider']);
    },

    async integrations() {
        const made = await call('createIntegration', {
            provider: 'hubspot', unique_key: 'crm', display_name: 'CRM', credentials: secret,
        });
        assert.equal(made.data.unique_key, 'crm');
        const { configs } = await call('listIntegrations');
        assert.deepEqual(configs.map((one) => one.unique_key).sort(), ['crm', key]);
        const shown = await call('getIntegration', { uniqueKey: 'crm' }, { include: ['webhook', 'credentials'] });
        assert.deepEqual(shown.data.credentials, { ...secret, client_secret: '********', webhook_secret: null });
        const patched = await call('updateIntegration', { uniqueKey: 'crm' }, { unique_key: 'crm 2' });
        assert.equal(patched.data.unique_key, 'crm 2');
        const deleted = await call('deleteIntegration', 'crm 2');
        assert.deepEqual(deleted.data, { success: true });
        const quickstart = { provider: 'hubspot', unique_key: 'q' };
        assert.deepEqual(await refusal('createQuickstartIntegration', quickstart), [501, 'not_implemented']);
    },

    async functions() {
        const { data, pagination } = await call('listFunctions', { uniqueKey: key });
        assert.deepEqual(data.map((one) => [one.name, one.type]), [['echo', 'action'], ['numbers', 'sync']]);
        assert.deepEqual(pagination, { total: 2, page: 0, limit: 20 });
        const one = await call('getFunction', { uniqueKey: key, name: 'numbers' });
        assert.deepEqual([one.data.runs, one.data.returns], ['every 1 hour', ['Number']]);
        const code = { uniqueKey: key, name: 'numbers', type: 'sync' };
        assert.deepEqual(await refusal('getFunctionCode', code), [501, 'not_implemented']);
        assert.deepEqual(await refusal('deleteFunction', code), [501, 'not_implemented']);
        const [config] = await call('getScriptsConfig');
        assert.equal(config.providerConfigKey, key);
        assert.deepEqual([config.syncs[0].name, config.actions[0].name], ['numbers', 'echo']);
        const tools = await call('getScriptsConfig', 'openai');
        assert.deepEqual(tools.data.map((tool) => tool.name), ['echo']);
    },

    async connections() {
        const { connections } = await call('listConnections', { connectionId: id });
        assert.deepEqual(connections.map((one) => one.provider_config_key), [key]);
        const older = await call('listConnections', undefined, 'CUSTOMER');
        assert.deepEqual(older.connections.map((one) => one.connection_id), [id]);
        const shown = await call('getConnection', key, id, true, true, true);
        assert.deepEqual([shown.connection_id, shown.credentials], [id, { type: 'NONE' }]);
        assert.equal((await call('getConnectionDetails', { providerConfigKey: key, connectionId: id })).data.connection_id, id);
        assert.deepEqual(await call('getToken', key, id), { type: 'NONE' });
        assert.equal(await call('getRawTokenResponse', key, id), undefined);
        const patched = await call('patchConnection', { connectionId: id, provider_config_key: key }, {
            end_user: { id: 'u-7', email: 'ada@example.com' }, tags: { plan: 'pro' },
        });
        assert.deepEqual(patched, { success: true });
        const found = await call('listConnections', { userId: 'u-7', tags: { plan: 'pro' }, integrationId: [key] });
        assert.deepEqual(found.connections.map((one) => one.tags.end_user_email), ['ada@example.com']);
        const waited = await call('waitForConnection', key, 'u-7');
        assert.equal(waited.connection_id, id);
    },

    async metadata() {
        const before = await call('getMetadata', key, id);
        const set = await call('setMetadata', key, id, { count: 10, batch: 10, a: 1 });
        assert.deepEqual([set.status, set.data.metadata.a], [201, 1]);
        const merged = await call('updateMetadata', key, [id], { b: 2 });
        assert.deepEqual([merged.status, merged.data.connection_id], [200, [id]]);
        assert.deepEqual(await call('getMetadata', key, id), { ...before, a: 1, b: 2 });
        assert.deepEqual(await refusal('setMetadata', key, [id, 'nobody'], {}), [404, 'unknown_connection']);
    },

    async records() {
        const first = await call('listRecords', { providerConfigKey: key, connectionId: id, model: 'Number', limit: 7 });
        const next = { providerConfigKey: key, connectionId: id, model: 'Number', cursor: first.next_cursor };
        const second = await call('listRecords', next);
        assert.deepEqual([first.records.length, second.records.length, second.next_cursor], [7, 3, null]);
        const { cursor } = first.records[1]._service_metadata;
        const pruned = await call('pruneRecords', {
            providerConfigKey: key, connectionId: id, model: 'Number', untilCursor: cursor,
        });
        assert.equal(pruned.count, 2);
    },

    async syncs() {
        await call('pauseSync', key, ['numbers'], id);
        const { syncs } = await call('syncStatus', key, '*', id);
        assert.deepEqual(syncs.map((sync) => [sync.name, sync.status]), [['numbers', 'PAUSED']]);
        await call('startSync', key, ['numbers'], id);
        await call('triggerSync', key, ['numbers'], id, { reset: true });
        await eventually('the sync has run', async () => {
            const status = await call('syncStatus', key, ['numbers'], id);
            return status.syncs[0].status === 'SUCCESS';
        });
    },

    async variants() {
        const changed = await call('updateSyncConnectionFrequency', key, 'numbers', id, 'every 2 hours');
        assert.deepEqual(changed, { frequency: 'every 2 hours' });
        const reverted = await call('updateSyncConnectionFrequency', key, 'numbers', id, null);
        assert.deepEqual(reverted, { frequency: 'every 1 hour' });
        const variant = { provider_config_key: key, connection_id: id, name: 'numbers', variant: 'second' };
        const made = await call('createSyncVariant', variant);
        assert.deepEqual([made.name, made.variant], ['numbers', 'second']);
        await call('deleteSyncVariant', variant);
        assert.equal((await refusal('deleteSyncVariant', variant))[0], 404);
    },

    async actions() {
        assert.deepEqual(await call('triggerAction', key, id, 'echo', { a: [1] }), { a: [1] });
        assert.deepEqual(await refusal('triggerAction', key, id, 'dance'), [404, 'unknown_action']);
        const job = await call('triggerActionAsync', key, id, 'echo', { a: [2] });
        const result = await eventually('the action has a result', async () => {
            try {
                return { value: await call('getAsyncActionResult', job) };
            } catch (error) {
                assert.equal(error.response?.data?.error?.code, 'action_not_finished');
            }
        });
        assert.deepEqual(result, { value: { a: [2] } });
        const unknown = { id: '00000000-0000-4000-8000-000000000000' };
        assert.deepEqual(await refusal('getAsyncActionResult', unknown), [404, 'unknown_job']);
    },

    async variables() {
        const variables = await call('getEnvironmentVariables');
        assert.deepEqual(variables, [{ name: 'COLOUR', value: 'green' }]);
    },

    async sessions() {
        const session = await call('createConnectSession', { end_user: { id: 'u-8' }, allowed_integrations: [key] });
        const answer = await fetch(`${host}/integrations`, {
            headers: { Authorization: `Bearer ${session.data.token}` },
        });
        const { data } = await answer.json();
        assert.deepEqual(data.map((one) => one.unique_key), [key]);
        const again = await call('createReconnectSession', { connection_id: id, integration_id: key });
        assert.equal(new URL(again.data.connect_link).searchParams.get('session_token'), again.data.token);
    },

    async deletion() {
        assert.equal((await call('deleteConnection', key, id)).status, 200);
        assert.deepEqual(await refusal('getConnection', key, id), [404, 'unknown_connection']);
        assert.deepEqual(await refusal('deleteConnection', key, id), [404, 'unknown_connection']);
    },
};

/** Methods that `proxy_client.mjs` calls. */
const proxied = ['proxy', 'get', 'post', 'put', 'patch', 'delete'];

/** Methods that send no request, and internal ones that the others use. */
const local = [
    'constructor', '_triggerAction', '_verifyWebhookSignatureImpl', 'enrichHeaders', 'verifyWebhookSignature',
    'verifyIncomingWebhookRequest',
];

for (const [name, check] of Object.entries(subjects)) {
    try {
        await check();
    } catch (error) {
        console.error(`${name}: ${error.response ? JSON.stringify(error.response.data) : error.stack}`);
        process.exitCode = 1;
    }
}
const unchecked = Object.getOwnPropertyNames(Nango.prototype).filter((name) => ![...called, ...local, ...proxied].includes(name));
assert.deepEqual(unchecked, [], 'methods of the client that are never called');
console.log(`${called.size} methods work`);
