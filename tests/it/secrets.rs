//! Secrets: who can read them, and that they are stored and logged nowhere in plaintext.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    Bundle, ENCRYPTION_KEY, Host, HostOptions, SECRET_KEY, SHOP_KEY, Shop, Stage, TestDatabase, eventually,
    masked,
};

const VARIABLE: &str = "planted-variable-value-93be";
const WRONG_KEY: &str = "planted-key-that-is-mistaken-5ac0";
const DATABASE_PASSWORD: &str = "planted-database-password-1f0e";

/// A host that has received secrets in every place, in valid and in invalid requests.
async fn host_with_secrets(shop: &Shop, db: &TestDatabase) -> Host {
    let host = HostOptions::new()
        .database(db)
        .variable("PGPASSWORD", DATABASE_PASSWORD)
        .variable("RUST_LOG", "debug")
        .allow(shop)
        .spawn()
        .await;
    host.put("/environment-variables/SHOP_PIN", &json!({ "value": VARIABLE })).await.expect(204);
    host.deploy(&Bundle::example("stripe").at(shop)).await;
    shop.create_customer(&[("name", "Ada")]).await;
    let connection = host.connect_to(shop).await;
    connection.run("customers").await;
    connection.action("create-customer", &json!({ "name": "Grace" })).await.expect(200);

    // The shop rejects this key, so the failure passes through every place that reports failures.
    let wrong = |key: &str| json!({ "type": "BASIC", "username": key, "password": key });
    let import = |credentials: Value| json!({ "connection_id": "customer-2", "provider_config_key": "stripe", "credentials": credentials });
    host.post("/connections", &import(wrong(WRONG_KEY))).await.expect(201);
    let mistaken = connection.with_id("customer-2");
    mistaken.wait_until_idle().await;
    mistaken.action("create-customer", &json!({ "name": "Grace" })).await.expect(424);

    let broken = format!("{{\"credentials\": \"{WRONG_KEY}\", ");
    host.request("POST", "/connections")
        .header("Content-Type", "application/json")
        .bytes(broken)
        .send()
        .await
        .expect(400);
    host.post("/connections", &import(json!({ "type": "API_KEY", "apiKey": WRONG_KEY }))).await.expect(400);
    host.post("/connections", &import(json!(WRONG_KEY))).await.expect(400);
    host.put("/environment-variables/1", &json!({ "value": VARIABLE })).await.expect(400);
    host.with_key(Some(WRONG_KEY)).get("/integrations").await.expect(401);
    host
}

fn planted() -> Vec<&'static str> {
    let encryption_key = ENCRYPTION_KEY.split_once(':').expect("an id and a key").1;
    vec![SECRET_KEY, SHOP_KEY, VARIABLE, WRONG_KEY, DATABASE_PASSWORD, encryption_key]
}

#[tokio::test]
async fn no_secret_appears_in_the_hosts_log() {
    let shop = Shop::start().await;
    let db = TestDatabase::create().await;
    let mut host = host_with_secrets(&shop, &db).await;
    host.stop().await;
    let log = host.log();
    assert!(log.contains("DEBUG"), "the log contains debug lines:\n{log}");
    for secret in planted() {
        let basic = STANDARD.encode(format!("{secret}:"));
        for form in [secret, basic.trim_end_matches('=')] {
            let line = log.lines().find(|line| line.contains(form));
            assert_eq!(line, None, "a log line contains a secret");
        }
    }
}

#[tokio::test]
async fn no_secret_is_stored_in_plaintext() {
    let shop = Shop::start().await;
    let db = TestDatabase::create().await;
    let _host = host_with_secrets(&shop, &db).await;
    for secret in planted() {
        assert_eq!(db.tables_with(secret).await, [""; 0], "tables with `{secret}` in them");
    }
}

#[tokio::test]
async fn a_connection_is_shown_with_its_credentials() {
    let shop = Shop::start().await;
    let stage = Stage::stripe(&shop).await;
    let path = "/connections/customer-1?provider_config_key=stripe";
    let shown = stage.host.get(path).await.expect(200).json();
    assert_eq!(
        masked(shown),
        json!({
            "id": "…", "connection_id": "customer-1", "provider_config_key": "stripe", "provider": "stripe-api-key",
            "errors": [], "end_user": null, "tags": {}, "metadata": {}, "connection_config": {},
            "webhook_url_override": null,
            "created_at": "…", "updated_at": "…", "last_fetched_at": "…",
            "credentials": { "type": "BASIC", "username": SHOP_KEY, "password": "" },
        })
    );
    let listed = stage.host.get("/connections").await.expect(200);
    assert!(!listed.text().contains(SHOP_KEY), "{}", listed.text());
    assert_eq!(listed.json()["connections"][0]["connection_id"], "customer-1");
}

#[tokio::test]
async fn a_read_only_key_cannot_read_secrets_or_change_anything() {
    let shop = Shop::start().await;
    let stage = Stage::stripe(&shop).await;
    let key = stage.host.create_key(&stage.db, "reader", "read-only");
    let reader = stage.host.with_key(Some(&key));
    let through = stage.through(&reader);

    let shown = reader.get("/connections/customer-1?provider_config_key=stripe").await.expect(200);
    assert_eq!(shown.json()["credentials"], json!({}));
    assert!(!shown.text().contains(SHOP_KEY), "{}", shown.text());
    reader.get("/integrations").await.expect(200);
    reader.get("/connections").await.expect(200);
    through.page(&[("model", "Customer")]).await;
    through.status("customers").await;

    let bundle = Bundle::example("stripe").to_tar();
    for answer in [
        reader.get("/connections/customer-1?provider_config_key=stripe&force_refresh=true").await,
        reader.get("/environment-variables").await,
        reader.put("/environment-variables/NAME", &json!({ "value": "x" })).await,
        reader.request("DELETE", "/environment-variables/NAME").send().await,
        reader.post("/integrations", &json!({ "provider": "unauthenticated", "unique_key": "a" })).await,
        reader.post("/connections", &json!({ "provider_config_key": "stripe", "credentials": {} })).await,
        through.control("trigger", "customers").await,
        through.control("pause", "customers").await,
        through.control("start", "customers").await,
        through.action("create-customer", &json!({})).await,
        through.prune(&json!({ "model": "Customer", "until_cursor": "x" })).await,
        reader.post_bundle(bundle.clone(), true).await,
        reader.post_bundle(bundle, false).await,
    ] {
        assert_eq!(answer.refusal(), (403, "forbidden".to_owned()), "{}", answer.request);
    }
}

#[tokio::test]
async fn a_revoked_key_is_rejected_at_once_on_every_host() {
    let stage = Stage::hostile().await;
    let second = Host::spawn(&stage.db).await;
    let key = stage.host.create_key(&stage.db, "short-lived", "full");
    let holders = [stage.host.with_key(Some(&key)), second.with_key(Some(&key))];
    for holder in &holders {
        holder.get("/integrations").await.expect(200);
    }
    stage.host.command(&stage.db, &["keys", "revoke", "short-lived"]);
    for holder in &holders {
        // The notification can arrive after the command ends.
        eventually("the key is rejected", async || {
            (holder.get("/integrations").await.status == 401).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn variables_are_set_listed_and_removed() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    assert_eq!(host.get("/environment-variables").await.expect(200).json(), json!([]));
    for (name, value) in [("ZULU", "1"), ("ALPHA", "old"), ("ALPHA", "a \"quoted\" 🎩\nline"), ("_EMPTY", "")]
    {
        let answer =
            host.put(&format!("/environment-variables/{name}"), &json!({ "value": value })).await.expect(204);
        assert_eq!(answer.text(), "");
    }
    let listed = host.get("/environment-variables").await.expect(200).json();
    assert_eq!(
        listed,
        json!([
            { "name": "ALPHA", "value": "a \"quoted\" 🎩\nline" },
            { "name": "ZULU", "value": "1" },
            { "name": "_EMPTY", "value": "" },
        ])
    );
    for name in ["ZULU", "_EMPTY", "NEVER_THERE"] {
        host.request("DELETE", &format!("/environment-variables/{name}")).send().await.expect(204);
    }
    assert_eq!(host.get("/environment-variables").await.expect(200).json().as_array().unwrap().len(), 1);

    for (name, value) in [("1ST", "x".to_owned()), ("a-b", "x".to_owned()), ("a b", "x".to_owned())] {
        let name = name.replace(' ', "%20");
        let answer = host.put(&format!("/environment-variables/{name}"), &json!({ "value": value })).await;
        assert_eq!(answer.refusal(), (400, "invalid_uri_params".to_owned()), "{name}");
    }
    for value in ["x".repeat((64 << 10) + 1), "a\0b".to_owned()] {
        let answer = host.put("/environment-variables/NAME", &json!({ "value": value })).await;
        assert_eq!(answer.refusal(), (400, "invalid_body".to_owned()), "{} bytes", value.len());
    }
}

#[tokio::test]
async fn a_function_sees_only_variables_of_its_environment() {
    let stage = Stage::hostile().await;
    stage.host.put("/environment-variables/GREETING", &json!({ "value": "hello" })).await.expect(204);
    stage.host.put("/environment-variables/SHOP_PIN", &json!({ "value": VARIABLE })).await.expect(204);
    let seen = stage.action("read-env", &Value::Null).await.expect(200).json();
    assert_eq!(seen["variables"], json!({ "GREETING": "hello", "SHOP_PIN": VARIABLE }));
    assert!(matches!(&seen["process"], Value::Null | Value::Object(_)), "{seen}");
    assert_eq!(seen["process"].as_object().map_or(0, serde_json::Map::len), 0, "{seen}");

    let table = "[integrations.hostile]";
    let narrowed = Bundle::guest("hostile").replace(table, &format!("{table}\nenv = [\"GREETING\"]"));
    stage.host.deploy(&narrowed).await;
    let seen = stage.action("read-env", &Value::Null).await.expect(200).json();
    assert_eq!(seen["variables"], json!({ "GREETING": "hello" }));
}

#[tokio::test]
async fn a_host_with_another_encryption_key_refuses_to_start() {
    let db = TestDatabase::create().await;
    Host::spawn(&db).await.stop().await;
    let other = format!("test:{}", STANDARD.encode([7; 32]));
    let options = HostOptions::new().database(&db).variable("SYNCLINE_ENCRYPTION_KEY", &other);
    let (status, log) = options.spawn_and_wait().await;
    assert!(!status.success());
    assert!(log.contains("is not the key that this database was encrypted with"), "{log}");
}

#[tokio::test]
async fn a_command_without_the_encryption_key_creates_no_new_one() {
    let db = TestDatabase::create().await;
    Host::spawn(&db).await.stop().await;
    let facts = "SELECT name || value FROM installation ORDER BY 1";
    let before = db.texts(facts).await;
    let folder = TempDir::new().expect("a temporary folder can be made");
    for arguments in [&["env", "list"][..], &["env", "show"], &["keys", "create", "reader"]] {
        let refused = db.command(arguments).data_dir(folder.path()).run_failing();
        assert!(refused.contains("set SYNCLINE_ENCRYPTION_KEY"), "{refused}");
    }
    assert!(!folder.path().join("encryption.key").exists(), "only a host creates a key");

    let stranger = format!("stranger:{}", STANDARD.encode([7; 32]));
    let refused = db.command(&["env", "list"]).encryption_key(&stranger).run_failing();
    let missing = "this database needs the encryption key `test`";
    assert_eq!(refused.matches(missing).count(), 1, "{refused}");
    let options = HostOptions::new().database(&db).variable("SYNCLINE_ENCRYPTION_KEY", &stranger);
    let (status, log) = options.spawn_and_wait().await;
    assert!(!status.success() && log.contains(missing), "{log}");
    assert_eq!(db.texts(facts).await, before, "no unusable key is recorded");
}
