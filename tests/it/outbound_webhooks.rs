//! Webhooks to the customer's backend: their content, signatures, retries and log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use syncline_auth::{Environments, FormerKeys};
use syncline_crypto::MasterKeys;
use syncline_store::events::Events;
use syncline_store::{Databases, Store};
use syncline_telemetry::clock::Clock;
use syncline_types::actor::Actor;
use syncline_types::ids::EnvironmentPk;

use crate::support::{
    Api, Bundle, Connection, ENCRYPTION_KEY, Host, HostOptions, METADATA_KEY, Receiver, Reply, SECRET_KEY,
    TestDatabase, Webhook, eventually, masked, node, text,
};

/// A host whose environment sends webhooks to the receiver, with short retry delays.
struct Scene {
    receiver: Receiver,
    host: Host,
    db: TestDatabase,
}

impl Scene {
    async fn create() -> Self {
        Self::with(|options| options).await
    }

    async fn with(options: impl Fn(HostOptions) -> HostOptions) -> Self {
        let receiver = Receiver::start().await;
        let db = TestDatabase::create().await;
        let host = options(options_for(&db, &[&receiver])).spawn().await;
        set_url(&db, "webhook_url", &receiver.url("/hooks")).await;
        Self { receiver, host, db }
    }

    async fn import(&self, id: &str) {
        import(&self.host, id, json!({})).await;
    }
}

fn options_for(db: &TestDatabase, receivers: &[&Receiver]) -> HostOptions {
    let allowed: Vec<String> = receivers.iter().map(|receiver| receiver.address()).collect();
    HostOptions::new()
        .database(db)
        .variable("SYNCLINE_EGRESS_ALLOW", &allowed.join(","))
        .variable("SYNCLINE_WEBHOOK_RETRIES", "200ms,200ms,200ms")
        .variable("SYNCLINE_WEBHOOK_TIMEOUT_SECONDS", "1")
}

async fn set_url(db: &TestDatabase, setting: &str, url: &str) {
    db.execute(&format!("UPDATE environments SET {setting} = '{url}'")).await;
}

/// Imports a connection of an integration without credentials, which is created if needed.
async fn import(api: &Api, id: &str, more: Value) {
    api.post("/integrations", &json!({ "provider": "unauthenticated", "unique_key": "plain" })).await;
    let mut body = more;
    body["connection_id"] = id.into();
    body["provider_config_key"] = "plain".into();
    body["credentials"] = json!({ "type": "NONE" });
    api.post("/connections", &body).await.expect(201);
}

async fn wait_for_state(db: &TestDatabase, state: &str, count: i64) {
    let sql = format!("SELECT count(*) FROM outbound_webhook_deliveries WHERE state = '{state}'");
    eventually(&format!("{count} deliveries are {state}"), async || {
        (db.number(&sql).await == count).then_some(())
    })
    .await;
}

/// The test's own access to the signing keys in the database.
struct Keys {
    store: Store,
    environments: Arc<Environments>,
}

impl Keys {
    async fn open(db: &TestDatabase) -> Self {
        let databases = Databases { control: db.url().parse().expect("it is a URL"), records: None };
        let store = Store::open(databases, 2).await.expect("it can be opened");
        let master_keys = MasterKeys::parse(ENCRYPTION_KEY).expect("it is a key");
        let clock = Clock::system();
        let events = Arc::new(Events::new(clock.clone()));
        let environments = Environments::open(clock, store.clone(), master_keys, events).await;
        let environments = environments.expect("the key matches the database");
        Self { store, environments }
    }

    fn environment(&self) -> EnvironmentPk {
        self.environments.find_by_name("dev").expect("the first start creates it").pk
    }

    /// The newest signing key.
    async fn newest(&self) -> String {
        let keys =
            self.environments.signing_keys(self.environment()).await.expect("the keys can be decrypted");
        keys[0].expose_text().to_owned()
    }

    async fn rotate(&self) -> String {
        let (pk, actor) = (self.environment(), Actor::host());
        let rotated = self.environments.rotate_signing_key(pk, FormerKeys::Overlap, &actor).await;
        rotated.expect("the key is rotated").expose_text().to_owned()
    }
}

async fn signing_key(db: &TestDatabase) -> String {
    let keys = Keys::open(db).await;
    let newest = keys.newest().await;
    keys.store.close().await;
    newest
}

/// Which of the published libraries accept the webhook.
fn verify(webhook: &Webhook, key: &str) -> Value {
    node("verify-webhook.mjs", &json!({ "key": key, "body": webhook.text, "headers": webhook.headers }))
}

fn accepted(yes: bool) -> Value {
    json!({ "client": yes, "formerClient": yes, "standard": yes })
}

#[tokio::test]
async fn a_new_connection_sends_a_webhook_that_published_libraries_verify() {
    let scene = Scene::create().await;
    let more = json!({
        "end_user": { "id": "user-1", "email": "ada@example.com" },
        "tags": { "Plan": "gold" },
    });
    import(&scene.host, "customer-1", more).await;
    let webhooks = scene.receiver.wait_for(1).await;
    let webhook = &webhooks[0];
    assert_eq!(
        webhook.text,
        concat!(
            r#"{"authMode":"NONE","connectionId":"customer-1","endUser":{"endUserEmail":"ada@example.com","#,
            r#""endUserId":"user-1","tags":{}},"environment":"dev","from":"nango","operation":"creation","#,
            r#""provider":"unauthenticated","providerConfigKey":"plain","success":true,"#,
            r#""tags":{"end_user_email":"ada@example.com","end_user_id":"user-1","plan":"gold"},"type":"auth"}"#
        )
    );
    assert_eq!(webhook.path, "/hooks");
    assert_eq!(webhook.header("content-type"), "application/json");
    assert!(webhook.header("user-agent").starts_with("syncline/"));
    let key = signing_key(&scene.db).await;
    assert_eq!(verify(webhook, &key), accepted(true));
    let forged = Webhook { text: webhook.text.replace("creation", "override"), ..webhook.clone() };
    assert_eq!(verify(&forged, &key), accepted(false));
    assert_eq!(verify(webhook, "whsec_cGxhbnRlZC1vdGhlci1rZXktMDEyMzQ1Njc="), accepted(false));
    wait_for_state(&scene.db, "delivered", 1).await;
}

#[tokio::test]
async fn both_signing_keys_verify_during_a_rotation() {
    let scene = Scene::create().await;
    scene.import("customer-1").await;
    scene.receiver.wait_for(1).await;
    let keys = Keys::open(&scene.db).await;
    let former = keys.newest().await;
    let rotated = keys.rotate().await;
    let webhook = eventually("both keys sign", async || {
        scene.import("customer-1").await;
        let webhook = scene.receiver.webhooks().pop()?;
        (webhook.header("webhook-signature").split(' ').count() == 2).then_some(webhook)
    })
    .await;
    assert_eq!(verify(&webhook, &rotated), accepted(true));
    let by_former = json!({ "client": false, "formerClient": false, "standard": true });
    assert_eq!(verify(&webhook, &former), by_former, "the legacy headers contain only one signature");
}

#[tokio::test]
async fn both_urls_get_a_webhook_with_one_id_unless_a_connection_overrides_them() {
    let scene = Scene::create().await;
    set_url(&scene.db, "webhook_url_secondary", &scene.receiver.url("/second")).await;
    scene.import("customer-1").await;
    let webhooks = scene.receiver.wait_for(2).await;
    assert_eq!(
        webhooks.iter().map(|webhook| &*webhook.path).collect::<BTreeSet<_>>(),
        ["/hooks", "/second"].into()
    );
    assert_eq!(webhooks[0].id(), webhooks[1].id());

    import(&scene.host, "customer-2", json!({ "webhook_url_override": scene.receiver.url("/own") })).await;
    scene.import("customer-1").await;
    let webhooks = scene.receiver.wait_for(5).await;
    let reported = |id: &str| {
        let of_id = webhooks.iter().filter(|webhook| webhook.body()["connectionId"] == id);
        of_id.map(|webhook| (webhook.path.clone(), webhook.body()["operation"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(reported("customer-2"), [("/own".to_owned(), json!("creation"))]);
    assert_eq!(reported("customer-1").iter().filter(|(_, operation)| operation == "override").count(), 2);
}

#[tokio::test]
async fn a_disabled_event_type_sends_no_webhook() {
    let scene = Scene::create().await;
    scene.db.execute("UPDATE environments SET on_auth_creation = false").await;
    scene.import("customer-1").await;
    // Override webhooks cannot be disabled. This one follows the creation, so no other webhook can be pending.
    scene.import("customer-1").await;
    let webhooks = scene.receiver.wait_for(1).await;
    assert_eq!(webhooks[0].body()["operation"], "override");
    assert_eq!(scene.db.number("SELECT count(*) FROM outbound_webhook_deliveries").await, 1);
}

#[tokio::test]
async fn concurrent_imports_send_one_webhook_each_and_one_creation() {
    let scene = Scene::create().await;
    let second = options_for(&scene.db, &[&scene.receiver]).spawn().await;
    scene.import("customer-0").await;
    let imports = (0..20).map(|number| {
        let api: &Api = if number % 2 == 0 { &scene.host } else { &second };
        import(api, "customer-1", json!({}))
    });
    futures_util::future::join_all(imports).await;
    let webhooks = scene.receiver.wait_for(21).await;
    let of_customer = webhooks.iter().filter(|webhook| webhook.body()["connectionId"] == "customer-1");
    let mut operations: BTreeMap<String, u32> = BTreeMap::new();
    for webhook in of_customer {
        *operations.entry(text(&webhook.body()["operation"]).to_owned()).or_default() += 1;
    }
    assert_eq!(operations, BTreeMap::from([("creation".to_owned(), 1), ("override".to_owned(), 19)]));
    wait_for_state(&scene.db, "delivered", 21).await;
    assert_eq!(scene.receiver.webhooks().len(), 21, "no webhook is sent twice");
}

#[tokio::test]
async fn a_failed_delivery_is_retried_with_the_same_id() {
    let scene = Scene::create().await;
    scene.receiver.reply([Reply::status(500), Reply::status(404), Reply::status(200)]);
    scene.import("customer-1").await;
    let webhooks = scene.receiver.wait_for(3).await;
    wait_for_state(&scene.db, "delivered", 1).await;
    let ids: BTreeSet<&str> = webhooks.iter().map(Webhook::id).collect();
    assert_eq!(ids.len(), 1);
    let key = signing_key(&scene.db).await;
    assert_eq!(verify(&webhooks[2], &key), accepted(true), "each attempt has a new signature and timestamp");
    let statuses = scene.db.texts("SELECT status::text FROM outbound_webhook_attempts ORDER BY number").await;
    assert_eq!(statuses, ["500", "404", "200"]);
}

#[tokio::test]
async fn a_retry_after_header_of_a_receiver_is_honored() {
    let scene = Scene::create().await;
    scene.receiver.reply([Reply::status(429).header("retry-after", "2")]);
    scene.import("customer-1").await;
    let webhooks = scene.receiver.wait_for(2).await;
    let waited = webhooks[1].at - webhooks[0].at;
    assert!(waited >= Duration::from_millis(1900), "{waited:?}");
    wait_for_state(&scene.db, "delivered", 1).await;
}

#[tokio::test]
async fn a_receiver_that_answers_410_gets_no_webhooks_until_its_url_is_reset() {
    let scene = Scene::create().await;
    scene.receiver.reply([Reply::status(500), Reply::status(410)]);
    scene.import("customer-1").await;
    wait_for_state(&scene.db, "failed", 1).await;
    scene.import("customer-2").await;
    assert_eq!(
        scene.db.number("SELECT count(*) FROM outbound_webhook_deliveries").await,
        1,
        "no delivery is created for the URL"
    );
    assert_eq!(scene.receiver.webhooks().len(), 2);
    let own = json!({ "webhook_url_override": scene.receiver.url("/hooks") });
    import(&scene.host, "customer-3", own).await;
    let webhooks = scene.receiver.wait_for(3).await;
    assert_eq!(webhooks[2].body()["connectionId"], "customer-3");
}

#[tokio::test]
async fn a_silent_receiver_is_retried_and_finally_given_up() {
    let scene = Scene::create().await;
    scene.receiver.always(Reply::status(200).after(Duration::from_secs(30)));
    scene.import("customer-1").await;
    wait_for_state(&scene.db, "failed", 1).await;
    let errors = scene.db.texts("SELECT error FROM outbound_webhook_attempts ORDER BY number").await;
    let error = format!("`{}` did not answer within 1 s", scene.receiver.address());
    assert_eq!(errors, vec![error; 4]);
}

#[tokio::test]
async fn webhooks_to_internal_addresses_are_blocked() {
    let outside = Receiver::start().await;
    let inside = Receiver::start().await;
    let db = TestDatabase::create().await;
    let host = options_for(&db, &[&outside]).spawn().await;
    let port = inside.address().rsplit_once(':').unwrap().1.to_owned();
    let urls = [
        inside.url("/"),
        format!("https://127.0.0.1:{port}/"),
        format!("https://localhost:{port}/"),
        format!("https://[::1]:{port}/"),
        format!("https://[::ffff:127.0.0.1]:{port}/"),
        format!("https://2130706433:{port}/"),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "https://10.0.0.1/".to_owned(),
    ];
    for (number, url) in urls.iter().enumerate() {
        let id = format!("customer-{number}");
        import(&host, &id, json!({ "webhook_url_override": url })).await;
    }
    wait_for_state(&db, "failed", urls.len() as i64).await;
    let errors = db.texts("SELECT error FROM outbound_webhook_attempts ORDER BY delivery_pk").await;
    assert_eq!(errors.len(), urls.len(), "no delivery is retried: {errors:?}");
    for (url, error) in urls.iter().zip(&errors) {
        assert!(error.contains("SYNCLINE_EGRESS_ALLOW"), "{url}: {error}");
    }

    outside.always(Reply::status(307).header("location", &inside.url("/")));
    import(&host, "redirected", json!({ "webhook_url_override": outside.url("/") })).await;
    wait_for_state(&db, "failed", urls.len() as i64 + 1).await;
    let errors =
        db.texts("SELECT error FROM outbound_webhook_attempts ORDER BY delivery_pk DESC LIMIT 1").await;
    assert!(errors[0].contains("redirects are not followed"), "{errors:?}");
    assert_eq!(inside.webhooks().len(), 0);
}

#[tokio::test]
async fn a_slow_receiver_does_not_delay_another() {
    let slow = Receiver::start().await;
    let quick = Receiver::start().await;
    let db = TestDatabase::create().await;
    let options = options_for(&db, &[&slow, &quick]).variable("SYNCLINE_WEBHOOK_TIMEOUT_SECONDS", "20");
    let host = options.spawn().await;
    slow.always(Reply::status(200).after(Duration::from_secs(15)));
    for number in 0..40 {
        import(&host, &format!("slow-{number}"), json!({ "webhook_url_override": slow.url("/") })).await;
    }
    slow.wait_for(8).await;
    let began = Instant::now();
    import(&host, "quick", json!({ "webhook_url_override": quick.url("/") })).await;
    quick.wait_for(1).await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(slow.webhooks().len(), 8, "a receiver gets a limited number of concurrent deliveries");
}

#[tokio::test]
async fn another_host_sends_a_killed_hosts_webhooks_once_each() {
    let mut scene = Scene::create().await;
    scene.receiver.always(Reply::status(200).after(Duration::from_secs(30)));
    for number in 0..20 {
        scene.import(&format!("customer-{number}")).await;
    }
    scene.receiver.wait_for(8).await;
    scene.host.kill();
    // On a slow machine, the first attempts may have timed out already.
    let held =
        "SELECT count(*) FROM outbound_webhook_deliveries WHERE state = 'pending' AND owner IS NOT NULL";
    let held = scene.db.number(held).await;
    assert!(held > 0, "some attempts are in progress");
    scene.receiver.always(Reply::status(200));
    let before = scene.receiver.webhooks().len();
    let _second = options_for(&scene.db, &[&scene.receiver]).spawn().await;
    wait_for_state(&scene.db, "delivered", 20).await;
    let webhooks = scene.receiver.webhooks();
    let after: Vec<&str> = webhooks[before..].iter().map(Webhook::id).collect();
    assert_eq!(after.len(), 20, "the second host sends each webhook once");
    assert_eq!(after.iter().collect::<BTreeSet<_>>().len(), 20);
    let lost = scene
        .db
        .texts("SELECT error FROM outbound_webhook_attempts WHERE error LIKE 'the host stopped%'")
        .await;
    assert_eq!(lost.len() as i64, held, "the attempts of the killed host are recorded");
}

async fn hostile(scene: &Scene, id: &str, metadata: Value) -> Connection {
    scene.host.deploy(&Bundle::guest("hostile")).await;
    scene.db.execute("UPDATE environments SET on_auth_creation = false").await;
    scene.host.connect_as(id, "hostile", metadata).await
}

fn syncs(webhooks: &[Webhook], name: &str) -> Vec<Value> {
    let bodies = webhooks.iter().map(Webhook::body);
    bodies.filter(|body| body["type"] == "sync" && body["syncName"] == name).collect()
}

async fn wait_for_syncs(receiver: &Receiver, name: &str, count: usize) -> Vec<Value> {
    eventually(&format!("{count} webhooks of `{name}`"), async || {
        let reported = syncs(&receiver.webhooks(), name);
        (reported.len() >= count).then_some(reported)
    })
    .await
}

fn without_times(mut body: Value) -> Value {
    for name in ["modifiedAfter", "queryTimeStamp", "startedAt", "failedAt"] {
        if let Some(time) = body.get_mut(name) {
            assert!(text(time).ends_with('Z'), "{name}: {time}");
            *time = json!("…");
        }
    }
    body
}

#[tokio::test]
async fn a_finished_sync_sends_a_webhook_with_its_changes() {
    let scene = Scene::create().await;
    let connection = hostile(&scene, "customer-1", json!({ "steps": 3, "pause_ms": 0 })).await;
    let reported = wait_for_syncs(&scene.receiver, "steps", 1).await;
    let expected = json!({
        "from": "nango", "type": "sync", "connectionId": "customer-1", "providerConfigKey": "hostile",
        "syncName": "steps", "syncVariant": "base", "syncType": "INITIAL", "model": "Step", "success": true,
        "modifiedAfter": "…", "queryTimeStamp": "…",
        "responseResults": { "added": 3, "updated": 0, "deleted": 0 },
        "checkpoints": { "from": null, "to": { "cursor": "3" } },
    });
    assert_eq!(without_times(reported[0].clone()), expected);
    let since = text(&reported[0]["modifiedAfter"]);
    let read = connection.all(&[("model", "Step"), ("modified_after", since)]).await;
    assert_eq!(read.len(), 3, "the reported records can be read with `modifiedAfter`");

    connection.wait_until_idle().await;
    connection.run("steps").await;
    let reported = wait_for_syncs(&scene.receiver, "steps", 2).await;
    assert_eq!(reported[1]["syncType"], "INCREMENTAL");
    assert_eq!(reported[1]["responseResults"], json!({ "added": 0, "updated": 0, "deleted": 0 }));
    assert_eq!(reported[1]["checkpoints"], json!({ "from": { "cursor": "3" }, "to": { "cursor": "3" } }));

    scene.db.execute("UPDATE environments SET on_sync_completion_always = false").await;
    connection.run("steps").await;
    connection.set_metadata(json!({ "steps": 5, "pause_ms": 0 })).await;
    connection.run("steps").await;
    let reported = wait_for_syncs(&scene.receiver, "steps", 3).await;
    assert_eq!(
        reported[2]["responseResults"],
        json!({ "added": 2, "updated": 0, "deleted": 0 }),
        "a run without changes is not reported"
    );
}

#[tokio::test]
async fn a_failed_sync_sends_one_webhook_per_run() {
    let scene = Scene::create().await;
    let commits = json!([{ "changes": [{ "save": { "model": "Item", "items": "[{\"id\":\"1\"}]" } }] }]);
    let connection =
        hostile(&scene, "customer-1", json!({ "steps": 0, "commits": commits, "end": "fail" })).await;
    let reported = wait_for_syncs(&scene.receiver, "commit-raw", 1).await;
    let body = without_times(reported[0].clone());
    assert_eq!(
        (&body["success"], &body["model"], &body["startedAt"], &body["failedAt"]),
        (&json!(false), &json!("Item"), &json!("…"), &json!("…")),
    );
    assert_eq!(body["error"]["type"], "script_error");
    assert_eq!(body["error"]["additional_properties"]["code"], "sync_script_failure");
    assert!(!text(&body["error"]["description"]).is_empty());

    connection.wait_until_idle().await;
    scene.db.execute("UPDATE environments SET on_sync_error = false").await;
    connection.run("commit-raw").await;
    connection.set_metadata(json!({ "steps": 0, "commits": [] })).await;
    connection.run("commit-raw").await;
    let reported = wait_for_syncs(&scene.receiver, "commit-raw", 2).await;
    assert_eq!(reported[1]["success"], true, "the second failure is not reported");
    assert_eq!(
        reported[1]["responseResults"],
        json!({ "added": 1, "updated": 0, "deleted": 0 }),
        "records of the failed runs are reported with the next success"
    );
}

#[tokio::test]
async fn the_successor_reports_the_records_of_a_killed_host() {
    let scene = Scene::with(|options| options.variable("SYNCLINE_LEASE_SECONDS", "1")).await;
    let Scene { receiver, mut host, db } = scene;
    host.deploy(&Bundle::guest("hostile")).await;
    let connection = host.connect_as("customer-1", "hostile", json!({ "steps": 60, "pause_ms": 50 })).await;
    eventually("some steps are saved", async || {
        (connection.all(&[("model", "Step")]).await.len() >= 10).then_some(())
    })
    .await;
    host.kill();
    let second = options_for(&db, &[&receiver]).variable("SYNCLINE_LEASE_SECONDS", "1").spawn().await;
    let reported = wait_for_syncs(&receiver, "steps", 1).await;
    assert_eq!(reported[0]["responseResults"], json!({ "added": 60, "updated": 0, "deleted": 0 }));
    let since = text(&reported[0]["modifiedAfter"]);
    let connection = connection.through(&second);
    let read = connection.all(&[("model", "Step"), ("modified_after", since), ("limit", "500")]).await;
    assert_eq!(read.len(), 60);
    let own = connection.status("steps").await["latestResult"]["Step"]["added"].as_u64().unwrap();
    assert!(own < 60, "the status shows only the latest run: {own}");
    assert!(read[0][METADATA_KEY]["last_modified_at"].is_string());
    assert_eq!(
        db.number("SELECT count(*) FROM outbound_webhook_deliveries WHERE body LIKE '%\"steps\"%'").await,
        1
    );
}

async fn deliveries(api: &Api, query: &str) -> Vec<Value> {
    let body = api.get(&format!("/webhooks/deliveries{query}")).await.expect(200).json();
    body["deliveries"].as_array().expect("`deliveries` is a list").clone()
}

#[tokio::test]
async fn the_log_shows_every_attempt_and_failed_deliveries_can_be_resent() {
    let scene = Scene::create().await;
    scene.receiver.always(Reply::status(500));
    scene.import("customer-1").await;
    wait_for_state(&scene.db, "failed", 1).await;
    let failed = deliveries(&scene.host, "?state=failed").await;
    assert_eq!(failed.len(), 1);
    let id = text(&failed[0]["id"]).to_owned();
    let path = format!("/webhooks/deliveries/{id}");
    let first = scene.receiver.webhooks().remove(0);
    assert_eq!(failed[0]["webhook_id"], first.id());
    let mut shown = scene.host.get(&path).await.expect(200).json();
    assert_eq!(shown["body"], first.body());
    let attempts = shown["attempts"].take();
    let seen =
        |attempt: &Value| (attempt["number"].clone(), attempt["status"].clone(), attempt["error"].clone());
    let error = "the receiver answered 500 Internal Server Error";
    let expected: Vec<_> = (1..=4).map(|number| (json!(number), json!(500), json!(error))).collect();
    assert_eq!(attempts.as_array().unwrap().iter().map(seen).collect::<Vec<_>>(), expected);
    assert_eq!(
        masked(failed[0].clone()),
        json!({
            "id": "…", "webhook_id": first.id(), "type": "auth", "state": "failed",
            "url": scene.receiver.url("/hooks"), "provider_config_key": "plain", "connection_id": "customer-1",
            "attempt_count": 4, "next_attempt_at": null, "created_at": "…", "finished_at": failed[0]["finished_at"],
        })
    );

    // The URL is corrected: failed deliveries go to the current URL.
    set_url(&scene.db, "webhook_url", &scene.receiver.url("/corrected")).await;
    scene.receiver.always(Reply::status(200));
    let redelivered =
        scene.host.request("POST", &format!("{path}/redeliver")).send().await.expect(202).json();
    assert_eq!(redelivered["state"], "pending");
    let webhooks = scene.receiver.wait_for(5).await;
    assert_eq!(
        (webhooks[4].id(), &*webhooks[4].path, &webhooks[4].text),
        (first.id(), "/corrected", &first.text)
    );
    wait_for_state(&scene.db, "delivered", 1).await;
    assert_eq!(scene.host.get(&path).await.expect(200).json()["attempt_count"], 5);
}

#[tokio::test]
async fn the_cli_lists_shows_and_redelivers_webhooks() {
    let scene = Scene::create().await;
    // A 404 does not count as an outage of the receiver, which would pause its deliveries.
    scene.receiver.always(Reply::status(404));
    for number in 0..3 {
        scene.import(&format!("customer-{number}")).await;
    }
    wait_for_state(&scene.db, "failed", 3).await;
    let run = |arguments: &[&str]| {
        let host = ["--url", scene.host.base_url(), "--secret-key", SECRET_KEY];
        scene.host.command(&scene.db, &[&["webhooks"], arguments, &host].concat())
    };
    let listed = run(&["list", "--state", "failed", "--connection", "customer-1", "--integration", "plain"]);
    assert_eq!(listed.lines().count(), 1, "{listed}");
    assert!(listed.contains("plain/customer-1") && listed.contains("attempts: 4"), "{listed}");
    let as_json: Value = serde_json::from_str(&run(&["list", "--json"])).unwrap();
    let id = text(&as_json[0]["id"]).to_owned();
    let shown: Value = serde_json::from_str(&run(&["show", &id])).unwrap();
    assert_eq!(shown["attempts"].as_array().unwrap().len(), 4);
    scene.receiver.always(Reply::status(200));
    assert_eq!(run(&["redeliver", &id]), format!("delivery {id} will be sent again\n"));
    wait_for_state(&scene.db, "delivered", 1).await;
    assert_eq!(
        run(&["redeliver", "--failed-since", "2999-01-01T00:00:00Z"]),
        "0 deliveries will be sent again\n"
    );
    assert_eq!(
        run(&["redeliver", "--failed-since", "2020-01-01T00:00:00Z"]),
        "2 deliveries will be sent again\n"
    );
    let redelivered = [format!("outbound_webhook {id}"), "environment dev".to_owned()];
    assert_eq!(scene.db.audited("outbound_webhook.redelivered").await, redelivered);
    wait_for_state(&scene.db, "delivered", 3).await;
}

#[tokio::test]
async fn the_delivery_log_is_paged_and_filtered() {
    let scene = Scene::create().await;
    for number in 0..5 {
        scene.import(&format!("customer-{number}")).await;
    }
    wait_for_state(&scene.db, "delivered", 5).await;
    let mut seen = Vec::new();
    let mut query = "limit=2".to_owned();
    loop {
        let page = scene.host.get(&format!("/webhooks/deliveries?{query}")).await.expect(200).json();
        let ids = page["deliveries"].as_array().unwrap().iter();
        seen.extend(ids.map(|delivery| text(&delivery["connection_id"]).to_owned()));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        query = format!("limit=2&cursor={cursor}");
    }
    assert_eq!(seen, ["customer-4", "customer-3", "customer-2", "customer-1", "customer-0"]);
    let count = async |query: &str| deliveries(&scene.host, query).await.len();
    assert_eq!(count("?type=auth&state=delivered").await, 5);
    assert_eq!(count("?type=sync").await, 0);
    assert_eq!(count("?state=pending").await, 0);
    assert_eq!(count("?since=2999-01-01T00:00:00Z").await, 0);
    assert_eq!(count("?since=2020-01-01T00:00:00Z").await, 5);
    assert_eq!(count("?connection_id=customer-3&provider_config_key=plain").await, 1);
    for (query, refusal) in [
        ("state=lost", (400, "invalid_query_params")),
        ("type=mail", (400, "invalid_query_params")),
        ("since=yesterday", (400, "invalid_query_params")),
        ("limit=0", (400, "invalid_query_params")),
        ("unknown=1", (400, "invalid_query_params")),
        ("connection_id=customer-3", (400, "invalid_query_params")),
        ("cursor=AAAAAAAAAAAAAAAA", (400, "invalid_cursor")),
        ("connection_id=nobody&provider_config_key=plain", (404, "unknown_connection")),
        ("connection_id=customer-3&provider_config_key=none", (404, "unknown_integration")),
    ] {
        let answer = scene.host.get(&format!("/webhooks/deliveries?{query}")).await;
        assert_eq!(answer.refusal(), (refusal.0, refusal.1.to_owned()), "{query}");
    }
    for id in ["nonsense", "00000000-0000-0000-0000-000000000000"] {
        let path = format!("/webhooks/deliveries/{id}");
        assert_eq!(scene.host.get(&path).await.refusal(), (404, "unknown_webhook".to_owned()), "{id}");
        let answer = scene.host.request("POST", &format!("{path}/redeliver")).send().await;
        assert_eq!(answer.refusal(), (404, "unknown_webhook".to_owned()), "{id}");
    }
    let answer = scene.host.post("/webhooks/deliveries/redeliver", &json!({ "since": "soon" })).await;
    assert_eq!(answer.refusal(), (400, "invalid_body".to_owned()));
}

#[tokio::test]
async fn a_delivery_without_a_url_cannot_be_redelivered() {
    let scene = Scene::create().await;
    scene.receiver.reply([Reply::status(410)]);
    scene.import("customer-1").await;
    wait_for_state(&scene.db, "failed", 1).await;
    let id = text(&deliveries(&scene.host, "").await[0]["id"]).to_owned();
    let redeliver = format!("/webhooks/deliveries/{id}/redeliver");
    let answer = scene.host.request("POST", &redeliver).send().await;
    assert_eq!(answer.refusal(), (409, "no_webhook_url".to_owned()), "the receiver answered 410");
    scene.db.execute("UPDATE environments SET webhook_url = NULL").await;
    let answer = scene.host.request("POST", &redeliver).send().await;
    assert_eq!(answer.refusal(), (409, "no_webhook_url".to_owned()), "no URL is set");
}

#[tokio::test]
async fn secrets_in_webhook_urls_require_a_scope_and_are_never_logged() {
    const PLANTED: &str = "planted-secret-of-a-hook-9e1b";
    let scene = Scene::with(|options| options.variable("RUST_LOG", "debug,sqlx=info")).await;
    let url = scene.receiver.url(&format!("/{PLANTED}?token={PLANTED}"));
    set_url(&scene.db, "webhook_url", &url).await;
    scene.receiver.always(Reply::status(500));
    scene.import("customer-1").await;
    wait_for_state(&scene.db, "failed", 1).await;
    let delivery = deliveries(&scene.host, "").await.remove(0);
    assert_eq!(delivery["url"], url);
    let key = scene.host.create_key(&scene.db, "reader", "read-only");
    let reader = scene.host.with_key(Some(&key));
    let id = text(&delivery["id"]);
    let masked = format!("http://{}/…", scene.receiver.address());
    assert_eq!(deliveries(&reader, "").await[0]["url"], masked);
    assert_eq!(reader.get(&format!("/webhooks/deliveries/{id}")).await.expect(200).json()["url"], masked);
    let answer = reader.request("POST", &format!("/webhooks/deliveries/{id}/redeliver")).send().await;
    assert_eq!(answer.refusal(), (403, "forbidden".to_owned()));
    let answer =
        reader.post("/webhooks/deliveries/redeliver", &json!({ "since": "2020-01-01T00:00:00Z" })).await;
    assert_eq!(answer.refusal(), (403, "forbidden".to_owned()));
    let signing_key = signing_key(&scene.db).await;
    let log = scene.host.log();
    assert!(log.contains("gave up a webhook delivery"), "{log}");
    for secret in [PLANTED, signing_key.trim_start_matches("whsec_")] {
        assert!(!log.contains(secret), "{log}");
    }
}

#[tokio::test]
async fn old_deliveries_are_deleted() {
    let scene = Scene::create().await;
    for number in 0..3 {
        scene.import(&format!("customer-{number}")).await;
    }
    wait_for_state(&scene.db, "delivered", 3).await;
    scene
        .db
        .execute(
            "UPDATE outbound_webhook_deliveries SET finished_at = now() - interval '31 days' \
             WHERE pk < (SELECT max(pk) FROM outbound_webhook_deliveries)",
        )
        .await;
    // A host removes old deliveries at its start, and then every minute.
    let _second = options_for(&scene.db, &[&scene.receiver]).spawn().await;
    eventually("the old rows are deleted", async || {
        (scene.db.number("SELECT count(*) FROM outbound_webhook_deliveries").await == 1).then_some(())
    })
    .await;
    assert_eq!(scene.db.number("SELECT count(*) FROM outbound_webhook_attempts").await, 1);
}
