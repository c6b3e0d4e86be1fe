// Calls a provider through a host with the published client, and prints the results as JSON.
//
//     node proxy_client.mjs HOST KEY CONNECTION INTEGRATION OVERRIDE

import { Nango as Client } from '@nangohq/node';

const [host, secretKey, connectionId, providerConfigKey, override] = process.argv.slice(2);
const client = new Client({ host, secretKey, connectionId, providerConfigKey });

const answered = {};
const called = { endpoint: '/v1/things', params: { a: 'b c' }, headers: { 'X-Tenant': 't1' } };
for (const method of ['get', 'post', 'put', 'patch', 'delete']) {
    const data = method === 'get' ? undefined : { sent: method };
    const answer = await client[method]({ ...called, data, retries: 1 });
    answered[method] = { status: answer.status, proxied: answer.headers['syncline-proxied'], ...answer.data };
}

const text = await client.proxy({ endpoint: 'v1/text?x=%2F', params: undefined, method: 'POST', data: 'a=1', headers: { 'Content-Type': 'application/x-www-form-urlencoded' } });
answered.form = text.data;

const moved = await client.get({ endpoint: '/v1', baseUrlOverride: override, decompress: true, retryOn: [404], forwardHeadersOnRedirect: false });
answered.moved = moved.data;

const stream = await client.get({ endpoint: '/v1/stream', responseType: 'stream' });
let streamed = '';
for await (const part of stream.data) streamed += part;
answered.stream = JSON.parse(streamed);

const failed = async (config) => {
    try {
        await client.get(config);
    } catch (error) {
        const { status, data, headers } = error.response;
        return { status, code: data.error?.code ?? data, proxied: headers['syncline-proxied'] ?? null };
    }
    throw new Error('it did not fail');
};
answered.ofProvider = await failed({ endpoint: '/flaky?418' });
answered.unknown = await failed({ endpoint: '/v1', connectionId: 'nobody' });
answered.climbing = await failed({ endpoint: '/..%2fv1' });

console.log(JSON.stringify(answered));
