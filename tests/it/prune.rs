//! Pruning: payloads are emptied, and metadata is kept.

use serde_json::{Value, json};

use crate::support::{Bundle, METADATA_KEY, Stage, ids_of, masked, save, text, without_metadata};

/// Five items, each with a payload.
async fn five_items() -> (Stage, Vec<Value>) {
    let stage = Stage::hostile().await;
    stage.commit(json!([save(&payloads())])).await;
    let records = stage.all(&[("model", "Item")]).await;
    assert_eq!(records.len(), 5);
    (stage, records)
}

fn payloads() -> Value {
    (1..=5).map(|number| json!({ "id": number.to_string(), "name": format!("item {number}") })).collect()
}

fn until(record: &Value) -> Value {
    json!({ "model": "Item", "until_cursor": record[METADATA_KEY]["cursor"] })
}

#[tokio::test]
async fn pruning_empties_payloads_up_to_and_including_the_cursor() {
    let (stage, before) = five_items().await;
    let answer = stage.prune(&until(&before[2])).await.expect(200);
    assert_eq!(answer.json(), json!({ "count": 3, "has_more": false }));

    let after = stage.all(&[("model", "Item")]).await;
    assert_eq!(after[3..], before[3..], "records after the cursor are unchanged");
    for (after, before) in after[..3].iter().zip(&before) {
        assert_eq!(
            masked(after.clone()),
            json!({
                "id": before["id"],
                METADATA_KEY: {
                    "first_seen_at": "…", "last_modified_at": "…", "last_action": "ADDED",
                    "deleted_at": null, "pruned_at": "…", "cursor": "…",
                },
            })
        );
        for member in ["first_seen_at", "last_modified_at", "cursor"] {
            assert_eq!(after[METADATA_KEY][member], before[METADATA_KEY][member], "{member}");
        }
    }
    assert_eq!(stage.status("commit-raw").await["recordCount"], json!({ "Item": 5 }));
}

#[tokio::test]
async fn pruned_records_are_not_pruned_again() {
    let (stage, records) = five_items().await;
    stage.prune(&until(&records[2])).await.expect(200);
    let again = stage.prune(&until(&records[3])).await.expect(200);
    assert_eq!(again.json(), json!({ "count": 1, "has_more": false }));
    let nothing = stage.prune(&until(&records[3])).await.expect(200);
    assert_eq!(nothing.json(), json!({ "count": 0, "has_more": false }));
}

#[tokio::test]
async fn a_limit_leaves_the_rest_for_the_next_call() {
    let (stage, records) = five_items().await;
    let mut body = until(&records[4]);
    body["limit"] = json!(2);
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(stage.prune(&body).await.expect(200).json());
    }
    assert_eq!(
        answers,
        [
            json!({ "count": 2, "has_more": true }),
            json!({ "count": 2, "has_more": true }),
            json!({ "count": 1, "has_more": false }),
        ]
    );
}

#[tokio::test]
async fn an_exact_limit_leaves_nothing() {
    let (stage, records) = five_items().await;
    let mut body = until(&records[2]);
    body["limit"] = json!(3);
    let answer = stage.prune(&body).await.expect(200);
    assert_eq!(answer.json(), json!({ "count": 3, "has_more": false }));
}

#[tokio::test]
async fn without_a_limit_one_call_prunes_thousands() {
    let stage = Stage::numbers(2_500).await;
    let records = stage.all(&[("model", "Number"), ("limit", "500")]).await;
    let cursor = &records[2_499][METADATA_KEY]["cursor"];
    let answer = stage.prune(&json!({ "model": "Number", "until_cursor": cursor })).await.expect(200);
    assert_eq!(answer.json(), json!({ "count": 2_500, "has_more": false }));
}

#[tokio::test]
async fn invalid_prune_requests_are_rejected() {
    let (stage, records) = five_items().await;
    let cursor = &records[2][METADATA_KEY]["cursor"];
    for (body, code) in [
        (json!({ "model": "Item" }), "invalid_body"),
        (json!({ "until_cursor": cursor }), "invalid_body"),
        (json!({ "model": "item", "until_cursor": cursor }), "invalid_body"),
        (json!({ "model": "Item", "until_cursor": cursor, "limit": 0 }), "invalid_body"),
        (json!({ "model": "Item", "until_cursor": cursor, "limit": -3 }), "invalid_body"),
        (json!({ "model": "Item", "until_cursor": cursor, "limit": "2" }), "invalid_body"),
        (json!({ "model": "Item", "until_cursor": cursor, "untill": 1 }), "invalid_body"),
        (json!({ "model": "Item", "until_cursor": "nonsense" }), "invalid_cursor"),
        (json!({ "model": "Item", "until_cursor": "" }), "invalid_cursor"),
        (json!({ "model": "Step", "until_cursor": cursor }), "invalid_cursor"),
    ] {
        assert_eq!(stage.prune(&body).await.refusal(), (400, code.to_owned()), "{body}");
    }
    let told = stage.prune(&json!({ "model": "Item", "until_cursor": "nonsense" })).await.message();
    assert_eq!(
        told,
        "`until_cursor` is not a cursor that Syncline has issued; use the `cursor` from a record's metadata"
    );
    let told = stage.prune(&json!({ "model": "Item", "until_cursor": cursor, "limit": "2" })).await.message();
    assert!(told.contains("a whole number"), "{told}");
    let unknown = stage.prune(&json!({ "model": "Unicorn", "until_cursor": cursor })).await;
    assert_eq!(unknown.refusal(), (404, "unknown_model".to_owned()));
    assert_eq!(stage.all(&[("model", "Item")]).await, records, "nothing was pruned");
}

#[tokio::test]
async fn a_pruned_record_saved_unchanged_stays_pruned() {
    let (stage, records) = five_items().await;
    stage.prune(&until(&records[4])).await.expect(200);
    let pruned = stage.all(&[("model", "Item")]).await;
    let status = stage.commit(json!([save(&payloads())])).await;
    assert_eq!(status["latestResult"], json!({ "Item": { "added": 0, "updated": 0, "deleted": 0 } }));
    assert_eq!(stage.all(&[("model", "Item")]).await, pruned);
}

#[tokio::test]
async fn a_changed_pruned_record_returns_as_updated() {
    let (stage, records) = five_items().await;
    stage.prune(&until(&records[4])).await.expect(200);
    stage.commit(json!([save(&json!([{ "id": "2", "name": "new" }]))])).await;
    let last = stage.all(&[("model", "Item")]).await.pop().unwrap();
    assert_eq!(without_metadata(last.clone()), json!({ "id": "2", "name": "new" }));
    assert_eq!(last[METADATA_KEY]["last_action"], "UPDATED");
    assert_eq!(last[METADATA_KEY]["pruned_at"], Value::Null);
    assert_eq!(last[METADATA_KEY]["first_seen_at"], records[1][METADATA_KEY]["first_seen_at"]);
}

#[tokio::test]
async fn a_run_with_reset_restores_pruned_payloads() {
    let (stage, records) = five_items().await;
    stage.prune(&until(&records[1])).await.expect(200);
    let status = stage.run_with("commit-raw", json!({ "reset": true })).await;
    assert_eq!(status["latestResult"], json!({ "Item": { "added": 0, "updated": 2, "deleted": 0 } }));
    let after = stage.all(&[("model", "Item")]).await;
    assert_eq!(after[..3], records[2..], "other records are unchanged");
    for (after, before) in after[3..].iter().zip(&records) {
        assert_eq!(without_metadata(after.clone()), without_metadata(before.clone()));
        assert_eq!(after[METADATA_KEY]["last_action"], "UPDATED");
        assert_eq!(after[METADATA_KEY]["pruned_at"], Value::Null);
    }
}

#[tokio::test]
async fn an_update_of_a_pruned_record_fails_its_batch_with_the_record_id() {
    let (stage, records) = five_items().await;
    stage.prune(&until(&records[1])).await.expect(200);
    let before = stage.all(&[("model", "Item")]).await;
    let items =
        json!([{ "id": "3", "name": "new" }, { "id": "2", "name": "new" }, { "id": "none", "name": "new" }]);
    let update = json!({ "update": { "model": "Item", "items": items.to_string() } });
    stage.set_metadata(json!({ "steps": 0, "commits": [{ "changes": [update] }] })).await;
    assert_eq!(stage.run("commit-raw").await["status"], "ERROR");
    let runs = stage.host.get("/runs?function=commit-raw&limit=1").await.expect(200).json();
    let run = stage.host.get(&format!("/runs/{}", text(&runs["runs"][0]["id"]))).await.expect(200).json();
    let message = text(&run["error"]["message"]);
    assert!(
        message.starts_with("record 1 (`2`) of `Item` cannot be updated: its payload was pruned"),
        "{run}"
    );
    assert_eq!(run["error"]["details"], json!([{ "index": 1, "id": "2" }]));
    assert_eq!(stage.all(&[("model", "Item")]).await, before);
    // A record that is saved completely has its payload again, and can be updated.
    stage.commit(json!([save(&json!([{ "id": "2", "name": "whole" }])), update])).await;
    let last = stage.all(&[("model", "Item")]).await.pop().unwrap();
    assert_eq!(without_metadata(last), json!({ "id": "2", "name": "new" }));
}

#[tokio::test]
async fn an_update_of_a_pruned_record_is_set_aside_and_not_deleted() {
    let bundle = Bundle::guest("hostile")
        .tracking_deletes("commit-raw")
        .replace("[models.Item]\n", "[models.Item]\non_bad_record = \"set_aside\"\n");
    let stage = Stage::of(&bundle, json!({ "steps": 0 })).await;
    stage.wait_until_idle().await;
    stage.commit(json!([save(&json!([{ "id": "1" }, { "id": "2" }]))])).await;
    let records = stage.all(&[("model", "Item")]).await;
    stage.prune(&until(&records[1])).await.expect(200);
    let items = json!([{ "id": "1", "name": "new" }]).to_string();
    let status = stage.commit(json!([{ "update": { "model": "Item", "items": items } }])).await;
    let counts = json!({ "Item": { "added": 0, "updated": 0, "deleted": 1, "set_aside": 1 } });
    assert_eq!(status["latestResult"], counts);
    let deleted = stage.all(&[("model", "Item"), ("filter", "deleted")]).await;
    assert_eq!(ids_of(&deleted), ["2"], "only the record that the run did not save is deleted");
    let letters = stage.host.get("/dead-letters").await.expect(200).json();
    let problem = text(&letters["dead_letters"][0]["problems"][0]["problem"]);
    assert!(problem.starts_with("its payload was pruned"), "{letters}");
}
