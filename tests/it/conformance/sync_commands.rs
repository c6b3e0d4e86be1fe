//! Statements about triggering, starting and pausing syncs.

use serde_json::{Value, json};

use super::support::{Section, post, with, without};
use crate::support::{Connection, Request, Stage, eventually};

const BODY: (u16, &str) = (400, "invalid_body");

/// The sync `steps` of the connection.
fn steps() -> Value {
    json!({ "provider_config_key": "hostile", "connection_id": "customer-1", "syncs": ["steps"] })
}

#[tokio::test]
async fn sync_commands() {
    let stage = Stage::hostile().await;
    let other = stage.host.connect_as("customer-2", "hostile", json!({ "steps": 0 })).await;
    other.wait_until_idle().await;
    let mut section = Section::new("Triggering, starting and pausing syncs");
    pause_and_start(&mut section, &stage).await;
    trigger(&mut section, &stage).await;
    selection(&mut section, &stage).await;
    for command in ["trigger", "start", "pause"] {
        invalid(&mut section, &stage, command).await;
    }
    only_trigger(&mut section, &stage).await;
    section.finish();
}

fn send(stage: &Stage, command: &str, body: &Value) -> Request {
    post(&stage.host, &format!("/sync/{command}"), body)
}

async fn pause_and_start(section: &mut Section, stage: &Stage) {
    let answer = section.returns("`POST /sync/pause`", send(stage, "pause", &steps()), 200).await;
    section.empty("The response", &answer);
    let status = stage.status("steps").await;
    section.equal("A paused sync has the status `PAUSED`", &status["status"], "PAUSED");
    section.equal("A paused sync has no next run", &status["nextScheduledSyncAt"], Value::Null);
    section.equal("Other syncs are not paused", &stage.status("commit-raw").await["status"], "SUCCESS");
    section.returns("Pausing a paused sync", send(stage, "pause", &steps()), 200).await;
    section.equal("It stays paused", &stage.status("steps").await["status"], "PAUSED");

    let before = stage.status("steps").await["finishedAt"].clone();
    stage.merge_metadata(json!({ "steps": 2, "pause_ms": 0 })).await;
    let answer =
        section.returns("`POST /sync/start` of a paused sync", send(stage, "start", &steps()), 200).await;
    section.empty("The response to a start", &answer);
    let status = stage.wait_for_finish_after("steps", before.as_str()).await;
    section.equal("A started sync runs at once", &status["latestResult"]["Step"]["added"], 2);
    let next = &status["nextScheduledSyncAt"];
    section.holds("It then continues at its frequency", next.is_string(), next);
    section.returns("Starting a running sync", send(stage, "start", &steps()), 200).await;
    section.equal("It has no effect", &stage.status("steps").await, status);

    stage.control("pause", "steps").await.expect(200);
    stage.merge_metadata(json!({ "steps": 3 })).await;
    let status = stage.run("steps").await;
    section.equal("Triggering a paused sync runs it once", &status["latestResult"]["Step"]["added"], 1);
    section.equal("Triggering a paused sync keeps it paused", &status["status"], "PAUSED");
    let before = status["finishedAt"].clone();
    stage.control("start", "steps").await.expect(200);
    stage.wait_for_finish_after("steps", before.as_str()).await;
}

async fn trigger(section: &mut Section, stage: &Stage) {
    stage.merge_metadata(json!({ "steps": 5 })).await;
    let before = stage.status("steps").await;
    let answer = section.returns("`POST /sync/trigger`", send(stage, "trigger", &steps()), 200).await;
    section.empty("The response to a trigger", &answer);
    let status = stage.wait_for_finish_after("steps", before["finishedAt"].as_str()).await;
    section.equal("A trigger continues from the checkpoint", &status["latestResult"]["Step"]["added"], 2);
    section.equal("The checkpoint is the latest one", &status["checkpoint"], json!({ "cursor": "5" }));
    section.equal(
        "A trigger does not change the frequency",
        &status["frequency"],
        before["frequency"].clone(),
    );
    let next = [("SUCCESS", &status["status"])];
    section.equal("The schedule stays active", next[0].1, next[0].0);

    let reset = stage.run_with("steps", json!({ "reset": true })).await;
    section.equal("`reset` fetches all data again", &reset["latestResult"]["Step"]["updated"], 5);
    section.equal("`reset` adds no records that exist", &reset["latestResult"]["Step"]["added"], 0);
    let old = stage.all(&[("model", "Step")]).await;
    let emptied = stage.run_with("steps", json!({ "emptyCache": true })).await;
    let counts = json!({ "Step": { "added": 0, "updated": 0, "deleted": 0 } });
    section.equal("`emptyCache` without `reset` fetches nothing again", &emptied["latestResult"], counts);
    section.equal(
        "`emptyCache` without `reset` keeps the records",
        &json!(stage.all(&[("model", "Step")]).await),
        json!(old),
    );
    let both = stage.run_with("steps", json!({ "reset": true, "emptyCache": true })).await;
    section.equal(
        "`reset` with `emptyCache` adds all records again",
        &both["latestResult"]["Step"]["added"],
        5,
    );
    let cursor = old[4]["_service_metadata"]["cursor"].as_str().unwrap_or_default();
    let page = stage.page(&[("model", "Step"), ("cursor", cursor)]).await;
    section.holds(
        "A reader with a cursor from before reads all records again",
        page.records.len() == 5,
        &page,
    );
    for (name, member, value, updated) in [
        ("`sync_mode=incremental`", "sync_mode", json!("incremental"), 0),
        ("`sync_mode=full_refresh`", "sync_mode", json!("full_refresh"), 5),
        ("`full_resync=true`", "full_resync", json!(true), 5),
        ("`full_resync=false`", "full_resync", json!(false), 0),
    ] {
        let before = stage.status("steps").await["finishedAt"].clone();
        section.returns(name, send(stage, "trigger", &with(&steps(), member, value)), 200).await;
        let status = stage.wait_for_finish_after("steps", before.as_str()).await;
        let statement = format!("{name} updates {updated} records");
        section.equal(&statement, &status["latestResult"]["Step"]["updated"], updated);
    }
    let before = stage.status("steps").await["finishedAt"].clone();
    let clear = with(&steps(), "sync_mode", "full_refresh_and_clear_cache");
    section.returns("`sync_mode=full_refresh_and_clear_cache`", send(stage, "trigger", &clear), 200).await;
    let status = stage.wait_for_finish_after("steps", before.as_str()).await;
    section.equal("It adds all records again", &status["latestResult"]["Step"]["added"], 5);
    let headers = without(&without(&steps(), "provider_config_key"), "connection_id");
    let request = send(stage, "trigger", &headers);
    let request = request.header("Provider-Config-Key", "hostile").header("Connection-Id", "customer-1");
    section.returns("A trigger whose target is in the headers", request, 200).await;
    stage.wait_until_idle().await;
}

async fn selection(section: &mut Section, stage: &Stage) {
    let all = json!({ "provider_config_key": "hostile", "syncs": [] });
    let connection = with(&all, "connection_id", "customer-1");
    let named = |reference: Value| with(&connection, "syncs", json!([reference]));
    for (statement, body, expected) in [
        ("A name selects the base variant", named(json!("steps")), [false, true, false, false]),
        ("`name::base` selects the base variant", named(json!("steps::base")), [false, true, false, false]),
        ("`{name}` selects the base variant", named(json!({ "name": "steps" })), [false, true, false, false]),
        (
            "`{name, variant}` selects a variant",
            named(json!({ "name": "steps", "variant": "base" })),
            [false, true, false, false],
        ),
        ("An empty list selects all syncs of the connection", connection.clone(), [true, true, false, false]),
        (
            "Without `connection_id`, the sync of all connections is selected",
            with(&all, "syncs", json!(["steps"])),
            [false, true, false, true],
        ),
        ("An empty list without `connection_id` selects all syncs", all.clone(), [true; 4]),
    ] {
        stage.host.post("/sync/pause", &body).await.expect(200);
        let mut paused = Vec::new();
        for id in ["customer-1", "customer-2"] {
            for sync in ["commit-raw", "steps"] {
                paused.push(is_paused(&stage.with_id(id), sync).await);
            }
        }
        section.holds(statement, paused == expected, &paused);
        stage.host.post("/sync/start", &all).await.expect(200);
    }
}

/// Whether the sync is paused. A run in progress completes first.
async fn is_paused(connection: &Connection, sync: &str) -> bool {
    let settled = eventually("no run is in progress", async || {
        Some(connection.status(sync).await).filter(|status| status["status"] != "RUNNING")
    });
    settled.await["status"] == "PAUSED"
}

async fn invalid(section: &mut Section, stage: &Stage, command: &str) {
    let send = |body: &Value| send(stage, command, body);
    let syncs = |syncs: Value| with(&steps(), "syncs", syncs);
    for (what, body, place) in [
        ("without `syncs`", without(&steps(), "syncs"), "syncs"),
        ("without `provider_config_key`", without(&steps(), "provider_config_key"), "provider_config_key"),
        ("with `syncs` that is text", syncs(json!("steps")), "syncs"),
        ("with a malformed name", syncs(json!(["no name"])), "syncs"),
        ("with a number in `syncs`", syncs(json!(["steps", 1])), "syncs.1"),
        ("with an object without `name`", syncs(json!([{ "variant": "base" }])), "syncs.0.name"),
        ("with an object with an unknown member", syncs(json!([{ "name": "steps", "x": 1 }])), "syncs.0.x"),
        ("with 257 syncs", syncs(json!(vec!["steps"; 257])), "syncs"),
        ("with an unknown member", with(&steps(), "sync", "steps"), "sync"),
        ("with a number as connection id", with(&steps(), "connection_id", 7), "connection_id"),
    ] {
        section.rejects_at(&format!("`POST /sync/{command}` {what}"), send(&body), BODY, place).await;
    }
    for (what, body, code) in [
        (
            "of an unknown integration",
            with(&steps(), "provider_config_key", "unknown"),
            "unknown_integration",
        ),
        ("of an unknown connection", with(&steps(), "connection_id", "unknown"), "unknown_connection"),
        ("of an unknown sync", syncs(json!(["leaps"])), "unknown_sync"),
        ("of an unknown variant", syncs(json!(["steps::second"])), "unknown_variant"),
    ] {
        section.rejects(&format!("`POST /sync/{command}` {what}"), send(&body), 404, code).await;
    }
}

async fn only_trigger(section: &mut Section, stage: &Stage) {
    let opts = |opts: Value| with(&steps(), "opts", opts);
    for (name, body, place) in [
        ("`opts.reset` that is text", opts(json!({ "reset": "yes" })), "opts.reset"),
        ("`opts.emptyCache` that is text", opts(json!({ "emptyCache": "yes" })), "opts.emptyCache"),
        ("An unknown member of `opts`", opts(json!({ "empty_cache": true })), "opts.empty_cache"),
        ("`opts` with `sync_mode`", with(&opts(json!({})), "sync_mode", "full_refresh"), "opts"),
        ("`opts` with `full_resync`", with(&opts(json!({})), "full_resync", true), "opts"),
        ("An unknown `sync_mode`", with(&steps(), "sync_mode", "quick"), "sync_mode"),
    ] {
        section.rejects_at(name, send(stage, "trigger", &body), BODY, place).await;
    }
    for command in ["start", "pause"] {
        let name = format!("`POST /sync/{command}` with `opts`");
        section.rejects_at(&name, send(stage, command, &opts(json!({}))), BODY, "opts").await;
    }
}
