//! Every page in a headless Chromium. If SYNCLINE_SCREENSHOTS names a folder, screenshots are saved there.

use serde_json::{Value, json};
use tokio::process::Command;

use super::MARKUP;
use crate::support::{Bundle, Person, Stage, repository, save};

/// Opens pages, by their names, in both colour schemes and on two screens.
async fn open(stage: &Stage, person: &Person, pages: Value) {
    let screenshots = std::env::var_os("SYNCLINE_SCREENSHOTS").map(repository);
    let task = json!({
        "host": stage.host.base_url(),
        "cookie": person.cookie(),
        "pages": pages,
        "screenshots": screenshots,
    });
    let output = Command::new("node")
        .arg(repository("tests/node/dashboard.mjs"))
        .arg(task.to_string())
        .kill_on_drop(true)
        .output()
        .await
        .expect("Node.js is not installed; `scripts/setup` says what to install");
    let printed = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
}

#[tokio::test]
async fn every_page_is_accessible_on_every_screen() {
    let stage = Stage::of(&Bundle::guest("hostile"), json!({ "steps": 0 })).await;
    let items = json!([{ "id": "first", "name": "Ada" }, { "id": "second", "name": MARKUP }]);
    stage.commit(json!([save(&items)])).await;
    let ada = Person::administrator(&stage.host, &stage.db).await;
    ada.invite(&stage.host, "grace@example.com", "developer").await;
    let connection = &stage.connection;
    let integration = format!("/dashboard/environments/dev/integrations/{}", connection.integration);
    let connection =
        format!("/dashboard/environments/dev/connections/{}/{}", connection.integration, connection.id);
    let run = &stage.db.texts("SELECT id::text FROM runs ORDER BY started_at DESC LIMIT 1").await[0];
    let of_connection = format!("integration=hostile&connection={}", stage.id);
    open(
        &stage,
        &ada,
        json!({
            "accounts": "/dashboard/accounts",
            "audit-log": "/dashboard/audit-log",
            "environments": "/dashboard/environments",
            "profile": "/dashboard/profile",
            "keys": "/dashboard/environments/dev/keys",
            "variables": "/dashboard/environments/dev/variables",
            "overview": "/dashboard/environments/dev/overview",
            "integrations": "/dashboard/environments/dev/integrations",
            "integration": integration,
            "providers": "/dashboard/environments/dev/providers",
            "provider": "/dashboard/environments/dev/providers/github",
            "connections": "/dashboard/environments/dev/connections",
            "connection": connection,
            "settings": "/dashboard/environments/dev/settings",
            "deployments": "/dashboard/environments/dev/deployments",
            "syncs": "/dashboard/environments/dev/syncs",
            "sync": "/dashboard/environments/dev/syncs/hostile/customer%2D1/commit%2Draw/base",
            "runs": "/dashboard/environments/dev/runs",
            "run": format!("/dashboard/environments/dev/runs/{run}"),
            "records": "/dashboard/environments/dev/records",
            "records-of-connection": format!("/dashboard/environments/dev/records/connection?{of_connection}"),
            "records-of-model": format!("/dashboard/environments/dev/records/model?{of_connection}&model=Item"),
            "record": format!("/dashboard/environments/dev/records/record?{of_connection}&model=Item&id=second"),
            "dead-letters": "/dashboard/environments/dev/dead-letters",
            "actions": "/dashboard/environments/dev/actions",
            "action": "/dashboard/environments/dev/actions/hostile/fail",
            "action-json": "/dashboard/environments/dev/actions/hostile/fail?mode=json",
            "inbound-webhooks": "/dashboard/environments/dev/inbound-webhooks",
            "outbound-webhooks": "/dashboard/environments/dev/outbound-webhooks",
        }),
    )
    .await;
}
