//! Statements about secret keys, session tokens and scopes.

use serde_json::json;

use super::support::{Section, body, delete, get, post, put, string};
use crate::support::{Api, Host, SECRET_KEY, Stage};

const UNKNOWN_TOKEN: &str =
    "nango_connect_session_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// The routes that need a secret key.
const ROUTES: [&str; 42] = [
    "GET /records?model=Item",
    "PATCH /records/prune",
    "POST /sync/trigger",
    "POST /sync/start",
    "POST /sync/pause",
    "GET /sync/status?provider_config_key=hostile&syncs=*",
    "PUT /sync/update-connection-frequency",
    "POST /sync/steps/variant/second",
    "DELETE /sync/steps/variant/second",
    "GET /environment-variables",
    "PUT /environment-variables/NAME",
    "DELETE /environment-variables/NAME",
    "GET /environment",
    "PATCH /environment",
    "POST /environment/webhook-signing-key/rotate",
    "POST /environments",
    "DELETE /environments/0198c0de-0000-7000-8000-000000000000",
    "POST /environment/api-keys",
    "DELETE /environment/api-keys",
    "GET /integrations",
    "POST /integrations",
    "POST /integrations/quickstart",
    "GET /integrations/hostile",
    "PATCH /integrations/hostile",
    "DELETE /integrations/hostile",
    "GET /integrations/hostile/functions",
    "GET /integrations/hostile/functions/steps",
    "GET /integrations/hostile/functions/steps/code",
    "DELETE /integrations/hostile/functions/steps",
    "GET /scripts/config",
    "GET /providers",
    "GET /providers/unauthenticated",
    "POST /connect/sessions",
    "POST /connect/sessions/reconnect",
    "GET /connections",
    "POST /connections",
    "GET /connections/customer-1?provider_config_key=hostile",
    "PATCH /connections/customer-1?provider_config_key=hostile",
    "DELETE /connections/customer-1?provider_config_key=hostile",
    "POST /connections/metadata",
    "PATCH /connections/metadata",
    "POST /action/trigger",
];

#[tokio::test]
async fn authentication() {
    let stage = Stage::hostile().await;
    let mut section = Section::new("Authentication");
    for route in ROUTES {
        let (method, path) = route.split_once(' ').expect("a method and a path");
        section.needs_key(&stage.host, method, path).await;
    }
    for route in ["GET /action/0198c0de-0000-7000-8000-000000000000", "GET /proxy/v1", "POST /deployments"] {
        let (method, path) = route.split_once(' ').expect("a method and a path");
        section.needs_key(&stage.host, method, path).await;
    }
    keys(&mut section, &stage.host).await;
    scopes(&mut section, &stage).await;
    session_tokens(&mut section, &stage).await;
    section.finish();
}

async fn keys(section: &mut Section, host: &Host) {
    let anonymous = host.with_key(None);
    let with = |value: &str| get(&anonymous, "/integrations").header("Authorization", value);
    section
        .returns("The header `Authorization: Bearer KEY`", with(&format!("Bearer {SECRET_KEY}")), 200)
        .await;
    section.returns("A key without the scheme `Bearer`", with(SECRET_KEY), 200).await;
    let (malformed, unknown) = ("malformed_auth_header", "unknown_account");
    section
        .rejects("The header `Authorization: Bearer` without a key", with("Bearer "), 401, malformed)
        .await;
    section.rejects("Another scheme than `Bearer`", with("Basic cGxhbnRlZDo="), 401, malformed).await;
    let short = with("Bearer short");
    section.rejects("A key of fewer than 16 characters", short, 401, "invalid_secret_key_format").await;
    let long = with(&format!("Bearer {}", "k".repeat(256)));
    section.rejects("A key of more than 255 characters", long, 401, "invalid_secret_key_format").await;
    let mistyped = with(&format!("Bearer sk_syncline_{}", "A".repeat(51)));
    section
        .rejects("A generated key with a wrong checksum", mistyped, 401, "invalid_secret_key_format")
        .await;
    let unused = with("Bearer a-key-that-no-host-has-issued");
    section.rejects("A key that does not exist", unused, 401, unknown).await;

    let unreadable = anonymous.request("POST", "/sync/trigger").header("Content-Type", "application/json");
    let unreadable = unreadable.bytes("{");
    section.rejects("A body that is not JSON, without a key", unreadable, 401, "missing_auth_header").await;
    let text = anonymous.request("POST", "/sync/trigger").header("Content-Type", "text/plain").bytes("x");
    section.rejects("Another content type, without a key", text, 401, "missing_auth_header").await;
}

async fn scopes(section: &mut Section, stage: &Stage) {
    let reader = stage.host.create_key(&stage.db, "reader", "read-only");
    let reader = stage.host.with_key(Some(&reader));
    let prefix = stage.host.create_key(&stage.db, "shown-once", "full");
    section.holds(
        "A generated key has a recognizable prefix",
        prefix.starts_with("sk_syncline_"),
        &"another prefix",
    );
    for (path, scope) in [
        ("POST /integrations", "environment:integrations:create"),
        ("PATCH /integrations/hostile", "environment:integrations:update"),
        ("DELETE /integrations/hostile", "environment:integrations:delete"),
        ("POST /connections", "environment:connections:create"),
        ("PATCH /connections/customer-1?provider_config_key=hostile", "environment:connections:update"),
        ("DELETE /connections/customer-1?provider_config_key=hostile", "environment:connections:delete"),
        ("POST /connections/metadata", "environment:connections:update"),
        ("PATCH /connections/metadata", "environment:connections:update"),
        ("POST /connect/sessions", "environment:connect_sessions:write"),
        ("POST /connect/sessions/reconnect", "environment:connect_sessions:write"),
        ("POST /sync/trigger", "environment:syncs:execute"),
        ("POST /sync/start", "environment:syncs:execute"),
        ("POST /sync/pause", "environment:syncs:execute"),
        ("PUT /sync/update-connection-frequency", "environment:syncs:update"),
        ("POST /sync/steps/variant/second", "environment:syncs:variant:create"),
        ("DELETE /sync/steps/variant/second", "environment:syncs:variant:delete"),
        ("PATCH /records/prune", "environment:records:write"),
        ("POST /action/trigger", "environment:actions:execute"),
        ("GET /action/0198c0de-0000-7000-8000-000000000000", "environment:actions:execute"),
        ("GET /proxy/v1", "environment:proxy"),
        ("GET /environment-variables", "environment:variables:read"),
        ("POST /environment/webhook-signing-key/rotate", "environment:webhook_signing_key:rotate"),
        ("POST /deployments", "environment:deploy"),
        ("POST /environments", "account:environments:create"),
        ("DELETE /environments/0198c0de-0000-7000-8000-000000000000", "account:environments:delete"),
        ("POST /environment/api-keys", "account:environments:api_keys:create"),
        ("DELETE /environment/api-keys", "account:environments:api_keys:delete"),
    ] {
        let (method, path) = path.split_once(' ').expect("a method and a path");
        let route = path.split('?').next().unwrap_or(path);
        let name = format!("`{method} {route}` with a key without the scope `{scope}`");
        let refused = section.rejects(&name, reader.request(method, path), 403, "forbidden").await;
        let message = string(&body(&refused)["error"]["message"]);
        let statement = format!("The message of `{method} {route}` names the missing scope");
        section.holds(&statement, message.contains(scope), &message);
    }
    for path in [
        "/integrations",
        "/integrations/hostile",
        "/integrations/hostile/functions",
        "/connections",
        "/sync/status?provider_config_key=hostile&syncs=*",
    ] {
        let route = path.split('?').next().unwrap_or(path);
        section.returns(&format!("`GET {route}` with a read-only key"), get(&reader, path), 200).await;
    }
    let shown = get(&reader, "/connections/customer-1?provider_config_key=hostile");
    let shown = section.returns("`GET /connections/{id}` with a read-only key", shown, 200).await;
    let statement = "A key without `environment:connections:read_credentials` gets `{}` as credentials";
    section.equal(statement, &body(&shown)["credentials"], json!({}));
    for flag in ["force_refresh", "refresh_token", "refresh_github_app_jwt_token"] {
        let path = format!("/connections/customer-1?provider_config_key=hostile&{flag}=true");
        section
            .rejects(&format!("`{flag}=true` with such a key"), get(&reader, &path), 403, "forbidden")
            .await;
    }
}

async fn session_tokens(section: &mut Section, stage: &Stage) {
    let host = &stage.host;
    let session = host.post("/connect/sessions", &json!({ "tags": {} })).await.expect(201);
    let token = string(&body(&session)["data"]["token"]);
    let browser = host.with_key(Some(&token));
    for path in ["/connect/session", "/integrations", "/providers", "/providers/unauthenticated"] {
        section.returns(&format!("`GET {path}` with a session token"), get(&browser, path), 200).await;
    }
    for path in ["/connections", "/integrations/hostile", "/environment-variables"] {
        let name = format!("`GET {path}` with a session token");
        section.rejects(&name, get(&browser, path), 401, "unknown_account").await;
    }
    let sessions = post(&browser, "/connect/sessions", &json!({ "tags": {} }));
    section.rejects("`POST /connect/sessions` with a session token", sessions, 401, "unknown_account").await;

    let format = "invalid_connect_session_token_format";
    for (name, request) in
        [("GET", get(host, "/connect/session")), ("DELETE", delete(host, "/connect/session"))]
    {
        let name = format!("`{name} /connect/session` with a secret key");
        section.rejects(&name, request, 401, format).await;
    }
    let anonymous = host.with_key(None);
    let without = get(&anonymous, "/connect/session");
    section.rejects("`GET /connect/session` without a token", without, 401, "missing_auth_header").await;
    let without = delete(&anonymous, "/connect/session");
    section.rejects("`DELETE /connect/session` without a token", without, 401, "missing_auth_header").await;
    for (name, token, code) in [
        ("A token without its prefix", &UNKNOWN_TOKEN[22..], format),
        ("A token that is too short", &UNKNOWN_TOKEN[..80], format),
        ("A token in upper case", &UNKNOWN_TOKEN.to_uppercase(), format),
        ("A token that does not exist", UNKNOWN_TOKEN, "unknown_connect_session_token"),
    ] {
        let request = get(&host.with_key(Some(token)), "/connect/session");
        section.rejects(name, request, 401, code).await;
    }
    for path in ["/integrations", "/providers"] {
        let name = format!("`GET {path}` with an unknown session token");
        let request = get(&host.with_key(Some(UNKNOWN_TOKEN)), path);
        section.rejects(&name, request, 401, "unknown_connect_session_token").await;
    }
    other_environment(section, stage, &browser).await;
}

async fn other_environment(section: &mut Section, stage: &Stage, browser: &Api) {
    stage.host.command(&stage.db, &["env", "create", "other"]);
    let key = stage.host.command(&stage.db, &["keys", "create", "backend", "--environment", "other"]);
    let other = stage.host.with_key(Some(key.trim()));
    let integration = json!({ "provider": "unauthenticated", "unique_key": "elsewhere" });
    other.post("/integrations", &integration).await.expect(200);
    let listed = body(&get(&other, "/integrations").send().await);
    let count = listed["data"].as_array().map(Vec::len);
    section.holds("A key sees only the integrations of its environment", count == Some(1), &listed);
    let connection = get(&other, "/connections/customer-1?provider_config_key=hostile");
    section.rejects("A connection of another environment", connection, 404, "unknown_integration").await;
    let listed = body(&get(browser, "/integrations").send().await);
    let is_listed = listed.to_string().contains("elsewhere");
    section.holds("A session token shows no integration of another environment", !is_listed, &listed);
    let same = put(&other, "/environment-variables/NAME", &json!({ "value": "theirs" }));
    section.returns("A variable of another environment can have the same name", same, 204).await;
    let variables = body(&get(&stage.host, "/environment-variables").send().await);
    section.equal("Variables of another environment are not returned", &variables, json!([]));
}
