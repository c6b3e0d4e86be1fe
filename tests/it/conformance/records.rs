//! Statements about single records and their metadata.

use serde_json::{Value, json};

use super::support::{Kind, Section, body, string};
use crate::support::{METADATA_KEY, Stage, delete, save};

const METADATA: [(&str, Kind); 6] = [
    ("first_seen_at", Kind::Time),
    ("last_modified_at", Kind::Time),
    ("last_action", Kind::Text),
    ("deleted_at", Kind::Null),
    ("pruned_at", Kind::Null),
    ("cursor", Kind::Text),
];

#[tokio::test]
async fn records() {
    let stage = Stage::hostile().await;
    let mut section = Section::new("Records");
    changes(&mut section, &stage).await;
    payloads(&mut section, &stage).await;
    invalid_records(&mut section, &stage).await;
    section.finish();
}

/// The record with this id, or null.
async fn record(stage: &Stage, id: &str) -> Value {
    let found = stage.get_records(&[("model", "Item"), ("ids", id)]).await;
    body(&found)["records"][0].clone()
}

async fn changes(section: &mut Section, stage: &Stage) {
    stage
        .commit(json!([save(
            &json!([{ "id": "a", "name": "Ada", "count": 3 }, { "id": "b" }, { "id": "c" }])
        )]))
        .await;
    let listed = section.returns("`GET /records`", stage.request("GET", "/records?model=Item"), 200).await;
    section.only_members("The body", &body(&listed), &[("records", Kind::List), ("next_cursor", Kind::Null)]);
    section.header("The response", &listed, "content-type", "application/json");
    let ada = record(stage, "a").await;
    let members =
        [("id", Kind::Text), ("name", Kind::Text), ("count", Kind::Integer), (METADATA_KEY, Kind::Object)];
    section.only_members("A record", &ada, &members);
    section.equal("A record has the fields that the function saved", &ada["name"], "Ada");
    let metadata = &ada[METADATA_KEY];
    section.only_members("The metadata of a record", metadata, &METADATA);
    section.equal("`last_action` of a new record is `ADDED`", &metadata["last_action"], "ADDED");
    let first = metadata["first_seen_at"].clone();
    section.equal(
        "`last_modified_at` of a new record equals `first_seen_at`",
        &metadata["last_modified_at"],
        first.clone(),
    );

    stage.commit(json!([save(&json!([{ "id": "a", "name": "Grace", "count": 3 }])), delete(&["c"])])).await;
    let changed = record(stage, "a").await;
    let metadata = &changed[METADATA_KEY];
    section.equal("`last_action` of a changed record is `UPDATED`", &metadata["last_action"], "UPDATED");
    section.equal("`first_seen_at` of a changed record stays", &metadata["first_seen_at"], first);
    let is_later = string(&metadata["last_modified_at"]) > string(&metadata["first_seen_at"]);
    section.holds("`last_modified_at` of a changed record is later", is_later, &metadata["last_modified_at"]);
    let moves = metadata["cursor"] != ada[METADATA_KEY]["cursor"];
    section.holds("A change moves the cursor of a record", moves, &metadata["cursor"]);
    let gone = record(stage, "c").await;
    section.equal("A deleted record is returned", &gone["id"], "c");
    section.equal(
        "`last_action` of a deleted record is `DELETED`",
        &gone[METADATA_KEY]["last_action"],
        "DELETED",
    );
    section.members("The metadata of a deleted record", &gone[METADATA_KEY], &[("deleted_at", Kind::Time)]);
    let modified = gone[METADATA_KEY]["last_modified_at"].clone();
    section.equal("A deletion is a change", &gone[METADATA_KEY]["deleted_at"], modified);

    let before = record(stage, "b").await;
    let status = stage.commit(json!([save(&json!([{ "id": "b" }]))])).await;
    section.equal("A record that is saved unchanged does not change", &record(stage, "b").await, before);
    let counts = json!({ "Item": { "added": 0, "updated": 0, "deleted": 0 } });
    section.equal("An unchanged record is not counted", &status["latestResult"], counts);
    let status = stage.commit(json!([save(&json!([{ "id": "c", "name": "back" }]))])).await;
    let back = record(stage, "c").await;
    section.equal(
        "A deleted record that is saved again is `ADDED`",
        &back[METADATA_KEY]["last_action"],
        "ADDED",
    );
    section.equal("It is counted as added", &status["latestResult"]["Item"]["added"], 1);
    let first = gone[METADATA_KEY]["first_seen_at"].clone();
    section.equal("It keeps its `first_seen_at`", &back[METADATA_KEY]["first_seen_at"], first);
    section.members("Its metadata", &back[METADATA_KEY], &[("deleted_at", Kind::Null)]);
    stage.commit(json!([delete(&["unknown"])])).await;
    section.equal("Deleting an unknown id has no effect", &record(stage, "unknown").await, Value::Null);
    let last = json!({ "id": "d", "name": "last" });
    stage.commit(json!([save(&json!([{ "id": "d", "name": "first" }, last]))])).await;
    section.equal(
        "Of two records with one id in a batch, the last one wins",
        &record(stage, "d").await["name"],
        "last",
    );
    let update = json!({ "update": { "model": "Item", "items": r#"[{"id":"d","count":7},{"id":"unknown","count":1}]"# } });
    stage.commit(json!([update])).await;
    let merged = record(stage, "d").await;
    section.equal("An update changes the given fields", &merged["count"], 7);
    section.equal("An update keeps the other fields", &merged["name"], "last");
    section.equal("An update of an unknown id adds no record", &record(stage, "unknown").await, Value::Null);
}

async fn payloads(section: &mut Section, stage: &Stage) {
    let items =
        r#"[{"id":7},{"id":"exact","name":"\"q\" 🎈 \\","big":12345678901234567890123,"ratio":1.50}]"#;
    let saved = stage.save_raw("Item", items).await;
    section.equal("An action can save records", &body(&saved)["added"], 2);
    let listed = stage.get_records(&[("model", "Item"), ("ids", "exact")]).await.text();
    for (statement, part) in [
        ("Quotes and emoji are returned as they were saved", r#""name":"\"q\" 🎈 \\""#),
        ("Integers beyond 2^53 are returned as they were saved", r#""big":12345678901234567890123"#),
        ("Decimal numbers are returned as they were saved", r#""ratio":1.50"#),
    ] {
        section.holds(statement, listed.contains(part), &listed);
    }
    section.equal("An `id` that is a number becomes text", &record(stage, "7").await["id"], "7");
    let forged = json!([{ "id": "forged", METADATA_KEY: { "cursor": "x" } }]);
    stage.save_raw("Item", &forged.to_string()).await.expect(200);
    let forged = record(stage, "forged").await;
    section.holds("Metadata in a payload is ignored", forged[METADATA_KEY]["cursor"] != "x", &forged);
    let before = record(stage, "exact").await;
    let reordered =
        r#"[{ "ratio": 1.50, "big": 12345678901234567890123, "name": "\"q\" 🎈 \\", "id": "exact" }]"#;
    stage.save_raw("Item", reordered).await.expect(200);
    let after = record(stage, "exact").await;
    section.equal(
        "Another order of fields is not a change",
        &after[METADATA_KEY],
        before[METADATA_KEY].clone(),
    );
    let precise = r#"[{"id":"exact","name":"\"q\" 🎈 \\","big":12345678901234567890124,"ratio":1.50}]"#;
    let counts = stage.save_raw("Item", precise).await;
    section.equal("A change beyond the precision of a double is a change", &body(&counts)["updated"], 1);
}

async fn invalid_records(section: &mut Section, stage: &Stage) {
    let before = stage.all(&[("model", "Item")]).await.len();
    for (name, items) in [
        ("A record without an `id`", r#"[{"name":"x"}]"#.to_owned()),
        ("A record with an empty `id`", r#"[{"id":""}]"#.to_owned()),
        ("A record whose `id` is null", r#"[{"id":null}]"#.to_owned()),
        ("A record whose `id` is a list", r#"[{"id":[]}]"#.to_owned()),
        ("A record whose `id` has 256 bytes", json!([{ "id": "x".repeat(256) }]).to_string()),
        ("A record whose `id` contains NUL", r#"[{"id":"a\u0000"}]"#.to_owned()),
        ("A record with a field of another type", r#"[{"id":"x","count":"three"}]"#.to_owned()),
        ("A batch that is not JSON", "[{".to_owned()),
        ("A batch that is not a list", "{}".to_owned()),
    ] {
        let saved = stage.save_raw("Item", &items).await;
        section.equal(&format!("{name} is rejected"), &json!(saved.status.as_u16()), 400);
    }
    let unknown = stage.save_raw("Unicorn", r#"[{"id":"x"}]"#).await;
    section.equal(
        "A model that the function does not declare is rejected",
        &json!(unknown.status.as_u16()),
        400,
    );
    let partly = stage.save_raw("Item", r#"[{"id":"good"},{"id":""}]"#).await;
    section.equal("A batch with one invalid record is rejected", &json!(partly.status.as_u16()), 400);
    let after = stage.all(&[("model", "Item")]).await.len();
    section.equal("A rejected batch saves no record", &json!(after), before);
    let longest = json!([{ "id": "x".repeat(255) }]).to_string();
    let saved = stage.save_raw("Item", &longest).await;
    section.equal("An `id` of 255 bytes is accepted", &body(&saved)["added"], 1);
}
