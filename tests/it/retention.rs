//! Retention: old payloads are emptied, and records of syncs that no longer run are deleted.

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Row};

use crate::support::{Bundle, METADATA_KEY, Stage, cursor_of, eventually, masked, save, without_metadata};

/// The hostile guest on a host with a retention interval of 50 ms.
async fn stage(variables: &[(&str, &str)]) -> Stage {
    let variables = [&[("SYNCLINE_RETENTION_EVERY", "50ms")], variables].concat();
    let stage = Stage::with(&variables, &Bundle::guest("hostile"), json!({ "steps": 3 })).await;
    stage.wait_until_idle().await;
    stage
}

fn items(numbers: std::ops::RangeInclusive<u32>) -> Value {
    numbers.map(|number| json!({ "id": number.to_string(), "name": format!("item {number}") })).collect()
}

/// Moves the first records of every stream into the past by the given number of days.
async fn age_records(stage: &Stage, until_position: u32, days: u32) {
    let sql = format!(
        "UPDATE records SET last_modified_at = now() - interval '{days} days' WHERE position <= {until_position};
         UPDATE streams SET oldest_payload_at = now() - interval '{days} days'"
    );
    stage.db.execute(&sql).await;
}

async fn age_sync(stage: &Stage, sync: &str, days: u32) {
    let sql = format!(
        "UPDATE sync_states SET last_run_at = now() - interval '{days} days' WHERE sync_name = '{sync}'"
    );
    stage.db.execute(&sql).await;
}

fn is_pruned(record: &Value) -> bool {
    !record[METADATA_KEY]["pruned_at"].is_null()
}

#[tokio::test]
async fn payloads_unchanged_for_30_days_are_emptied() {
    let stage = stage(&[]).await;
    stage.commit(json!([save(&items(1..=5))])).await;
    let before = stage.all(&[("model", "Item")]).await;
    age_records(&stage, 2, 31).await;
    let after = eventually("two payloads are emptied", async || {
        let records = stage.all(&[("model", "Item")]).await;
        (records.iter().filter(|record| is_pruned(record)).count() == 2).then_some(records)
    })
    .await;
    for (after, before) in after[..2].iter().zip(&before) {
        assert_eq!(without_metadata(after.clone()), json!({ "id": before["id"] }));
        let mut expected = masked(before.clone())[METADATA_KEY].clone();
        expected["pruned_at"] = json!("…");
        assert_eq!(masked(after.clone())[METADATA_KEY], expected);
        assert_eq!(cursor_of(after), cursor_of(before));
    }
    assert_eq!(after[2..], before[2..], "newer records are unchanged");

    stage.commit(json!([save(&json!([{ "id": "1", "name": "new" }]))])).await;
    age_records(&stage, 4, 31).await;
    let records = eventually("the next two payloads are emptied", async || {
        let records = stage.all(&[("model", "Item")]).await;
        (records.iter().filter(|record| is_pruned(record)).count() == 3).then_some(records)
    })
    .await;
    let last = without_metadata(records[4].clone());
    assert_eq!(last, json!({ "id": "1", "name": "new" }), "a changed record has a payload again");
}

#[tokio::test]
async fn the_operator_sets_how_long_payloads_are_kept() {
    let stage = stage(&[("SYNCLINE_PRUNE_AFTER", "never"), ("SYNCLINE_DELETE_AFTER", "7d")]).await;
    stage.commit(json!([save(&items(1..=3))])).await;
    age_records(&stage, 3, 3_000).await;
    age_sync(&stage, "steps", 8).await;
    eventually("the records of the other sync are deleted", async || {
        stage.all(&[("model", "Step")]).await.is_empty().then_some(())
    })
    .await;
    assert!(!stage.all(&[("model", "Item")]).await.iter().any(is_pruned));
}

#[tokio::test]
async fn records_of_a_sync_idle_for_60_days_are_deleted_with_its_checkpoint() {
    let stage = stage(&[]).await;
    let commit = json!({ "changes": [save(&items(1..=5))], "checkpoint": r#"{"cursor":"7"}"# });
    stage.set_metadata(json!({ "steps": 3, "commits": [commit] })).await;
    stage.run("commit-raw").await;
    let cursor = cursor_of(stage.all(&[("model", "Item")]).await.last().expect("five items")).to_owned();
    age_sync(&stage, "commit-raw", 61).await;
    eventually("nothing is left of the sync", async || {
        let states = "SELECT count(*) FROM sync_states WHERE sync_name = 'commit-raw'";
        (stage.db.number(states).await == 0).then_some(())
    })
    .await;
    assert_eq!(stage.all(&[("model", "Item")]).await, Vec::<Value>::new());
    assert_eq!(stage.all(&[("model", "Step")]).await.len(), 3, "another sync's records stay");
    let status = stage.status("commit-raw").await;
    assert_eq!(
        (&status["checkpoint"], &status["recordCount"]),
        (&Value::Null, &json!({ "Item": 0 })),
        "{status}"
    );

    let status = stage.run("commit-raw").await;
    assert_eq!(status["latestResult"], json!({ "Item": { "added": 5, "updated": 0, "deleted": 0 } }));
    let read = stage.all(&[("model", "Item"), ("cursor", &cursor)]).await;
    assert_eq!(read.len(), 5, "new records come after every issued cursor");
}

#[tokio::test]
async fn records_of_a_removed_sync_expire_after_60_days() {
    let stage = stage(&[]).await;
    stage.commit(json!([save(&items(1..=5))])).await;
    let table = "[integrations.hostile.syncs.commit-raw]\nruns = \"every 1 hour\"\nmodel = \"Item\"\n";
    stage.host.deploy(&Bundle::guest("hostile").replace(table, "")).await;
    age_sync(&stage, "commit-raw", 59).await;
    // The pass that deletes the others examines these too.
    age_sync(&stage, "steps", 61).await;
    eventually("the other sync's records are deleted", async || {
        stage.all(&[("model", "Step")]).await.is_empty().then_some(())
    })
    .await;
    assert_eq!(stage.all(&[("model", "Item")]).await.len(), 5);
    age_sync(&stage, "commit-raw", 61).await;
    eventually("its records are deleted too", async || {
        stage.all(&[("model", "Item")]).await.is_empty().then_some(())
    })
    .await;
}

const MANY: u32 = 10_000;

/// Locks the stream as a writer would, repeatedly, until all items are processed. `progress` is an SQL expression for
/// the number of processed items. Checks that no wait lasts longer than one step.
async fn write_until_done(stage: &Stage, progress: &str) {
    const STEP: i64 = 500;

    let mut writer = stage.db.connect().await;
    let (mut waits, mut through) = (Vec::new(), 0);
    // The first subquery sees the state at the start of the statement, the second one the state when it got the lock.
    let sql = format!(
        "WITH before AS MATERIALIZED (SELECT {progress} AS done FROM streams WHERE model = 'Item'),
         locked AS MATERIALIZED (SELECT {progress} AS done FROM streams WHERE model = 'Item' FOR NO KEY UPDATE)
         SELECT before.done, locked.done FROM before, locked"
    );
    while through < i64::from(MANY) {
        let row = sqlx::query(AssertSqlSafe(&*sql));
        let row = row.fetch_one(&mut writer).await.expect("the stream can be locked");
        through = row.get(1);
        waits.push(through - row.get::<i64, _>(0));
    }
    let waited = waits.iter().filter(|wait| **wait > 0).count();
    assert!(waited > 0, "the writer never waited for a step");
    // One more step may have ended between the start of the statement and its wait.
    assert!(waits.iter().all(|wait| *wait <= 2 * STEP), "{waits:?}");
}

#[tokio::test]
async fn a_writer_waits_for_at_most_one_step_of_a_long_pruning() {
    let stage = stage(&[("SYNCLINE_RETENTION_EVERY", "1s")]).await;
    stage.save_raw("Item", &items(1..=MANY).to_string()).await.expect(200);
    age_records(&stage, MANY, 31).await;
    write_until_done(&stage, "pruned_through").await;
}

#[tokio::test]
async fn a_writer_waits_for_at_most_one_step_of_a_long_deletion() {
    let stage = stage(&[("SYNCLINE_RETENTION_EVERY", "1s")]).await;
    stage.save_raw("Item", &items(1..=MANY).to_string()).await.expect(200);
    // The run assigns the stream to the sync.
    stage.run("commit-raw").await;
    age_sync(&stage, "commit-raw", 61).await;
    write_until_done(&stage, &format!("{MANY} - total_count")).await;
    assert_eq!(stage.all(&[("model", "Item")]).await, Vec::<Value>::new());
}
