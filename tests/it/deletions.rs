//! What a full sync does with records that the provider no longer has.

use serde_json::{Value, json};

use crate::support::{
    Answer, Bundle, Connection, HostOptions, METADATA_KEY, Receiver, SECRET_KEY, Stage, eventually, text,
};

/// The smallest example with `track_deletes` and the given number of saved records.
async fn tracked_numbers(count: u64) -> Stage {
    Stage::of(&Bundle::example("minimal").tracking_deletes("numbers"), json!({ "count": count })).await
}

fn counts(added: u64, updated: u64, deleted: u64) -> Value {
    json!({ "Number": { "added": added, "updated": updated, "deleted": deleted } })
}

async fn deleted(connection: &Connection) -> Vec<String> {
    let records = connection.all(&[("model", "Number"), ("filter", "deleted"), ("limit", "500")]).await;
    let mut ids: Vec<String> = records.iter().map(|record| text(&record["id"]).to_owned()).collect();
    ids.sort();
    ids
}

#[tokio::test]
async fn a_full_sync_deletes_records_that_it_did_not_save_again() {
    let connection = tracked_numbers(10).await;
    let before = connection.all(&[("model", "Number")]).await;
    connection.set_metadata(json!({ "first": 2, "count": 10, "batch": 3 })).await;
    let status = connection.run("numbers").await;
    assert_eq!(status["latestResult"], counts(2, 0, 2));
    assert_eq!(status["recordCount"], json!({ "Number": 10 }));
    assert_eq!(deleted(&connection).await, ["number-0", "number-1"]);
    let after = connection.all(&[("model", "Number")]).await;
    assert_eq!(after[..8], before[2..], "records that were saved again are unchanged");
}

#[tokio::test]
async fn a_record_that_returned_can_be_deleted_again() {
    let connection = tracked_numbers(4).await;
    for (metadata, expected) in [
        (json!({ "count": 2 }), counts(0, 0, 2)),
        (json!({ "count": 4 }), counts(2, 0, 0)),
        (json!({ "count": 4, "salt": "other" }), counts(0, 4, 0)),
        (json!({ "count": 3, "salt": "other" }), counts(0, 0, 1)),
        (json!({ "count": 3, "salt": "other" }), counts(0, 0, 0)),
    ] {
        connection.set_metadata(metadata.clone()).await;
        let status = connection.run("numbers").await;
        assert_eq!(status["latestResult"], expected, "{metadata}");
        assert_eq!(status["recordCount"], json!({ "Number": metadata["count"] }), "{metadata}");
    }
}

#[tokio::test]
async fn a_run_that_would_delete_most_records_is_held() {
    let connection = tracked_numbers(120).await;
    connection.set_metadata(json!({ "count": 40 })).await;
    let held = connection.run("numbers").await;
    assert_eq!(held["status"], "ERROR");
    assert_eq!(held["recordCount"], json!({ "Number": 120 }));
    assert_eq!(deleted(&connection).await, [""; 0]);

    connection.set_metadata(json!({ "count": 60 })).await;
    let half = connection.run("numbers").await;
    assert_eq!((&half["status"], &half["latestResult"]), (&json!("SUCCESS"), &counts(0, 0, 60)));
}

#[tokio::test]
async fn added_records_do_not_raise_the_deletion_threshold() {
    let connection = tracked_numbers(100).await;
    // The provider returns a hundred different records, as after a mix-up of accounts.
    connection.set_metadata(json!({ "first": 100, "count": 100 })).await;
    assert_eq!(connection.run("numbers").await["status"], "ERROR");
    assert_eq!(deleted(&connection).await, [""; 0]);
}

#[tokio::test]
async fn a_failed_run_deletes_nothing() {
    let bundle = Bundle::guest("hostile").tracking_deletes("commit-raw");
    let orders = |items: &str, end: &str| {
        let change = json!({ "save": { "model": "Item", "items": items } });
        json!({ "steps": 0, "commits": [{ "changes": [change] }], "end": end })
    };
    let connection = Stage::of(&bundle, orders(r#"[{"id":"a"},{"id":"b"}]"#, "return")).await;
    for end in ["fail", "panic"] {
        connection.set_metadata(orders(r#"[{"id":"b"},{"id":"c"}]"#, end)).await;
        assert_eq!(connection.run("commit-raw").await["status"], "ERROR", "{end}");
        let records = connection.all(&[("model", "Item")]).await;
        let live = records.iter().filter(|record| record[METADATA_KEY]["deleted_at"].is_null());
        assert_eq!(live.map(|record| text(&record["id"])).collect::<Vec<_>>(), ["a", "b", "c"], "{end}");
    }
    connection.set_metadata(orders(r#"[{"id":"b"},{"id":"c"}]"#, "return")).await;
    let status = connection.run("commit-raw").await;
    assert_eq!(status["latestResult"], json!({ "Item": { "added": 0, "updated": 0, "deleted": 1 } }));
}

/// Metadata that makes the hostile guest save these records with a checkpoint.
fn saving(ids: &[&str], end: &str) -> Value {
    let items: Vec<Value> = ids.iter().map(|id| json!({ "id": id })).collect();
    let change = json!({ "save": { "model": "Item", "items": json!(items).to_string() } });
    let commit = json!({ "changes": [change], "checkpoint": json!({ "after": ids.last() }).to_string() });
    json!({ "steps": 0, "commits": [commit], "end": end, "tells_start": true })
}

async fn live_ids(connection: &Connection) -> Vec<String> {
    let records = connection.all(&[("model", "Item")]).await;
    let live = records.iter().filter(|record| record[METADATA_KEY]["deleted_at"].is_null());
    let mut ids: Vec<String> = live.map(|record| text(&record["id"]).to_owned()).collect();
    ids.sort();
    ids
}

/// What the last run of the sync told about its start.
async fn told_start(stage: &Stage) -> String {
    let log = format!("/runs/{}/logs?search=full", latest_run(stage).await);
    let log = stage.host.get(&log).await.expect(200).json();
    text(&log["logs"][0]["message"]).to_owned()
}

#[tokio::test]
async fn only_some_runs_of_an_incremental_sync_are_full() {
    let sync = "track_deletes = true";
    let bundle = Bundle::guest("hostile")
        .tracking_deletes("commit-raw")
        .replace(sync, &format!("{sync}\nfull_every = \"1 day\""));
    let stage = Stage::of(&bundle, saving(&["a", "b"], "return")).await;
    assert_eq!(told_start(&stage).await, "full: true, checkpoint: None");
    let next = async |ids: &[&str], end: &str| {
        stage.set_metadata(saving(ids, end)).await;
        stage.run("commit-raw").await
    };

    let incremental = next(&["c"], "return").await;
    assert_eq!(incremental["checkpoint"], json!({ "after": "c" }));
    let start = r#"full: false, checkpoint: Some(Object {"after": String("b")})"#;
    assert_eq!(told_start(&stage).await, start);
    assert_eq!(live_ids(&stage).await, ["a", "b", "c"], "an incremental run deletes nothing");

    // A day later, a full run is due. It continues where it was interrupted.
    stage.db.execute("UPDATE sync_states SET last_full_at = now() - interval '1 day'").await;
    assert_eq!(next(&["b"], "fail").await["status"], "ERROR");
    assert_eq!(told_start(&stage).await, "full: true, checkpoint: None");
    assert_eq!(live_ids(&stage).await, ["a", "b", "c"], "a failed run deletes nothing");
    let full = next(&["c"], "return").await;
    let start = r#"full: true, checkpoint: Some(Object {"after": String("b")})"#;
    assert_eq!(told_start(&stage).await, start);
    assert_eq!(full["latestResult"], json!({ "Item": { "added": 0, "updated": 0, "deleted": 1 } }));
    assert_eq!(live_ids(&stage).await, ["b", "c"]);
    assert_eq!(full["checkpoint"], json!({ "after": "c" }), "incremental runs continue from a full run");

    next(&["d"], "return").await;
    assert_eq!(live_ids(&stage).await, ["b", "c", "d"]);
    // After a reset, the sync fetches everything.
    stage.set_metadata(saving(&["d"], "return")).await;
    stage.run_with("commit-raw", json!({ "reset": true })).await;
    assert_eq!(told_start(&stage).await, "full: true, checkpoint: None");
    assert_eq!(live_ids(&stage).await, ["d"]);
}

/// The hostile guest with `track_deletes` and `saved` records. Its last run saved only the first `seen` of them, so its
/// deletions are held. Returns that run's id.
async fn held(saved: usize, seen: usize) -> (Stage, String) {
    let bundle = Bundle::guest("hostile").tracking_deletes("commit-raw");
    let stage = Stage::of(&bundle, items(saved, "return")).await;
    (stage.connection.set_metadata(items(seen, "return"))).await;
    let status = stage.connection.run("commit-raw").await;
    assert_eq!(status["status"], "ERROR", "{status}");
    let id = latest_run(&stage).await;
    (stage, id)
}

/// Metadata that makes the hostile guest save the given number of records.
fn items(count: usize, end: &str) -> Value {
    let items: Vec<Value> = (0..count).map(|number| json!({ "id": format!("{number:03}") })).collect();
    let change = json!({ "save": { "model": "Item", "items": json!(items).to_string() } });
    json!({ "steps": 0, "commits": [{ "changes": [change] }], "end": end })
}

async fn latest_run(stage: &Stage) -> String {
    let found = stage.host.get("/runs?function=commit-raw&limit=1").await.expect(200).json();
    text(&found["runs"][0]["id"]).to_owned()
}

async fn approve(stage: &Stage, run: &str) -> Answer {
    stage.host.request("POST", &format!("/runs/{run}/approve")).send().await
}

async fn live(connection: &Connection) -> usize {
    let records = connection.all(&[("model", "Item"), ("limit", "500")]).await;
    records.iter().filter(|record| record[METADATA_KEY]["deleted_at"].is_null()).count()
}

#[tokio::test]
async fn approving_a_held_run_deletes_the_records_and_sends_a_webhook() {
    let receiver = Receiver::start().await;
    let (stage, id) = held(120, 40).await;
    let run = stage.host.get(&format!("/runs/{id}")).await.expect(200).json();
    assert_eq!(run["error"]["code"], "mass_deletion_held");
    assert_eq!(run["error"]["details"], json!({ "model": "Item", "unseen": 80, "live": 120 }));
    assert_eq!(live(&stage.connection).await, 120);
    let url = receiver.url("/hooks");
    stage.db.execute(&format!("UPDATE environments SET webhook_url = '{url}'")).await;

    let key = stage.host.create_key(&stage.db, "reader", "read-only");
    let reader = stage.host.with_key(Some(&key));
    let refused = reader.request("POST", &format!("/runs/{id}/approve")).send().await;
    assert_eq!(refused.refusal(), (403, "forbidden".to_owned()));

    let approved = approve(&stage, &id).await.expect(200).json();
    assert_eq!((&approved["state"], &approved["error"]), (&json!("success"), &Value::Null));
    assert_eq!(approved["counts"], json!({ "Item": { "added": 0, "updated": 0, "deleted": 80 } }));
    assert!(approved["approved_at"].is_string(), "{approved}");
    assert_eq!(live(&stage.connection).await, 40);
    let status = stage.connection.status("commit-raw").await;
    assert_eq!((&status["status"], &status["recordCount"]), (&json!("SUCCESS"), &json!({ "Item": 40 })));
    let reported = stage.db.texts("SELECT body FROM outbound_webhook_deliveries").await;
    assert_eq!(reported.len(), 1, "{reported:?}");
    let reported: Value = serde_json::from_str(&reported[0]).unwrap();
    assert_eq!(reported["responseResults"], json!({ "added": 0, "updated": 0, "deleted": 80 }));
    let since = text(&reported["modifiedAfter"]);
    let found = stage.connection.all(&[("model", "Item"), ("modified_after", since), ("limit", "500")]).await;
    assert_eq!(found.len(), 80, "the reported records can be read by their time");

    assert_eq!(approve(&stage, &id).await.refusal(), (409, "run_already_approved".to_owned()));
    assert_eq!(stage.db.audited("run.approved").await, [format!("run {id}")]);
    let next = stage.connection.run("commit-raw").await;
    assert_eq!(next["latestResult"], json!({ "Item": { "added": 0, "updated": 0, "deleted": 0 } }));
}

#[tokio::test]
async fn a_sync_without_track_deletes_clears_its_seen_positions() {
    let (stage, id) = held(120, 40).await;
    // Another full sync is interrupted.
    stage.connection.set_metadata(items(50, "fail")).await;
    assert_eq!(stage.connection.run("commit-raw").await["status"], "ERROR");
    let seen_positions = "SELECT count(*) FROM seen_positions";
    assert!(stage.db.number(seen_positions).await > 0);
    stage.host.deploy(&Bundle::guest("hostile")).await;
    stage.connection.set_metadata(items(60, "return")).await;
    assert_eq!(stage.connection.run("commit-raw").await["status"], "SUCCESS");
    assert_eq!(stage.db.number(seen_positions).await, 0);
    assert_eq!(live(&stage.connection).await, 120);
    assert_eq!(approve(&stage, &id).await.refusal(), (409, "run_superseded".to_owned()));
}

#[tokio::test]
async fn an_approval_keeps_records_that_were_saved_since() {
    let (stage, id) = held(120, 40).await;
    // An action saves one record unchanged and one changed. A sync that fails saves ten more.
    stage.connection.save_raw("Item", r#"[{"id":"100"},{"id":"101","name":"changed"}]"#).await.expect(200);
    stage.connection.set_metadata(items(50, "fail")).await;
    assert_eq!(stage.connection.run("commit-raw").await["status"], "ERROR");
    approve(&stage, &id).await.expect(200);
    assert_eq!(live(&stage.connection).await, 52);
}

#[tokio::test]
async fn an_interrupted_approval_is_completed_by_the_next_one() {
    let (stage, id) = held(120, 40).await;
    approve(&stage, &id).await.expect(200);
    // The state if the host had died after the deletion, before it was recorded.
    stage
        .db
        .execute("UPDATE runs SET approved_at = NULL, state = 'error', error_code = 'mass_deletion_held', counts = NULL WHERE approved_at IS NOT NULL")
        .await;
    let approved = approve(&stage, &id).await.expect(200).json();
    assert_eq!(approved["counts"]["Item"]["deleted"], 80);
    assert_eq!(live(&stage.connection).await, 40);
}

#[tokio::test]
async fn only_the_latest_held_run_can_be_approved() {
    let (stage, id) = held(120, 40).await;
    stage.connection.set_metadata(items(120, "return")).await;
    assert_eq!(stage.connection.run("commit-raw").await["status"], "SUCCESS");
    assert_eq!(approve(&stage, &id).await.refusal(), (409, "run_superseded".to_owned()));
    assert_eq!(live(&stage.connection).await, 120);
    let successful = latest_run(&stage).await;
    assert_eq!(approve(&stage, &successful).await.refusal(), (409, "run_not_held".to_owned()));
    for unknown in ["nonsense", "00000000-0000-0000-0000-000000000000"] {
        assert_eq!(approve(&stage, unknown).await.refusal(), (404, "unknown_run".to_owned()), "{unknown}");
    }
    // Of two held runs, only the later one can be approved.
    stage.connection.set_metadata(items(30, "return")).await;
    stage.connection.run("commit-raw").await;
    let first = latest_run(&stage).await;
    stage.connection.set_metadata(items(20, "return")).await;
    stage.connection.run("commit-raw").await;
    let second = latest_run(&stage).await;
    assert_eq!(approve(&stage, &first).await.refusal(), (409, "run_superseded".to_owned()));
    let output = stage
        .db
        .command(&["runs", "approve", &second, "--url", stage.host.base_url(), "--secret-key", SECRET_KEY])
        .run();
    assert_eq!(output, format!("approved run {second}; it has deleted 100 records in total\n"));
    assert_eq!(live(&stage.connection).await, 20);
}

#[tokio::test]
async fn a_sync_can_configure_when_deletions_are_held() {
    let keys = "track_deletes = true\nhold_deletions_above = 0.1\nhold_deletions_from = 10";
    let table = "[integrations.minimal.syncs.numbers]";
    let bundle = Bundle::example("minimal").replace(table, &format!("{table}\n{keys}"));
    let stage = Stage::of(&bundle, json!({ "count": 20 })).await;
    for (count, expected) in [(17, "ERROR"), (18, "SUCCESS"), (9, "ERROR"), (17, "SUCCESS")] {
        stage.connection.set_metadata(json!({ "count": count })).await;
        assert_eq!(stage.connection.run("numbers").await["status"], expected, "{count}");
    }
}

#[tokio::test]
async fn a_held_run_is_superseded_when_its_records_expire() {
    let (stage, id) = held(120, 40).await;
    let keeper =
        HostOptions::new().database(&stage.db).variable("SYNCLINE_RETENTION_EVERY", "50ms").spawn().await;
    stage.db.execute("UPDATE sync_states SET last_run_at = now() - interval '61 days'").await;
    eventually("its records are deleted", async || (live(&stage.connection).await == 0).then_some(())).await;
    drop(keeper);
    assert_eq!(approve(&stage, &id).await.refusal(), (409, "run_superseded".to_owned()));
}
