//! What a full sync does about records that the provider no longer has.

use serde_json::{Value, json};

use crate::support::{Bundle, Connection, METADATA_KEY, Stage, text};

/// The smallest example, watching for deletions, with so many numbers saved.
async fn watched_numbers(count: u64) -> Stage {
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
async fn what_a_full_run_does_not_save_again_is_deleted() {
    let connection = watched_numbers(10).await;
    let before = connection.all(&[("model", "Number")]).await;
    connection.set_metadata(json!({ "first": 2, "count": 10, "batch": 3 })).await;
    let status = connection.run("numbers").await;
    assert_eq!(status["latestResult"], counts(2, 0, 2));
    assert_eq!(status["recordCount"], json!({ "Number": 10 }));
    assert_eq!(deleted(&connection).await, ["number-0", "number-1"]);
    let after = connection.all(&[("model", "Number")]).await;
    assert_eq!(after[..8], before[2..], "what was seen again was not rewritten");
}

#[tokio::test]
async fn what_came_back_can_be_deleted_again() {
    let connection = watched_numbers(4).await;
    for (metadata, expected) in [
        (json!({ "count": 2 }), counts(0, 0, 2)),
        (json!({ "count": 4 }), counts(2, 0, 0)),
        (json!({ "count": 4, "salt": "other" }), counts(0, 4, 0)),
        (json!({ "count": 3, "salt": "other" }), counts(0, 0, 1)),
        (json!({ "count": 3, "salt": "other" }), counts(0, 0, 0)),
    ] {
        connection.set_metadata(metadata.clone()).await;
        assert_eq!(connection.run("numbers").await["latestResult"], expected, "{metadata}");
    }
}

#[tokio::test]
async fn a_run_that_would_delete_most_of_many_records_is_held() {
    let connection = watched_numbers(120).await;
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
async fn a_run_that_fails_deletes_nothing() {
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
