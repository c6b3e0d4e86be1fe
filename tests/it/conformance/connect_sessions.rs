//! Statements about connect sessions.

use serde_json::{Value, json};

use super::support::{Kind, Section, body, delete, get, post, string};
use crate::support::{Api, Host, TestDatabase};

const INVALID: (u16, &str) = (400, "invalid_body");

#[tokio::test]
async fn connect_sessions() {
    let db = TestDatabase::create().await;
    let host = Host::spawn(&db).await;
    for (provider, key) in [("unauthenticated", "open"), ("zendesk-api-key", "desk")] {
        host.post("/integrations", &json!({ "provider": provider, "unique_key": key })).await.expect(200);
    }
    host.connect_as("customer-1", "open", json!({})).await;
    let mut section = Section::new("Connect sessions");
    creation(&mut section, &host).await;
    invalid_creation(&mut section, &host).await;
    details(&mut section, &host).await;
    reconnecting(&mut section, &host).await;
    end(&mut section, &host, &db).await;
    telemetry(&mut section, &host).await;
    section.finish();
}

fn create(host: &Api, body: &Value) -> crate::support::Request {
    post(host, "/connect/sessions", body)
}

fn reconnect(host: &Api, body: &Value) -> crate::support::Request {
    post(host, "/connect/sessions/reconnect", body)
}

/// The details of a new session.
async fn shown(host: &Api, session: Value) -> Value {
    let session = body(&create(host, &session).send().await);
    shown_with(host, &string(&session["data"]["token"])).await
}

async fn shown_with(host: &Api, token: &str) -> Value {
    body(&get(&host.with_key(Some(token)), "/connect/session").send().await)["data"].clone()
}

async fn creation(section: &mut Section, host: &Api) {
    let user = json!({ "end_user": { "id": "u-1", "email": "ada@example.com", "display_name": "Ada" } });
    let made = section.returns("`POST /connect/sessions` with an end user", create(host, &user), 201).await;
    section.only_members("The body", &body(&made), &[("data", Kind::Object)]);
    let data = body(&made)["data"].clone();
    let members = [("token", Kind::Text), ("connect_link", Kind::Url), ("expires_at", Kind::Time)];
    section.only_members("A new session", &data, &members);
    let token = string(&data["token"]);
    let digits = token.strip_prefix("nango_connect_session_").unwrap_or_default();
    let is_hex = digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    section.holds(
        "`token` is the prefix `nango_connect_session_` and 64 hexadecimal digits",
        is_hex,
        &token.len(),
    );
    let link = format!("{}/connect/?session_token={token}", host.base_url());
    section.equal("`connect_link` carries the token as `session_token`", &data["connect_link"], link);
    let end = chrono::DateTime::parse_from_rfc3339(&string(&data["expires_at"])).unwrap_or_default();
    let seconds = (end.to_utc() - chrono::Utc::now()).num_seconds();
    section.holds("`expires_at` is 30 minutes later", (1_740..=1_800).contains(&seconds), &seconds);
    let link = format!("/connect/?session_token={token}");
    section.returns("`GET` of the link without a key", get(&host.with_key(None), &link), 200).await;
    for (name, body) in [
        ("A session with tags in place of an end user", json!({ "tags": { "end_user_id": "u-1" } })),
        ("A session with empty tags", json!({ "tags": {} })),
        (
            "A session with an organization",
            json!({ "tags": {}, "organization": { "id": "o-1", "display_name": "Engines" } }),
        ),
        ("A session with `allowed_integrations`", json!({ "tags": {}, "allowed_integrations": ["open"] })),
        (
            "A session with `integrations_config_defaults`",
            json!({ "tags": {}, "integrations_config_defaults": { "desk": {
                "user_scopes": "a,b", "authorization_params": { "prompt": "login" },
                "connection_config": { "subdomain": "acme" },
            } } }),
        ),
        (
            "A session with `overrides`",
            json!({ "tags": {}, "overrides": { "desk": { "docs_connect": "https://example.com/" } } }),
        ),
        (
            "A session with a webhook URL",
            json!({ "tags": {}, "webhook_url_override": "https://example.com/hooks" }),
        ),
        ("A session with an empty webhook URL", json!({ "tags": {}, "webhook_url_override": "" })),
    ] {
        section.returns(name, create(host, &body), 201).await;
    }
}

async fn invalid_creation(section: &mut Section, host: &Api) {
    let long = "x".repeat(256);
    let eleven: Value = (0..11).map(|number| (format!("k{number}"), json!("v"))).collect();
    let tags = |tags: Value| json!({ "tags": tags });
    let more = |member: &str, value: Value| json!({ "tags": {}, member: value });
    for (name, body, place) in [
        ("A session without an end user and without tags", json!({}), "end_user"),
        ("An unknown member", more("allowed", json!([])), "allowed"),
        ("An end user without an id", json!({ "end_user": {} }), "end_user.id"),
        ("An end user with an empty id", json!({ "end_user": { "id": "" } }), "end_user.id"),
        ("An end user's id of 256 characters", json!({ "end_user": { "id": long } }), "end_user.id"),
        (
            "An email address of 4 characters",
            json!({ "end_user": { "id": "u", "email": "a@bc" } }),
            "end_user.email",
        ),
        (
            "A display name of 256 characters",
            json!({ "end_user": { "id": "u", "display_name": long } }),
            "end_user.display_name",
        ),
        (
            "An end user with an unknown member",
            json!({ "end_user": { "id": "u", "name": "x" } }),
            "end_user.name",
        ),
        ("An organization without an id", more("organization", json!({})), "organization.id"),
        (
            "An organization's id of 256 characters",
            more("organization", json!({ "id": long })),
            "organization.id",
        ),
        ("A session with eleven tags", tags(eleven), "tags"),
        ("A tag whose key begins with a digit", tags(json!({ "1st": "x" })), "tags.1st"),
        (
            "A tag's key of 65 characters",
            tags(json!({ "k".repeat(65): "x" })),
            &format!("tags.{}", "k".repeat(65)),
        ),
        ("A tag with an empty value", tags(json!({ "plan": "" })), "tags.plan"),
        ("A tag's value of 256 characters", tags(json!({ "plan": long })), "tags.plan"),
        ("A tag that is a number", tags(json!({ "plan": 1 })), "tags.plan"),
        (
            "A session with tags that differ only in case",
            tags(json!({ "Plan": "a", "plan": "b" })),
            "tags.plan",
        ),
        (
            "A tag `end_user_email` that is not an email address",
            tags(json!({ "end_user_email": "x" })),
            "tags.end_user_email",
        ),
        (
            "An unknown integration in `allowed_integrations`",
            more("allowed_integrations", json!(["open", "unknown"])),
            "allowed_integrations.1",
        ),
        (
            "`allowed_integrations` that is not a list",
            more("allowed_integrations", json!("open")),
            "allowed_integrations",
        ),
        (
            "An unknown integration in `integrations_config_defaults`",
            more("integrations_config_defaults", json!({ "unknown": {} })),
            "integrations_config_defaults.unknown",
        ),
        (
            "An unknown member in `integrations_config_defaults`",
            more("integrations_config_defaults", json!({ "desk": { "scopes": "a" } })),
            "integrations_config_defaults.desk.scopes",
        ),
        (
            "An unknown integration in `overrides`",
            more("overrides", json!({ "unknown": {} })),
            "overrides.unknown",
        ),
        (
            "A webhook URL that is not a URL",
            more("webhook_url_override", json!("hooks")),
            "webhook_url_override",
        ),
    ] {
        section.rejects_at(name, create(host, &body), INVALID, place).await;
    }
}

async fn details(section: &mut Section, host: &Api) {
    let session = json!({
        "end_user": { "id": "u-7", "email": "ada@example.com", "display_name": "Ada", "tags": { "Role": "admin" } },
        "organization": { "id": "o-1", "display_name": "Engines" },
        "allowed_integrations": ["desk"],
        "integrations_config_defaults": { "desk": { "connection_config": { "subdomain": "acme" } } },
        "overrides": { "desk": { "docs_connect": "https://example.com/help" } },
        "tags": { "Plan": "pro" },
    });
    let made = body(&create(host, &session).send().await);
    let browser = host.with_key(Some(made["data"]["token"].as_str().unwrap_or_default()));
    let answer = section
        .returns("`GET /connect/session` with its token", get(&browser, "/connect/session"), 200)
        .await;
    section.only_members("The body", &body(&answer), &[("data", Kind::Object)]);
    let data = body(&answer)["data"].clone();
    let members = [
        ("allowed_integrations", Kind::List),
        ("integrations_config_defaults", Kind::Object),
        ("endUser", Kind::Object),
        ("isReconnecting", Kind::Boolean),
        ("connectUISettings", Kind::Object),
        ("overrides", Kind::Object),
        ("websocketsPath", Kind::Text),
    ];
    section.members("Session details", &data, &members);
    section.equal(
        "`allowed_integrations` lists the given keys",
        &data["allowed_integrations"],
        json!(["desk"]),
    );
    let config = &data["integrations_config_defaults"]["desk"]["connection_config"];
    section.equal(
        "`integrations_config_defaults` has the given configuration",
        config,
        json!({ "subdomain": "acme" }),
    );
    section.equal("`isReconnecting` of a new session is false", &data["isReconnecting"], false);
    section.equal("`websocketsPath` is `/`", &data["websocketsPath"], "/");
    let docs = &data["overrides"]["desk"]["docs_connect"];
    section.equal("`overrides` has the given URL", docs, "https://example.com/help");
    let user = &data["endUser"];
    section.equal("`endUser.id` is the given id", &user["id"], "u-7");
    section.equal("`endUser.email` is the given address", &user["email"], "ada@example.com");
    section.equal("`endUser.display_name` is the given name", &user["display_name"], "Ada");
    section.equal("`endUser.tags` are the end user's tags", &user["tags"], json!({ "Role": "admin" }));
    let organization = json!({ "id": "o-1", "display_name": "Engines" });
    section.equal("`endUser.organization` is the given organization", &user["organization"], organization);
    let settings = &data["connectUISettings"];
    let members = [
        ("title", Kind::Text),
        ("primaryColor", Kind::Text),
        ("theme", Kind::Object),
        ("defaultTheme", Kind::Text),
        ("showWatermark", Kind::Boolean),
    ];
    section.members("`connectUISettings`", settings, &members);
    let color = string(&settings["primaryColor"]);
    section.holds(
        "`primaryColor` is a color such as `#2f5bea`",
        color.len() == 7 && color.starts_with('#'),
        &color,
    );
    for theme in ["light", "dark"] {
        let name = format!("`theme.{theme}` has the primary color");
        section.equal(&name, &settings["theme"][theme]["primary"], color.as_str());
    }
    let change = json!({ "connect_ui_title": "Connect to Acme", "connect_ui_primary_color": "#1a7f37" });
    host.patch("/environment", &change).await.expect(200);
    let settings = shown(host, json!({ "tags": {} })).await["connectUISettings"].clone();
    section.equal("`title` is the environment's setting", &settings["title"], "Connect to Acme");
    section.equal("`primaryColor` is the environment's setting", &settings["primaryColor"], "#1a7f37");

    let bare = shown(host, json!({ "tags": {} })).await;
    section.equal("`endUser` of a session without one is null", &bare["endUser"], Value::Null);
    let all = json!(["open", "desk"]);
    section.equal(
        "Without `allowed_integrations`, all integrations are allowed",
        &bare["allowed_integrations"],
        all.clone(),
    );
    let empty = shown(host, json!({ "tags": {}, "allowed_integrations": [] })).await;
    section.equal(
        "An empty `allowed_integrations` allows all integrations",
        &empty["allowed_integrations"],
        all,
    );
    let tags = json!({ "end_user_id": "u-9", "end_user_email": "b@example.com", "organization_id": "o-2" });
    let tagged = shown(host, json!({ "tags": tags })).await["endUser"].clone();
    section.equal("The tag `end_user_id` identifies the end user", &tagged["id"], "u-9");
    section.equal("The tag `end_user_email` is the end user's address", &tagged["email"], "b@example.com");
    section.equal(
        "The tag `organization_id` identifies the organization",
        &tagged["organization"]["id"],
        "o-2",
    );
    let narrow = body(&create(host, &json!({ "tags": {}, "allowed_integrations": ["open"] })).send().await);
    let narrow = host.with_key(narrow["data"]["token"].as_str());
    let listed = body(&get(&narrow, "/integrations").send().await)["data"].clone();
    let keys: Vec<&Value> = listed.as_array().into_iter().flatten().map(|one| &one["unique_key"]).collect();
    section.equal(
        "`GET /integrations` with a session token lists the allowed ones",
        &json!(keys),
        json!(["open"]),
    );
    let unknown = get(&browser, "/connect/session?x=1");
    section.rejects("`GET /connect/session` with a query", unknown, 400, "invalid_query_params").await;
}

async fn reconnecting(section: &mut Section, host: &Api) {
    let body_of = |connection: &str, integration: &str| json!({ "connection_id": connection, "integration_id": integration });
    let made = reconnect(host, &body_of("customer-1", "open"));
    let made = section.returns("`POST /connect/sessions/reconnect`", made, 201).await;
    let members = [("token", Kind::Text), ("connect_link", Kind::Url), ("expires_at", Kind::Time)];
    section.only_members("A reconnect session", &body(&made)["data"], &members);
    let data = shown_with(host, &string(&body(&made)["data"]["token"])).await;
    section.equal("`isReconnecting` of a reconnect session is true", &data["isReconnecting"], true);
    section.equal(
        "A reconnect session allows only its integration",
        &data["allowed_integrations"],
        json!(["open"]),
    );
    let full = json!({
        "connection_id": "customer-1", "integration_id": "open", "end_user": { "id": "u-1" },
        "organization": { "id": "o-1" }, "integrations_config_defaults": { "open": {} }, "tags": { "plan": "pro" },
        "overrides": { "open": {} },
    });
    section.returns("A reconnect session with all optional members", reconnect(host, &full), 201).await;
    let unknown = reconnect(host, &body_of("unknown", "open"));
    section.rejects("Reconnecting an unknown connection", unknown, 404, "unknown_connection").await;
    let unknown = reconnect(host, &body_of("customer-1", "unknown"));
    section.rejects("Reconnecting at an unknown integration", unknown, 404, "unknown_integration").await;
    for (name, body, place) in [
        ("Reconnecting without `connection_id`", json!({ "integration_id": "open" }), "connection_id"),
        ("Reconnecting without `integration_id`", json!({ "connection_id": "customer-1" }), "integration_id"),
        (
            "A reconnect session with `allowed_integrations`",
            json!({ "connection_id": "customer-1", "integration_id": "open", "allowed_integrations": ["open"] }),
            "allowed_integrations",
        ),
    ] {
        section.rejects_at(name, reconnect(host, &body), INVALID, place).await;
    }
}

async fn end(section: &mut Section, host: &Api, db: &TestDatabase) {
    let unknown = "unknown_connect_session_token";
    let made = body(&create(host, &json!({ "tags": {} })).send().await);
    let browser = host.with_key(made["data"]["token"].as_str());
    let deleted = section
        .returns("`DELETE /connect/session` with its token", delete(&browser, "/connect/session"), 204)
        .await;
    section.empty("The response to the deletion", &deleted);
    section.rejects("A deleted session", get(&browser, "/connect/session"), 401, unknown).await;
    section.rejects("Deleting it again", delete(&browser, "/connect/session"), 401, unknown).await;
    let made = body(&create(host, &json!({ "tags": {} })).send().await);
    let browser = host.with_key(made["data"]["token"].as_str());
    db.execute("UPDATE connect_sessions SET expires_at = now() - interval '1 second'").await;
    section.rejects("A session after its 30 minutes", get(&browser, "/connect/session"), 401, unknown).await;
    section
        .rejects("`GET /integrations` with an expired token", get(&browser, "/integrations"), 401, unknown)
        .await;
}

async fn telemetry(section: &mut Section, host: &Api) {
    let made = body(&create(host, &json!({ "tags": {} })).send().await);
    let token = made["data"]["token"].clone();
    let now = chrono::Utc::now().to_rfc3339();
    let anonymous = host.with_key(None);
    let event = |event: &str, at: &str| {
        let body = json!({ "token": token, "event": event, "timestamp": at, "dimensions": { "integration": "open" } });
        post(&anonymous, "/connect/telemetry", &body)
    };
    for name in
        ["open", "view:list", "view:integration", "view:success", "click:connect", "popup:closed_early"]
    {
        section.returns(&format!("The event `{name}`"), event(name, &now), 204).await;
    }
    section.rejects_at("An unknown event", event("view:nothing", &now), INVALID, "event").await;
    let early = (chrono::Utc::now() - chrono::TimeDelta::hours(3)).to_rfc3339();
    section.rejects_at("An event of three hours ago", event("open", &early), INVALID, "timestamp").await;
    let unknown = json!({ "token": format!("nango_connect_session_{}", "0".repeat(64)), "event": "open", "timestamp": now });
    let unknown = post(&anonymous, "/connect/telemetry", &unknown);
    section.rejects("An event with an unknown token", unknown, 401, "unknown_connect_session_token").await;
}
