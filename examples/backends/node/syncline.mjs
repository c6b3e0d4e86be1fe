// A client for the four tasks of a backend that uses Syncline. It needs only the standard library; copy what you need.
import { createHmac, timingSafeEqual } from "node:crypto";

const HOST = process.env.SYNCLINE_URL ?? "http://127.0.0.1:3003";

/** A response of the host with a status of 400 or above. docs/errors.md lists the values of `code`. */
export class SynclineError extends Error {
    constructor(status, { code, message }) {
        super(message);
        Object.assign(this, { status, code });
    }
}

/** Sends a request with the environment's secret key, and returns the JSON body of the response. */
async function request(method, path, { headers, body } = {}) {
    const response = await fetch(HOST + path, {
        method,
        headers: {
            Authorization: `Bearer ${process.env.SYNCLINE_SECRET_KEY}`,
            "Content-Type": "application/json",
            ...headers,
        },
        body: body && JSON.stringify(body),
    });
    const text = await response.text();
    const answer = text ? JSON.parse(text) : null;
    if (!response.ok) {
        throw new SynclineError(response.status, answer.error);
    }
    return answer;
}

/** The headers that select one connection of one integration. */
function connectionHeaders({ connectionId, integration }) {
    return { "Connection-Id": connectionId, "Provider-Config-Key": integration };
}

/**
 * Creates a connect session for the user who is signed in to your product. Pass `token` to your frontend, or send
 * the user to `connect_link`. The session expires after 30 minutes.
 */
export async function createConnectSession(user, integration) {
    const session = await request("POST", "/connect/sessions", {
        body: { end_user: user, allowed_integrations: [integration] },
    });
    return session.data;
}

/** Yields every record after `cursor`, oldest change first. Without a cursor it starts at the first record. */
export async function* readRecords(connection, model, cursor) {
    do {
        const query = new URLSearchParams({ model, limit: "100", ...(cursor && { cursor }) });
        const page = await request("GET", `/records?${query}`, { headers: connectionHeaders(connection) });
        yield* page.records;
        cursor = page.next_cursor;
    } while (cursor);
}

/**
 * Runs an action and returns its output. If you repeat a call with the same `idempotencyKey`, the host returns the
 * first result instead of running the action again.
 */
export async function triggerAction(connection, action, input, idempotencyKey) {
    return request("POST", "/action/trigger", {
        headers: { ...connectionHeaders(connection), "Idempotency-Key": idempotencyKey },
        body: { action_name: action, input },
    });
}

/**
 * Verifies a webhook from Syncline and returns its parsed body. Throws if the webhook is not authentic.
 *
 * `body` is the raw request body: parsing and serializing it again would change its bytes. `signingKey` is the
 * environment's webhook signing key, `whsec_…`. The scheme is that of https://www.standardwebhooks.com.
 */
export function verifyWebhook(signingKey, headers, body) {
    const id = headers["webhook-id"];
    const timestamp = headers["webhook-timestamp"];
    const signatures = (headers["webhook-signature"] ?? "").split(" ");
    if (Math.abs(Date.now() / 1000 - Number(timestamp)) <= 300) {
        const key = Buffer.from(signingKey.replace(/^whsec_/, ""), "base64");
        const expected = Buffer.from("v1," + createHmac("sha256", key).update(`${id}.${timestamp}.${body}`).digest("base64"));
        // While a key is being rotated there are two signatures, and either can match.
        for (const signature of signatures.map((text) => Buffer.from(text))) {
            if (signature.length === expected.length && timingSafeEqual(signature, expected)) {
                return JSON.parse(body);
            }
        }
    }
    throw new Error("the webhook is not authentic: its signature does not match, or is older than 5 minutes");
}
