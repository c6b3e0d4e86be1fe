//! Fair queueing when more syncs are due than can run: a backlog does not delay other tenants, and run limits hold
//! across hosts.

use serde_json::{Value, json};

use crate::support::{Bundle, Connection, Host, HostOptions, TestDatabase, eventually};

/// Metadata for a function that runs until it is cancelled.
fn until_cancelled() -> Value {
    json!({ "steps": 0, "end": "wait-until-cancelled" })
}

/// Makes the given number of variants of `commit-raw` due, for connections whose id matches the pattern.
async fn make_due(db: &TestDatabase, connections: &str, count: u32) {
    let statement = format!(
        "INSERT INTO schedules (environment_pk, integration_pk, connection_pk, sync_name, variant, state, due_at,
                                due_reason)
         SELECT s.environment_pk, s.integration_pk, s.connection_pk, sync_name, 'v' || number, 'running', now(), 'schedule'
         FROM schedules s JOIN connections c ON c.pk = s.connection_pk, generate_series(1, {count}) AS number
         WHERE sync_name = 'commit-raw' AND variant = 'base' AND c.connection_id LIKE '{connections}';
         NOTIFY syncline, 'due'"
    );
    db.execute(&statement).await;
}

/// Creates copies of a connection that needs no credentials, each with a due `commit-raw`.
async fn make_connections(db: &TestDatabase, count: u32) {
    let statement = format!(
        "WITH made AS (
             INSERT INTO connections (id, environment_pk, integration_pk, connection_id, sealed_credentials, metadata)
             SELECT gen_random_uuid(), environment_pk, integration_pk, 'copy-' || number, sealed_credentials, metadata
             FROM connections, generate_series(1, {count}) AS number
             WHERE connection_id = 'customer-1' AND integration_pk = (
                 SELECT pk FROM integrations WHERE unique_key = 'hostile'
             )
             RETURNING pk, environment_pk, integration_pk
         )
         INSERT INTO schedules (environment_pk, integration_pk, connection_pk, sync_name, variant, state, due_at,
                                due_reason)
         SELECT environment_pk, integration_pk, pk, 'commit-raw', 'base', 'running', now() - interval '1 hour', 'schedule'
         FROM made;
         NOTIFY syncline, 'due'"
    );
    db.execute(&statement).await;
}

async fn running(db: &TestDatabase) -> i64 {
    db.number("SELECT count(*) FROM schedules WHERE run_id IS NOT NULL").await
}

async fn waiting_syncs(db: &TestDatabase) -> i64 {
    db.number("SELECT count(*) FROM schedules WHERE run_id IS NULL AND due_at <= now()").await
}

async fn ended(db: &TestDatabase) -> i64 {
    db.number("SELECT count(*) FROM runs WHERE state = 'success'").await
}

/// Deploys the hostile guest and the smallest example, and creates a connection to each. Nothing is due afterwards.
async fn two_tenants(db: &TestDatabase, host: &Host, hostile: &Bundle) -> (Connection, Connection) {
    host.deploy(hostile).await;
    host.deploy(&Bundle::example("minimal")).await;
    let greedy = host.connect("hostile", json!({ "steps": 0 })).await;
    let modest = host.connect("minimal", json!({ "count": 1, "batch": 1 })).await;
    assert_eq!(waiting_syncs(db).await, 0);
    (greedy, modest)
}

#[tokio::test]
async fn ten_thousand_due_syncs_delay_another_tenant_by_one_run() {
    let db = TestDatabase::create().await;
    let host = HostOptions::new().database(&db).variable("SYNCLINE_MAX_SYNCS", "1").spawn().await;
    let (_greedy, modest) = two_tenants(&db, &host, &Bundle::guest("hostile")).await;
    let before = ended(&db).await;
    make_connections(&db, 10_000).await;
    eventually("the backlog is being processed", async || (ended(&db).await > before + 5).then_some(()))
        .await;
    let sync = modest.statuses("*").await[0]["name"].as_str().expect("it has a name").to_owned();
    modest.trigger(&sync).await;
    // Every claim takes a number. One claim may have been in flight when the trigger was accepted.
    let asked_at = db.number("SELECT last_value FROM run_fences").await;
    let claimed_at = eventually("the other tenant's run starts", async || {
        let fences = "SELECT coalesce(max(fence), 0) FROM runs WHERE trigger = 'trigger'";
        Some(db.number(fences).await).filter(|fence| *fence > 0)
    })
    .await;
    assert!(claimed_at <= asked_at + 2, "{} runs started before it", claimed_at - asked_at - 1);
    let left = waiting_syncs(&db).await;
    assert!(left > 8_000, "only {left} runs of the backlog are left");
}

#[tokio::test]
async fn the_run_limit_of_a_connection_holds_across_hosts() {
    let db = TestDatabase::create().await;
    let host = HostOptions::new().database(&db).variable("SYNCLINE_MAX_SYNCS", "6").spawn().await;
    let bundle = Bundle::guest("hostile");
    let table = "[integrations.hostile]";
    let bundle = bundle.replace(table, &format!("{table}\nmax_concurrent_runs_per_connection = 2"));
    let (greedy, _) = two_tenants(&db, &host, &bundle).await;
    let _second = HostOptions::new().database(&db).variable("SYNCLINE_MAX_SYNCS", "6").spawn().await;
    let other = host.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    other.wait_until_idle().await;
    greedy.set_metadata(until_cancelled()).await;
    make_due(&db, "customer-1", 100).await;
    let parked = "SELECT count(*) FROM schedules WHERE awaits_permit";
    eventually("all but two syncs wait", async || (db.number(parked).await == 98).then_some(())).await;
    assert_eq!(running(&db).await, 2);
    // Another connection of the same integration gets a permit, although others wait.
    assert_eq!(other.run("commit-raw").await["status"], "SUCCESS");
    assert_eq!(running(&db).await, 2);
    // When two runs end, the next two start, until all have run.
    greedy.set_metadata(json!({ "steps": 0 })).await;
    db.execute(
        "UPDATE schedules SET cancel_requested = true WHERE run_id IS NOT NULL; NOTIFY syncline, 'cancel'",
    )
    .await;
    eventually("all syncs have run", async || {
        (waiting_syncs(&db).await + running(&db).await == 0).then_some(())
    })
    .await;
    assert_eq!(db.number(parked).await, 0);
}

#[tokio::test]
async fn the_run_limit_of_an_integration_holds_across_hosts() {
    let db = TestDatabase::create().await;
    let host = HostOptions::new().database(&db).variable("SYNCLINE_MAX_SYNCS", "1").spawn().await;
    let bundle = Bundle::guest("hostile");
    let table = "[integrations.hostile]";
    let bundle = bundle.replace(table, &format!("{table}\nmax_concurrent_runs = 3"));
    let (greedy, modest) = two_tenants(&db, &host, &bundle).await;
    let _others = [
        HostOptions::new().database(&db).variable("SYNCLINE_MAX_SYNCS", "2").spawn().await,
        HostOptions::new().database(&db).variable("SYNCLINE_MAX_SYNCS", "2").spawn().await,
    ];
    greedy.set_metadata(until_cancelled()).await;
    make_connections(&db, 20).await;
    eventually("three runs are in progress", async || (running(&db).await == 3).then_some(())).await;
    let sync = modest.statuses("*").await[0]["name"].as_str().expect("it has a name").to_owned();
    for _ in 0..3 {
        // Hosts with free capacity skip work at its limit, and run other work.
        assert_eq!(modest.run(&sync).await["status"], "SUCCESS");
        assert_eq!(running(&db).await, 3);
    }
    assert_eq!(waiting_syncs(&db).await, 17);
}
