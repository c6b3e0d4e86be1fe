//! A database connection that loses responses or notifications.

use std::time::Duration;

use serde_json::json;

use crate::support::webhook_scene::{SECRET, Scene, connect, options_for, push, set_secret, webhook_path};
use crate::support::{
    Bundle, Connection, Fault, HostOptions, Numbers, PostgresProxy, Receiver, Reply, Stage, TestDatabase,
    Webhook, assert_settled, eventually, text,
};

/// Statements that identify the transactions of a run.
const BEGIN: &str = "INSERT INTO sync_states";
const BATCH: &str = "COPY records";
const COMPLETE: &str = "SET restores_pruned = false";
const RELEASE: &str = "unreported_since = CASE WHEN NOT";
const CLAIM: &str = "opened AS (";
/// The statement that records an attempt of a delivery.
const RECORD_ATTEMPT: &str = "INSERT INTO outbound_webhook_attempts (delivery_pk, number, at";

fn options(numbers: &Numbers) -> HostOptions {
    HostOptions::new()
        .database(&numbers.db)
        .variable("SYNCLINE_LEASE_SECONDS", "1")
        .variable("SYNCLINE_EGRESS_ALLOW", &numbers.receiver.address())
}

/// A host whose database connection goes through a faulty proxy.
async fn set_up(numbers: &Numbers) -> (PostgresProxy, crate::support::Host) {
    let proxy = PostgresProxy::start(&numbers.db).await;
    let host = options(numbers).database_through(&proxy).spawn().await;
    numbers.set_up(&host).await;
    (proxy, host)
}

/// Each fault affects the run of a separate connection.
async fn disturb_syncs(faults: &[(&str, Fault)]) {
    let numbers = Numbers::new().await;
    let (proxy, host) = set_up(&numbers).await;
    for (name, fault) in faults {
        let connection = numbers.connect(&host, name).await;
        numbers.request_changes(&connection).await;
        proxy.arm(*fault);
        numbers.make_due(name).await;
        proxy.wait_for_fault().await;
        numbers.wait_until_changed(name).await;
        numbers.assert_changed(&connection).await;
    }
    assert_settled(&numbers.db).await;
}

#[tokio::test]
async fn a_sync_repeats_nothing_when_commit_responses_are_lost() {
    disturb_syncs(&[
        ("claim", Fault::LoseCommitOf(CLAIM)),
        ("begin", Fault::LoseCommitOf(BEGIN)),
        ("batch", Fault::LoseCommitOf(BATCH)),
        ("complete", Fault::LoseCommitOf(COMPLETE)),
        ("release", Fault::LoseCommitOf(RELEASE)),
    ])
    .await;
}

#[tokio::test]
async fn a_sync_loses_nothing_when_its_connection_breaks_before_a_commit() {
    disturb_syncs(&[
        ("claim", Fault::CutBeforeCommitOf(CLAIM)),
        ("begin", Fault::CutBeforeCommitOf(BEGIN)),
        ("batch", Fault::CutBeforeCommitOf(BATCH)),
        ("complete", Fault::CutBeforeCommitOf(COMPLETE)),
        ("release", Fault::CutBeforeCommitOf(RELEASE)),
    ])
    .await;
}

#[tokio::test]
async fn records_of_a_webhook_function_are_reported_despite_a_lost_commit_response() {
    let (receiver, db) = (Receiver::start().await, TestDatabase::create().await);
    let proxy = PostgresProxy::start(&db).await;
    let options = options_for(&db).database_through(&proxy);
    let host = options.variable("SYNCLINE_EGRESS_ALLOW", &receiver.address()).spawn().await;
    host.deploy(&Bundle::guest("webhooks")).await;
    set_secret(&host, "webhooks", SECRET).await;
    let connection = connect(&host, "customer-1", json!({ "repository": "acme/shop" })).await;
    connection.wait_until_idle().await;
    db.execute(&format!("UPDATE environments SET webhook_url = '{}'", receiver.url("/hooks"))).await;
    let scene = Scene { url: webhook_path(&host, "webhooks").await, connection, host, db };
    proxy.arm(Fault::LoseCommitOf(BATCH));
    scene.deliver("issues", "d1", &push("refs/heads/main")).await.expect(200);
    proxy.wait_for_fault().await;
    scene.wait_for_notes(1).await;
    let report = eventually("the saved record is reported", async || {
        let webhooks = receiver.webhooks();
        webhooks.iter().map(Webhook::body).find(|body| body["syncType"] == "WEBHOOK")
    })
    .await;
    // The counts are not known, but the time finds the record.
    assert_eq!(report["responseResults"], json!({ "added": 0, "updated": 0, "deleted": 0 }));
    let since = text(&report["modifiedAfter"]);
    assert_eq!(scene.connection.all(&[("model", "Note"), ("modified_after", since)]).await.len(), 1);
}

#[tokio::test]
async fn a_requested_reset_is_applied_by_the_next_run_if_one_fails_to_start() {
    let db = TestDatabase::create().await;
    let proxy = PostgresProxy::start(&db).await;
    let host = HostOptions::new().database_through(&proxy).spawn().await;
    let stage = Stage::at(host, db).await;
    stage.wait_until_idle().await;
    stage.set_metadata(json!({ "steps": 5 })).await;
    for (opts, expected) in [
        (json!({ "reset": true }), json!({ "Step": { "added": 0, "updated": 5, "deleted": 0 } })),
        (
            json!({ "reset": true, "emptyCache": true }),
            json!({ "Step": { "added": 5, "updated": 0, "deleted": 0 } }),
        ),
    ] {
        stage.run("steps").await;
        proxy.arm(Fault::CutBeforeCommitOf(BEGIN));
        let failed = stage.run_with("steps", opts.clone()).await;
        proxy.wait_for_fault().await;
        assert_eq!(failed["status"], "ERROR", "{opts}: {failed}");
        let next = stage.run("steps").await;
        assert_eq!((&next["status"], &next["latestResult"]), (&json!("SUCCESS"), &expected), "{opts}");
        let after = stage.run("steps").await;
        let nothing = json!({ "Step": { "added": 0, "updated": 0, "deleted": 0 } });
        assert_eq!(after["latestResult"], nothing, "{opts}: the reset is applied once");
    }
}

#[tokio::test]
async fn an_interrupted_approval_completes_by_itself() {
    let numbers = Numbers::new().await;
    let (proxy, host) = set_up(&numbers).await;
    let connection = numbers.connect(&host, "customer-1").await;
    connection.set_metadata(json!({ "count": 120 })).await;
    connection.run("numbers").await;
    connection.set_metadata(json!({ "count": 20 })).await;
    connection.run("numbers").await;
    let runs = host.get("/runs?function=numbers&limit=1").await.expect(200).json();
    let held = &runs["runs"][0];
    assert_eq!(held["error"]["code"], "mass_deletion_held");
    let path = format!("/runs/{}", text(&held["id"]));
    proxy.arm(Fault::CutBeforeCommitOf("SET state = 'success', approved_at"));
    assert_eq!(host.request("POST", &format!("{path}/approve")).send().await.status, 500);
    proxy.wait_for_fault().await;
    numbers
        .db
        .execute("UPDATE approvals_in_progress SET claimed_at = claimed_at - interval '1 minute'")
        .await;
    eventually("the run is approved", async || {
        host.get(&path).await.expect(200).json()["approved_at"].is_string().then_some(())
    })
    .await;
    let told = "SELECT count(*) FROM outbound_webhook_deliveries WHERE body::json -> 'responseResults' ->> 'deleted' = '100'";
    assert_eq!(numbers.db.number(told).await, 1);
    assert_eq!(numbers.db.number("SELECT count(*) FROM approvals_in_progress").await, 0);
    let author = "SELECT actor_kind FROM audit_log WHERE action = 'run.approved'";
    assert_eq!(
        numbers.db.texts(author).await,
        ["api_key"],
        "the client approved, not the host that finished"
    );
}

async fn action_under_key(connection: &Connection) -> crate::support::Answer {
    let headers = [("X-Async", "true"), ("Idempotency-Key", "once")];
    connection.action_with(&headers, "echo", &json!("input")).await
}

#[tokio::test]
async fn an_async_action_keeps_one_id_when_commit_responses_are_lost() {
    let numbers = Numbers::new().await;
    let (proxy, mut host) = set_up(&numbers).await;
    for (name, fault) in [
        ("queued", Fault::LoseCommitOf("INSERT INTO function_jobs")),
        ("claimed", Fault::LoseAnswerOf("first_in_order")),
        ("ended", Fault::LoseCommitOf("sealed_result = $5")),
    ] {
        let connection = numbers.connect(&host, name).await;
        proxy.arm(fault);
        let first = action_under_key(&connection).await;
        proxy.wait_for_fault().await;
        if name == "queued" {
            assert_eq!(first.status, 500, "the outcome is unknown: {}", first.text());
        }
        let accepted = action_under_key(&connection).await.expect(202).json();
        let path = text(&accepted["statusUrl"]);
        assert_eq!(connection.result(path).await.expect(200).json(), json!("input"), "{name}");
        let id = text(&accepted["id"]);
        let of = format!("connection_pk = (SELECT pk FROM connections WHERE connection_id = '{name}')");
        assert_eq!(numbers.db.texts(&format!("SELECT id::text FROM function_jobs WHERE {of}")).await, [id]);
        let told = format!("SELECT count(*) FROM outbound_webhook_deliveries WHERE body LIKE '%{id}%'");
        assert_eq!(numbers.db.number(&told).await, 1, "{name}");
    }
    // After a graceful stop, the host has repeated the requests that got no response.
    host.stop().await;
    let runs = "SELECT state FROM runs WHERE kind = 'action'";
    assert_eq!(numbers.db.texts(runs).await, ["success", "success", "success"]);
    assert_settled(&numbers.db).await;
}

#[tokio::test]
async fn an_idempotent_request_returns_its_result_when_a_response_is_lost() {
    let numbers = Numbers::new().await;
    let (proxy, mut host) = set_up(&numbers).await;
    let connection = numbers.connect(&host, "customer-1").await;
    proxy.arm(Fault::LoseCommitOf("sealed_result = $5"));
    for is_replay in [false, true] {
        let answer = connection.action_with(&[("Idempotency-Key", "once")], "echo", &json!("input")).await;
        assert_eq!(answer.expect(200).json(), json!("input"), "replay: {is_replay}");
    }
    proxy.wait_for_fault().await;
    host.stop().await;
    assert_eq!(numbers.db.texts("SELECT state FROM runs WHERE kind = 'action'").await, ["success"]);
}

#[tokio::test]
async fn a_failed_attempt_counts_once_when_its_commit_response_is_lost() {
    let db = TestDatabase::create().await;
    let proxy = PostgresProxy::start(&db).await;
    let mut host = HostOptions::new().database_through(&proxy).spawn().await;
    host.deploy(&Bundle::guest("hostile")).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    proxy.arm(Fault::LoseCommitOf("failures = $5 + 1"));
    let headers = [("X-Async", "true"), ("X-Max-Retries", "1")];
    let failing = json!({ "code": "timeout", "message": "later" });
    let accepted = connection.action_with(&headers, "fail", &failing).await.expect(202).json();
    proxy.wait_for_fault().await;
    let result = connection.result(text(&accepted["statusUrl"])).await;
    assert_eq!(result.refusal(), (400, "action_script_runtime_error".to_owned()));
    host.stop().await;
    let runs = "SELECT state || ' ' || attempt FROM runs WHERE kind = 'action' ORDER BY attempt";
    assert_eq!(db.texts(runs).await, ["error 1", "error 2"]);
}

#[tokio::test]
async fn a_delivered_webhook_is_not_resent_when_a_commit_response_is_lost() {
    let numbers = Numbers::new().await;
    let (proxy, host) = set_up(&numbers).await;
    let open = "SELECT count(*) FROM outbound_webhook_deliveries WHERE state <> 'delivered'";
    let recorded = async |count: i64| {
        let all = "SELECT count(*) FROM outbound_webhook_deliveries";
        eventually("all webhooks are recorded as delivered", async || {
            (numbers.db.number(all).await == count && numbers.db.number(open).await == 0).then_some(())
        })
        .await;
    };
    let connection = numbers.connect(&host, "customer-1").await;
    recorded(1).await;
    proxy.arm(Fault::LoseCommitOf(RECORD_ATTEMPT));
    connection.trigger_async("echo", &json!(1)).await;
    proxy.wait_for_fault().await;
    // The sender tries to record the attempt again, and finds it recorded.
    recorded(2).await;
    assert_eq!(numbers.receiver.webhooks().len(), 2);
    assert_eq!(numbers.db.number("SELECT max(attempts)::bigint FROM outbound_webhook_deliveries").await, 1);
}

#[tokio::test]
async fn a_failed_delivery_attempt_is_recorded_once_despite_a_lost_response() {
    let numbers = Numbers::new().await;
    let proxy = PostgresProxy::start(&numbers.db).await;
    // Longer than the sender waits before it records the attempt again, so that the delivery has not been claimed by
    // then.
    let host =
        options(&numbers).database_through(&proxy).variable("SYNCLINE_WEBHOOK_RETRIES", "3s").spawn().await;
    numbers.set_up(&host).await;
    let connection = numbers.connect(&host, "customer-1").await;
    let recorded = "SELECT count(*) FROM outbound_webhook_attempts";
    eventually("the report of the first run is recorded", async || {
        (numbers.db.number(recorded).await == 1).then_some(())
    })
    .await;
    numbers.receiver.reply([Reply::status(500)]);
    proxy.arm(Fault::LoseCommitOf(RECORD_ATTEMPT));
    connection.trigger_async("echo", &json!(1)).await;
    proxy.wait_for_fault().await;
    eventually("the webhook is resent and recorded", async || {
        (numbers.db.number(recorded).await == 3).then_some(())
    })
    .await;
    let statuses = "SELECT status::text FROM outbound_webhook_attempts ORDER BY delivery_pk, number";
    assert_eq!(numbers.db.texts(statuses).await, ["200", "500", "200"]);
    let log = host.log();
    assert_eq!(
        log.matches("could not store the result of a webhook attempt").count(),
        1,
        "the second attempt finds it recorded: {log}"
    );
}

#[tokio::test]
async fn recording_an_attempt_again_does_not_affect_the_next_attempt() {
    let numbers = Numbers::new().await;
    let proxy = PostgresProxy::start(&numbers.db).await;
    // Shorter than the sender waits before it records the attempt again: by then, the next attempt is in progress.
    let host =
        options(&numbers).database_through(&proxy).variable("SYNCLINE_WEBHOOK_RETRIES", "1ms").spawn().await;
    numbers.set_up(&host).await;
    let connection = numbers.connect(&host, "customer-1").await;
    let recorded = "SELECT count(*) FROM outbound_webhook_attempts";
    eventually("the report of the first run is recorded", async || {
        (numbers.db.number(recorded).await == 1).then_some(())
    })
    .await;
    numbers.receiver.reply([Reply::status(500), Reply::status(200).after(Duration::from_secs(2))]);
    proxy.arm(Fault::LoseCommitOf(RECORD_ATTEMPT));
    connection.trigger_async("echo", &json!(1)).await;
    proxy.wait_for_fault().await;
    numbers.db.execute("SELECT pg_notify('syncline', 'webhooks')").await;
    numbers.receiver.wait_for(3).await;
    eventually("the webhook is resent and recorded", async || {
        (numbers.db.number(recorded).await == 3).then_some(())
    })
    .await;
    let statuses = "SELECT status::text FROM outbound_webhook_attempts ORDER BY delivery_pk, number";
    assert_eq!(numbers.db.texts(statuses).await, ["200", "500", "200"]);
    let log = host.log();
    assert_eq!(
        log.matches("could not store the result of a webhook attempt").count(),
        1,
        "the second attempt finds a newer one: {log}"
    );
}

#[tokio::test]
async fn a_host_without_notifications_finds_due_work_by_polling() {
    let numbers = Numbers::new().await;
    let proxy = PostgresProxy::start(&numbers.db).await;
    proxy.drop_notifications();
    let unnotified = options(&numbers).database_through(&proxy).spawn().await;
    numbers.set_up(&unnotified).await;
    // A host that accepts requests, but runs nothing itself.
    let idle = options(&numbers)
        .variable("SYNCLINE_MAX_SYNCS", "0")
        .variable("SYNCLINE_MAX_ASYNC_ACTIONS", "0")
        .spawn()
        .await;
    let connection = numbers.connect(&idle, "customer-1").await;
    numbers.request_changes(&connection).await;
    connection.trigger("numbers").await;
    numbers.wait_until_changed("customer-1").await;
    numbers.assert_changed(&connection).await;
    let path = connection.trigger_async("echo", &json!("heard")).await;
    assert_eq!(connection.result(&path).await.expect(200).json(), json!("heard"));

    let other = idle.create_key(&numbers.db, "other", "full");
    let with_other = unnotified.with_key(Some(&other));
    eventually("the host without notifications accepts a new key", async || {
        (with_other.get("/connections").await.status == 200).then_some(())
    })
    .await;
    idle.command(&numbers.db, &["keys", "revoke", "other"]);
    eventually("the host without notifications rejects a revoked key", async || {
        (with_other.get("/connections").await.status == 401).then_some(())
    })
    .await;

    idle.delete("/connections/customer-1?provider_config_key=minimal").await.expect(200);
    eventually("the connection's records are removed", async || {
        (numbers.db.number("SELECT count(*) FROM records").await == 0).then_some(())
    })
    .await;
    assert_settled(&numbers.db).await;
}

#[tokio::test]
async fn a_host_waits_for_postgres_to_finish_recovery() {
    let db = TestDatabase::create().await;
    let proxy = PostgresProxy::start(&db).await;
    proxy.arm(Fault::Recover);
    let host = HostOptions::new().database_through(&proxy).spawn().await;
    proxy.wait_for_fault().await;
    let told = "waiting for the database at DATABASE_URL, 127.0.0.1:";
    assert!(host.log().contains(told) && host.log().contains(", for up to 30 s"), "{}", host.log());
}
