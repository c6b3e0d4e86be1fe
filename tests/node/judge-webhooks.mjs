// Verifies webhooks with vendors' own libraries: webhooks that are signed as the vendor's documentation describes, and
// modified ones. Reads {"now"} (seconds since 1970) from standard input. Writes the secret of each vendor's integration
// and the tried webhooks: headers, body, and whether the library accepts them.
import { createHmac, generateKeyPairSync, sign } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { LinearWebhookClient } from '@linear/sdk/webhooks';
import { verifyWebhookSignature } from '@notionhq/client';
import sendgrid from '@sendgrid/eventwebhook';
import discord from 'discord-interactions';
import * as gocardless from 'gocardless-nodejs/webhooks';
import razorpay from 'razorpay';

const { now } = JSON.parse(readFileSync(0, 'utf8'));
const SECRET = 'planted-secret-of-webhooks';

const hmac = (secret, text) => createHmac('sha256', secret).update(text).digest('hex');

/** Whether the function neither throws nor returns false. */
async function takes(verify) {
    try {
        return (await verify()) !== false;
    } catch {
        return false;
    }
}

// Each vendor has a function that signs a body at a time (`sign`), the secret or public key that verifies it (`secret`),
// and a function that verifies a webhook with the vendor's library (`takes`).
const vendors = {
    discord: () => {
        const { publicKey, privateKey } = generateKeyPairSync('ed25519');
        const secret = publicKey.export({ type: 'spki', format: 'der' }).subarray(-32).toString('hex');
        return {
            secret,
            body: '{"version":1,"type":1,"event":{"type":"ENTITLEMENT_CREATE"}}',
            sign: (body, at) => ({
                'x-signature-timestamp': String(at),
                'x-signature-ed25519': sign(null, Buffer.from(at + body), privateKey).toString('hex'),
            }),
            takes: (headers, body) =>
                discord.verifyKey(body, headers['x-signature-ed25519'], headers['x-signature-timestamp'], secret),
        };
    },
    sendgrid: () => {
        const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
        const secret = publicKey.export({ type: 'spki', format: 'der' }).toString('base64');
        const [signature, timestamp] = [sendgrid.EventWebhookHeader.SIGNATURE(), sendgrid.EventWebhookHeader.TIMESTAMP()];
        const library = new sendgrid.EventWebhook();
        return {
            secret,
            // The body ends with a line break, which is signed too.
            body: '[{"email":"a@example.com","event":"delivered","sg_event_id":"1"}]\r\n',
            sign: (body, at) => ({
                [timestamp]: String(at),
                [signature]: sign('sha256', Buffer.from(at + body), privateKey).toString('base64'),
            }),
            takes: (headers, body) => {
                const key = library.convertPublicKeyToECDSA(secret);
                return library.verifySignature(key, body, headers[signature], headers[timestamp]);
            },
        };
    },
    linear: () => ({
        secret: SECRET,
        body: `{"type":"Issue","organizationId":"o1","webhookTimestamp":${now * 1000}}`,
        old: `{"type":"Issue","organizationId":"o1","webhookTimestamp":${(now - 300) * 1000}}`,
        sign: (body) => ({ 'linear-signature': hmac(SECRET, body) }),
        takes: (headers, body) =>
            new LinearWebhookClient(SECRET).verify(Buffer.from(body), headers['linear-signature']),
    }),
    notion: () => ({
        secret: SECRET,
        body: '{"id":"e1","type":"page.created","workspace_id":"w1"}',
        sign: (body) => ({ 'x-notion-signature': `sha256=${hmac(SECRET, body)}` }),
        takes: (headers, body) =>
            verifyWebhookSignature({ body, signature: headers['x-notion-signature'], verificationToken: SECRET }),
    }),
    gocardless: () => ({
        secret: SECRET,
        body: '{"events":[{"id":"EV1","resource_type":"mandates","links":{"organisation":"OR1"}}]}',
        sign: (body) => ({ 'webhook-signature': hmac(SECRET, body) }),
        takes: (headers, body) => gocardless.parse(body, SECRET, headers['webhook-signature']) !== undefined,
    }),
    razorpay: () => ({
        secret: SECRET,
        body: '{"entity":"event","account_id":"acc_1","event":"payment.captured"}',
        sign: (body) => ({ 'x-razorpay-signature': hmac(SECRET, body) }),
        takes: (headers, body) =>
            razorpay.validateWebhookSignature(body, headers['x-razorpay-signature'], SECRET),
    }),
};

async function judge(name) {
    const vendor = vendors[name]();
    const other = vendors[name]();
    const signed = vendor.sign(vendor.body, now);
    const cut = Object.fromEntries(Object.entries(signed).map(([header, value]) => [header, value.slice(0, -2)]));
    const tried = [
        ['right', signed, vendor.body],
        ['another body', signed, vendor.body.replace('1', '2')],
        ['a body with a space more', signed, `${vendor.body} `],
        ['a signature that was cut', cut, vendor.body],
        ['the signature of another body', other.sign(vendor.body.replace('1', '2'), now), vendor.body],
        ...(vendor.old ? [['an old one', vendor.sign(vendor.old, now - 300), vendor.old]] : []),
    ];
    const judged = tried.map(async ([what, headers, body]) => ({
        what,
        headers,
        body,
        is_taken: await takes(() => vendor.takes(headers, body)),
    }));
    return { provider: name, secret: vendor.secret, tried: await Promise.all(judged) };
}

console.log(JSON.stringify(await Promise.all(Object.keys(vendors).map(judge))));
