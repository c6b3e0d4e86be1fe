//! Importing, changing, searching and deleting connections.

use std::pin::pin;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _};

use crate::support::{
    Answer, Api, Bundle, Connection, Host, SlowProvider, Stage, TestDatabase, eventually, ids_of, masked,
    open_session, text,
};

const APP: &str = "planted-app-secret-77d0";
const TOKEN: &str = "planted-token-2c1f";

async fn create(api: &Api, provider: &str, key: &str, credentials: Option<Value>) {
    let body = json!({ "provider": provider, "unique_key": key, "credentials": credentials });
    api.post("/integrations", &body).await.expect(200);
}

fn error_path(answer: &Value) -> String {
    answer["error"]["errors"][0]["path"]
        .as_array()
        .expect("a path is a list")
        .iter()
        .map(text)
        .collect::<Vec<_>>()
        .join(".")
}

/// Creates an integration of each importable auth mode, with the mode as its key.
async fn every_mode(api: &Api) {
    let client = |mode: &str| json!({ "type": mode, "client_id": "id", "client_secret": APP });
    let key = std::fs::read_to_string(crate::support::repository("tests/keys/app.pem"))
        .expect("the key file exists");
    let mut app = json!({ "app_id": "7", "app_link": "https://code.test/a", "private_key": key });
    for (provider, mode, credentials) in [
        ("hubspot", "OAUTH2", Some(client("OAUTH2"))),
        ("microsoft-oauth2-cc", "OAUTH2_CC", None),
        ("trello", "OAUTH1", Some(client("OAUTH1"))),
        ("sendgrid", "API_KEY", None),
        ("stripe-api-key", "BASIC", None),
        ("netsuite-tba", "TBA", None),
        ("unauthenticated", "NONE", None),
    ] {
        create(api, provider, mode, credentials).await;
    }
    app["type"] = json!("APP");
    create(api, "github-app", "APP", Some(app.clone())).await;
    app["type"] = json!("CUSTOM");
    app["client_id"] = json!("id");
    app["client_secret"] = json!(APP);
    create(api, "github-app-oauth", "CUSTOM", Some(app)).await;
}

fn import(mode: &str, credentials: Value) -> Value {
    let mut body = json!({ "provider_config_key": mode, "connection_id": "c-1", "credentials": credentials });
    body["credentials"]["type"] = json!(mode);
    match mode {
        "TBA" => body["connection_config"] = json!({ "accountId": "1234567-SB1" }),
        "OAUTH2_CC" => {
            body["connection_config"] = json!({ "tenantId": "6f2c1f3e-8f1c-4a0e-9d0b-3c0c5f1c7a11" });
        }
        _ => {}
    }
    body
}

/// Sends a request and executes `sql` right before the request's statement that contains `part`. The lock `lock` holds
/// that statement back.
async fn send_during(
    db: &TestDatabase,
    [lock, part, sql]: [&str; 3],
    request: impl Future<Output = Answer>,
) -> Answer {
    let mut conn = db.connect().await;
    let mut tx = conn.begin().await.expect("a transaction begins");
    sqlx::query(AssertSqlSafe(format!("LOCK TABLE {lock}"))).execute(&mut *tx).await.expect(lock);
    let (answer, ()) = tokio::join!(request, async {
        let waits = format!(
            "SELECT count(*) FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%{part}%'"
        );
        eventually("the host waits", async || (db.number(&waits).await > 0).then_some(())).await;
        sqlx::query(AssertSqlSafe(sql.to_owned())).execute(&mut *tx).await.expect(sql);
        tx.commit().await.expect("it is committed");
    });
    answer
}

#[tokio::test]
async fn an_import_succeeds_while_its_integration_is_renamed() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    create(&host, "sendgrid", "before", None).await;
    let body = json!({
        "provider_config_key": "before", "connection_id": "c-1",
        "credentials": { "type": "API_KEY", "apiKey": "k" },
    });
    host.post("/connections", &body).await.expect(201);
    let renamed = ["connections", "c.connection_id = $", "UPDATE integrations SET unique_key = 'after'"];
    let again = send_during(&db, renamed, host.post("/connections", &body)).await;
    assert_eq!(again.expect(201).json()["provider_config_key"], "after");
    assert_eq!(db.number("SELECT count(*) FROM connections").await, 1);
}

#[tokio::test]
async fn creating_fails_when_the_parent_is_deleted_concurrently() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    let gone = ["connections IN SHARE MODE", "INSERT INTO connections", "DELETE FROM integrations"];
    let body = json!({ "provider_config_key": "mail", "credentials": { "type": "API_KEY", "apiKey": "k" } });
    create(&host, "sendgrid", "mail", None).await;
    let imported = send_during(&db, gone, host.post("/connections", &body)).await;
    assert_eq!(imported.refusal(), (404, "unknown_integration".to_owned()));

    create(&host, "unauthenticated", "mail", None).await;
    let token = open_session(&host, "/connect/sessions", json!({ "tags": {} })).await;
    let path = format!("/auth/unauthenticated/mail?connect_session_token={token}");
    let connected = send_during(&db, gone, host.post(&path, &json!({}))).await;
    assert_eq!(connected.refusal(), (404, "unknown_integration".to_owned()));

    create(&host, "unauthenticated", "mail", None).await;
    let connection = host.connect_as("c-1", "mail", json!({})).await;
    let gone = ["connect_sessions IN SHARE MODE", "INSERT INTO connect_sessions", "DELETE FROM connections"];
    let body = json!({ "connection_id": connection.id, "integration_id": "mail" });
    let opened = send_during(&db, gone, host.post("/connect/sessions/reconnect", &body)).await;
    assert_eq!(opened.refusal(), (404, "unknown_connection".to_owned()));
}

#[tokio::test]
async fn integrations_and_connections_may_be_named_like_routes() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    create(&host, "unauthenticated", "quickstart", None).await;
    host.get("/integrations/quickstart").await.expect(200);
    let renamed = host.patch("/integrations/quickstart", &json!({ "display_name": "Quick" })).await;
    assert_eq!(renamed.expect(200).json()["data"]["display_name"], "Quick");
    for path in ["/connections/metadata", "/connection/metadata"] {
        host.connect_as("metadata", "quickstart", json!({ "plan": "pro" })).await;
        let path = format!("{path}?provider_config_key=quickstart");
        assert_eq!(host.get(&path).await.expect(200).json()["metadata"], json!({ "plan": "pro" }));
        host.delete(&path).await.expect(200);
        assert_eq!(host.get(&path).await.refusal(), (404, "unknown_connection".to_owned()));
    }
    host.delete("/integrations/quickstart").await.expect(200);
    assert_eq!(host.get("/integrations/quickstart").await.status, 404);
}

#[tokio::test]
async fn credentials_of_every_importable_auth_mode_are_imported() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    every_mode(&host).await;
    let tba = json!({ "token_id": "t", "token_secret": "s", "config_override": { "client_id": "i", "client_secret": "s" } });
    for (mode, credentials) in [
        (
            "OAUTH2",
            json!({ "access_token": TOKEN, "refresh_token": "r", "expires_at": "2099-01-01T00:00:00Z" }),
        ),
        (
            "OAUTH2_CC",
            json!({ "token": TOKEN, "client_id": "i", "client_secret": "s", "expires_at": "2099-01-01T00:00:00Z" }),
        ),
        ("OAUTH1", json!({ "oauth_token": TOKEN, "oauth_token_secret": "s" })),
        ("API_KEY", json!({ "apiKey": TOKEN })),
        ("BASIC", json!({ "username": TOKEN, "password": "" })),
        ("TBA", tba),
        ("NONE", json!({})),
        ("APP", json!({ "app_id": "7", "installation_id": "42" })),
        ("CUSTOM", json!({ "app_id": "7", "installation_id": "42" })),
    ] {
        let made = host.post("/connections", &import(mode, credentials.clone())).await.expect(201).json();
        assert_eq!(made["credentials"]["type"], mode, "{made}");
        if ["APP", "CUSTOM"].contains(&mode) {
            assert_eq!(
                made["connection_config"],
                json!({ "installation_id": "42" }),
                "webhooks are matched by it"
            );
        }
        for (name, value) in credentials.as_object().unwrap() {
            let is_shown = !["APP", "CUSTOM"].contains(&mode) && name != "refresh_token";
            assert_eq!(made["credentials"].get(name), is_shown.then_some(value), "{mode} {name}");
        }
        assert_eq!((&made["metadata"], &made["errors"]), (&json!({}), &json!([])), "{mode}");
    }
    let path = "/connections/c-1?provider_config_key=OAUTH2";
    let shown = host.get(path).await.expect(200).json();
    assert!(shown["credentials"].get("refresh_token").is_none(), "{shown}");
    assert!(shown["credentials"]["raw"].get("refresh_token").is_none(), "{shown}");
    let with_token = host.get(&format!("{path}&refresh_token=true")).await.expect(200).json();
    assert_eq!(with_token["credentials"]["refresh_token"], "r");
    assert_eq!(with_token["credentials"]["raw"]["refresh_token"], "r");
    let listed = host.get("/connections").await.expect(200);
    assert!(!listed.text().contains(TOKEN), "{}", listed.text());
    let reader = host.with_key(Some(&host.create_key(&db, "reader", "read-only")));
    assert_eq!(reader.get(path).await.expect(200).json()["credentials"], json!({}));
    for flag in ["force_refresh", "refresh_token", "refresh_github_app_jwt_token"] {
        let refused = reader.get(&format!("{path}&{flag}=yes")).await;
        assert_eq!(refused.refusal(), (403, "forbidden".to_owned()), "{flag}");
    }
    reader.delete(path).await.expect(403);
    reader.patch(path, &json!({})).await.expect(403);
}

#[tokio::test]
async fn invalid_imports_are_rejected_with_the_field() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    every_mode(&host).await;
    create(&host, "greenhouse-harvest", "TWO_STEP", None).await;
    create(&host, "zendesk-api-key", "zendesk", None).await;
    create(&host, "anthropic", "anthropic", None).await;
    let with = |mode: &str, credentials: Value, name: &str, value: Value| {
        let mut body = import(mode, credentials);
        body[name] = value;
        body
    };
    let none = |name: &str, value: Value| with("NONE", json!({}), name, value);
    let long = |length: usize| json!("x".repeat(length));
    for (body, path) in [
        (import("OAUTH2", json!({})), "credentials.access_token"),
        (import("OAUTH2", json!({ "access_token": long(16_385) })), "credentials.access_token"),
        (import("OAUTH2", json!({ "access_token": "a", "expires_at": "soon" })), "credentials.expires_at"),
        (import("OAUTH2", json!({ "access_token": "a", "scope": "b" })), "credentials.scope"),
        (import("OAUTH2_CC", json!({ "token": "t", "client_id": "i" })), "credentials.client_secret"),
        (import("OAUTH1", json!({ "oauth_token": "t" })), "credentials.oauth_token_secret"),
        (import("API_KEY", json!({ "apiKey": long(1025) })), "credentials.apiKey"),
        (import("API_KEY", json!({ "api_key": "k" })), "credentials.api_key"),
        (
            json!({ "provider_config_key": "anthropic", "credentials": { "type": "API_KEY", "apiKey": "k" } }),
            "credentials.apiKey",
        ),
        (import("BASIC", json!({ "username": "u" })), "credentials.password"),
        (
            with("TBA", json!({ "token_id": "t", "token_secret": "s" }), "connection_config", json!({})),
            "connection_config.accountId",
        ),
        (import("APP", json!({ "app_id": "1" })), "credentials.installation_id"),
        (import("APP", json!({ "app_id": "1", "installation_id": "../7" })), "credentials.installation_id"),
        (
            with(
                "APP",
                json!({ "app_id": "1", "installation_id": "7" }),
                "connection_config",
                json!({ "installation_id": "8" }),
            ),
            "connection_config.installation_id",
        ),
        (import("TWO_STEP", json!({ "token": "t" })), "credentials.type"),
        (
            json!({ "provider_config_key": "NONE", "credentials": { "type": "API_KEY", "apiKey": "k" } }),
            "credentials.type",
        ),
        (none("connection_id", json!("a\u{e9}")), "connection_id"),
        (none("provider_config_key", json!("a/b")), "provider_config_key"),
        (none("metadata", json!("m")), "metadata"),
        (
            none("connection_config", json!({ "oauth_scopes_override": "a" })),
            "connection_config.oauth_scopes_override",
        ),
        (none("webhook_url_override", json!("javascript:1")), "webhook_url_override"),
        (none("end_user", json!({ "id": "" })), "end_user.id"),
        (none("end_user", json!({ "id": "u", "email": "a@b" })), "end_user.email"),
        (none("end_user", json!({ "id": "u", "name": "x" })), "end_user.name"),
        (none("organization", json!({ "id": "" })), "organization.id"),
        (none("tags", json!({ "end_user_email": "nobody" })), "tags.end_user_email"),
        (none("surprise", json!(1)), "surprise"),
    ] {
        let answer = host.post("/connections", &body).await;
        assert_eq!(answer.refusal(), (400, "invalid_body".to_owned()), "{body}: {}", answer.text());
        assert_eq!(error_path(&answer.json()), path, "{body}: {}", answer.text());
    }
    assert_eq!(db.number("SELECT count(*) FROM connections").await, 0);
}

#[tokio::test]
async fn tags_are_derived_from_the_end_user_and_replaced_with_it() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    create(&host, "unauthenticated", "a", None).await;
    let body = json!({
        "connection_id": "c", "provider_config_key": "a", "credentials": { "type": "NONE" },
        "webhook_url_override": "https://hooks.example.com",
        "end_user": { "id": "u-7", "email": "ada@example.com", "display_name": "Ada", "tags": { "Team": "blue" } },
        "organization": { "id": "o-1", "display_name": "Engines" },
        "tags": { "Plan": "pro", "end_user_id": "other" },
    });
    let made = host.post("/connections", &body).await.expect(201).json();
    assert_eq!(
        made["tags"],
        json!({
            "end_user_id": "other", "end_user_email": "ada@example.com", "end_user_display_name": "Ada",
            "organization_id": "o-1", "organization_display_name": "Engines", "team": "blue", "plan": "pro",
        })
    );
    assert_eq!(
        made["end_user"],
        json!({
            "id": "u-7", "email": "ada@example.com", "display_name": "Ada", "tags": { "Team": "blue" },
            "organization": { "id": "o-1", "display_name": "Engines" },
        })
    );
    let path = "/connections/c?provider_config_key=a";
    let patch = async |body: Value| {
        let done = host.patch(path, &body).await.expect(200).json();
        assert_eq!(done, json!({ "success": true }));
        host.get(path).await.expect(200).json()
    };
    let stored = patch(json!({})).await;
    assert_eq!((&stored["tags"], &stored["end_user"]), (&made["tags"], &made["end_user"]));
    let retagged = patch(json!({ "tags": { "Plan": "free" } })).await;
    assert_eq!((&retagged["tags"], &retagged["end_user"]), (&json!({ "plan": "free" }), &made["end_user"]));
    assert_eq!(retagged["webhook_url_override"], "https://hooks.example.com");
    let other = patch(json!({ "end_user": { "id": "u-8" }, "webhook_url_override": "" })).await;
    assert_eq!(other["tags"], json!({ "end_user_id": "u-8" }));
    assert_eq!((&other["end_user"]["id"], &other["webhook_url_override"]), (&json!("u-8"), &Value::Null));
    assert_eq!(patch(json!({ "tags": {} })).await["tags"], json!({}));

    for (body, field) in [
        (json!({ "credentials": {} }), "credentials"),
        (json!({ "tags": { "a b": "x" } }), "tags.a b"),
        (json!({ "end_user": {} }), "end_user.id"),
        (json!({ "organization": { "id": "o" } }), "organization"),
        (json!({ "webhook_url_override": "ftp://a" }), "webhook_url_override"),
    ] {
        let refused = host.patch(path, &body).await;
        assert_eq!(refused.refusal(), (400, "invalid_body".to_owned()), "{body}");
        assert_eq!(error_path(&refused.json()), field, "{body}");
    }
    for (path, code) in [
        ("/connections/c?provider_config_key=b", "unknown_integration"),
        ("/connections/d?provider_config_key=a", "unknown_connection"),
    ] {
        for method in ["PATCH", "DELETE", "GET"] {
            let answer = host.request(method, path).json(&json!({})).send().await;
            assert_eq!(answer.refusal(), (404, code.to_owned()), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_float_in_metadata_or_configuration_keeps_its_value() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    create(&host, "unauthenticated", "a", None).await;
    let share = "0.09815842978200795";
    let body = format!(
        r#"{{ "provider_config_key": "a", "connection_id": "one", "credentials": {{ "type": "NONE" }},
              "metadata": {{ "share": {share} }}, "connection_config": {{ "limit": {share} }} }}"#
    );
    let made = host.request("POST", "/connections").header("Content-Type", "application/json").bytes(body);
    let made = made.send().await.expect(201);
    let shown = host.get("/connections/one?provider_config_key=a").await.expect(200);
    for answer in [made.text(), shown.text()] {
        assert!(answer.contains(&format!(r#""share":{share}"#)), "{answer}");
        assert!(answer.contains(&format!(r#""limit":{share}"#)), "{answer}");
    }
}

/// Sends a body that need not be what a JSON library would write.
async fn send(host: &Api, method: &str, path: &str, body: String) -> Answer {
    host.request(method, path).header("Content-Type", "application/json").bytes(body).send().await
}

#[tokio::test]
async fn metadata_is_returned_as_it_was_sent() {
    let provider = SlowProvider::listen().await;
    let stage = Stage::at_slow_provider(&provider, |bundle| bundle).await;
    let shown = async || {
        let path = "/connections/customer-1?provider_config_key=hostile";
        (
            stage.host.get(path).await.expect(200).text(),
            stage.host.get("/connections").await.expect(200).text(),
        )
    };
    let expect = async |metadata: &str| {
        let member = format!(r#""metadata":{metadata}"#);
        let (one, all) = shown().await;
        assert!(one.contains(&member), "{member} in {one}");
        assert!(all.contains(&member), "{member} in {all}");
    };
    let body = |metadata: &str| {
        format!(r#"{{"connection_id":"customer-1","provider_config_key":"hostile","metadata":{metadata}}}"#)
    };
    let exact = r#"{"z":12345678901234567890123,"a":1.50,"steps":0,"n":{ "y" : 1E2, "b" : [] }}"#;
    let import = body(exact).replace("\"metadata\"", r#""credentials":{"type":"NONE"},"metadata""#);
    let imported = send(&stage.host, "POST", "/connections", import).await.expect(201).text();
    assert!(imported.contains(&format!(r#""metadata":{exact}"#)), "{imported}");
    expect(exact).await;

    let other = r#"{"steps":0,"z":0.10}"#;
    let replaced = send(&stage.host, "POST", "/connections/metadata", body(other)).await.expect(201);
    assert_eq!(replaced.text(), body(other));
    expect(other).await;
    let change = r#"{"new":-0.0,"z":12345678901234567890123}"#;
    let merged = send(&stage.host, "PATCH", "/connections/metadata", body(change)).await.expect(200);
    assert_eq!(merged.text(), body(change));
    expect(r#"{"steps":0,"z":12345678901234567890123,"new":-0.0}"#).await;

    // A function merges a member.
    let (answer, ()) = tokio::join!(stage.action("wait-and-look", &Value::Null), async {
        provider.next_request().await.answer("ok").await;
    });
    answer.expect(200);
    expect(r#"{"steps":0,"z":12345678901234567890123,"new":-0.0,"seen":true}"#).await;
    let known = stage.db.texts("SELECT value FROM connection_identifiers WHERE name = 'metadata.z'").await;
    assert_eq!(known, ["12345678901234567890123"], "webhooks can identify the connection by it");
}

#[tokio::test]
async fn metadata_over_its_limit_is_rejected() {
    let stage = Stage::hostile().await;
    let metadata = |member: &str, bytes: usize| json!({ member: "x".repeat(bytes - 7 - member.len()) });
    let body = |metadata: Value| json!({ "connection_id": "customer-1", "provider_config_key": "hostile", "metadata": metadata });
    let limit = 1 << 20;
    let refuse = |answer: Answer| {
        assert_eq!(answer.refusal(), (400, "invalid_body".to_owned()));
        let error = answer.json()["error"]["errors"][0].clone();
        assert_eq!((&error["code"], &error["path"]), (&json!("too_big"), &json!(["metadata"])), "{error}");
        assert!(answer.message().contains("at most 1 MiB of JSON text"), "{}", answer.message());
    };
    let mut import = body(metadata("a", limit + 1));
    import["credentials"] = json!({ "type": "NONE" });
    refuse(stage.host.post("/connections", &import).await);
    refuse(stage.host.post("/connections/metadata", &body(metadata("a", limit + 1))).await);
    refuse(stage.host.patch("/connections/metadata", &body(metadata("a", limit + 1))).await);
    let older = "/connection/customer-1/metadata?provider_config_key=hostile";
    refuse(stage.host.post(older, &metadata("a", limit + 1)).await);
    stage.host.post("/connections/metadata", &body(metadata("a", limit))).await.expect(201);
    let merged = stage.host.patch("/connections/metadata", &body(metadata("b", 100))).await;
    assert!(merged.message().contains("the merged metadata"), "{}", merged.message());
    refuse(merged);
    let shown =
        stage.host.get("/connections/customer-1?provider_config_key=hostile").await.expect(200).json();
    assert_eq!(shown["metadata"], metadata("a", limit), "the stored metadata stays");
    stage.host.patch("/connections/metadata", &body(json!({ "a": 1 }))).await.expect(200);
}

#[tokio::test]
async fn metadata_is_written_to_all_listed_connections_or_none() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    create(&host, "unauthenticated", "a", None).await;
    for id in ["one", "two"] {
        Connection::import(&host, "a", id, json!({ "type": "NONE" }), json!({ "kept": 1 })).await;
    }
    let of = async |id: &str| {
        let shown = host.get(&format!("/connections/{id}?provider_config_key=a")).await.expect(200).json();
        shown["metadata"].clone()
    };
    let body = |ids: Value, metadata: Value| json!({ "connection_id": ids, "provider_config_key": "a", "metadata": metadata });
    let merge = body(json!(["one", "two"]), json!({ "new": { "a": 1 } }));
    assert_eq!(host.patch("/connections/metadata", &merge).await.expect(200).json(), merge);
    for id in ["one", "two"] {
        assert_eq!(of(id).await, json!({ "kept": 1, "new": { "a": 1 } }));
    }
    let shallow = body(json!("one"), json!({ "new": { "b": 2 } }));
    host.patch("/connections/metadata", &shallow).await.expect(200);
    assert_eq!(of("one").await, json!({ "kept": 1, "new": { "b": 2 } }));
    let replace = body(json!("one"), json!({ "only": true }));
    assert_eq!(host.post("/connections/metadata", &replace).await.expect(201).json(), replace);
    assert_eq!((of("one").await, of("two").await["kept"].clone()), (json!({ "only": true }), json!(1)));

    let partly = body(json!(["two", "nobody"]), json!({ "lost": 1 }));
    for method in ["POST", "PATCH"] {
        let refused = host.request(method, "/connections/metadata").json(&partly).send().await;
        assert_eq!(refused.refusal(), (404, "unknown_connection".to_owned()));
        assert!(of("two").await.get("lost").is_none());
        for (wrong, field) in [
            (body(json!([]), json!({})), "connection_id"),
            (body(json!(7), json!({})), "connection_id"),
            (body(json!("one"), json!([])), "metadata"),
            (body(json!("one"), json!({ "a": "\u{0}" })), "metadata"),
        ] {
            let refused = host.request(method, "/connections/metadata").json(&wrong).send().await;
            assert_eq!(refused.refusal(), (400, "invalid_body".to_owned()), "{wrong}");
            assert_eq!(error_path(&refused.json()), field, "{wrong}");
        }
    }
    let elsewhere = json!({ "connection_id": "one", "provider_config_key": "b", "metadata": {} });
    let refused = host.post("/connections/metadata", &elsewhere).await;
    assert_eq!(refused.refusal(), (404, "unknown_integration".to_owned()));
}

#[tokio::test]
async fn legacy_connection_routes_match_the_current_ones() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    create(&host, "unauthenticated", "a", None).await;
    let body = json!({ "connection_id": "c", "provider_config_key": "a", "credentials": { "type": "NONE" } });
    host.post("/connection", &body).await.expect(201);
    let both = async |path: &str| {
        let (old, new) =
            (host.get(&format!("/connection{path}")).await, host.get(&format!("/connections{path}")).await);
        assert_eq!(masked(old.expect(200).json()), masked(new.expect(200).json()));
    };
    both("").await;
    both("?search=c").await;
    both("/c?provider_config_key=a").await;
    let bulk = json!({ "connection_id": "c", "provider_config_key": "a", "metadata": { "a": 1 } });
    assert_eq!(host.post("/connection/metadata", &bulk).await.expect(201).json(), bulk);
    host.patch("/connection/c/metadata?provider_config_key=a", &json!({ "b": 2 })).await.expect(200);
    let request = host.request("POST", "/connection/c/metadata").header("Provider-Config-Key", "a");
    request.json(&json!({ "only": 3 })).send().await.expect(201);
    let shown = host.get("/connection/c?provider_config_key=a").await.expect(200).json();
    assert_eq!(shown["metadata"], json!({ "only": 3 }));
    let unnamed = host.post("/connection/c/metadata", &json!({})).await;
    assert_eq!(unnamed.refusal(), (400, "invalid_query_params".to_owned()));
    let deleted = host.delete("/connection/c?provider_config_key=a").await.expect(200).json();
    assert_eq!(deleted, json!({ "success": true }));
    host.delete("/connection/c?provider_config_key=a").await.expect(404);
}

#[tokio::test]
async fn a_connection_shows_its_active_errors() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    create(&host, "unauthenticated", "a", None).await;
    Connection::import(&host, "a", "c", json!({ "type": "NONE" }), json!({})).await;
    db.execute(
        "INSERT INTO connection_errors (environment_pk, connection_pk, type, subject, log_id, code, message) \
         SELECT environment_pk, pk, 'auth', '', '6f2c1f3e-8f1c-4a0e-9d0b-3c0c5f1c7a11', 'x', 'y' FROM connections",
    )
    .await;
    let errors = json!([{ "type": "auth", "log_id": "6f2c1f3e-8f1c-4a0e-9d0b-3c0c5f1c7a11" }]);
    let shown = host.get("/connections/c?provider_config_key=a").await.expect(200).json();
    let listed = host.get("/connections").await.expect(200).json();
    assert_eq!((&shown["errors"], &listed["connections"][0]["errors"]), (&errors, &errors));
}

#[tokio::test]
async fn a_thousand_connections_are_searched_by_any_part_of_a_name() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    create(&host, "unauthenticated", "a", None).await;
    Connection::import(&host, "a", "c-0", json!({ "type": "NONE" }), json!({})).await;
    db.execute(
        "INSERT INTO connections (id, environment_pk, integration_pk, connection_id, sealed_credentials, tags, end_user) \
         SELECT gen_random_uuid(), environment_pk, integration_pk, 'c-' || n, sealed_credentials, \
                jsonb_build_object('end_user_id', 'u-' || n), \
                CASE WHEN n % 2 = 0 THEN jsonb_build_object( \
                    'id', 'u-' || n, 'display_name', 'Person No. ' || n, 'email', 'p' || n || '@example.com') END \
         FROM connections, generate_series(1, 1000) AS n",
    )
    .await;
    for (query, found) in [
        ("search=NO.%20998", vec!["c-998"]),
        ("search=p998@", vec!["c-998"]),
        ("search=C-99&limit=3", vec!["c-999", "c-998", "c-997"]),
        ("search=c-99&limit=3&page=3", vec!["c-990", "c-99"]),
        ("search=%25", vec![]),
        ("search=_", vec![]),
        ("search=nobody", vec![]),
        ("endUserId=u-998", vec!["c-998"]),
        ("endUserId=u-999", vec!["c-999"]),
        ("endUserId=u-99", vec!["c-99"]),
        ("connectionId=c-500&integrationId=b,%20a", vec!["c-500"]),
        ("connectionId=c-500&integrationId=b", vec![]),
        ("tags[End_User_Id]=u-7", vec!["c-7"]),
    ] {
        let started = Instant::now();
        let listed = host.get(&format!("/connections?{query}")).await.expect(200).json();
        assert!(started.elapsed() < Duration::from_secs(2), "{query} took {:?}", started.elapsed());
        let ids: Vec<&str> =
            listed["connections"].as_array().unwrap().iter().map(|one| text(&one["connection_id"])).collect();
        assert_eq!(ids, found, "{query}");
    }
    let all = host.get("/connections").await.expect(200).json();
    assert_eq!(all["connections"].as_array().unwrap().len(), 1001);
    for (query, name) in [
        ("search=", "search"),
        (&*format!("search={}", "x".repeat(256)), "search"),
        ("limit=2001", "limit"),
        ("integrationId=a/b", "integrationId"),
        ("connectionId=", "connectionId"),
    ] {
        let refused = host.get(&format!("/connections?{query}")).await;
        assert_eq!(refused.refusal(), (400, "invalid_query_params".to_owned()), "{query}");
        assert_eq!(error_path(&refused.json()), name, "{query}");
    }
}

/// Number of records, streams, sync states and seen positions.
const REMAINING_ROWS: &str = "SELECT (SELECT count(*) FROM records) + (SELECT count(*) FROM streams) \
                    + (SELECT count(*) FROM sync_states) + (SELECT count(*) FROM seen_positions)";

#[tokio::test]
async fn a_deleted_connection_is_gone_at_once_and_its_records_soon_after() {
    let stage = Stage::numbers(3_000).await;
    let second = Host::spawn(&stage.db).await;
    let elsewhere = stage.through(&second);
    elsewhere.page(&[("model", "Number")]).await;
    let path = "/connections/customer-1?provider_config_key=minimal";
    let before = stage.host.get(path).await.expect(200).json();
    let cursor = stage.page(&[("model", "Number"), ("limit", "5")]).await.next_cursor.unwrap();
    stage.host.delete(path).await.expect(200);
    for answer in [
        stage.get_records(&[("model", "Number")]).await,
        stage.action("echo", &json!(1)).await,
        stage.host.get(path).await,
        stage.control("trigger", "numbers").await,
        stage.host.delete(path).await,
    ] {
        assert_eq!(answer.refusal(), (404, "unknown_connection".to_owned()), "{}", answer.request);
    }
    assert_eq!(stage.host.get("/connections").await.expect(200).json(), json!({ "connections": [] }));
    assert_eq!(stage.db.number("SELECT count(*) FROM schedules").await, 0);
    eventually("the other host has been notified", async || {
        (elsewhere.get_records(&[("model", "Number")]).await.status == 404).then_some(())
    })
    .await;
    eventually("no data is left", async || (stage.db.number(REMAINING_ROWS).await == 0).then_some(())).await;

    let orders = json!({ "count": 2, "batch": 10 });
    let again = stage.host.connect("minimal", orders).await;
    assert_ne!(stage.host.get(path).await.expect(200).json()["id"], before["id"]);
    assert_eq!(again.page(&[("model", "Number")]).await.ids(), ["number-0", "number-1"]);
    let foreign = again.get_records(&[("model", "Number"), ("cursor", &cursor)]).await;
    assert_eq!(foreign.refusal(), (400, "invalid_cursor".to_owned()));
}

#[tokio::test]
async fn a_running_sync_writes_nothing_after_its_connection_is_deleted() {
    let stage = Stage::hostile().await;
    stage.set_metadata(json!({ "steps": 100_000, "pause_ms": 1 })).await;
    stage.trigger("steps").await;
    eventually("the sync saves", async || {
        (stage.page(&[("model", "Step")]).await.records.len() >= 5).then_some(())
    })
    .await;
    stage.host.delete("/connections/customer-1?provider_config_key=hostile").await.expect(200);
    // Only the removal continues: no new positions are assigned.
    let position = "SELECT coalesce(max(position), 0) FROM records";
    let last = stage.db.number(position).await;
    eventually("no data is left", async || {
        let now = stage.db.number(position).await;
        assert!(now <= last, "position {now} was assigned after {last}");
        (stage.db.number(REMAINING_ROWS).await == 0).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(stage.db.number(REMAINING_ROWS).await, 0);
    assert_eq!(stage.db.number("SELECT count(*) FROM runs WHERE state = 'running'").await, 0);
    let reasons = "SELECT error_message FROM runs WHERE state = 'cancelled'";
    assert_eq!(stage.db.texts(reasons).await, ["the connection was deleted"]);
}

/// A running function of another host could write records for the connection if it were no longer marked as closed.
#[tokio::test]
async fn a_deleted_connection_stays_closed_even_if_the_clock_of_its_host_is_ahead() {
    let db = TestDatabase::create().await;
    db.shift_clock(-2).await;
    let host = Host::spawn(&db).await;
    host.deploy(&Bundle::guest("hostile")).await;
    host.connect("hostile", json!({ "steps": 3 })).await;
    host.delete("/connections/customer-1?provider_config_key=hostile").await.expect(200);
    let waiting =
        "SELECT count(*) FROM deleted_connections WHERE purge_due_at > now() + interval '50 minutes'";
    eventually("no data is left", async || {
        let is_done = db.number(REMAINING_ROWS).await == 0 && db.number(waiting).await == 1;
        is_done.then_some(())
    })
    .await;
    assert_eq!(db.number("SELECT count(*) FROM closed_connections").await, 1);
}

#[tokio::test]
async fn a_running_action_cannot_write_for_a_deleted_connection() {
    let stage = Stage::hostile().await;
    stage.save_raw("Item", r#"[{"id":"a"}]"#).await.expect(200);
    // The state after the deletion has closed the connection, with the row still there for the action to find.
    stage.db.execute("INSERT INTO closed_connections SELECT pk FROM connections").await;
    let refused = stage.save_raw("Item", r#"[{"id":"b"}]"#).await;
    assert_eq!(refused.refusal(), (410, "script_aborted".to_owned()));
    let records = stage.page(&[("model", "Item")]).await.records;
    assert_eq!(ids_of(&records), ["a"]);
}

#[tokio::test]
async fn an_action_aborts_when_its_connection_is_deleted() {
    let provider = SlowProvider::listen().await;
    let stage = Stage::at_slow_provider(&provider, |bundle| bundle).await;
    let mut action = pin!(stage.action("wait-and-look", &Value::Null));
    let pending = tokio::select! {
        pending = provider.next_request() => pending,
        early = &mut action => panic!("the action returned before the provider responded: {early:?}"),
    };
    let (answer, ()) = tokio::join!(action, async {
        stage.host.delete("/connections/customer-1?provider_config_key=hostile").await.expect(200);
        pending.answer("ok").await;
    });
    assert_eq!(answer.refusal(), (410, "script_aborted".to_owned()));
    let errors: Vec<_> =
        stage.host.log().lines().filter(|line| line.contains("ERROR")).map(str::to_owned).collect();
    assert!(errors.is_empty(), "{errors:?}");
}

#[tokio::test]
async fn resources_of_another_environment_are_not_found() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    create(&host, "unauthenticated", "a", None).await;
    Connection::import(&host, "a", "c", json!({ "type": "NONE" }), json!({})).await;
    // Moves the rows to an environment that this key does not belong to. No request has cached them yet.
    host.command(&db, &["env", "create", "other"]);
    db.execute(
        "UPDATE integrations SET environment_pk = (SELECT pk FROM environments WHERE name = 'other'); \
         UPDATE connections SET environment_pk = (SELECT pk FROM environments WHERE name = 'other');",
    )
    .await;
    let metadata = json!({ "connection_id": "c", "provider_config_key": "a", "metadata": {} });
    for answer in [
        host.get("/integrations/a").await,
        host.patch("/integrations/a", &json!({})).await,
        host.delete("/integrations/a").await,
        host.get("/integrations/a/functions").await,
        host.get("/connections/c?provider_config_key=a").await,
        host.patch("/connections/c?provider_config_key=a", &json!({})).await,
        host.delete("/connections/c?provider_config_key=a").await,
        host.post("/connections/metadata", &metadata).await,
    ] {
        assert_eq!(answer.refusal(), (404, "unknown_integration".to_owned()), "{}", answer.request);
    }
    assert_eq!(host.get("/integrations").await.expect(200).json(), json!({ "data": [] }));
    assert_eq!(host.get("/connections").await.expect(200).json(), json!({ "connections": [] }));
    assert_eq!(db.number("SELECT count(*) FROM connections").await, 1);
}
