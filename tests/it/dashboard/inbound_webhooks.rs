//! Inbound webhooks in the dashboard.

use serde_json::json;

use super::{MARKUP, links};
use crate::support::webhook_scene::Scene;
use crate::support::{Person, text};

const WEBHOOKS: &str = "/dashboard/environments/dev/inbound-webhooks";

/// The id of a webhook that was delivered and processed.
async fn processed(scene: &Scene, delivery: &str) -> String {
    let body = json!({ "ref": MARKUP, "repository": { "full_name": "acme/shop" } });
    let taken = scene.deliver("push", delivery, &body).await.expect(200);
    let id = taken.header("x-syncline-webhook-id").expect("the response has a webhook id").to_owned();
    scene.wait_for_state(&id, "processed").await;
    id
}

#[tokio::test]
async fn inbound_webhooks_are_listed_shown_and_replayed() {
    let scene = Scene::create().await;
    let ada = Person::administrator(&scene.host, &scene.db).await;
    let id = processed(&scene, "d1").await;
    let shown = async |filter: &str| {
        let page = ada.get(&format!("{WEBHOOKS}?{filter}")).await.expect(200).text();
        links(&page, &format!("{WEBHOOKS}/")).len()
    };
    for (filter, count) in [
        ("state=&type=&integration=&since=", 1),
        ("state=processed&type=push&integration=webhooks&since=1h", 1),
        ("state=failed", 0),
        ("type=pull", 0),
    ] {
        assert_eq!(shown(filter).await, count, "{filter}");
    }
    for bad in ["state=odd", "since=odd", "before=odd"] {
        ada.get(&format!("{WEBHOOKS}?{bad}")).await.expect(400);
    }
    let address = format!("{WEBHOOKS}/{id}");
    let page = ada.get(&address).await.expect(200).text();
    assert!(page.contains("&lt;script&gt;") && !page.contains("<script>alert"), "{page}");
    assert!(page.contains("x-github-delivery") && page.contains("customer-1"), "{page}");

    ada.submit(&address, &format!("{address}/replay"), &[]).await.expect(303);
    let webhook = scene.wait_for_state(&id, "processed").await;
    assert_eq!(webhook["replays"], 1);
    let many = [("state", "processed"), ("since", "1h"), ("integration", "webhooks")];
    ada.submit(WEBHOOKS, &format!("{WEBHOOKS}/replay"), &many).await.expect(303);
    assert_eq!(scene.wait_for_state(&id, "processed").await["replays"], 2);
    ada.submit(WEBHOOKS, &format!("{WEBHOOKS}/replay"), &[("state", "failed"), ("since", "")])
        .await
        .expect(400);
    ada.submit(WEBHOOKS, &format!("{WEBHOOKS}/replay"), &[("state", "odd"), ("since", "1h")])
        .await
        .expect(400);
    ada.get(&format!("{WEBHOOKS}/00000000-0000-0000-0000-000000000000")).await.expect(404);
}

#[tokio::test]
async fn a_viewer_cannot_replay_webhooks() {
    let scene = Scene::create().await;
    let ada = Person::administrator(&scene.host, &scene.db).await;
    let viewer = ada.invite(&scene.host, "grace@example.com", "viewer").await;
    let id = processed(&scene, "d1").await;
    let page = viewer.get(WEBHOOKS).await.expect(200).text();
    assert!(!page.contains("/replay"), "{page}");
    let many = [("state", "processed"), ("since", "1h")];
    viewer.submit(WEBHOOKS, &format!("{WEBHOOKS}/replay"), &many).await.expect(403);
    viewer.submit(WEBHOOKS, &format!("{WEBHOOKS}/{id}/replay"), &[]).await.expect(403);
    let webhook = scene.host.get(&format!("/webhooks/received/{id}")).await.expect(200).json();
    assert_eq!((text(&webhook["state"]), &webhook["replays"]), ("processed", &json!(0)));
}
