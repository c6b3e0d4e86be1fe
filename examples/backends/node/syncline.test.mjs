// node --test: tests the parts that need no host.
import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { test } from "node:test";
import { verifyWebhook } from "./syncline.mjs";

const KEY = "whsec_" + Buffer.from("a key for the test").toString("base64");
const BODY = '{"type":"auth","connectionId":"ada"}';

function signed({ body = BODY, timestamp = Math.floor(Date.now() / 1000) } = {}) {
    const key = Buffer.from(KEY.slice("whsec_".length), "base64");
    const signature = createHmac("sha256", key).update(`msg_1.${timestamp}.${body}`).digest("base64");
    return { "webhook-id": "msg_1", "webhook-timestamp": String(timestamp), "webhook-signature": `v1,${signature}` };
}

test("an authentic webhook is parsed", () => {
    assert.deepEqual(verifyWebhook(KEY, signed(), BODY), { type: "auth", connectionId: "ada" });
});

test("one of two signatures is enough", () => {
    const headers = signed();
    headers["webhook-signature"] = `v1,c29tZXRoaW5nIGVsc2U= ${headers["webhook-signature"]}`;
    assert.equal(verifyWebhook(KEY, headers, BODY).type, "auth");
});

test("a changed body, another key, an old webhook and a missing signature are rejected", () => {
    assert.throws(() => verifyWebhook(KEY, signed(), BODY.replace("ada", "eve")), /not authentic/);
    assert.throws(() => verifyWebhook("whsec_AAAA", signed(), BODY), /not authentic/);
    assert.throws(() => verifyWebhook(KEY, signed({ timestamp: Math.floor(Date.now() / 1000) - 301 }), BODY), /not authentic/);
    assert.throws(() => verifyWebhook(KEY, {}, BODY), /not authentic/);
});
