//! Statements about webhooks of providers.

use serde_json::json;

use super::support::{Section, body, get, patch, post, string};
use crate::support::webhook_scene::{SECRET, Scene, hex_hmac, push, signed};
use crate::support::{Receiver, Request, Webhook, eventually};

#[tokio::test]
async fn inbound_webhooks() {
    let receiver = Receiver::start().await;
    let allowed = receiver.address();
    let scene = Scene::with(|options| options.variable("SYNCLINE_EGRESS_ALLOW", &allowed)).await;
    scene.connection.wait_until_idle().await;
    let settings = json!({ "webhook_url": receiver.url("/hooks"), "on_sync_completion_always": false });
    scene.host.patch("/environment", &settings).await.expect(200);
    let mut section = Section::new("Webhooks of providers");
    acceptance(&mut section, &scene).await;
    forwarding(&mut section, &scene, &receiver).await;
    rejection(&mut section, &scene).await;
    section.finish();
}

async fn acceptance(section: &mut Section, scene: &Scene) {
    let url = body(&get(&scene.host, "/integrations/webhooks?include=webhook").send().await);
    let url = string(&url["data"]["webhook_url"]);
    section.holds(
        "`webhook_url` of the integration is the URL for the provider",
        url.ends_with(&scene.url),
        &url,
    );
    let body_text = push("refs/heads/main").to_string();
    let delivery = scene.delivery(&scene.host, "push", "delivery-1", &body_text);
    let delivery =
        delivery.header("Cookie", "a=b").header("Authorization", "Basic eDp5").header("X-Other", "x");
    let taken = section.returns("`POST` of a signed webhook, without a key", delivery, 200).await;
    let id = string(&json!(taken.header("x-syncline-webhook-id")));
    section.holds("The response names the stored webhook", !id.is_empty(), &id);
    scene.wait_for_state(&id, "processed").await;
    let notes = scene.wait_for_notes(1).await;
    section.equal("A webhook function of the connection receives it", &notes[0]["event"], "push");
    let again = scene.delivery(&scene.host, "push", "delivery-1", &body_text);
    section.returns("A webhook that the provider repeats", again, 200).await;
    section.equal("A repeated webhook is stored once", &json!(scene.stored().await), 1);
    let received =
        section.returns("`GET /webhooks/received`", get(&scene.host, "/webhooks/received"), 200).await;
    section.equal("The list contains the webhook", &body(&received)["webhooks"][0]["id"], id.as_str());
    let one = get(&scene.host, &format!("/webhooks/received/{id}"));
    let one = section.returns("`GET /webhooks/received/{id}`", one, 200).await;
    section.equal("It contains the body", &body(&one)["body"]["ref"], "refs/heads/main");
    let replay = scene.host.request("POST", &format!("/webhooks/received/{id}/replay"));
    section.returns("`POST /webhooks/received/{id}/replay`", replay, 202).await;
    scene.wait_for_state(&id, "processed").await;
    let other = json!({ "ref": "x", "repository": { "full_name": "someone/else" } });
    let other = scene.deliver("push", "delivery-2", &other).await.expect(200);
    let other = string(&json!(other.header("x-syncline-webhook-id")));
    let state = scene.wait_for_state(&other, "unmatched").await["connections"].clone();
    section.equal("A webhook of no connection is stored as unmatched", &state, 0);
}

async fn forwarding(section: &mut Section, scene: &Scene, receiver: &Receiver) {
    let forwarded = async |delivery: &str| {
        eventually("the webhook is forwarded", async || {
            let webhooks = receiver.webhooks().into_iter();
            let of_delivery =
                |one: &Webhook| one.headers.get("x-github-delivery").is_some_and(|id| id == delivery);
            webhooks.into_iter().find(of_delivery)
        })
        .await
    };
    let first = forwarded("delivery-1").await;
    let expected = json!({
        "from": "github-pat", "type": "forward", "connectionId": "customer-1", "providerConfigKey": "webhooks",
        "payload": push("refs/heads/main"),
    });
    section.equal(
        "A forwarded webhook contains the provider's body and the connection",
        &first.body(),
        expected,
    );
    section.equal("It has the provider's headers", &json!(first.header("x-github-event")), "push");
    section.equal("It has other headers of the request", &json!(first.header("x-other")), "x");
    for name in ["cookie", "authorization"] {
        let is_sent = first.headers.contains_key(name);
        section.holds(&format!("It does not have the header `{name}`"), !is_sent, &first.headers);
    }
    let is_signed =
        first.headers.contains_key("x-nango-hmac-sha256") && first.headers.contains_key("webhook-signature");
    section.holds("It is signed", is_signed, &first.headers);
    let unmatched = forwarded("delivery-2").await.body();
    section.equal("A webhook of no connection is forwarded as it is", &unmatched["ref"], "x");
    let off = patch(&scene.host, "/integrations/webhooks", &json!({ "forward_webhooks": false }));
    off.send().await.expect(200);
    let taken = scene.deliver("push", "delivery-3", &push("refs/heads/off")).await.expect(200);
    scene.wait_for_state(taken.header("x-syncline-webhook-id").unwrap_or_default(), "processed").await;
    let on = patch(&scene.host, "/integrations/webhooks", &json!({ "forward_webhooks": true }));
    on.send().await.expect(200);
    scene.deliver("push", "delivery-4", &push("refs/heads/on")).await.expect(200);
    forwarded("delivery-4").await;
    let hidden = receiver
        .webhooks()
        .iter()
        .filter(|one| one.text.contains("refs/heads/off"))
        .filter(|one| one.body()["type"] == "forward")
        .count();
    section.equal("`forward_webhooks: false` stops forwarding", &json!(hidden), 0);
}

async fn rejection(section: &mut Section, scene: &Scene) {
    let (host, text) = (&scene.host, push("main").to_string());
    let signature = format!("sha256={}", hex_hmac(SECRET, &text));
    let send =
        |url: &str, signature: &str| -> Request { signed(host, url, "push", "delivery-9", &text, signature) };
    let wrong = format!("sha256={}", hex_hmac("another", &text));
    section.rejects("A wrong signature", send(&scene.url, &wrong), 401, "invalid_webhook_signature").await;
    let unsigned = post(&host.with_key(None), &scene.url, &push("main")).header("X-GitHub-Event", "push");
    section.rejects("A webhook without a signature", unsigned, 401, "missing_webhook_signature").await;
    let (environment, _) = scene.url.rsplit_once('/').unwrap_or_default();
    let unknown = format!("{environment}/unknown");
    section.rejects("An unknown integration", send(&unknown, &signature), 404, "unknown_integration").await;
    let unknown = "/webhook/0198c0de-0000-7000-8000-000000000000/webhooks";
    section.rejects("An unknown environment", send(unknown, &signature), 404, "unknown_environment").await;
    let malformed = "/webhook/dev/webhooks";
    section
        .rejects("An environment that is not a UUID", send(malformed, &signature), 400, "invalid_uri_params")
        .await;
    host.post(
        "/integrations",
        &json!({ "provider": "netsuite-tba", "unique_key": "none", "credentials": {
        "type": "TBA", "client_id": "i", "client_secret": "planted",
    } }),
    )
    .await
    .expect(200);
    let without = format!("{environment}/none");
    section
        .rejects("A provider without webhooks", send(&without, &signature), 404, "webhooks_not_taken")
        .await;
    let unknown = get(host, "/webhooks/received/0198c0de-0000-7000-8000-000000000000");
    section.rejects("`GET` of an unknown webhook", unknown, 404, "unknown_webhook").await;
    let unset = patch(host, "/integrations/webhooks", &json!({ "custom": { "webhook_secret": "" } }));
    unset.send().await.expect(200);
    let refused = send(&scene.url, &signature);
    section
        .rejects("A webhook of an integration without a secret", refused, 503, "webhook_secret_missing")
        .await;
}
