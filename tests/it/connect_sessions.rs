//! Connect sessions: what a token permits, how long it lasts, and which requests for a session are rejected.

use futures_util::stream;
use serde_json::{Value, json};

use crate::support::{Answer, Api, Host, SECRET_KEY, TestDatabase, eventually, masked, text};

const UNKNOWN_TOKEN: &str =
    "nango_connect_session_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A host with two integrations.
async fn stage() -> (TestDatabase, Host) {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    for (provider, key) in [("unauthenticated", "open"), ("zendesk-api-key", "desk")] {
        host.post("/integrations", &json!({ "provider": provider, "unique_key": key })).await.expect(200);
    }
    (db, host)
}

async fn open(host: &Api, body: Value) -> Value {
    host.post("/connect/sessions", &body).await.expect(201).json()["data"].clone()
}

async fn details(host: &Api, token: &str) -> Answer {
    host.with_key(Some(token)).get("/connect/session").await
}

/// Code and path of each field error of a rejected body.
fn field_errors(answer: &Answer) -> Vec<(String, String)> {
    assert_eq!(answer.refusal(), (400, "invalid_body".to_owned()), "{}", answer.text());
    let errors = answer.json()["error"]["errors"].as_array().expect("`errors` is a list").clone();
    let path = |error: &Value| {
        let parts = error["path"].as_array().expect("`path` is a list").iter();
        parts.map(|part| text(part).to_owned()).collect::<Vec<_>>().join("/")
    };
    errors.iter().map(|error| (text(&error["code"]).to_owned(), path(error))).collect()
}

#[tokio::test]
async fn a_session_describes_its_permissions_to_the_connect_ui() {
    let (_db, host) = stage().await;
    let body = json!({
        "end_user": {
            "id": "u-7", "email": "ada@example.com", "display_name": "Ada", "tags": { "Plan": "pro" },
        },
        "organization": { "id": "o-1", "display_name": "Engines" },
        "allowed_integrations": ["desk"],
        "integrations_config_defaults": { "desk": { "connection_config": { "subdomain": "acme" } } },
        "overrides": { "desk": { "docs_connect": "https://example.com/help" } },
        "tags": { "Region": "eu", "end_user_id": "other" },
    });
    let session = open(&host, body).await;
    let token = text(&session["token"]);
    assert!(token.starts_with("nango_connect_session_") && token.len() == 86, "{token}");
    assert_eq!(session["connect_link"], format!("{}/connect/?session_token={token}", host.base_url()));
    let ends = chrono::DateTime::parse_from_rfc3339(text(&session["expires_at"])).unwrap();
    let minutes = (ends.to_utc() - chrono::Utc::now()).as_seconds_f64() / 60.0;
    assert!((29.0..=30.1).contains(&minutes), "{minutes}");

    let shown = details(&host, token).await.expect(200).json();
    assert_eq!(
        masked(shown),
        json!({ "data": {
            "allowed_integrations": ["desk"],
            "integrations_config_defaults": {
                "desk": { "connection_config": { "subdomain": "acme" }, "authorization_params": {} },
            },
            "overrides": { "desk": { "docs_connect": "https://example.com/help" } },
            "endUser": {
                "id": "u-7", "email": "ada@example.com", "display_name": "Ada", "tags": { "Plan": "pro" },
                "organization": { "id": "o-1", "display_name": "Engines" },
            },
            "isReconnecting": false,
            "connectUISettings": {
                "title": "Connect your account", "primaryColor": "#2f5bea",
                "theme": { "light": { "primary": "#2f5bea" }, "dark": { "primary": "#2f5bea" } },
                "defaultTheme": "system", "showWatermark": false,
            },
            "websocketsPath": "/",
            "expires_at": "…",
        }})
    );
}

#[tokio::test]
async fn a_session_lists_only_the_integrations_that_it_allows() {
    let (_db, host) = stage().await;
    let keys = async |token: &str| {
        let listed = host.with_key(Some(token)).get("/integrations").await.expect(200).json();
        let mut keys: Vec<String> = listed["data"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| text(&one["unique_key"]).to_owned())
            .collect();
        keys.sort();
        keys
    };
    let narrow = open(&host, json!({ "tags": {}, "allowed_integrations": ["open"] })).await;
    assert_eq!(keys(text(&narrow["token"])).await, ["open"]);
    let wide = open(&host, json!({ "tags": {}, "allowed_integrations": [] })).await;
    assert_eq!(keys(text(&wide["token"])).await, ["desk", "open"]);
    let shown = details(&host, text(&wide["token"])).await.expect(200).json();
    assert_eq!(shown["data"]["endUser"], Value::Null);
    assert_eq!(shown["data"]["allowed_integrations"], json!(["open", "desk"]));
    let made = json!({ "provider": "unauthenticated", "unique_key": "mine" });
    let refused = host.with_key(Some(text(&wide["token"]))).post("/integrations", &made).await;
    assert_eq!(
        refused.refusal(),
        (401, "unknown_account".to_owned()),
        "a session token gives no further access"
    );
}

#[tokio::test]
async fn allowed_integrations_keep_the_order_of_the_request() {
    let (_db, host) = stage().await;
    host.post("/integrations", &json!({ "provider": "unauthenticated", "unique_key": "last" }))
        .await
        .expect(200);
    for order in [["last", "open", "desk"], ["desk", "last", "open"]] {
        let session = open(&host, json!({ "tags": {}, "allowed_integrations": order })).await;
        let shown = details(&host, text(&session["token"])).await.expect(200).json();
        assert_eq!(shown["data"]["allowed_integrations"], json!(order));
        let listed =
            host.with_key(Some(text(&session["token"]))).get("/integrations").await.expect(200).json();
        let listed: Vec<_> =
            listed["data"].as_array().expect("a list").iter().map(|one| &one["unique_key"]).collect();
        assert_eq!(listed, order);
    }
}

#[tokio::test]
async fn a_session_sees_an_apps_scopes_but_not_its_credentials() {
    let (_db, host) = stage().await;
    let credentials = json!({
        "type": "OAUTH2", "client_id": "id-7", "client_secret": "planted-app-secret", "scopes": "repo,user",
    });
    let made = json!({ "provider": "github", "unique_key": "code", "credentials": credentials });
    host.post("/integrations", &made).await.expect(200);
    let session = open(&host, json!({ "tags": {}, "allowed_integrations": ["code"] })).await;
    let listed = host.with_key(Some(text(&session["token"]))).get("/integrations").await.expect(200);
    assert_eq!(listed.json()["data"][0]["scopes"], json!(["repo", "user"]));
    assert!(!listed.text().contains("planted-app-secret") && !listed.text().contains("id-7"));
    assert_eq!(host.get("/integrations").await.expect(200).json()["data"][2]["scopes"], Value::Null);
}

#[tokio::test]
async fn tags_alone_can_identify_an_end_user() {
    let (_db, host) = stage().await;
    let tags = json!({ "end_user_id": "u-9", "end_user_email": "b@example.com", "organization_id": "o-2" });
    let session = open(&host, json!({ "tags": tags })).await;
    let shown = details(&host, text(&session["token"])).await.expect(200).json();
    assert_eq!(
        shown["data"]["endUser"],
        json!({
            "id": "u-9", "email": "b@example.com", "display_name": null, "tags": null,
            "organization": { "id": "o-2", "display_name": null },
        })
    );
}

#[tokio::test]
async fn a_session_ends_when_it_is_deleted_or_expires() {
    let (db, host) = stage().await;
    let unknown = (401, "unknown_connect_session_token".to_owned());
    let first = open(&host, json!({ "tags": {} })).await;
    let token = text(&first["token"]);
    let deleted = host.with_key(Some(token)).request("DELETE", "/connect/session").send().await.expect(204);
    assert_eq!(deleted.text(), "");
    assert_eq!(details(&host, token).await.refusal(), unknown);
    let again = host.with_key(Some(token)).request("DELETE", "/connect/session").send().await;
    assert_eq!(again.refusal(), unknown);

    let second = open(&host, json!({ "tags": {} })).await;
    details(&host, text(&second["token"])).await.expect(200);
    db.execute("UPDATE connect_sessions SET expires_at = now() - interval '1 second'").await;
    assert_eq!(details(&host, text(&second["token"])).await.refusal(), unknown);
    let listed = host.with_key(Some(text(&second["token"]))).get("/integrations").await;
    assert_eq!(listed.refusal(), unknown);
}

#[tokio::test]
async fn a_missing_malformed_or_unknown_token_is_rejected() {
    let (_db, host) = stage().await;
    let refusal = async |token: Option<&str>| host.with_key(token).get("/connect/session").await.refusal();
    let malformed = (401, "invalid_connect_session_token_format".to_owned());
    assert_eq!(refusal(None).await, (401, "missing_auth_header".to_owned()));
    assert_eq!(refusal(Some(SECRET_KEY)).await, malformed);
    assert_eq!(refusal(Some(&UNKNOWN_TOKEN[1..])).await, malformed);
    assert_eq!(refusal(Some(&UNKNOWN_TOKEN.to_uppercase())).await, malformed);
    assert_eq!(refusal(Some(UNKNOWN_TOKEN)).await, (401, "unknown_connect_session_token".to_owned()));
}

#[tokio::test]
async fn a_token_gives_no_access_to_another_environment() {
    let (db, host) = stage().await;
    host.command(&db, &["env", "create", "other"]);
    let key = host.command(&db, &["keys", "create", "backend", "--environment", "other"]);
    let other = host.with_key(Some(key.trim()));
    let integration = json!({ "provider": "unauthenticated", "unique_key": "elsewhere" });
    other.post("/integrations", &integration).await.expect(200);

    let session = open(&host, json!({ "tags": {} })).await;
    let token = text(&session["token"]);
    let listed = host.with_key(Some(token)).get("/integrations").await.expect(200).json();
    let keys: Vec<_> = listed["data"].as_array().expect("a list").iter().map(|i| &i["unique_key"]).collect();
    assert_eq!(keys, ["open", "desk"]);
    let connect = async |key: &str| {
        let path = format!("/auth/unauthenticated/{key}?connect_session_token={token}");
        host.with_key(None).post(&path, &json!({})).await
    };
    assert_eq!(connect("elsewhere").await.refusal(), (404, "unknown_integration".to_owned()));
    assert_eq!(other.get("/connections").await.expect(200).json(), json!({ "connections": [] }));
    connect("open").await.expect(200);
}

#[tokio::test]
async fn session_tokens_are_not_stored_in_plaintext() {
    let (db, host) = stage().await;
    let session = open(&host, json!({ "tags": {} })).await;
    let digits = text(&session["token"]).trim_start_matches("nango_connect_session_");
    let row = db.texts("SELECT s::text FROM connect_sessions s").await.join("\n");
    assert!(!row.contains(digits), "{row}");
    assert!(!host.log().contains(digits));
}

#[tokio::test]
async fn an_invalid_session_request_is_rejected_with_the_field() {
    let (_db, host) = stage().await;
    let long = "x".repeat(256);
    let eleven: Value = (0..11).map(|n| (format!("k{n}"), json!("v"))).collect();
    for (body, code, path) in [
        (json!({}), "invalid_type", "end_user"),
        (json!({ "tags": {}, "allowed": [] }), "unrecognized_keys", "allowed"),
        (json!({ "end_user": { "id": "" } }), "too_small", "end_user/id"),
        (json!({ "end_user": { "id": long } }), "too_big", "end_user/id"),
        (json!({ "end_user": { "id": "a", "email": "b@c" } }), "too_small", "end_user/email"),
        (json!({ "end_user": { "id": "a", "name": "b" } }), "unrecognized_keys", "end_user/name"),
        (json!({ "end_user": { "id": "a", "tags": { "1": "b" } } }), "invalid_key", "end_user/tags/1"),
        (json!({ "tags": {}, "organization": { "id": "" } }), "too_small", "organization/id"),
        (json!({ "tags": eleven }), "too_big", "tags"),
        (json!({ "tags": { "a b": "c" } }), "invalid_key", "tags/a b"),
        (json!({ "tags": { "a": "" } }), "too_small", "tags/a"),
        (json!({ "tags": { "A": "1", "a": "2" } }), "invalid_key", "tags/a"),
        (json!({ "tags": { "end_user_email": "x" } }), "invalid_format", "tags/end_user_email"),
        (json!({ "tags": {}, "allowed_integrations": ["open", "no"] }), "custom", "allowed_integrations/1"),
        (json!({ "tags": {}, "allowed_integrations": ["a/b"] }), "invalid_format", "allowed_integrations/0"),
        (
            json!({ "tags": {}, "integrations_config_defaults": { "no": {} } }),
            "custom",
            "integrations_config_defaults/no",
        ),
        (
            json!({ "tags": {}, "integrations_config_defaults": { "desk": { "scopes": "a" } } }),
            "unrecognized_keys",
            "integrations_config_defaults/desk/scopes",
        ),
        (
            json!({ "tags": {}, "integrations_config_defaults": {
                "desk": { "connection_config": { "subdomain": "evil.com/" } },
            }}),
            "invalid_value",
            "integrations_config_defaults/desk/connection_config/subdomain",
        ),
        (json!({ "tags": {}, "overrides": { "no": {} } }), "custom", "overrides/no"),
        (
            json!({ "tags": {}, "overrides": { "desk": { "docs_connect": "javascript:alert(1)" } } }),
            "invalid_format",
            "overrides/desk/docs_connect",
        ),
        (json!({ "tags": {}, "webhook_url_override": "ftp://x" }), "invalid_format", "webhook_url_override"),
    ] {
        let answer = host.post("/connect/sessions", &body).await;
        assert_eq!(field_errors(&answer), [(code.to_owned(), path.to_owned())], "{body}");
    }
}

#[tokio::test]
async fn creating_a_session_requires_the_scope() {
    let (db, host) = stage().await;
    let reader = host.create_key(&db, "reader", "read-only");
    let refused = host.with_key(Some(&reader)).post("/connect/sessions", &json!({ "tags": {} })).await;
    assert_eq!(refused.refusal(), (403, "forbidden".to_owned()));
    assert!(refused.message().contains("environment:connect_sessions:write"));
}

#[tokio::test]
async fn a_reconnect_session_is_limited_to_one_connection() {
    let (_db, host) = stage().await;
    host.connect_as("customer-1", "open", json!({})).await;
    let body = json!({ "connection_id": "customer-1", "integration_id": "open", "tags": { "again": "yes" } });
    let session = host.post("/connect/sessions/reconnect", &body).await.expect(201).json()["data"].clone();
    let shown = details(&host, text(&session["token"])).await.expect(200).json();
    assert_eq!(shown["data"]["isReconnecting"], true);
    assert_eq!(shown["data"]["allowed_integrations"], json!(["open"]));

    for (connection, integration, code) in
        [("nobody", "open", "unknown_connection"), ("customer-1", "nothing", "unknown_integration")]
    {
        let body = json!({ "connection_id": connection, "integration_id": integration });
        let refused = host.post("/connect/sessions/reconnect", &body).await;
        assert_eq!(refused.refusal(), (404, code.to_owned()));
    }
    let missing = host.post("/connect/sessions/reconnect", &json!({ "integration_id": "open" })).await;
    assert_eq!(missing.refusal(), (400, "invalid_body".to_owned()));
    assert!(missing.message().contains("connection_id"), "{}", missing.message());
}

#[tokio::test]
async fn a_reconnect_session_shows_the_end_user_of_the_connection() {
    let (_db, host) = stage().await;
    let ada = json!({ "id": "u-7", "email": "ada@example.com", "display_name": "Ada", "tags": { "Role": "admin" } });
    let first = json!({
        "end_user": ada, "organization": { "id": "o-1", "display_name": "Engines" }, "tags": { "plan": "pro" },
    });
    let session = open(&host, first).await;
    let connect = async |session: &Value| {
        let path = format!("/auth/unauthenticated/open?connect_session_token={}", text(&session["token"]));
        host.with_key(None).post(&path, &json!({})).await.expect(200).json()
    };
    let id = connect(&session).await["connectionId"].clone();
    let reconnect = async |more: Value| {
        let mut body = json!({ "connection_id": id, "integration_id": "open" });
        body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        host.post("/connect/sessions/reconnect", &body).await.expect(201).json()["data"].clone()
    };
    let shown = async |session: &Value| {
        let shown = details(&host, text(&session["token"])).await.expect(200).json();
        shown["data"]["endUser"].clone()
    };
    let connection = async || {
        let path = format!("/connections/{}?provider_config_key=open", text(&id));
        let connection = host.get(&path).await.expect(200).json();
        (connection["end_user"].clone(), connection["tags"].clone())
    };
    let (stored, tags) = connection().await;
    assert_eq!(tags["end_user_email"], "ada@example.com");

    let same = reconnect(json!({})).await;
    assert_eq!(shown(&same).await, stored);
    connect(&same).await;
    assert_eq!(connection().await, (stored, tags), "the end user and the tags stay");

    let other = reconnect(json!({ "end_user": { "id": "u-8" } })).await;
    let grace =
        json!({ "id": "u-8", "email": null, "display_name": null, "tags": null, "organization": null });
    assert_eq!(shown(&other).await, grace);
    connect(&other).await;
    assert_eq!(connection().await, (grace, json!({ "end_user_id": "u-8", "plan": "pro" })));
}

#[tokio::test]
async fn a_reconnect_keeps_concurrent_changes_of_metadata_and_tags() {
    let (db, host) = stage().await;
    host.connect_as("customer-1", "open", json!({ "region": "eu" })).await;
    let body = json!({ "connection_id": "customer-1", "integration_id": "open", "tags": { "again": "yes" } });
    let session = host.post("/connect/sessions/reconnect", &body).await.expect(201).json()["data"].clone();
    // Another request is changing the connection while the end user reconnects.
    let mut change = db.connect().await;
    sqlx::raw_sql(
        "BEGIN; UPDATE connections SET metadata = '{\"region\": \"us\"}', tags = '{\"plan\": \"pro\"}'",
    )
    .execute(&mut change)
    .await
    .expect("the connection can be changed");
    let path = format!("/auth/unauthenticated/open?connect_session_token={}", text(&session["token"]));
    let (browser, nothing) = (host.with_key(None), json!({}));
    let (reconnected, ()) = tokio::join!(browser.post(&path, &nothing), async {
        let waiting = "SELECT count(*) FROM pg_stat_activity \
                       WHERE datname = current_database() AND wait_event_type = 'Lock'";
        eventually("the reconnect waits", async || (db.number(waiting).await == 1).then_some(())).await;
        sqlx::raw_sql("COMMIT").execute(&mut change).await.expect("the change can be committed");
    });
    reconnected.expect(200);
    let shown = host.get("/connections/customer-1?provider_config_key=open").await.expect(200).json();
    assert_eq!(shown["metadata"], json!({ "region": "us" }));
    assert_eq!(shown["tags"], json!({ "plan": "pro", "again": "yes" }));
}

#[tokio::test]
async fn telemetry_requires_a_session_and_a_recent_timestamp() {
    let (_db, host) = stage().await;
    let session = open(&host, json!({ "tags": {} })).await;
    let send = async |token: &str, event: &str, hours: i64| {
        let at = (chrono::Utc::now() + chrono::TimeDelta::hours(hours)).to_rfc3339();
        let body = json!({
            "token": token, "event": event, "timestamp": at, "dimensions": { "integration": "open" },
        });
        host.with_key(None).post("/connect/telemetry", &body).await
    };
    let token = text(&session["token"]);
    send(token, "view:list", 0).await.expect(204);
    assert_eq!(
        field_errors(&send(token, "view:list", 3).await),
        [("invalid_value".into(), "timestamp".into())]
    );
    assert_eq!(
        field_errors(&send(token, "view:nothing", 0).await),
        [("invalid_value".into(), "event".into())]
    );
    let stranger = send(UNKNOWN_TOKEN, "open", 0).await;
    assert_eq!(stranger.refusal(), (401, "unknown_connect_session_token".to_owned()));
}

#[tokio::test]
async fn telemetry_over_4096_bytes_is_rejected() {
    let (_db, host) = stage().await;
    let session = open(&host, json!({ "tags": {} })).await;
    let body = json!({
        "token": session["token"], "event": "open", "timestamp": chrono::Utc::now().to_rfc3339(),
        "dimensions": { "integration": "x".repeat(255) },
    })
    .to_string();
    let padded = |length: usize| format!("{body}{}", " ".repeat(length - body.len()));
    let send = async |body: reqwest::Body| {
        let request = host.with_key(None).request("POST", "/connect/telemetry");
        request.header("Content-Type", "application/json").bytes(body).send().await
    };
    let in_parts = |body: String| {
        let parts: Vec<_> =
            body.as_bytes().chunks(1_000).map(|part| Ok::<_, std::io::Error>(part.to_vec())).collect();
        reqwest::Body::wrap_stream(stream::iter(parts))
    };
    send(padded(4_096).into()).await.expect(204);
    send(in_parts(padded(4_096))).await.expect(204);
    for body in [padded(4_097).into(), in_parts(padded(4_097)), in_parts(padded(1 << 20))] {
        let refused = send(body).await;
        assert_eq!(refused.refusal(), (413, "payload_too_large".to_owned()));
        assert!(refused.message().contains("4 KiB"), "{}", refused.message());
    }
}
