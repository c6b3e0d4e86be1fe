//! Outbound webhooks in the dashboard.

use serde_json::json;

use super::links;
use crate::support::{Host, HostOptions, Person, Receiver, Reply, TestDatabase, eventually};

const DELIVERIES: &str = "/dashboard/environments/dev/outbound-webhooks";

/// A host whose environment sends webhooks to the receiver, without retries.
pub struct Scene {
    pub receiver: Receiver,
    pub host: Host,
    pub db: TestDatabase,
}

impl Scene {
    pub async fn create() -> Self {
        let receiver = Receiver::start().await;
        let db = TestDatabase::create().await;
        let options = HostOptions::new()
            .database(&db)
            .variable("SYNCLINE_EGRESS_ALLOW", &receiver.address())
            .variable("SYNCLINE_WEBHOOK_RETRIES", "100ms");
        let host = options.spawn().await;
        db.execute(&format!("UPDATE environments SET webhook_url = '{}'", receiver.url("/planted-path")))
            .await;
        host.post("/integrations", &json!({ "provider": "unauthenticated", "unique_key": "plain" }))
            .await
            .expect(200);
        Self { receiver, host, db }
    }

    /// Creates a connection, which sends a webhook, and waits until the delivery is in this state. Returns its id.
    pub async fn deliver(&self, connection: &str, state: &str) -> String {
        let body = json!({
            "connection_id": connection, "provider_config_key": "plain", "credentials": { "type": "NONE" },
        });
        self.host.post("/connections", &body).await.expect(201);
        let path = format!(
            "/webhooks/deliveries?state={state}&provider_config_key=plain&connection_id={connection}"
        );
        eventually(&format!("the delivery is {state}"), async || {
            let found = self.host.get(&path).await.expect(200).json();
            found["deliveries"][0]["id"].as_str().map(str::to_owned)
        })
        .await
    }

    pub async fn wait_for_state(&self, id: &str, state: &str) {
        eventually(&format!("the delivery is {state}"), async || {
            let found = self.host.get(&format!("/webhooks/deliveries/{id}")).await.expect(200).json();
            (found["state"] == state).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn deliveries_are_listed_shown_and_sent_again() {
    let scene = Scene::create().await;
    let ada = Person::administrator(&scene.host, &scene.db).await;
    let delivered = scene.deliver("good", "delivered").await;
    scene.receiver.always(Reply::status(500));
    let failed = scene.deliver("bad", "failed").await;
    let shown = async |filter: &str| {
        let page = ada.get(&format!("{DELIVERIES}?{filter}")).await.expect(200).text();
        links(&page, &format!("{DELIVERIES}/")).len()
    };
    for (filter, count) in [
        ("state=&type=&since=&integration=&connection=", 2),
        ("state=failed&type=auth&since=1h", 1),
        ("type=sync", 0),
        ("integration=plain&connection=good", 1),
    ] {
        assert_eq!(shown(filter).await, count, "{filter}");
    }
    for bad in ["state=odd", "type=odd", "since=odd", "before=odd", "integration=plain", "connection=good"] {
        ada.get(&format!("{DELIVERIES}?{bad}")).await.expect(400);
    }
    let page = ada.get(&format!("{DELIVERIES}/{failed}")).await.expect(200).text();
    assert_eq!(page.matches("status 500").count(), 2, "{page}");
    assert!(page.contains("planted-path") && page.contains("creation"), "{page}");

    scene.receiver.always(Reply::status(200));
    let again = [("since", "1h")];
    ada.submit(DELIVERIES, &format!("{DELIVERIES}/redeliver"), &again).await.expect(303);
    scene.wait_for_state(&failed, "delivered").await;
    let before = scene.receiver.webhooks().len();
    ada.submit(DELIVERIES, &format!("{DELIVERIES}/{delivered}/redeliver"), &[]).await.expect(303);
    eventually("the webhook arrives again", async || {
        (scene.receiver.webhooks().len() > before).then_some(())
    })
    .await;
    ada.submit(DELIVERIES, &format!("{DELIVERIES}/redeliver"), &[("since", "")]).await.expect(400);
    ada.get(&format!("{DELIVERIES}/00000000-0000-0000-0000-000000000000")).await.expect(404);
}

#[tokio::test]
async fn a_viewer_sees_no_path_of_a_webhook_url_and_cannot_send_again() {
    let scene = Scene::create().await;
    let ada = Person::administrator(&scene.host, &scene.db).await;
    let viewer = ada.invite(&scene.host, "grace@example.com", "viewer").await;
    let id = scene.deliver("good", "delivered").await;
    for path in [DELIVERIES.to_owned(), format!("{DELIVERIES}/{id}")] {
        let page = viewer.get(&path).await.expect(200).text();
        assert!(!page.contains("planted-path") && page.contains("http://127.0.0.1"), "{page}");
        assert!(!page.contains("/redeliver"), "{page}");
    }
    viewer.submit(DELIVERIES, &format!("{DELIVERIES}/redeliver"), &[("since", "1h")]).await.expect(403);
    viewer.submit(DELIVERIES, &format!("{DELIVERIES}/{id}/redeliver"), &[]).await.expect(403);
}
