//! The forms and buttons of the dashboard, used in a headless Chromium as a person does.

use serde_json::{Value, json};

use super::outbound_webhooks::Scene as OutboundScene;
use super::runs::stage_with_held_deletions;
use crate::support::webhook_scene::Scene as InboundScene;
use crate::support::{Bundle, Host, Reply, Stage, TestDatabase, between, run_in_browser, save};

const PAGES: &str = "/dashboard/environments/dev";

#[tokio::test]
async fn every_form_works_in_a_browser() {
    let bundle =
        Bundle::guest("hostile").replace("[models.Item]\n", "[models.Item]\non_bad_record = \"set_aside\"\n");
    let stage = Stage::of(&bundle, json!({ "steps": 0 })).await;
    let token = between(&stage.host.log(), "/dashboard/link?token=", "\n");
    let items = json!([
        { "id": "bad", "count": "seven" }, { "id": "worse", "count": [] }, { "id": "hopeless", "name": 7 },
    ]);
    stage.commit(json!([save(&items)])).await;
    stage.set_metadata(json!({ "steps": 0 })).await;
    stage.host.deploy(&bundle.replace("count = \"integer?\"", "count = \"json?\"")).await;
    fill_lists(&stage).await;
    let link = format!("{}/dashboard/link?token={token}", stage.host.base_url());
    let task = json!({ "host": stage.host.base_url(), "link": link });
    run_in_browser("dashboard_actions.mjs", &task).await;
}

/// Adds connections and runs until their lists have two pages, and a run with a long log.
async fn fill_lists(stage: &Stage) {
    let crowd = json!({ "provider": "unauthenticated", "unique_key": "crowd" });
    stage.host.post("/integrations", &crowd).await.expect(200);
    for number in 0..51 {
        let import = json!({
            "provider_config_key": "crowd", "connection_id": format!("user-{number:02}"),
            "credentials": { "type": "NONE" },
        });
        stage.host.post("/connections", &import).await.expect(201);
    }
    stage.action("log-flood", &Value::Null).await.expect(400);
    stage
        .db
        .execute(
            "INSERT INTO runs (id, environment_pk, integration_pk, connection_pk, schedule_pk, kind, function_name,
                               variant, trigger, attempt, owner, state, started_at, finished_at)
             SELECT gen_random_uuid(), environment_pk, integration_pk, connection_pk, schedule_pk, 'sync', 'older',
                    'base', 'retry', 2, owner, 'error', started_at - number * interval '1 minute', finished_at
             FROM (SELECT * FROM runs WHERE function_name = 'commit-raw' LIMIT 1) AS run,
                  generate_series(1, 51) AS number",
        )
        .await;
}

#[tokio::test]
async fn the_keyboard_is_enough_to_use_the_dashboard() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let link = host.command(&db, &["admin", "create", "ada@example.com", "--name", "Ada"]);
    let task = json!({ "host": host.base_url(), "link": link.trim() });
    run_in_browser("dashboard_keyboard.mjs", &task).await;
}

/// Presses the buttons as a new administrator.
async fn press(host: &Host, db: &TestDatabase, steps: Value) {
    let link = host.command(db, &["admin", "create", "ada@example.com", "--name", "Ada"]);
    let task = json!({ "host": host.base_url(), "link": link.trim(), "steps": steps });
    run_in_browser("dashboard_buttons.mjs", &task).await;
}

#[tokio::test]
async fn held_deletions_are_approved_in_a_browser() {
    let (stage, id) = stage_with_held_deletions().await;
    let steps = json!([{
        "page": format!("{PAGES}/runs/{id}"),
        "button": "Approve the deletions",
        "expected": "The deletions were approved: 80 deleted.",
    }]);
    press(&stage.host, &stage.db, steps).await;
    assert_eq!(stage.connection.status("commit-raw").await["recordCount"], json!({ "Item": 40 }));
}

#[tokio::test]
async fn inbound_webhooks_are_replayed_in_a_browser() {
    let scene = InboundScene::create().await;
    let body = json!({ "ref": "main", "repository": { "full_name": "acme/shop" } });
    let answer = scene.deliver("push", "d1", &body).await.expect(200);
    let id = answer.header("x-syncline-webhook-id").expect("the response has a webhook id").to_owned();
    scene.wait_for_state(&id, "processed").await;
    let list = format!("{PAGES}/inbound-webhooks");
    let steps = json!([
        { "page": format!("{list}/{id}"), "button": "Replay", "expected": "The webhook is processed again." },
        { "page": list, "button": "Replay the webhooks", "expected": "No webhook matches" },
        {
            "page": list, "options": { "Webhooks that": "were processed" }, "button": "Replay the webhooks",
            "expected": "1 webhook is processed again.",
        },
    ]);
    press(&scene.host, &scene.db, steps).await;
    assert_eq!(scene.wait_for_state(&id, "processed").await["replays"], 2);
}

#[tokio::test]
async fn outbound_webhooks_are_sent_again_in_a_browser() {
    let scene = OutboundScene::create().await;
    scene.receiver.always(Reply::status(500));
    let failed = scene.deliver("bad", "failed").await;
    scene.receiver.always(Reply::status(200));
    let list = format!("{PAGES}/outbound-webhooks");
    let many = json!([{
        "page": list, "button": "Redeliver the failed webhooks", "expected": "1 webhook is sent again.",
    }, {
        "page": format!("{list}/{failed}"), "button": "Redeliver", "expected": "The webhook is sent again.",
    }]);
    press(&scene.host, &scene.db, many).await;
    scene.wait_for_state(&failed, "delivered").await;
}

#[tokio::test]
async fn a_version_is_restored_and_runs_are_recorded_in_a_browser() {
    let stage = Stage::numbers(1).await;
    stage.host.deploy(&Bundle::example("minimal").without_actions()).await;
    let sync = format!("{PAGES}/syncs/minimal/customer-1/numbers/base");
    let steps = json!([
        {
            "page": format!("{PAGES}/deployments/minimal%2Dexample/1/restore"), "button": "Restore version 1",
            "expected": "Version 1 of minimal-example is active again, as version 3.",
        },
        {
            "page": sync, "options": { "Record": "every_run" }, "button": "Save", "expected": "Every run is recorded.",
        },
    ]);
    press(&stage.host, &stage.db, steps).await;
}
