//! The forms and buttons of the dashboard, used in a headless Chromium as a person does.

use serde_json::json;

use crate::support::{Bundle, Stage, run_in_browser, save};

#[tokio::test]
async fn every_form_works_in_a_browser() {
    let bundle =
        Bundle::guest("hostile").replace("[models.Item]\n", "[models.Item]\non_bad_record = \"set_aside\"\n");
    let stage = Stage::of(&bundle, json!({ "steps": 0 })).await;
    let items = json!([{ "id": "bad", "count": "seven" }, { "id": "worse", "count": [] }]);
    stage.commit(json!([save(&items)])).await;
    let link = stage.host.command(&stage.db, &["admin", "create", "ada@example.com", "--name", "Ada"]);
    let task = json!({ "host": stage.host.base_url(), "link": link.trim() });
    run_in_browser("dashboard_actions.mjs", &task).await;
}
