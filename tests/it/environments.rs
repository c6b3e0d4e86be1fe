//! Environments: their settings, and their isolation from each other.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use syncline_store::{Databases, Store, keys};
use syncline_types::ids::EnvironmentPk;

use crate::support::{Api, Bundle, Host, Stage, TestDatabase, eventually, ids_of, text};

/// Creates a second environment, and returns the API with its key.
async fn create_other(host: &Host, db: &TestDatabase) -> Api {
    host.command(db, &["env", "create", "other"]);
    let key = host.command(db, &["keys", "create", "backend", "--environment", "other"]);
    host.with_key(Some(key.trim()))
}

async fn numbers_of(api: &Api, first: u64) -> crate::support::Connection {
    api.deploy(&Bundle::example("minimal")).await;
    api.connect("minimal", json!({ "count": 5, "first": first, "batch": 10 })).await
}

async fn environment(api: &Api) -> Value {
    api.get("/environment").await.expect(200).json()["data"].clone()
}

async fn patch(api: &Api, body: Value) -> crate::support::Answer {
    api.request("PATCH", "/environment").json(&body).send().await
}

#[tokio::test]
async fn environments_with_the_same_integration_names_are_isolated() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let other = create_other(&host, &db).await;

    let dev_numbers = numbers_of(&host, 100).await;
    // Nothing of one environment exists in the other, including deployments.
    assert_eq!(other.get("/integrations").await.expect(200).json(), json!({ "data": [] }));
    assert_eq!(other.get("/connections").await.expect(200).json(), json!({ "connections": [] }));
    let missing = other.get("/connections/customer-1?provider_config_key=minimal").await;
    assert_eq!(missing.status, 404, "{}", missing.text());
    let unseen = dev_numbers.through(&other).get_records(&[("model", "Number")]).await;
    assert_eq!(unseen.refusal(), (404, "unknown_integration".to_owned()));
    let action = dev_numbers.through(&other).action("echo", &json!(1)).await;
    assert_eq!(action.status, 404, "{}", action.text());

    // The same names refer to different objects in each environment.
    let other_numbers = numbers_of(&other, 200).await;
    for (connection, first) in [(&dev_numbers, "number-100"), (&other_numbers, "number-200")] {
        let records = connection.all(&[("model", "Number")]).await;
        assert_eq!((records.len(), ids_of(&records)[0]), (5, first));
    }
    let cursor =
        text(&dev_numbers.all(&[("model", "Number")]).await[0]["_service_metadata"]["cursor"]).to_owned();
    let foreign = other_numbers.get_records(&[("model", "Number"), ("cursor", &cursor)]).await;
    assert_eq!(foreign.refusal(), (400, "invalid_cursor".to_owned()));

    for (api, value) in [(&*host, "dev's"), (&other, "other's")] {
        api.put("/environment-variables/NAME", &json!({ "value": value })).await.expect(204);
        patch(api, json!({ "webhook_url": format!("https://example.com/{value}") })).await.expect(200);
    }
    for (api, value) in [(&*host, "dev's"), (&other, "other's")] {
        let listed = api.get("/environment-variables").await.expect(200).json();
        assert_eq!(listed, json!([{ "name": "NAME", "value": value }]));
        assert_eq!(environment(api).await["webhook_url"], format!("https://example.com/{value}"));
    }
    let signing_key = |environment: Value| environment["webhook_signing_keys"][0]["key"].clone();
    assert_ne!(signing_key(environment(&host).await), signing_key(environment(&other).await));

    other_numbers.control("pause", "numbers").await.expect(200);
    assert_eq!(other_numbers.status("numbers").await["status"], "PAUSED");
    assert_ne!(dev_numbers.status("numbers").await["status"], "PAUSED");

    // Deleting one environment leaves the other unchanged.
    let refused = db.command(&["env", "delete", "other"]).run_failing();
    assert!(refused.contains("confirm with --yes"), "{refused}");
    host.command(&db, &["env", "delete", "other", "--yes"]);
    eventually("the key of the deleted environment is rejected", async || {
        (other.get("/integrations").await.status == 401).then_some(())
    })
    .await;
    assert_eq!(dev_numbers.all(&[("model", "Number")]).await.len(), 5);
    assert_eq!(environment(&host).await["webhook_url"], "https://example.com/dev's");
    for table in ["integrations", "connections", "deployments", "schedules", "outbound_webhook_signing_keys"]
    {
        let rows = format!("SELECT count(*) FROM {table}");
        assert_eq!(db.number(&rows).await, 1, "{table}: only the row of `dev` is left");
    }
    host.command(&db, &["env", "create", "other"]);
    let again = host.command(&db, &["keys", "create", "backend", "--environment", "other"]);
    let again = host.with_key(Some(again.trim()));
    assert_eq!(again.get("/environment-variables").await.expect(200).json(), json!([]));
}

#[tokio::test]
async fn settings_can_be_read_changed_and_cleared() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let second = Host::spawn(&db).await;
    let fresh = environment(&host).await;
    let defaults = json!({
        "webhook_url": null, "webhook_url_secondary": null, "callback_url": null, "on_auth_creation": true,
        "on_auth_refresh_error": true, "on_sync_completion_always": true, "on_sync_error": true,
        "on_async_action_completion": true, "connect_ui_title": null, "connect_ui_primary_color": null,
    });
    for (name, value) in defaults.as_object().unwrap() {
        assert_eq!(&fresh[name], value, "{name}");
    }
    assert_eq!(fresh["name"], "dev");

    let change = json!({
        "webhook_url": "https://example.com/hooks", "callback_url": "https://app.example.com/oauth",
        "on_sync_error": false, "connect_ui_title": "Connect to Acme", "connect_ui_primary_color": "#1a7f37",
    });
    let changed = patch(&host, change.clone()).await.expect(200).json()["data"].clone();
    for (name, value) in change.as_object().unwrap() {
        assert_eq!(&changed[name], value, "{name}");
    }
    assert_eq!(changed["on_auth_creation"], true);
    eventually("the other host has been notified", async || {
        (environment(&second).await == changed).then_some(())
    })
    .await;
    let changed = patch(&host, json!({ "callback_url": null })).await.expect(200).json();
    assert_eq!(changed["data"]["callback_url"], Value::Null);
    assert_eq!(changed["data"]["webhook_url"], "https://example.com/hooks");

    host.command(&db, &["env", "set", "webhook_url=", "on_sync_error=true", "connect_ui_title=By command"]);
    let shown: Value = serde_json::from_str(&host.command(&db, &["env", "show", "--json"])).unwrap();
    assert_eq!(
        (&shown["webhook_url"], &shown["on_sync_error"], &shown["connect_ui_title"]),
        (&Value::Null, &json!(true), &json!("By command"))
    );
    assert!(shown["webhook_signing_keys"][0].get("key").is_none(), "{shown}");
    eventually("the host has been notified", async || {
        (environment(&host).await["connect_ui_title"] == "By command").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_command_succeeds_when_its_output_is_closed() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    for (arguments, effect) in [
        (&["env", "show", "--json"][..], "SELECT count(*) FROM environments WHERE name = 'dev'"),
        (&["env", "create", "quiet"], "SELECT count(*) FROM environments WHERE name = 'quiet'"),
    ] {
        let mut command = db.command(arguments).spawn();
        // `head` closes the output in the same way.
        drop(command.stdout.take());
        let output = command.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
        assert_eq!(db.number(effect).await, 1, "{arguments:?}");
    }
    drop(host);
}

#[tokio::test]
async fn a_secret_key_requires_a_name() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    for name in ["", " ", &"x".repeat(256)] {
        let refused = db.command(&["keys", "create", name]).run_failing();
        assert!(
            refused.contains(
                "the name of the key must have 1 to 255 characters, at least one of which is not a space"
            ),
            "{refused}"
        );
    }
    drop(host);
}

#[tokio::test]
async fn invalid_settings_are_rejected() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let before = environment(&host).await;
    for body in [
        json!({ "webhook_url": "example.com" }),
        json!({ "webhook_url": "ftp://example.com" }),
        json!({ "webhook_url_secondary": 5 }),
        json!({ "callback_url": "https://example.com/#x" }),
        json!({ "callback_url": "" }),
        json!({ "on_sync_error": null }),
        json!({ "on_sync_error": "false" }),
        json!({ "connect_ui_title": "x".repeat(101) }),
        json!({ "connect_ui_primary_color": "red" }),
        json!({ "webhook_url": "https://example.com", "hooks": true }),
        json!([]),
    ] {
        let answer = patch(&host, body.clone()).await;
        assert_eq!(answer.refusal(), (400, "invalid_body".to_owned()), "{body}");
    }
    let answer = patch(&host, json!({ "connect_ui_primary_color": "red" })).await;
    assert_eq!(answer.message(), "`connect_ui_primary_color`: must be a colour such as #1a7f37");
    assert_eq!(environment(&host).await, before);
    let refused = db.command(&["env", "set", "webhook_url=example.com"]).run_failing();
    assert!(refused.contains("`webhook_url`: must be a URL"), "{refused}");
}

#[tokio::test]
async fn a_deployment_applies_the_settings_of_its_file() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    patch(&host, json!({ "connect_ui_title": "Kept", "webhook_url": "https://old.example" }))
        .await
        .expect(200);
    let table = "[models.Number]";
    let settings = "[environment]\nwebhook_url = \"https://new.example\"\non_sync_error = false\n";
    let bundle = Bundle::example("minimal").replace(table, &format!("{settings}\n{table}"));
    let plan = host.post_bundle(bundle.to_tar(), true).await.expect(200).json();
    let change =
        |name: &str| json!({ "change": "update", "kind": "environment", "integration": null, "name": name });
    assert_eq!(plan["changes"][0], change("on_sync_error"));
    assert_eq!(plan["changes"][1], change("webhook_url"));
    assert_eq!(environment(&host).await["webhook_url"], "https://old.example", "a plan changes nothing");
    host.deploy(&bundle).await;
    let set = environment(&host).await;
    assert_eq!(
        (&set["webhook_url"], &set["on_sync_error"], &set["connect_ui_title"]),
        (&json!("https://new.example"), &json!(false), &json!("Kept"))
    );
    // Deploying again applies the settings again.
    patch(&host, json!({ "on_sync_error": true })).await.expect(200);
    host.deploy(&bundle).await;
    assert_eq!(environment(&host).await["on_sync_error"], false);
}

#[tokio::test]
async fn signing_keys_require_a_scope_and_overlap_during_rotation() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let second = Host::spawn(&db).await;
    let keys = async |api: &Api| environment(api).await["webhook_signing_keys"].as_array().unwrap().clone();
    let first = keys(&host).await;
    assert_eq!(first.len(), 1);
    let first = text(&first[0]["key"]).to_owned();
    let encoded = first.strip_prefix("whsec_").expect("the form of Standard Webhooks");
    assert_eq!(STANDARD.decode(encoded).unwrap().len(), 32);
    assert_eq!(text(&keys(&second).await[0]["key"]), first, "the key is the same on every host");

    let arguments = ["keys", "create", "settings", "--scopes", "environment:settings:read"];
    let reader = host.with_key(Some(host.command(&db, &arguments).trim()));
    assert!(!reader.get("/environment").await.expect(200).text().contains("whsec_"));
    assert_eq!(patch(&reader, json!({})).await.refusal(), (403, "forbidden".to_owned()));
    let path = "/environment/webhook-signing-key/rotate";
    let rotate = async |api: &Api| api.request("POST", path).send().await;
    assert_eq!(rotate(&reader).await.refusal(), (403, "forbidden".to_owned()));

    let rotated = rotate(&host).await.expect(200).json();
    let new = text(&rotated["data"]["webhook_signing_key"]).to_owned();
    assert_ne!(new, first);
    eventually("the other host has been notified", async || {
        let keys = keys(&second).await;
        let both: Vec<&str> = keys.iter().map(|key| text(&key["key"])).collect();
        (both == [&*new, &*first]).then_some(())
    })
    .await;
    let both = keys(&host).await;
    assert_eq!(both[0]["expires_at"], Value::Null);
    assert!(both[1]["expires_at"].is_string(), "{both:?}");
    assert_eq!(rotate(&host).await.refusal(), (409, "multiple_webhook_signing_keys".to_owned()));

    let only = host.command(&db, &["env", "rotate-signing-key", "--now"]);
    eventually("only the newest key is left", async || {
        let keys = keys(&host).await;
        (keys.len() == 1 && keys[0]["key"] == only.trim()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_environment_without_a_signing_key_receives_one() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    db.execute("DELETE FROM outbound_webhook_signing_keys").await;
    let second = Host::spawn(&db).await;
    let third = Host::spawn(&db).await;
    let (one, other) = tokio::join!(environment(&second), environment(&third));
    assert_eq!(one["webhook_signing_keys"], other["webhook_signing_keys"]);
    assert!(text(&one["webhook_signing_keys"][0]["key"]).starts_with("whsec_"));
    drop(host);
}

#[tokio::test]
async fn an_account_key_manages_environments_and_their_keys() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let account = host.create_key(&db, "account", "account");
    let account = host.with_key(Some(&account));
    let staging = json!({ "name": "staging", "callback_url": "https://app.example.com/oauth" });
    assert_eq!(host.post("/environments", &staging).await.refusal(), (403, "forbidden".to_owned()));
    let made = account.post("/environments", &staging).await.expect(200).json()["data"].clone();
    assert_eq!(made["name"], "staging");
    let id = text(&made["id"]).to_owned();
    let again = account.post("/environments", &staging).await;
    assert_eq!(again.refusal(), (409, "duplicate_environment".to_owned()));
    for body in [json!({ "name": "A b" }), json!({}), json!({ "name": "x", "is_production": true })] {
        assert_eq!(account.post("/environments", &body).await.refusal().1, "invalid_body", "{body}");
    }

    let request = json!({ "environment_id": id, "display_name": "backend" });
    assert_eq!(host.post("/environment/api-keys", &request).await.refusal().0, 403);
    let key = account.post("/environment/api-keys", &request).await.expect(200).json()["data"].clone();
    assert_eq!((&key["display_name"], &key["scopes"]), (&json!("backend"), &json!(["environment:*"])));
    let again = account.post("/environment/api-keys", &request).await;
    assert_eq!(again.refusal(), (409, "duplicate_api_key".to_owned()));
    let holder = host.with_key(Some(text(&key["secret"])));
    assert_eq!(environment(&holder).await["callback_url"], "https://app.example.com/oauth");
    let narrow = json!({ "environment_id": id, "display_name": "a", "scopes": ["environment:deploys"] });
    assert_eq!(account.post("/environment/api-keys", &narrow).await.refusal().1, "invalid_body");
    let maker = host.with_key(Some(
        host.command(&db, &["keys", "create", "maker", "--scopes", "account:environments:api_keys:create"])
            .trim(),
    ));
    let more = json!({ "environment_id": id, "display_name": "b", "scopes": ["account:*"] });
    assert_eq!(maker.post("/environment/api-keys", &more).await.refusal().1, "invalid_body");

    let revoke = json!({ "environment_id": id, "key_id": key["id"] });
    let delete = async |path: &str, body: &Value| account.request("DELETE", path).json(body).send().await;
    let done = delete("/environment/api-keys", &revoke).await.expect(200).json();
    assert_eq!(done, json!({ "success": true }));
    assert_eq!(delete("/environment/api-keys", &revoke).await.refusal(), (404, "unknown_api_key".to_owned()));
    eventually("the key is rejected", async || {
        (holder.get("/environment").await.status == 401).then_some(())
    })
    .await;

    let path = format!("/environments/{id}");
    assert_eq!(host.request("DELETE", &path).send().await.refusal().0, 403);
    account.request("DELETE", &path).send().await.expect(204);
    let gone = account.request("DELETE", &path).send().await;
    assert_eq!(gone.refusal(), (404, "unknown_environment".to_owned()));
    let own = format!("/environments/{}", text(&environment(&host).await["id"]));
    let refused = account.request("DELETE", &own).send().await;
    assert_eq!(refused.refusal(), (400, "cannot_delete_default_environment".to_owned()));
    assert_eq!(account.request("DELETE", "/environments/dev").send().await.refusal().1, "invalid_uri_params");
}

#[tokio::test]
async fn a_key_is_limited_to_its_scopes() {
    let stage = Stage::numbers(3).await;
    let scopes = "environment:records:read,environment:syncs:*";
    let key = stage.host.command(&stage.db, &["keys", "create", "narrow", "--scopes", scopes]);
    let through = stage.through(&stage.host.with_key(Some(key.trim())));
    assert_eq!(through.all(&[("model", "Number")]).await.len(), 3);
    through.control("pause", "numbers").await.expect(200);
    assert_eq!(through.action("echo", &json!(1)).await.refusal(), (403, "forbidden".to_owned()));
    let refused =
        stage.db.command(&["keys", "create", "wrong", "--scopes", "environment:record:read"]).run_failing();
    assert!(refused.contains("did you mean `environment:records:read`?"), "{refused}");

    let listed = stage.host.command(&stage.db, &["keys", "list", "--json"]);
    let listed: Vec<Value> = serde_json::from_str(&listed).unwrap();
    let narrow = listed.iter().find(|key| key["name"] == "narrow").expect("it is listed");
    assert!(key.starts_with(text(&narrow["prefix"])) && narrow["prefix"] != "", "{narrow}");
    assert!(!narrow.to_string().contains(key.trim()), "only the key's prefix is shown");
}

#[tokio::test]
async fn variables_are_set_by_the_cli_and_from_a_file() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    db.command(&["env", "vars", "set", "TOKEN"]).input("planted-by-command\n").run();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "# ours\nREGION=eu\nQUOTED=\"a b\"\n").unwrap();
    let path = file.path().to_str().unwrap();
    host.command(&db, &["env", "vars", "set", "--file", path]);
    let listed = host.get("/environment-variables").await.expect(200).json();
    assert_eq!(
        listed,
        json!([
            { "name": "QUOTED", "value": "a b" },
            { "name": "REGION", "value": "eu" },
            { "name": "TOKEN", "value": "planted-by-command" },
        ])
    );
    assert_eq!(host.command(&db, &["env", "vars", "list"]), "QUOTED\nREGION\nTOKEN\n");
    assert!(host.command(&db, &["env", "vars", "list", "--values"]).contains("TOKEN=planted-by-command\n"));
    host.command(&db, &["env", "vars", "unset", "REGION"]);
    let refused = db.command(&["env", "vars", "unset", "REGION"]).run_failing();
    assert!(refused.contains("has no variable `REGION`"), "{refused}");
    let refused = db.command(&["env", "vars", "set", "1ST"]).input("x").run_failing();
    assert!(refused.contains("not begin with a digit"), "{refused}");
    let sealed = "SELECT count(*) FROM environment_variables WHERE position('planted' in encode(sealed_value, 'escape')) > 0";
    assert_eq!(db.number(sealed).await, 0);
}

#[tokio::test]
async fn the_keys_of_one_environment_are_listed_without_those_of_others() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    create_other(&host, &db).await;
    host.command(&db, &["keys", "create", "second", "--environment", "other"]);
    host.command(&db, &["keys", "create", "revoked", "--environment", "other"]);
    host.command(&db, &["keys", "revoke", "revoked", "--environment", "other"]);
    let databases = Databases { control: db.url().parse().expect("it is a URL"), records: None };
    let store = Store::open(databases, 4).await.expect("it can be opened");
    let other = EnvironmentPk(db.number("SELECT pk FROM environments WHERE name = 'other'").await);
    let mut conn = store.connect().await.expect("the database answers");
    let listed = keys::list_of_environment(&mut conn, other).await.expect("the keys can be read");
    let names: Vec<&str> = listed.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(names, ["backend", "second"]);
    assert!(listed.iter().all(|key| key.environment == "other" && !key.scopes.is_empty()), "{listed:?}");
}
