// Signs webhooks with the vendors' own libraries. Reads {"vendor", "secret", "url", "body"} from standard input and
// writes the headers of the webhook. For `github-examples`, it writes the published examples with their signatures.
import { readFileSync } from 'node:fs';
import examples from '@octokit/webhooks-examples' with { type: 'json' };
import { sign } from '@octokit/webhooks-methods';
import { Webhook } from 'standardwebhooks';
import Stripe from 'stripe';
import twilio from 'twilio';

const { vendor, secret, url, body } = JSON.parse(readFileSync(0, 'utf8'));

const standard = (prefix) => {
    const [id, now] = ['msg_1', new Date()];
    return {
        [`${prefix}-id`]: id,
        [`${prefix}-timestamp`]: String(Math.floor(now.getTime() / 1000)),
        [`${prefix}-signature`]: new Webhook(secret).sign(id, now, body),
    };
};

const vendors = {
    stripe: () => ({
        'stripe-signature': Stripe.webhooks.generateTestHeaderString({ payload: body, secret }),
    }),
    github: async () => ({ 'x-hub-signature-256': await sign(secret, body) }),
    twilio: () => ({
        'x-twilio-signature': twilio.getExpectedTwilioSignature(secret, url, Object.fromEntries(new URLSearchParams(body))),
    }),
    openai: () => standard('webhook'),
    resend: () => standard('svix'),
    // The first example of each event.
    'github-examples': async () => {
        const all = examples.default ?? examples;
        const one = async ({ name, examples: [first] }) => {
            const text = JSON.stringify(first);
            return { name, body: text, signature: await sign(secret, text) };
        };
        return Promise.all(all.filter((event) => event.examples.length > 0).map(one));
    },
};

console.log(JSON.stringify(await vendors[vendor]()));
