//! Integrations and connections: making them, finding them, and how they look.

use serde_json::{Value, json};

use crate::support::{Api, Host, Stage, TestDatabase, masked, text};

async fn create(api: &Api, body: Value) -> Value {
    api.post("/integrations", &body).await.expect(200).json()["data"].clone()
}

#[tokio::test]
async fn an_integration_is_made_listed_and_shown() {
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
async fn an_integration_is_shown_with_what_is_included() {
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
    assert_eq!(extra("include[]=webhook&include[]=credentials").await, ["webhook_url", "credentials"]);
    let refused = host.get("/integrations/pay?include=secrets").await;
    assert_eq!(refused.refusal(), (400, "invalid_query_params".to_owned()));
}

#[tokio::test]
async fn importing_a_connection_again_replaces_it_and_keeps_its_records() {
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
async fn a_connection_without_an_id_is_given_one() {
    let stage = Stage::hostile().await;
    let body = json!({ "provider_config_key": "hostile", "credentials": { "type": "NONE" } });
    let made = stage.host.post("/connections", &body).await.expect(201).json();
    assert!(uuid::Uuid::parse_str(text(&made["connection_id"])).is_ok(), "{made}");
}

#[tokio::test]
async fn connections_are_found_by_what_is_asked() {
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
