// Checks asynchronous actions with the published Node client, unmodified. CHECK_HOST and CHECK_KEY name the host and
// its key. The connection `customer-1` of the integration `hostile` must exist.
import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';

import { Nango } from '@nangohq/node';

const client = new Nango({ host: process.env.CHECK_HOST, secretKey: process.env.CHECK_KEY });

/** Polls until the action has finished, and returns its result or error. */
async function settled(job) {
    for (let tries = 0; tries < 100; tries++) {
        try {
            return { value: await client.getAsyncActionResult(job) };
        } catch (error) {
            if (error.response?.data?.error?.code !== 'action_not_finished') {
                return { status: error.response?.status, body: error.response?.data };
            }
        }
        await sleep(50);
    }
    throw new Error('the action does not finish');
}

const works = await client.triggerActionAsync('hostile', 'customer-1', 'big-output', 3);
assert.equal(works.statusUrl, `/action/${works.id}`);
assert.deepEqual(await settled({ id: works.id }), { value: 'xxx' });
assert.deepEqual(await settled({ statusUrl: works.statusUrl }), { value: 'xxx' });

const nothing = await client.triggerActionAsync('hostile', 'customer-1', 'print', 'x');
assert.deepEqual(await settled(nothing), { value: '' });

const fails = await client.triggerActionAsync('hostile', 'customer-1', 'fail', { code: 'no', message: 'not today' });
const failed = await settled(fails);
assert.equal(failed.status, 400);
assert.equal(failed.body.error.message, 'not today');

const unknown = await settled({ id: '0198c0de-0000-7000-8000-000000000000' });
assert.equal(unknown.status, 404);
assert.equal(unknown.body.error.code, 'unknown_job');
