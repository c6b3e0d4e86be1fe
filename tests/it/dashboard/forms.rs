//! The forms and buttons of the dashboard, used in a headless Chromium as a person does.

use serde_json::json;
use tokio::process::Command;

use crate::support::{Bundle, Stage, repository, save};

#[tokio::test]
async fn every_form_works_in_a_browser() {
    let bundle =
        Bundle::guest("hostile").replace("[models.Item]\n", "[models.Item]\non_bad_record = \"set_aside\"\n");
    let stage = Stage::of(&bundle, json!({ "steps": 0 })).await;
    let items = json!([{ "id": "bad", "count": "seven" }, { "id": "worse", "count": [] }]);
    stage.commit(json!([save(&items)])).await;
    let link = stage.host.command(&stage.db, &["admin", "create", "ada@example.com", "--name", "Ada"]);
    let task = json!({ "host": stage.host.base_url(), "link": link.trim() });
    let output = Command::new("node")
        .arg(repository("tests/node/dashboard_actions.mjs"))
        .arg(task.to_string())
        .kill_on_drop(true)
        .output()
        .await
        .expect("Node.js is not installed; `scripts/setup` says what to install");
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
}
