//! Stall detection: syncs without progress are reported as failures, and are not retried endlessly.

use serde_json::{Value, json};

use crate::support::{Bundle, Host, HostOptions, Stage, TestDatabase, eventually, save};

const TABLE: &str = "[integrations.hostile.syncs.commit-raw]";
/// A time limit within which a run commits even on a slow machine.
const WALL: &str = "wall = \"2s\"";

/// Metadata for a function that runs until it is cancelled.
fn until_cancelled() -> Value {
    json!({ "steps": 0, "end": "wait-until-cancelled" })
}

async fn codes(db: &TestDatabase) -> Vec<String> {
    db.texts("SELECT coalesce(error_code, state) FROM runs WHERE function_name = 'commit-raw' ORDER BY fence")
        .await
}

async fn seconds_to_next(db: &TestDatabase) -> i64 {
    let due_in =
        "SELECT extract(epoch FROM due_at - now())::bigint FROM schedules WHERE sync_name = 'commit-raw'";
    db.number(due_in).await
}

/// A host that reports a stall after two attempts, with a limit for the sync.
async fn stage(limits: &str) -> Stage {
    let db = TestDatabase::create().await;
    let host = HostOptions::new().database(&db).variable("SYNCLINE_MAX_IDLE_ATTEMPTS", "2").spawn().await;
    host.deploy(&Bundle::guest("hostile").replace(TABLE, &format!("{TABLE}\nlimits = {{ {limits} }}"))).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    Stage { connection, host, db }
}

#[tokio::test]
async fn a_run_that_commits_nothing_for_too_long_fails() {
    let stage = stage("idle = \"300ms\"").await;
    stage.set_metadata(until_cancelled()).await;
    let status = stage.run("commit-raw").await;
    assert_eq!(status["status"], "ERROR");
    assert_eq!(codes(&stage.db).await, ["success", "no_progress"]);
    let next = seconds_to_next(&stage.db).await;
    assert!((30..=75).contains(&next), "the retry is in {next} s");
    let connection =
        stage.host.get("/connections/customer-1?provider_config_key=hostile").await.expect(200).json();
    assert_eq!(connection["errors"][0]["type"], "sync");
}

#[tokio::test]
async fn repeated_timeouts_without_saved_records_are_a_stall() {
    let stage = stage(WALL).await;
    stage.set_metadata(until_cancelled()).await;
    stage.run("commit-raw").await;
    stage.run("commit-raw").await;
    assert_eq!(codes(&stage.db).await, ["success", "execution_timeout", "no_progress"]);
    // From then on, each further attempt is reported.
    stage.run("commit-raw").await;
    assert_eq!(codes(&stage.db).await[3..], ["no_progress"]);
    // A sync that saves something new each time makes progress, however often it times out.
    for id in ["a", "b", "c"] {
        run_until_cut_off(&stage, json!([{ "changes": [save(&json!([{ "id": id }]))] }])).await;
    }
    assert_eq!(codes(&stage.db).await[4..], ["execution_timeout"; 3]);
}

/// Runs the sync with these commits, which change records, and then until the time limit.
async fn run_until_cut_off(stage: &Stage, commits: Value) {
    let before = stage.all(&[("model", "Item")]).await;
    stage.set_metadata(json!({ "steps": 0, "commits": commits, "end": "wait-until-cancelled" })).await;
    stage.run("commit-raw").await;
    assert_ne!(stage.all(&[("model", "Item")]).await, before, "the run commits before its time limit");
}

#[tokio::test]
async fn only_new_records_or_a_moved_checkpoint_count_as_progress() {
    let stage = stage(WALL).await;
    let save_a = |count: i32, checkpoint: Value| {
        let changes = json!([save(&json!([{ "id": "a", "count": count }]))]);
        json!([{ "changes": changes, "checkpoint": checkpoint }])
    };
    // Each run saves the record with a change, and never finishes.
    for count in 1..=3 {
        run_until_cut_off(&stage, save_a(count, Value::Null)).await;
    }
    let codes_then = codes(&stage.db).await;
    assert_eq!(codes_then[1..], ["execution_timeout", "execution_timeout", "no_progress"]);
    // Alternating between saving and deleting is not progress either.
    let in_turns = json!([{ "delete": { "model": "Item", "ids": ["a"] } }, save(&json!([{ "id": "a" }]))]);
    run_until_cut_off(&stage, json!([{ "changes": in_turns }])).await;
    assert_eq!(codes(&stage.db).await[4..], ["no_progress"]);
    for count in 4..=6 {
        let checkpoint = json!({ "cursor": count.to_string() }).to_string();
        run_until_cut_off(&stage, save_a(count, json!(checkpoint))).await;
    }
    assert_eq!(codes(&stage.db).await[5..], ["execution_timeout"; 3]);
}

#[tokio::test]
async fn repeated_commits_do_not_count_as_progress() {
    let stage = stage("idle = \"2s\"").await;
    // The first commit saves an unchanged record, as a full sync does at its start. It is then repeated for ten
    // seconds.
    let commit = json!({ "changes": [save(&json!([{ "id": "a" }]))], "checkpoint": r#"{"cursor":"1"}"# });
    stage.set_metadata(json!({ "steps": 0, "commits": [commit] })).await;
    stage.run("commit-raw").await;
    stage
        .set_metadata(json!({ "steps": 0, "commits": vec![commit; 1_000], "pause_ms": 10, "end": "fail" }))
        .await;
    stage.run("commit-raw").await;
    assert_eq!(codes(&stage.db).await, ["success", "success", "no_progress"]);

    // A full sync may consist only of unchanged records, as long as the run has not seen them before.
    let commits: Vec<Value> =
        (0..30).map(|id| json!({ "changes": [save(&json!([{ "id": id.to_string() }]))] })).collect();
    stage.set_metadata(json!({ "steps": 0, "commits": commits })).await;
    stage.run("commit-raw").await;
    stage.set_metadata(json!({ "steps": 0, "commits": commits, "pause_ms": 100 })).await;
    assert_eq!(stage.run("commit-raw").await["status"], "SUCCESS");
}

#[tokio::test]
async fn a_sync_that_repeatedly_loses_its_host_is_reported_as_stalled() {
    let db = TestDatabase::create().await;
    let options = || {
        HostOptions::new()
            .database(&db)
            .variable("SYNCLINE_LEASE_SECONDS", "1")
            .variable("SYNCLINE_MAX_IDLE_ATTEMPTS", "2")
    };
    let mut host: Host = options().spawn().await;
    host.deploy(&Bundle::guest("hostile")).await;
    let connection = host.connect("hostile", json!({ "steps": 0 })).await;
    connection.set_metadata(until_cancelled()).await;
    connection.trigger("commit-raw").await;
    for losses in 1..=2 {
        let running = "SELECT count(*) FROM runs WHERE function_name = 'commit-raw' AND state = 'running'";
        eventually("a run is in progress", async || (db.number(running).await == 1).then_some(())).await;
        let begun = "SELECT count(*) FROM sync_states WHERE sync_name = 'commit-raw' AND lacks_progress
                     AND fence = (SELECT max(fence) FROM runs)";
        eventually("the run has begun", async || (db.number(begun).await == 1).then_some(())).await;
        host.kill();
        host = options().spawn().await;
        let lost = "SELECT count(*) FROM runs WHERE state = 'lost'";
        eventually("the loss is recorded", async || (db.number(lost).await == losses).then_some(())).await;
        db.execute("UPDATE schedules SET due_at = now() WHERE due_reason = 'retry' AND run_id IS NULL").await;
    }
    eventually("the stall is reported", async || {
        codes(&db).await.contains(&"no_progress".to_owned()).then_some(())
    })
    .await;
    let next = seconds_to_next(&db).await;
    assert!(next > 30, "the retry is in {next} s");
    // A requested run still starts.
    connection.through(&host).set_metadata(json!({ "steps": 0 })).await;
    assert_eq!(connection.through(&host).run("commit-raw").await["status"], "SUCCESS");
}
