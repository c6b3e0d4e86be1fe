//! Creating, listing and showing integrations and connections.

use serde_json::{Value, json};

use crate::support::{
    Api, Bundle, Host, HostOptions, Stage, TestDatabase, eventually, masked, repository, text,
};

async fn create(api: &Api, body: Value) -> Value {
    api.post("/integrations", &body).await.expect(200).json()["data"].clone()
}

#[tokio::test]
async fn an_integration_is_created_listed_and_shown() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let made = create(&host, json!({ "provider": "stripe-api-key", "unique_key": "pay: eu" })).await;
    assert_eq!(
        masked(made.clone()),
        json!({
            "unique_key": "pay: eu", "provider": "stripe-api-key", "display_name": "Stripe (API key)",
            "logo": format!("{}/images/template-logos/stripe-api-key.svg", host.base_url()),
            "forward_webhooks": true, "created_at": "…", "updated_at": "…",
        })
    );
    let own = json!({
        "provider": "unauthenticated", "unique_key": "b", "display_name": "Ours", "forward_webhooks": false,
    });
    let own = create(&host, own).await;
    assert_eq!((&own["display_name"], &own["forward_webhooks"]), (&json!("Ours"), &json!(false)));

    let shown = host.get("/integrations/pay:%20eu").await.expect(200).json();
    assert_eq!(shown, json!({ "data": made }));
    let listed = host.get("/integrations").await.expect(200).json();
    let mut keys: Vec<&str> =
        listed["data"].as_array().unwrap().iter().map(|one| text(&one["unique_key"])).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["b", "pay: eu"]);
    assert_eq!(host.get("/integrations/nobody").await.refusal(), (404, "unknown_integration".to_owned()));
}

#[tokio::test]
async fn the_include_parameter_adds_members_to_an_integration() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    create(&host, json!({ "provider": "stripe-api-key", "unique_key": "pay" })).await;
    let extra = async |query: &str| {
        let shown = host.get(&format!("/integrations/pay?{query}")).await.expect(200).json();
        let members = shown["data"].as_object().unwrap();
        ["webhook_url", "credentials"]
            .into_iter()
            .filter(|name| members.contains_key(*name))
            .collect::<Vec<_>>()
    };
    assert_eq!(extra("").await, [""; 0]);
    assert_eq!(extra("include=webhook").await, ["webhook_url"]);
    assert_eq!(extra("include[]=credentials").await, ["credentials"]);
    for both in [
        "include[]=webhook&include[]=credentials",
        "include=webhook&include=credentials",
        "include[0]=webhook&include[1]=credentials",
        "include%5B%5D=credentials&include%5B%5D=webhook",
        "include=webhook,credentials",
    ] {
        assert_eq!(extra(both).await, ["webhook_url", "credentials"], "{both}");
    }
    let refused = host.get("/integrations/pay?include=secrets").await;
    assert_eq!(refused.refusal(), (400, "invalid_query_params".to_owned()));
}

#[tokio::test]
async fn reimporting_a_connection_replaces_it_and_keeps_its_records() {
    let stage = Stage::hostile().await;
    stage.save_raw("Item", r#"[{"id":"a"}]"#).await.expect(200);
    let show = async || {
        stage.host.get("/connections/customer-1?provider_config_key=hostile").await.expect(200).json()
    };
    let before = show().await;
    let body = json!({
        "connection_id": "customer-1", "provider_config_key": "hostile", "credentials": { "type": "NONE" },
        "metadata": { "steps": 0, "new": true }, "tags": { "Plan": "pro" },
        "end_user": { "id": "u-7", "email": "ada@example.com", "display_name": "Ada" },
    });
    stage.host.post("/connections", &body).await.expect(201);
    let after = show().await;
    assert_eq!((&after["id"], &after["created_at"]), (&before["id"], &before["created_at"]));
    assert_eq!(after["metadata"], json!({ "steps": 0, "new": true }));
    assert_eq!(
        after["tags"],
        json!({
            "plan": "pro", "end_user_id": "u-7", "end_user_email": "ada@example.com", "end_user_display_name": "Ada",
        })
    );
    assert_eq!(after["end_user"]["email"], "ada@example.com");
    assert_eq!(stage.page(&[("model", "Item")]).await.ids(), ["a"]);
    assert_eq!(stage.statuses("*").await.len(), 2);
}

#[tokio::test]
async fn a_connection_without_an_id_receives_one() {
    let stage = Stage::hostile().await;
    let body = json!({ "provider_config_key": "hostile", "credentials": { "type": "NONE" } });
    let made = stage.host.post("/connections", &body).await.expect(201).json();
    assert!(uuid::Uuid::parse_str(text(&made["connection_id"])).is_ok(), "{made}");
}

#[tokio::test]
async fn connections_are_filtered_by_every_query_parameter() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    for key in ["one", "two"] {
        create(&host, json!({ "provider": "unauthenticated", "unique_key": key })).await;
    }
    for (integration, id, user, plan) in [
        ("one", "c-1", "ada", "pro"),
        ("one", "c-2", "grace", "free"),
        ("two", "c-1", "ada", "free"),
        ("two", "c_1", "eve", "pro"),
    ] {
        let body = json!({
            "connection_id": id, "provider_config_key": integration, "credentials": { "type": "NONE" },
            "end_user": { "id": user, "email": format!("{user}@example.com") }, "tags": { "plan": plan },
        });
        host.post("/connections", &body).await.expect(201);
    }
    let found = async |query: &str| {
        let listed = host.get(&format!("/connections?{query}")).await.expect(200).json();
        let listed = listed["connections"].as_array().unwrap().clone();
        let name =
            |one: &Value| format!("{}/{}", text(&one["provider_config_key"]), text(&one["connection_id"]));
        listed.iter().map(name).collect::<Vec<_>>()
    };
    for (query, expected) in [
        ("", &["two/c_1", "two/c-1", "one/c-2", "one/c-1"][..]),
        ("connectionId=c-1", &["two/c-1", "one/c-1"]),
        ("connectionId=c", &[]),
        ("integrationId=one", &["one/c-2", "one/c-1"]),
        ("integrationId=one,two&connectionId=c-2", &["one/c-2"]),
        ("endUserId=ada", &["two/c-1", "one/c-1"]),
        ("search=GRACE", &["one/c-2"]),
        ("search=C-1", &["two/c-1", "one/c-1"]),
        ("search=c_", &["two/c_1"]),
        ("tags[plan]=pro", &["two/c_1", "one/c-1"]),
        ("tags[plan]=pro&endUserId=ada", &["one/c-1"]),
        ("limit=3", &["two/c_1", "two/c-1", "one/c-2"]),
        ("limit=3&page=1", &["one/c-1"]),
        ("limit=3&page=2", &[]),
    ] {
        assert_eq!(found(query).await, expected, "{query}");
    }
}

const CLIENT_SECRET: &str = "planted-client-secret-9be2";

fn app_key() -> String {
    std::fs::read_to_string(repository("tests/keys/app.pem")).expect("the key file exists")
}

fn oauth_app() -> Value {
    json!({
        "type": "OAUTH2", "client_id": "id-1", "client_secret": CLIENT_SECRET, "scopes": "a:read,b.write",
        "webhook_secret": "w",
    })
}

#[tokio::test]
async fn app_credentials_are_stored_encrypted_and_shown_masked() {
    let db = TestDatabase::create().await;
    let host = HostOptions::new().database(&db).variable("RUST_LOG", "debug").spawn().await;
    let installed =
        json!({ "app_id": "7", "app_link": "https://code.test/apps/a", "private_key": app_key() });
    let client = json!({ "client_id": "id-1", "client_secret": CLIENT_SECRET });
    let shape = |mode: &str, parts: &[&Value], hidden: bool| {
        let mut all = json!({ "type": mode });
        for (name, value) in parts.iter().flat_map(|part| part.as_object().unwrap()) {
            let is_hidden = hidden && ["client_secret", "private_key"].contains(&name.as_str());
            all[name] = if is_hidden { json!("********") } else { value.clone() };
        }
        all
    };
    let scoped = json!({ "scopes": "a:read,b.write", "webhook_secret": null });
    for (provider, mode, parts) in [
        ("hubspot", "OAUTH2", &[&client, &scoped][..]),
        ("trello", "OAUTH1", &[&client, &scoped]),
        ("netsuite-tba", "TBA", &[&client, &scoped]),
        ("github-app", "APP", &[&installed]),
        ("github-app-oauth", "CUSTOM", &[&client, &installed]),
    ] {
        let body =
            json!({ "provider": provider, "unique_key": mode, "credentials": shape(mode, parts, false) });
        assert!(create(&host, body).await.get("credentials").is_none(), "{mode}");
        let shown = host.get(&format!("/integrations/{mode}?include=credentials")).await.expect(200);
        assert_eq!(shown.json()["data"]["credentials"], shape(mode, parts, true));
        let listed = host.get("/integrations").await.expect(200);
        for secret in [CLIENT_SECRET, "BEGIN RSA"] {
            assert!(!shown.text().contains(secret) && !listed.text().contains(secret), "{mode}");
            let rows = format!("SELECT count(*) FROM integrations AS t WHERE t::text LIKE '%{secret}%'");
            assert_eq!(db.number(&rows).await, 0);
        }
    }
    assert!(!host.log().contains(CLIENT_SECRET), "{}", host.log());
    let reader = host.with_key(Some(&host.create_key(&db, "reader", "read-only")));
    let shown = reader.get("/integrations/OAUTH2?include=credentials").await.expect(200).json();
    assert!(shown["data"].get("credentials").is_none(), "{shown}");
    reader.delete("/integrations/OAUTH2").await.expect(403);
    reader.patch("/integrations/OAUTH2", &json!({})).await.expect(403);
}

#[tokio::test]
async fn invalid_integrations_are_rejected_with_the_field() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let with = |name: &str, value: Value| {
        let mut credentials = oauth_app();
        credentials[name] = value;
        json!({ "provider": "hubspot", "unique_key": "a", "credentials": credentials })
    };
    let key = |value: Value| {
        json!({
            "provider": "github-app", "unique_key": "a",
            "credentials": { "type": "APP", "app_id": "1", "app_link": "https://a.test", "private_key": value },
        })
    };
    let setting =
        |name: &str, value: Value| json!({ "provider": "unauthenticated", "unique_key": "a", name: value });
    let many: Value = (0..101).map(|n| (n.to_string(), json!("x"))).collect::<serde_json::Map<_, _>>().into();
    for (body, path) in [
        (json!({ "provider": "hubspot", "unique_key": "a" }), "credentials"),
        (json!({ "provider": "github-app", "unique_key": "a" }), "credentials"),
        (json!({ "provider": "trello", "unique_key": "a", "credentials": oauth_app() }), "credentials.type"),
        (
            json!({ "provider": "unauthenticated", "unique_key": "a", "credentials": oauth_app() }),
            "credentials",
        ),
        (json!({ "provider": "hubspot", "unique_key": "a", "credentials": [] }), "credentials"),
        (json!({ "provider": "hubspot", "unique_key": "a/b", "credentials": oauth_app() }), "unique_key"),
        (json!({ "provider": "hub spot", "unique_key": "a", "credentials": oauth_app() }), "provider"),
        (with("type", json!("APP")), "credentials.type"),
        (with("client_id", json!("")), "credentials.client_id"),
        (with("client_secret", json!("********")), "credentials.client_secret"),
        (with("scopes", json!("a b")), "credentials.scopes"),
        (with("app_id", json!("1")), "credentials.app_id"),
        (key(json!("no key")), "credentials.private_key"),
        (
            key(json!("-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----")),
            "credentials.private_key",
        ),
        (setting("display_name", json!("")), "display_name"),
        (setting("display_name", json!("x".repeat(256))), "display_name"),
        (setting("forward_webhooks", json!("yes")), "forward_webhooks"),
        (setting("integration_config", json!({ "a": 1 })), "integration_config.a"),
        (setting("integration_config", json!({ "a": "x".repeat(8193) })), "integration_config.a"),
        (setting("custom", many), "custom"),
        (setting("credential", json!({})), "credential"),
    ] {
        let answer = host.post("/integrations", &body).await;
        assert_eq!(answer.refusal(), (400, "invalid_body".to_owned()), "{body}");
        let refusal = answer.json();
        let place = refusal["error"]["errors"][0]["path"].as_array().unwrap().iter().map(text);
        assert_eq!(place.collect::<Vec<_>>().join("."), path, "{body}");
        assert!(!answer.text().contains(CLIENT_SECRET), "{}", answer.text());
    }
    let unknown = host.post("/integrations", &json!({ "provider": "acme", "unique_key": "a" })).await;
    assert_eq!(unknown.refusal(), (404, "unknown_provider".to_owned()));
    create(&host, json!({ "provider": "unauthenticated", "unique_key": "a" })).await;
    create(&host, json!({ "provider": "unauthenticated", "unique_key": "b" })).await;
    let taken =
        host.post("/integrations", &json!({ "provider": "unauthenticated", "unique_key": "a" })).await;
    assert_eq!(taken.refusal(), (409, "duplicate_integration".to_owned()));
    let taken = host.patch("/integrations/a", &json!({ "unique_key": "b" })).await;
    assert_eq!(taken.refusal(), (409, "duplicate_integration".to_owned()));
    for (method, path) in [("PATCH", "/integrations/nobody"), ("DELETE", "/integrations/nobody")] {
        let answer = host.request(method, path).json(&json!({})).send().await;
        assert_eq!(answer.refusal(), (404, "unknown_integration".to_owned()), "{method}");
    }
    let malformed = host.get("/integrations/a%2Fb").await;
    assert_eq!(malformed.refusal(), (400, "invalid_uri_params".to_owned()));
    let quickstart = json!({ "provider": "hubspot", "unique_key": "q" });
    let quickstart = host.post("/integrations/quickstart", &quickstart).await;
    assert_eq!(quickstart.refusal(), (501, "not_implemented".to_owned()));
}

#[tokio::test]
async fn an_update_changes_only_the_given_fields() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let body = json!({
        "provider": "hubspot", "unique_key": "crm", "display_name": "Ours", "forward_webhooks": false,
        "credentials": oauth_app(), "integration_config": { "a": "1" }, "custom": { "b": CLIENT_SECRET },
    });
    let made = create(&host, body).await;
    let patch = async |body: Value| {
        let answer = host.patch("/integrations/crm", &body).await.expect(200).json();
        let shown =
            host.get("/integrations/crm?include=credentials&include=webhook").await.expect(200).json();
        (answer["data"].clone(), shown["data"].clone())
    };
    let (answer, shown) = patch(json!({})).await;
    assert_eq!(masked(answer), masked(made.clone()));
    assert_eq!(shown["credentials"]["client_id"], "id-1");
    let environment = db.texts("SELECT id::text FROM environments").await.remove(0);
    assert_eq!(shown["webhook_url"], format!("{}/webhook/{environment}/crm", host.base_url()));
    let newer = json!({ "type": "OAUTH2", "client_id": "id-2", "client_secret": "s" });
    let (answer, shown) = patch(json!({ "credentials": newer, "display_name": "Theirs" })).await;
    assert_eq!((&answer["display_name"], &answer["forward_webhooks"]), (&json!("Theirs"), &json!(false)));
    assert_eq!(
        shown["credentials"],
        json!({
            "type": "OAUTH2", "client_id": "id-2", "client_secret": "********", "scopes": "a:read,b.write",
            "webhook_secret": "********",
        })
    );
    let cleared = json!({ "scopes": "", "webhook_secret": null });
    let (_, shown) = patch(json!({ "credentials": cleared })).await;
    assert_eq!(
        shown["credentials"],
        json!({
            "type": "OAUTH2", "client_id": "id-2", "client_secret": "********", "scopes": "", "webhook_secret": null,
        })
    );
    let echoed = json!({ "credentials": { "type": "OAUTH2", "webhook_secret": "********" } });
    let refused = host.patch("/integrations/crm", &echoed).await;
    assert_eq!(refused.refusal(), (400, "invalid_body".to_owned()));
    assert!(refused.message().contains("is the mask"), "{}", refused.message());
    let (answer, _) = patch(json!({ "forward_webhooks": true, "custom": { "c": "2" } })).await;
    assert_eq!((&answer["display_name"], &answer["forward_webhooks"]), (&json!("Theirs"), &json!(true)));
    let many: serde_json::Map<String, Value> = (0..99).map(|n| (format!("k{n}"), json!("v"))).collect();
    let refused = host.patch("/integrations/crm", &json!({ "custom": many })).await;
    assert_eq!(
        refused.refusal(),
        (400, "invalid_body".to_owned()),
        "the new and the existing members exceed the limit together"
    );
    assert!(refused.message().contains("got 101"), "{}", refused.message());
    let rows = format!("SELECT count(*) FROM integrations AS t WHERE t::text LIKE '%{CLIENT_SECRET}%'");
    assert_eq!(db.number(&rows).await, 0);
    let other = json!({ "credentials": { "type": "OAUTH1", "client_id": "i", "client_secret": "s" } });
    let refused = host.patch("/integrations/crm", &other).await;
    assert_eq!(refused.refusal(), (400, "invalid_body".to_owned()));
}

#[tokio::test]
async fn a_renamed_integration_keeps_its_connections_records_and_functions() {
    let stage = Stage::hostile().await;
    stage.save_raw("Item", r#"[{"id":"a"}]"#).await.expect(200);
    let second = Host::spawn(&stage.db).await;
    let elsewhere = stage.through(&second);
    assert_eq!(elsewhere.page(&[("model", "Item")]).await.ids(), ["a"]);
    let rename = json!({ "unique_key": "renamed: eu" });
    let renamed = stage.host.patch("/integrations/hostile", &rename).await.expect(200).json();
    assert_eq!(renamed["data"]["unique_key"], "renamed: eu");
    let now = stage.to("renamed: eu");
    assert_eq!(now.page(&[("model", "Item")]).await.ids(), ["a"]);
    assert_eq!(now.statuses("*").await.len(), 2);
    now.save_raw("Item", r#"[{"id":"b"}]"#).await.expect(200);
    assert_eq!(now.page(&[("model", "Item")]).await.ids(), ["a", "b"]);
    let gone = stage.get_records(&[("model", "Item")]).await;
    assert_eq!(gone.refusal(), (404, "unknown_integration".to_owned()));
    eventually("the other host has been notified", async || {
        (elsewhere.get_records(&[("model", "Item")]).await.status == 404).then_some(())
    })
    .await;
    let url = stage.host.get("/integrations/renamed:%20eu?include=webhook").await.expect(200).json();
    assert!(text(&url["data"]["webhook_url"]).ends_with("/renamed%3A%20eu"), "{url}");
    let again = stage.host.post_bundle(Bundle::guest("hostile").to_tar(), false).await;
    assert_eq!(again.refusal().1, "conflicting_deployment", "{}", again.text());
}

#[tokio::test]
async fn deleting_an_integration_deletes_its_data_and_allows_redeployment() {
    let stage = Stage::hostile().await;
    stage.save_raw("Item", r#"[{"id":"a"}]"#).await.expect(200);
    let deleted = stage.host.delete("/integrations/hostile").await.expect(200).json();
    assert_eq!(deleted, json!({ "success": true }));
    for answer in [
        stage.get_records(&[("model", "Item")]).await,
        stage.action("print", &json!("a line")).await,
        stage.host.get("/integrations/hostile").await,
        stage.host.get("/connections/customer-1?provider_config_key=hostile").await,
        stage.host.delete("/integrations/hostile").await,
    ] {
        assert_eq!(answer.refusal(), (404, "unknown_integration".to_owned()), "{}", answer.request);
    }
    assert_eq!(stage.host.get("/connections").await.expect(200).json(), json!({ "connections": [] }));
    for table in ["connections", "schedules", "functions"] {
        assert_eq!(stage.db.number(&format!("SELECT count(*) FROM {table}")).await, 0, "{table}");
    }
    eventually("no data is left", async || {
        let left = "SELECT (SELECT count(*) FROM records) + (SELECT count(*) FROM streams) \
                    + (SELECT count(*) FROM sync_states)";
        (stage.db.number(left).await == 0).then_some(())
    })
    .await;
    stage.host.deploy(&Bundle::guest("hostile")).await;
    let again = stage.host.connect("hostile", json!({ "steps": 0 })).await;
    assert_eq!(again.page(&[("model", "Item")]).await.ids(), [""; 0]);
    again.save_raw("Item", r#"[{"id":"b"}]"#).await.expect(200);
    assert_eq!(again.page(&[("model", "Item")]).await.ids(), ["b"]);
}

#[tokio::test]
async fn a_ciphertext_copied_to_another_integration_cannot_be_decrypted() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    for key in ["one", "two"] {
        let body = json!({ "provider": "hubspot", "unique_key": key, "credentials": oauth_app() });
        create(&host, body).await;
    }
    host.get("/integrations/two?include=credentials").await.expect(200);
    let copy = "UPDATE integrations SET sealed_credentials = \
                (SELECT sealed_credentials FROM integrations WHERE unique_key = 'one') WHERE unique_key = 'two'";
    db.execute(copy).await;
    let refused = host.get("/integrations/two?include=credentials").await;
    assert_eq!(refused.refusal(), (500, "internal_server_error".to_owned()));
    assert!(!refused.text().contains("id-1"));
    host.get("/integrations/one?include=credentials").await.expect(200);
}
