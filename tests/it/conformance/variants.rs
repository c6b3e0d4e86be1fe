//! Statements about variants of syncs.

use serde_json::{Value, json};

use super::support::{Kind, Section, body, post, with, without};
use crate::support::{Request, Stage};

const BODY: (u16, &str) = (400, "invalid_body");

fn target() -> Value {
    json!({ "provider_config_key": "minimal", "connection_id": "customer-1" })
}

fn create(stage: &Stage, path: &str, body: &Value) -> Request {
    post(&stage.host, &format!("/sync/{path}"), body)
}

fn remove(stage: &Stage, path: &str, body: &Value) -> Request {
    stage.host.request("DELETE", &format!("/sync/{path}")).json(body)
}

#[tokio::test]
async fn variants() {
    let stage = Stage::numbers(5).await;
    let mut section = Section::new("Variants of syncs");
    creation(&mut section, &stage).await;
    deletion(&mut section, &stage).await;
    invalid(&mut section, &stage).await;
    section.finish();
}

async fn records(stage: &Stage, variant: &str) -> usize {
    stage.all(&[("model", "Number"), ("variant", variant)]).await.len()
}

async fn creation(section: &mut Section, stage: &Stage) {
    let made = create(stage, "numbers/variant/second", &target());
    let made = section.returns("`POST /sync/{name}/variant/{variant}`", made, 200).await;
    let members = [("id", Kind::Uuid), ("name", Kind::Text), ("variant", Kind::Text)];
    section.only_members("The new variant", &body(&made), &members);
    section.equal("`name` is the sync's name", &body(&made)["name"], "numbers");
    section.equal("`variant` is the given key", &body(&made)["variant"], "second");
    stage.wait_until_idle().await;
    let status = stage.status("numbers::second").await;
    section.equal("`GET /sync/status` shows the variant", &status["variant"], "second");
    section.equal("The variant has the same id there", &status["id"], body(&made)["id"].clone());
    section.equal("A new variant runs at once", &status["status"], "SUCCESS");
    section.equal("The variant has its own records", &json!(records(stage, "second").await), 5);
    let all = stage.statuses("*").await;
    section.holds("`*` includes variants", all.len() == 2, &all);
    stage.set_metadata(json!({ "count": 7, "batch": 10 })).await;
    stage.run("numbers::second").await;
    section.equal("`name::variant` triggers only the variant", &json!(records(stage, "second").await), 7);
    section.equal("The records of the base variant stay", &json!(records(stage, "base").await), 5);
    stage.control("pause", "numbers::second").await.expect(200);
    section.equal(
        "A variant is paused on its own",
        &stage.status("numbers::second").await["status"],
        "PAUSED",
    );
    section.equal("The base variant continues", &stage.status("numbers").await["status"], "SUCCESS");
    let again = create(stage, "numbers/variant/second", &target());
    section.rejects("A variant that exists", again, 409, "sync_variant_already_exists").await;
    let other = stage.host.connect_as("customer-2", "minimal", json!({ "count": 1 })).await;
    other.wait_until_idle().await;
    let of_other = with(&target(), "connection_id", "customer-2");
    let of_other = create(stage, "numbers/variant/second", &of_other);
    section.returns("The same variant of another connection", of_other, 200).await;
    other.wait_until_idle().await;
}

async fn deletion(section: &mut Section, stage: &Stage) {
    let cursor = stage.all(&[("model", "Number"), ("variant", "second")]).await.pop().unwrap_or_default();
    let cursor = cursor["_service_metadata"]["cursor"].as_str().unwrap_or_default().to_owned();
    let deleted = remove(stage, "numbers/variant/second", &target());
    let deleted = section.returns("`DELETE /sync/{name}/variant/{variant}`", deleted, 200).await;
    section.empty("The response to the deletion", &deleted);
    section.equal("The records of the variant are deleted", &json!(records(stage, "second").await), 0);
    section.equal("The records of the base variant are kept", &json!(records(stage, "base").await), 5);
    let all = stage.statuses("*").await;
    section.holds("The variant has no status", all.len() == 1, &all);
    let again = remove(stage, "numbers/variant/second", &target());
    section.rejects("Deleting a variant that does not exist", again, 404, "unknown_variant").await;
    create(stage, "numbers/variant/second", &target()).send().await.expect(200);
    stage.wait_until_idle().await;
    section.equal("A deleted variant can be created again", &json!(records(stage, "second").await), 7);
    let page = stage.page(&[("model", "Number"), ("variant", "second"), ("cursor", &cursor)]).await;
    section.holds(
        "A reader with a cursor from before reads its records again",
        page.records.len() == 7,
        &page.records.len(),
    );
}

async fn invalid(section: &mut Section, stage: &Stage) {
    for base in ["base", "BASE"] {
        let path = format!("numbers/variant/{base}");
        section
            .rejects(&format!("Creating `{base}`"), create(stage, &path, &target()), 400, "invalid_variant")
            .await;
        section
            .rejects(&format!("Deleting `{base}`"), remove(stage, &path, &target()), 400, "invalid_variant")
            .await;
    }
    for method in ["POST", "DELETE"] {
        let send = |path: &str, body: &Value| match method {
            "POST" => create(stage, path, body),
            _ => remove(stage, path, body),
        };
        for (what, path, place) in [
            ("with a malformed variant", "numbers/variant/a%20b", "variant"),
            ("with a variant of 256 characters", &format!("numbers/variant/{}", "x".repeat(256)), "variant"),
            ("with a malformed sync", "a%20b/variant/x", "name"),
        ] {
            let name = format!("`{method}` {what}");
            section.rejects_at(&name, send(path, &target()), (400, "invalid_uri_params"), place).await;
        }
        for (what, body, place) in [
            ("without `connection_id`", without(&target(), "connection_id"), "connection_id"),
            (
                "without `provider_config_key`",
                without(&target(), "provider_config_key"),
                "provider_config_key",
            ),
            ("with an unknown member", with(&target(), "variant", "x"), "variant"),
        ] {
            let name = format!("`{method}` {what}");
            section.rejects_at(&name, send("numbers/variant/x", &body), BODY, place).await;
        }
        for (what, path, body, code) in [
            ("of an unknown sync", "leaps/variant/x", target(), "unknown_sync"),
            (
                "of an unknown connection",
                "numbers/variant/x",
                with(&target(), "connection_id", "unknown"),
                "unknown_connection",
            ),
            (
                "at an unknown integration",
                "numbers/variant/x",
                with(&target(), "provider_config_key", "unknown"),
                "unknown_integration",
            ),
        ] {
            section.rejects(&format!("`{method}` {what}"), send(path, &body), 404, code).await;
        }
    }
}
