//! Statements about records that are pruned or deleted automatically.

use serde_json::{Value, json};

use super::support::{Kind, Section};
use crate::support::{Bundle, METADATA_KEY, Stage, eventually, save, without_metadata};

#[tokio::test]
async fn retention() {
    let settings = [("SYNCLINE_RETENTION_EVERY", "50ms")];
    let stage = Stage::with(&settings, &Bundle::guest("hostile"), json!({ "steps": 3, "pause_ms": 0 })).await;
    let items = save(&json!([{ "id": "old", "name": "a" }, { "id": "newer", "name": "b" }]));
    let commit = json!({ "changes": [items], "checkpoint": r#"{"cursor":"7"}"# });
    stage.set_metadata(json!({ "steps": 3, "pause_ms": 0, "commits": [commit] })).await;
    stage.run("commit-raw").await;
    let mut section = Section::new("Retention of records");
    payloads(&mut section, &stage).await;
    records(&mut section, &stage).await;
    section.finish();
}

async fn payloads(section: &mut Section, stage: &Stage) {
    let before = stage.all(&[("model", "Item")]).await;
    // Moves the records into the past.
    stage
        .db
        .execute(
            "UPDATE records SET last_modified_at = now() - interval '29 days' WHERE external_id = 'newer';
             UPDATE records SET last_modified_at = now() - interval '31 days' WHERE external_id = 'old';
             UPDATE streams SET oldest_payload_at = now() - interval '31 days'",
        )
        .await;
    let after = eventually("a payload is emptied", async || {
        let records = stage.all(&[("model", "Item")]).await;
        records.iter().any(|record| record[METADATA_KEY]["pruned_at"].is_string()).then_some(records)
    })
    .await;
    let old = &after[0];
    section.equal(
        "A payload is emptied 30 days after its last change",
        &without_metadata(old.clone()),
        json!({ "id": "old" }),
    );
    section.members("The metadata of such a record", &old[METADATA_KEY], &[("pruned_at", Kind::Time)]);
    for member in ["first_seen_at", "last_action", "deleted_at", "cursor"] {
        let expected = before[0][METADATA_KEY][member].clone();
        section.equal(&format!("`{member}` stays"), &old[METADATA_KEY][member], expected);
    }
    section.equal("A payload that changed 29 days ago stays", &after[1]["name"], "b");
    let status = stage.run_with("commit-raw", json!({ "reset": true })).await;
    section.equal("A run with `reset` restores the payload", &status["latestResult"]["Item"]["updated"], 1);
}

async fn records(section: &mut Section, stage: &Stage) {
    let age = async |sync: &str, days: u32| {
        let sql = format!(
            "UPDATE sync_states SET last_run_at = now() - interval '{days} days' WHERE sync_name = '{sync}'"
        );
        stage.db.execute(&sql).await;
    };
    age("steps", 59).await;
    age("commit-raw", 61).await;
    eventually("the records are deleted", async || {
        stage.all(&[("model", "Item")]).await.is_empty().then_some(())
    })
    .await;
    let status = stage.status("commit-raw").await;
    let count = json!({ "Item": 0 });
    section.equal(
        "Records are deleted 60 days after the last run of their sync",
        &status["recordCount"],
        count,
    );
    section.equal("The checkpoint is deleted with them", &status["checkpoint"], Value::Null);
    let steps = stage.all(&[("model", "Step")]).await.len();
    section.equal("Records of a sync that ran 59 days ago stay", &json!(steps), 3);
    let again = stage.run("commit-raw").await;
    section.equal("The next run saves the records again", &again["latestResult"]["Item"]["added"], 2);
}
