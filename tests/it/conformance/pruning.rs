//! Statements about pruning records.

use serde_json::{Value, json};

use super::support::{Kind, Section, body, patch, with, without};
use crate::support::{METADATA_KEY, Request, Stage, save, without_metadata};

const BODY: (u16, &str) = (400, "invalid_body");

#[tokio::test]
async fn pruning() {
    let stage = Stage::hostile().await;
    let items: Value = (1..=6).map(|number| json!({ "id": number.to_string(), "name": "Ada" })).collect();
    stage.commit(json!([save(&items)])).await;
    let mut section = Section::new("Pruning records");
    let before = stage.all(&[("model", "Item")]).await;
    let until =
        |index: usize| json!({ "model": "Item", "until_cursor": before[index][METADATA_KEY]["cursor"] });
    let prune = |body: &Value| stage.request("PATCH", "/records/prune").json(body);

    let limited = section
        .returns("`PATCH /records/prune` with a limit", prune(&with(&until(2), "limit", 2)), 200)
        .await;
    let members = [("count", Kind::Integer), ("has_more", Kind::Boolean)];
    section.only_members("The body", &body(&limited), &members);
    section.equal("`count` is at most `limit`", &body(&limited)["count"], 2);
    section.equal("`has_more` is true if records are left", &body(&limited)["has_more"], true);
    let rest = section.returns("The same request without a limit", prune(&until(2)), 200).await;
    section.equal("It prunes all remaining records up to the cursor", &body(&rest)["count"], 1);
    section.equal("`has_more` is then false", &body(&rest)["has_more"], false);
    let again = section.returns("Pruning pruned records", prune(&until(2)), 200).await;
    section.equal(
        "Pruned records are not counted again",
        &body(&again),
        json!({ "count": 0, "has_more": false }),
    );

    let after = stage.all(&[("model", "Item")]).await;
    section.equal(
        "A pruned record has only its id",
        &without_metadata(after[0].clone()),
        json!({ "id": "1" }),
    );
    section.equal(
        "The record at the cursor is pruned",
        &without_metadata(after[2].clone()),
        json!({ "id": "3" }),
    );
    section.equal("Records after the cursor stay", &json!(after[3..]), json!(before[3..]));
    let (old, new) = (&before[0][METADATA_KEY], &after[0][METADATA_KEY]);
    section.members("The metadata of a pruned record", new, &[("pruned_at", Kind::Time)]);
    for member in ["first_seen_at", "last_modified_at", "last_action", "deleted_at", "cursor"] {
        section.equal(&format!("Pruning does not change `{member}`"), &new[member], old[member].clone());
    }
    let status = stage.status("commit-raw").await;
    section.equal("Pruning does not change the number of records", &status["recordCount"]["Item"], 6);
    section.returns("`variant` can be given", prune(&with(&until(2), "variant", "base")), 200).await;

    let reset = stage.run_with("commit-raw", json!({ "reset": true })).await;
    section.equal(
        "A run with `reset` restores pruned payloads",
        &reset["latestResult"]["Item"]["updated"],
        3,
    );
    let restored = stage.get_records(&[("model", "Item"), ("ids", "1")]).await;
    let restored = body(&restored)["records"][0].clone();
    section.equal("The restored record has its fields", &restored["name"], "Ada");
    section.members(
        "The metadata of a restored record",
        &restored[METADATA_KEY],
        &[("pruned_at", Kind::Null)],
    );
    section.equal("Restoring is an update", &restored[METADATA_KEY]["last_action"], "UPDATED");
    invalid(&mut section, &stage, &until(4)).await;
    section.finish();
}

async fn invalid(section: &mut Section, stage: &Stage, good: &Value) {
    let prune = |body: &Value| -> Request { stage.request("PATCH", "/records/prune").json(body) };
    for (name, body, place) in [
        ("A request without `model`", without(good, "model"), "model"),
        ("A request without `until_cursor`", without(good, "until_cursor"), "until_cursor"),
        ("A malformed model", with(good, "model", "item"), "model"),
        ("`limit` of 0", with(good, "limit", 0), "limit"),
        ("A negative `limit`", with(good, "limit", -1), "limit"),
        ("A `limit` that is text", with(good, "limit", "2"), "limit"),
        ("A malformed variant", with(good, "variant", "no name"), "variant"),
        ("An unknown member", with(good, "until", "x"), "until"),
    ] {
        section.rejects_at(name, prune(&body), BODY, place).await;
    }
    for (name, cursor) in [("An empty cursor", ""), ("A cursor that was not issued", "nonsense")] {
        section.rejects(name, prune(&with(good, "until_cursor", cursor)), 400, "invalid_cursor").await;
    }
    let other = prune(&with(good, "model", "Step"));
    section.rejects("A cursor of another model", other, 400, "invalid_cursor").await;
    let unknown = prune(&with(good, "model", "Unicorn"));
    section.rejects("An unknown model", unknown, 404, "unknown_model").await;
    let query = stage.request("PATCH", "/records/prune?limit=1").json(good);
    section.rejects("A query parameter", query, 400, "invalid_query_params").await;
    let host = &stage.host;
    let lacking = patch(host, "/records/prune", good);
    section.rejects_at("A request without headers", lacking, (400, "invalid_headers"), "connection-id").await;
    let unknown = patch(host, "/records/prune", good).header("Connection-Id", "unknown");
    let unknown = unknown.header("Provider-Config-Key", "hostile");
    section.rejects("An unknown connection", unknown, 404, "unknown_connection").await;
    let unknown = patch(host, "/records/prune", good).header("Connection-Id", "customer-1");
    let unknown = unknown.header("Provider-Config-Key", "unknown");
    section.rejects("An unknown integration", unknown, 404, "unknown_integration").await;
}
