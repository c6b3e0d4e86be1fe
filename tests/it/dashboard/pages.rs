//! Every page in a headless Chromium. If SYNCLINE_SCREENSHOTS names a folder, screenshots are saved there.

use serde_json::{Value, json};

use super::MARKUP;
use crate::support::webhook_scene::Scene;
use crate::support::{
    Bundle, Host, Person, Receiver, Stage, eventually, repository, run_in_browser, save, text,
};

/// Opens pages, by their names, in both colour schemes and on two screens.
async fn open(host: &Host, person: &Person, pages: Value) {
    let screenshots = std::env::var_os("SYNCLINE_SCREENSHOTS").map(repository);
    let task = json!({
        "host": host.base_url(),
        "cookie": person.cookie(),
        "pages": pages,
        "screenshots": screenshots,
    });
    run_in_browser("dashboard.mjs", &task).await;
}

#[tokio::test]
async fn every_page_is_accessible_on_every_screen() {
    let stage = Stage::of(&Bundle::guest("hostile"), json!({ "steps": 0 })).await;
    let items = json!([{ "id": "first", "name": "Ada" }, { "id": "second", "name": MARKUP }]);
    stage.commit(json!([save(&items)])).await;
    let changed = Bundle::guest("hostile").replace("[models.Item]\n", "[models.Item]\nstrict = true\n");
    stage.host.deploy(&changed).await;
    let link = stage.host.command(&stage.db, &["admin", "create", "joan@example.com", "--name", "Joan"]);
    let (_, token) = link.trim().split_once("?token=").expect("the link has a token");
    let ada = Person::administrator(&stage.host, &stage.db).await;
    ada.invite(&stage.host, "grace@example.com", "developer").await;
    let connection = &stage.connection;
    let integration = format!("/dashboard/environments/dev/integrations/{}", connection.integration);
    let connection =
        format!("/dashboard/environments/dev/connections/{}/{}", connection.integration, connection.id);
    let run = &stage.db.texts("SELECT id::text FROM runs ORDER BY started_at DESC LIMIT 1").await[0];
    let of_connection = format!("integration=hostile&connection={}", stage.id);
    open(
        &stage.host,
        &ada,
        json!({
            "sign-in": { "path": "/dashboard/sign-in", "signed_out": true },
            "password-link": { "path": format!("/dashboard/link?token={token}"), "signed_out": true },
            "used-link": { "path": "/dashboard/link?token=used", "signed_out": true, "status": 410 },
            "unknown-page": { "path": "/dashboard/unknown", "status": 404 },
            "invalid-filter": { "path": "/dashboard/environments/dev/runs?state=unknown", "status": 400 },
            "accounts": "/dashboard/accounts",
            "invitation": {
                "path": "/dashboard/accounts", "fill": { "name": "Joan", "email": "{view}@example.com" },
                "button": "Create the invitation", "shows": "Back to the accounts",
            },
            "audit-log": "/dashboard/audit-log",
            "environments": "/dashboard/environments",
            "profile": "/dashboard/profile",
            "keys": "/dashboard/environments/dev/keys",
            "created-key": {
                "path": "/dashboard/environments/dev/keys", "fill": { "name": "key-{view}" },
                "button": "Create the key", "shows": "The key was created",
            },
            "variables": "/dashboard/environments/dev/variables",
            "overview": "/dashboard/environments/dev/overview",
            "integrations": "/dashboard/environments/dev/integrations",
            "integration": integration,
            "providers": "/dashboard/environments/dev/providers",
            "provider": "/dashboard/environments/dev/providers/github",
            "connections": "/dashboard/environments/dev/connections",
            "connection": connection,
            "credentials": {
                "path": connection, "button": "Show the credentials", "shows": "Back to the connection",
            },
            "settings": "/dashboard/environments/dev/settings",
            "deployments": "/dashboard/environments/dev/deployments",
            "restore-plan": "/dashboard/environments/dev/deployments/hostile/1/restore",
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

#[tokio::test]
async fn every_detail_page_is_accessible_on_every_screen() {
    let receiver = Receiver::start().await;
    let scene = Scene::with(|options| options.variable("SYNCLINE_EGRESS_ALLOW", &receiver.address())).await;
    let webhook_url = json!({ "webhook_url": receiver.url("/hooks") });
    scene.host.patch("/environment", &webhook_url).await.expect(200);
    let body = json!({ "ref": MARKUP, "repository": { "full_name": "acme/shop" } });
    let webhook = scene.deliver("push", "d1", &body).await.expect(200);
    let webhook = webhook.header("x-syncline-webhook-id").expect("the response has a webhook id").to_owned();
    scene.wait_for_state(&webhook, "processed").await;

    let bundle = Bundle::guest("hostile")
        .replace("[models.Item]\n", "[models.Item]\non_bad_record = \"set_aside\"\n")
        .tracking_deletes("commit-raw");
    scene.host.deploy(&bundle).await;
    let connection = scene.host.connect("hostile", json!({ "steps": 0 })).await;
    let items = |count: u32| {
        let bad = json!({ "id": "bad", "count": MARKUP });
        let items: Vec<_> = (0..count).map(|id| json!({ "id": id.to_string() })).chain([bad]).collect();
        json!([save(&json!(items))])
    };
    connection.commit(items(120)).await;
    connection.set_metadata(json!({ "steps": 0, "commits": [{ "changes": items(40) }] })).await;
    assert_eq!(connection.run("commit-raw").await["status"], "ERROR");
    let latest =
        "SELECT id::text FROM runs WHERE function_name = 'commit-raw' ORDER BY started_at DESC LIMIT 1";
    let held = &scene.db.texts(latest).await[0];
    let letters = scene.host.get("/dead-letters").await.expect(200).json();
    let letter = text(&letters["dead_letters"][0]["id"]).to_owned();
    let deliveries = eventually("a webhook was delivered", async || {
        let found = scene.host.get("/webhooks/deliveries?state=delivered").await.expect(200).json();
        found["deliveries"][0]["id"].as_str().map(str::to_owned)
    });
    let delivery = deliveries.await;
    let job = connection.trigger_async("print", &json!(MARKUP)).await;
    connection.result(&job).await.expect(200);
    let failed = connection.trigger_async("fail", &json!({ "code": "odd", "message": MARKUP })).await;
    connection.result(&failed).await.expect(400);
    let id_of = |path: &str| path.rsplit_once('/').expect("a path").1.to_owned();

    let ada = Person::administrator(&scene.host, &scene.db).await;
    let page = |path: String| format!("/dashboard/environments/dev/{path}");
    let outcome = |action: &str, fields: Value, shows: &str| {
        let mut fill = fields;
        fill["connection"] = json!(connection.id);
        json!({
            "path": page(format!("actions/hostile/{action}")), "fill": fill, "button": "Run the action",
            "shows": shows,
        })
    };
    open(
        &scene.host,
        &ada,
        json!({
            "run-with-held-deletions": {
                "path": page(format!("runs/{held}")), "shows": "Deletions wait for approval",
            },
            "sync-with-held-deletions": {
                "path": page("syncs/hostile/customer%2D1/commit%2Draw/base".to_owned()),
                "shows": "Deletions wait for approval",
            },
            "dead-letter": page(format!("dead-letters/{letter}")),
            "inbound-webhook": page(format!("inbound-webhooks/{webhook}")),
            "delivery": page(format!("outbound-webhooks/{delivery}")),
            "job": page(format!("action-jobs/{}", id_of(&job))),
            "failed-job": page(format!("action-jobs/{}", id_of(&failed))),
            "action-outcome": outcome("print", json!({ "input/input": "hello" }), "success"),
            "action-failure":
                outcome("fail", json!({ "input/code": "odd", "input/message": MARKUP }), "action_script_runtime_error"),
        }),
    )
    .await;
}
