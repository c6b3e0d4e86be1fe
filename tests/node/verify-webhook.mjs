// Verifies a webhook with the libraries that receivers use. Reads {"key", "body", "headers"} from standard input and
// writes which of them accept it.
import { readFileSync } from 'node:fs';
import { Nango } from '@nangohq/node';
import { Webhook } from 'standardwebhooks';

const { key, body, headers } = JSON.parse(readFileSync(0, 'utf8'));

const client = new Nango({ host: 'http://127.0.0.1', apiKey: 'unused', webhookSigningKey: key });
const formerClient = new Nango({ host: 'http://127.0.0.1', secretKey: key });

function takesStandard() {
    try {
        new Webhook(key).verify(body, headers);
        return true;
    } catch {
        return false;
    }
}

console.log(
    JSON.stringify({
        client: client.verifyIncomingWebhookRequest(body, headers),
        formerClient: formerClient.verifyWebhookSignature(headers['x-nango-signature'], JSON.parse(body)),
        standard: takesStandard(),
    }),
);
