//! Hosts that crash, freeze or stop in the middle of a sync: nothing is lost, and nothing is done twice.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::support::{
    Bundle, Connection, Fault, Host, HostOptions, METADATA_KEY, PostgresProxy, SlowProvider, TestDatabase,
    eventually, ids_of, text,
};

const STEPS: usize = 120;

async fn spawn(db: &TestDatabase, lease_seconds: &str) -> Host {
    HostOptions::new().database(db).variable("SYNCLINE_LEASE_SECONDS", lease_seconds).spawn().await
}

/// A host in the middle of a sync that saves one record per step, each with its checkpoint.
async fn host_during_sync(db: &TestDatabase, bundle: &Bundle, lease_seconds: &str) -> (Host, Connection) {
    let host = spawn(db, lease_seconds).await;
    host.deploy(bundle).await;
    let metadata = json!({ "steps": STEPS, "pause_ms": 25 });
    let connection = host.connect_as("customer-1", "hostile", metadata).await;
    wait_for_steps(&connection, 10).await;
    (host, connection)
}

async fn wait_for_steps(connection: &Connection, count: usize) {
    eventually(&format!("{count} steps are saved"), async || {
        (steps(connection).await.len() >= count).then_some(())
    })
    .await;
}

async fn wait_for_success(connection: &Connection) -> Value {
    eventually("the sync has succeeded", async || {
        let status = connection.status("steps").await;
        (status["status"] == "SUCCESS").then_some(status)
    })
    .await
}

async fn steps(connection: &Connection) -> Vec<Value> {
    connection.all(&[("model", "Step"), ("limit", "500")]).await
}

/// Checks that every step was saved exactly once, and that the steps of a run follow those of the run before. Returns
/// the number of runs.
async fn assert_each_step_once(connection: &Connection) -> usize {
    let records = steps(connection).await;
    assert_eq!(ids_of(&records), (0..STEPS).map(|step| format!("step-{step}")).collect::<Vec<_>>());
    for record in &records {
        assert_eq!(
            record[METADATA_KEY]["last_action"], "ADDED",
            "a step that is saved twice becomes an update: {record}"
        );
    }
    let mut runs: Vec<&str> = records.iter().map(|record| text(&record["run"])).collect();
    runs.dedup();
    assert_eq!(
        runs.iter().collect::<BTreeSet<_>>().len(),
        runs.len(),
        "no run continues after its successor has started"
    );
    runs.len()
}

#[tokio::test]
async fn a_killed_hosts_sync_resumes_from_its_checkpoint() {
    let db = TestDatabase::create().await;
    let (mut host, connection) = host_during_sync(&db, &Bundle::guest("hostile"), "1").await;
    host.kill();
    let second = spawn(&db, "1").await;
    let connection = connection.through(&second);
    let status = wait_for_success(&connection).await;
    assert_eq!(status["checkpoint"], json!({ "cursor": STEPS.to_string() }));
    assert_eq!(assert_each_step_once(&connection).await, 2);
}

#[tokio::test]
async fn a_live_host_takes_over_the_sync_of_a_killed_host() {
    let db = TestDatabase::create().await;
    let (mut host, connection) = host_during_sync(&db, &Bundle::guest("hostile"), "1").await;
    let second = spawn(&db, "1").await;
    host.kill();
    let connection = connection.through(&second);
    wait_for_success(&connection).await;
    assert_eq!(assert_each_step_once(&connection).await, 2);
}

#[tokio::test]
async fn a_host_frozen_beyond_its_lease_writes_nothing() {
    let db = TestDatabase::create().await;
    let (mut frozen, connection) = host_during_sync(&db, &Bundle::guest("hostile"), "1").await;
    frozen.freeze();
    let second = spawn(&db, "1").await;
    let connection = connection.through(&second);
    let made_by_the_first = steps(&connection).await.len();
    assert!(made_by_the_first < STEPS, "{made_by_the_first} steps: the host was not frozen in the middle");
    wait_for_steps(&connection, made_by_the_first + 10).await;
    // Both hosts are in the middle of the same sync now.
    frozen.thaw();
    wait_for_success(&connection).await;
    // After a graceful stop, the host has finished all its pending work.
    frozen.stop().await;
    assert_eq!(assert_each_step_once(&connection).await, 2);
    assert_eq!(
        db.number("SELECT count(*) FROM runs WHERE function_name = 'steps' AND state = 'lost'").await,
        1
    );
    assert_eq!(db.number("SELECT count(*) FROM runs WHERE function_name = 'steps'").await, 2);
}

#[tokio::test]
async fn a_run_with_an_expired_lease_continues_if_no_host_took_it_over() {
    let db = TestDatabase::create().await;
    let (host, connection) = host_during_sync(&db, &Bundle::guest("hostile"), "1").await;
    host.freeze();
    let expired = "SELECT count(*) FROM schedules WHERE run_id IS NOT NULL AND lease_expires_at < now()";
    eventually("the lease has expired", async || (db.number(expired).await == 1).then_some(())).await;
    host.thaw();
    wait_for_success(&connection).await;
    assert_eq!(assert_each_step_once(&connection).await, 1);
}

#[tokio::test]
async fn a_host_that_hangs_in_a_statement_does_not_block_others() {
    let db = TestDatabase::create().await;
    let proxy = PostgresProxy::start(&db).await;
    let options = HostOptions::new().database_through(&proxy).variable("SYNCLINE_LEASE_SECONDS", "1");
    let mut silent = options.spawn().await;
    silent.deploy(&Bundle::guest("hostile")).await;
    let metadata = json!({ "steps": STEPS, "pause_ms": 25 });
    let connection = silent.connect_as("customer-1", "hostile", metadata).await;
    wait_for_steps(&connection, 10).await;
    // The server holds the locks of the stream and of the sync state, and waits for rows indefinitely.
    proxy.arm(Fault::StallCopy("COPY records"));
    proxy.wait_for_fault().await;
    silent.freeze();
    let second = spawn(&db, "1").await;
    let connection = connection.through(&second);
    wait_for_success(&connection).await;
    assert!(second.log().contains("of unresponsive hosts that blocked other hosts"), "{}", second.log());
    silent.thaw();
    silent.stop().await;
    assert_eq!(assert_each_step_once(&connection).await, 2);
    assert_eq!(connection.status("steps").await["recordCount"], json!({ "Step": STEPS }));
}

#[tokio::test]
async fn only_the_newest_owner_of_a_run_can_write() {
    let db = TestDatabase::create().await;
    // It renews its lease so rarely that only the fencing token can stop it.
    let (first, connection) = host_during_sync(&db, &Bundle::guest("hostile"), "3600").await;
    db.execute(
        "UPDATE schedules SET lease_expires_at = now() - interval '1 second' WHERE run_id IS NOT NULL",
    )
    .await;
    let second = spawn(&db, "1").await;
    wait_for_success(&connection.through(&second)).await;
    assert_eq!(assert_each_step_once(&connection.through(&first)).await, 2);
    assert!(first.log().contains("lost its lease"), "{}", first.log());
}

#[tokio::test]
async fn a_stopping_host_releases_its_sync_to_the_next_host() {
    let db = TestDatabase::create().await;
    // The lease is too long to expire in this test: the second host starts at once only because the first released the
    // run.
    let (mut host, connection) = host_during_sync(&db, &Bundle::guest("hostile"), "3600").await;
    host.stop().await;
    let second = spawn(&db, "3600").await;
    let connection = connection.through(&second);
    eventually("every step is saved", async || (steps(&connection).await.len() == STEPS).then_some(())).await;
    assert_eq!(assert_each_step_once(&connection).await, 2);
}

#[tokio::test]
async fn an_interrupted_full_sync_deletes_nothing_until_it_completes() {
    let db = TestDatabase::create().await;
    let bundle = Bundle::guest("hostile").tracking_deletes("steps");
    let mut host = spawn(&db, "1").await;
    host.deploy(&bundle).await;
    let mut connection = host.connect("hostile", json!({ "steps": 60, "pause_ms": 0 })).await;
    assert_eq!(steps(&connection).await.len(), 60);

    connection.set_metadata(json!({ "steps": 60, "pause_ms": 20 })).await;
    for stop in [true, false] {
        let before = run_of_each_step(&connection).await;
        connection.trigger("steps").await;
        eventually("some steps are saved again", async || {
            let now = run_of_each_step(&connection).await;
            (now.iter().filter(|(step, run)| before.get(*step) != Some(*run)).count() >= 5).then_some(())
        })
        .await;
        if stop {
            host.stop().await;
        } else {
            host.kill();
        }
        host = spawn(&db, "1").await;
        connection = connection.through(&host);
        let counted = connection.status("steps").await["recordCount"].clone();
        assert_eq!(counted, json!({ "Step": 60 }), "stopped: {stop}");
        let status = wait_for_success(&connection).await;
        assert_eq!(status["recordCount"], json!({ "Step": 60 }), "stopped: {stop}");
    }
}

async fn run_of_each_step(connection: &Connection) -> BTreeMap<String, String> {
    let step_and_run = |record: &Value| (text(&record["id"]).to_owned(), text(&record["run"]).to_owned());
    steps(connection).await.iter().map(step_and_run).collect()
}

#[tokio::test]
async fn acknowledged_records_survive_a_killed_host() {
    let db = TestDatabase::create().await;
    let mut host = Host::spawn(&db).await;
    host.deploy(&Bundle::guest("hostile")).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    for number in 0..5 {
        connection.save_raw("Item", &format!(r#"[{{"id":"{number}"}}]"#)).await.expect(200);
    }
    host.kill();
    let second = Host::spawn(&db).await;
    assert_eq!(connection.through(&second).all(&[("model", "Item")]).await.len(), 5);
}

#[tokio::test]
async fn a_stopping_host_finishes_requests_in_progress() {
    let provider = SlowProvider::listen().await;
    let db = TestDatabase::create().await;
    let options = HostOptions::new().database(&db).variable("SYNCLINE_EGRESS_ALLOW", &provider.address());
    let mut host = options.spawn().await;
    host.deploy(&provider.bundle()).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    let caller = tokio::spawn(async move { connection.action("fetch", &json!({ "url": "/slow" })).await });
    let pending = provider.next_request().await;
    host.request_stop();
    eventually("the host accepts no new connections", async || {
        TcpStream::connect(host.address()).await.is_err().then_some(())
    })
    .await;
    pending.answer("ok").await;
    assert_eq!(caller.await.unwrap().expect(200).json()["body"], "ok");
    host.wait_until_stopped().await;
    assert_eq!(
        db.number("SELECT count(*) FROM runs WHERE function_name = 'fetch' AND state = 'success'").await,
        1
    );
}
