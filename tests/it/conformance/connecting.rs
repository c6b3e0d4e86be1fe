//! Statements about the routes with which end users connect accounts.

use serde_json::{Value, json};

use super::support::{Kind, Section, body, get, post, string};
use crate::support::{
    ACME_PIN, ACME_SECRET, Acme, Api, Browser, HostOptions, KEY, OAuthScene, Request, TestDatabase, consent,
    open_session,
};
use crate::typed_connections::{BILL, CLIENT_CREDENTIALS, SIGNATURE, SIGNED_TOKEN, TOKEN_BASED, TWO_STEP};

const UNKNOWN: &str =
    "nango_connect_session_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const QUERY: (u16, &str) = (400, "invalid_query_params");
const BODY: (u16, &str) = (400, "invalid_body");

/// An auth mode with its route, parameters, valid credentials, and a member whose change makes them invalid.
struct Mode {
    name: &'static str,
    entry: &'static str,
    route: &'static str,
    params: &'static str,
    good: Value,
    secret: &'static str,
    /// The members of its stored credentials.
    shown: &'static [(&'static str, Kind)],
}

fn modes() -> [Mode; 5] {
    [
        Mode {
            name: "TWO_STEP",
            entry: TWO_STEP,
            route: "/auth/two-step",
            params: "&params[user]=ada",
            good: json!({ "type": "TWO_STEP", "pin": ACME_PIN }),
            secret: "pin",
            shown: &[
                ("type", Kind::Text),
                ("token", Kind::Text),
                ("expires_at", Kind::Moment),
                ("raw", Kind::Object),
            ],
        },
        Mode {
            name: "BILL",
            entry: BILL,
            route: "/auth/bill",
            params: "",
            good: json!({ "username": "ada", "password": ACME_PIN, "organization_id": "org-1", "dev_key": "dev-1" }),
            secret: "password",
            shown: &[
                ("type", Kind::Text),
                ("username", Kind::Text),
                ("password", Kind::Text),
                ("organization_id", Kind::Text),
                ("dev_key", Kind::Text),
                ("session_id", Kind::Text),
                ("user_id", Kind::Text),
                ("raw", Kind::Object),
                ("expires_at", Kind::Moment),
            ],
        },
        Mode {
            name: "SIGNATURE",
            entry: SIGNATURE,
            route: "/auth/signature",
            params: "",
            good: json!({ "type": "SIGNATURE", "username": "ada", "password": ACME_PIN }),
            secret: "password",
            shown: &[("type", Kind::Text), ("username", Kind::Text), ("password", Kind::Text)],
        },
        Mode {
            name: "TBA",
            entry: TOKEN_BASED,
            route: "/auth/tba",
            params: "&params[accountId]=1234-sb1",
            good: json!({
                "token_id": "token-id", "token_secret": ACME_PIN,
                "oauth_client_id_override": "consumer", "oauth_client_secret_override": ACME_SECRET,
            }),
            secret: "token_secret",
            shown: &[
                ("type", Kind::Text),
                ("token_id", Kind::Text),
                ("token_secret", Kind::Text),
                ("config_override", Kind::Object),
            ],
        },
        Mode {
            name: "OAUTH2_CC",
            entry: CLIENT_CREDENTIALS,
            route: "/oauth2/auth",
            params: "",
            good: json!({ "client_id": "client-1", "client_secret": ACME_SECRET }),
            secret: "client_secret",
            shown: &[
                ("type", Kind::Text),
                ("token", Kind::Text),
                ("expires_at", Kind::Moment),
                ("client_id", Kind::Text),
                ("client_secret", Kind::Text),
                ("raw", Kind::Object),
            ],
        },
    ]
}

#[tokio::test]
async fn connecting_with_typed_credentials() {
    let acme = Acme::start().await;
    for mode in modes() {
        acme.add_provider(&format!("acme-{}", mode.name.to_lowercase()), mode.entry);
    }
    acme.add_provider("acme-jwt", &SIGNED_TOKEN.replace("PATH", "jwt"));
    let db = TestDatabase::create().await;
    let host = acme.configure(HostOptions::new().database(&db)).spawn().await;
    let create = async |provider: &str, key: &str| {
        let integration = json!({ "provider": provider, "unique_key": key });
        host.post("/integrations", &integration).await.expect(200);
    };
    for mode in modes() {
        create(&format!("acme-{}", mode.name.to_lowercase()), mode.name).await;
    }
    for (provider, key) in [("acme-jwt", "JWT"), ("unauthenticated", "open"), ("github-pat", "code")] {
        create(provider, key).await;
    }
    let mut section = Section::new("Connecting with typed credentials");
    let session =
        json!({ "end_user": { "id": "u-7", "email": "ada@example.com" }, "tags": { "plan": "pro" } });
    let token = open_session(&host, "/connect/sessions", session).await;
    tokens(&mut section, &host, &token).await;
    for mode in modes() {
        connect(&mut section, &host, &token, &mode).await;
    }
    limits(&mut section, &host, &token).await;
    reconnecting(&mut section, &host).await;
    section.finish();
}

fn send(host: &Api, path: &str, token: &str, more: &str, body: &Value) -> Request {
    post(&host.with_key(None), &format!("{path}?connect_session_token={token}{more}"), body)
}

async fn tokens(section: &mut Section, host: &Api, token: &str) {
    let anonymous = host.with_key(None);
    let nothing = json!({});
    let plain = |query: &str| post(&anonymous, &format!("/auth/unauthenticated/open{query}"), &nothing);
    let made = section
        .returns(
            "`POST /auth/unauthenticated/{key}`",
            send(host, "/auth/unauthenticated/open", token, "", &nothing),
            200,
        )
        .await;
    let members = [("connectionId", Kind::Uuid), ("providerConfigKey", Kind::Text)];
    section.only_members("The new connection", &body(&made), &members);
    section.equal("`providerConfigKey` is the integration's key", &body(&made)["providerConfigKey"], "open");
    let path = format!("/connections/{}?provider_config_key=open", string(&body(&made)["connectionId"]));
    let shown = body(&get(host, &path).send().await);
    section.equal("The connection has the session's end user", &shown["end_user"]["id"], "u-7");
    section.equal("The connection has the session's tags", &shown["tags"]["plan"], "pro");
    section.equal("The tags contain the end user's id", &shown["tags"]["end_user_id"], "u-7");
    section.equal(
        "The tags contain the end user's email address",
        &shown["tags"]["end_user_email"],
        "ada@example.com",
    );
    for (name, query, code) in [
        ("A request without a session token", String::new(), "missing_public_key"),
        ("A request with a public key", "?public_key=x".to_owned(), "deprecated_authentication"),
        (
            "A malformed session token",
            "?connect_session_token=x".to_owned(),
            "invalid_connect_session_token_format",
        ),
        (
            "An unknown session token",
            format!("?connect_session_token={UNKNOWN}"),
            "unknown_connect_session_token",
        ),
    ] {
        section.rejects(name, plain(&query), 401, code).await;
    }
    for (name, more, place) in [
        ("`connection_id` with a session token", "&connection_id=mine", "connection_id"),
        ("An unknown query parameter", "&color=red", "color"),
    ] {
        let request = send(host, "/auth/unauthenticated/open", token, more, &nothing);
        section.rejects_at(name, request, QUERY, place).await;
    }
    let unknown = send(host, "/auth/unauthenticated/unknown", token, "", &nothing);
    section.rejects("An unknown integration", unknown, 404, "unknown_integration").await;
    let malformed = send(host, "/auth/unauthenticated/a%2Fb", token, "", &nothing);
    section.rejects("A malformed key", malformed, 400, "invalid_uri_params").await;
    for route in [
        "/api-auth/api-key",
        "/api-auth/basic",
        "/auth/tba",
        "/auth/two-step",
        "/auth/jwt",
        "/auth/bill",
        "/auth/signature",
        "/oauth2/auth",
    ] {
        let request = send(host, &format!("{route}/open"), token, "", &nothing);
        let name = format!("`POST {route}/{{key}}` of an integration with another auth mode");
        section.rejects(&name, request, 400, "invalid_auth_mode").await;
    }
    let text = anonymous.request("POST", &format!("/api-auth/api-key/code?connect_session_token={token}"));
    let text = text.header("Content-Type", "text/plain").bytes("x");
    section.rejects("A body that is not JSON", text, 415, "invalid_content_type").await;
}

async fn connect(section: &mut Section, host: &Api, token: &str, mode: &Mode) {
    let path = format!("{}/{}", mode.route, mode.name);
    let name = format!("`POST {}/{{key}}`", mode.route);
    let made = section.returns(&name, send(host, &path, token, mode.params, &mode.good), 200).await;
    let members = [("connectionId", Kind::Uuid), ("providerConfigKey", Kind::Text)];
    section.only_members(&format!("The response of {name}"), &body(&made), &members);
    let id = string(&body(&made)["connectionId"]);
    let path_of = format!("/connections/{id}?provider_config_key={}", mode.name);
    let shown = body(&get(host, &path_of).send().await);
    section.members(&format!("`{}` credentials", mode.name), &shown["credentials"], mode.shown);
    section.equal(
        &format!("`type` of `{0}` credentials is `{0}`", mode.name),
        &shown["credentials"]["type"],
        mode.name,
    );
    let mut wrong = mode.good.clone();
    wrong[mode.secret] = json!("planted-mistake-77aa");
    let refused = send(host, &path, token, mode.params, &wrong);
    section
        .rejects(&format!("{name} with a wrong `{}`", mode.secret), refused, 400, "connection_test_failed")
        .await;
    let mut lacking = mode.good.clone();
    lacking.as_object_mut().and_then(|members| members.remove(mode.secret));
    let refused = send(host, &path, token, mode.params, &lacking);
    section.rejects_at(&format!("{name} without `{}`", mode.secret), refused, BODY, mode.secret).await;
    let mut more = mode.good.clone();
    more["surprise"] = json!(1);
    let refused = send(host, &path, token, mode.params, &more);
    section.rejects_at(&format!("{name} with an unknown member"), refused, BODY, "surprise").await;
}

async fn limits(section: &mut Section, host: &Api, token: &str) {
    let long = json!({ "apiKey": "k".repeat(1025) });
    let request = send(host, "/api-auth/api-key/code", token, "", &long);
    section.rejects_at("An API key of 1,025 characters", request, BODY, "apiKey").await;
    let missing = send(host, "/api-auth/api-key/code", token, "", &json!({}));
    section.rejects_at("A request without `apiKey`", missing, BODY, "apiKey").await;
    let pin = json!({ "pin": ACME_PIN });
    let required = send(host, "/auth/two-step/TWO_STEP", token, "", &pin);
    section
        .rejects_at("A request without a value that the provider requires", required, QUERY, "params.user")
        .await;
    let pattern = send(host, "/auth/two-step/TWO_STEP", token, "&params[user]=A%201", &pin);
    section.rejects_at("A value that does not match its pattern", pattern, QUERY, "params.user").await;
    let unknown = send(host, "/auth/two-step/TWO_STEP", token, "&params[user]=ada&params[host]=x", &pin);
    section.rejects_at("A value that the provider does not have", unknown, QUERY, "params.host").await;

    let settled = json!({ "TWO_STEP": { "connection_config": { "user": "grace" } } });
    let session = json!({
        "tags": {}, "allowed_integrations": ["TWO_STEP"], "integrations_config_defaults": settled,
    });
    let narrow = open_session(host, "/connect/sessions", session).await;
    let hooks = json!({ "tags": {}, "webhook_url_override": "https://example.com/hooks" });
    let hooks = open_session(host, "/connect/sessions", hooks).await;
    let made = send(host, "/auth/unauthenticated/open", &hooks, "", &json!({})).send().await;
    let path = format!("/connections/{}?provider_config_key=open", string(&body(&made)["connectionId"]));
    let shown = body(&get(host, &path).send().await);
    let url = "https://example.com/hooks";
    section.equal("The connection has the session's webhook URL", &shown["webhook_url_override"], url);
    let other = send(host, "/auth/unauthenticated/open", &narrow, "", &json!({}));
    section
        .rejects("An integration that the session does not allow", other, 400, "integration_not_allowed")
        .await;
    let made = send(host, "/auth/two-step/TWO_STEP", &narrow, "&params[user]=ada", &pin);
    let made = section.returns("A session with a configured value", made, 200).await;
    let path = format!("/connections/{}?provider_config_key=TWO_STEP", string(&body(&made)["connectionId"]));
    let shown = body(&get(host, &path).send().await);
    section.equal("The session's value replaces the browser's", &shown["connection_config"]["user"], "grace");
}

async fn reconnecting(section: &mut Section, host: &Api) {
    host.connect_as("customer-1", "open", json!({ "kept": true })).await;
    let reconnect =
        json!({ "connection_id": "customer-1", "integration_id": "open", "tags": { "again": "yes" } });
    let token = open_session(host, "/connect/sessions/reconnect", reconnect).await;
    let made = send(host, "/auth/unauthenticated/open", &token, "", &json!({}));
    let made = section.returns("Connecting with a reconnect session", made, 200).await;
    section.equal("The connection keeps its id", &body(&made)["connectionId"], "customer-1");
    let shown = body(&get(host, "/connections/customer-1?provider_config_key=open").send().await);
    section.equal("The session's tags are applied", &shown["tags"]["again"], "yes");
    section.equal("The metadata stays", &shown["metadata"], json!({ "kept": true }));
}

#[tokio::test]
async fn connecting_with_oauth() {
    let scene = OAuthScene::create().await;
    let mut section = Section::new("Connecting with OAuth 2");
    let (host, token) = (&scene.host, scene.user_session().await);
    let anonymous = host.with_key(None);
    let start = |query: &str| get(&anonymous, &format!("/oauth/connect/{KEY}{query}"));
    for (name, query, status, code) in [
        ("`GET /oauth/connect/{key}` without a token", String::new(), 401, "missing_public_key"),
        (
            "A start with an unknown token",
            format!("?connect_session_token={UNKNOWN}"),
            401,
            "unknown_connect_session_token",
        ),
        (
            "A start with `connection_id`",
            format!("?connect_session_token={token}&connection_id=x"),
            400,
            "invalid_query_params",
        ),
        (
            "A start with an unknown parameter",
            format!("?connect_session_token={token}&x=1"),
            400,
            "invalid_query_params",
        ),
        (
            "A `ws_client_id` that is not a UUID",
            format!("?connect_session_token={token}&ws_client_id=me"),
            400,
            "invalid_query_params",
        ),
    ] {
        section.rejects(name, start(&query), status, code).await;
    }
    let open = json!({ "provider": "unauthenticated", "unique_key": "open" });
    host.post("/integrations", &open).await.expect(200);
    let other = get(&anonymous, &format!("/oauth/connect/open?connect_session_token={token}"));
    section.rejects("A start with an integration without OAuth", other, 400, "invalid_auth_mode").await;
    let unknown = get(&anonymous, &format!("/oauth/connect/unknown?connect_session_token={token}"));
    section.rejects("A start with an unknown integration", unknown, 404, "unknown_integration").await;

    let mut browser = Browser::new();
    let redirect = browser.visit_until(&scene.start(&token, ""), scene.server.issuer()).await;
    section.equal(
        "`GET /oauth/connect/{key}` redirects to the provider",
        &json!(redirect.answer.status.as_u16()),
        302,
    );
    let cookie = redirect.answer.header("set-cookie").unwrap_or_default().to_owned();
    for part in ["HttpOnly", "Max-Age=3600", "SameSite=Lax"] {
        let name = format!("The redirect sets a cookie with `{part}`");
        section.holds(&name, cookie.to_lowercase().contains(&part.to_lowercase()), &"another cookie");
    }
    let query: Value =
        redirect.url.query_pairs().map(|(name, value)| (name.into_owned(), json!(value))).collect();
    let sent: Value = query.clone();
    section.equal("The redirect asks for a code", &sent["response_type"], "code");
    section.equal("The redirect names the client", &sent["client_id"], scene.client.id.clone());
    section.equal("The redirect URI is `/oauth/callback`", &sent["redirect_uri"], scene.callback());
    section.equal("The redirect uses PKCE with S256", &sent["code_challenge_method"], "S256");
    section.members(
        "The redirect",
        &sent,
        &[("code_challenge", Kind::Text), ("state", Kind::Text), ("scope", Kind::Text)],
    );

    let login = browser.visit(&scene.start(&token, "")).await;
    let callback = consent(&mut browser, login, "none").await;
    section.equal("The callback returns 200", &json!(callback.answer.status.as_u16()), 200);
    let is_page = callback.answer.header("content-type").is_some_and(|kind| kind.starts_with("text/html"));
    section.holds("The callback returns a page", is_page, &callback.answer.header("content-type"));
    let again = browser.visit(callback.url.as_str()).await;
    section.equal("A second use of the callback returns 400", &json!(again.answer.status.as_u16()), 400);
    let connections = scene.connections().await;
    section.equal("The connection exists", &json!(connections.len()), 1);
    let id = string(&connections[0]["connection_id"]);
    let shown = scene.connection(&id).await;
    section.members("The new connection", &shown, &[("connection_id", Kind::Uuid)]);
    section.equal("Its end user is the session's", &shown["end_user"]["id"], "u-1");
    let members = [
        ("type", Kind::Text),
        ("access_token", Kind::Text),
        ("expires_at", Kind::Moment),
        ("raw", Kind::Object),
    ];
    section.members("`OAUTH2` credentials", &shown["credentials"], &members);
    section.lacks(
        "`OAUTH2` credentials without `refresh_token=true`",
        &shown["credentials"],
        "refresh_token",
    );
    section.lacks("`raw` without `refresh_token=true`", &shown["credentials"]["raw"], "refresh_token");
    let path = format!("/connections/{id}?provider_config_key={KEY}");
    let with_token = body(&get(host, &format!("{path}&refresh_token=true")).send().await);
    section.members(
        "Credentials with `refresh_token=true`",
        &with_token["credentials"],
        &[("refresh_token", Kind::Text)],
    );
    section.equal(
        "Without `force_refresh`, a valid token stays",
        &scene.connection(&id).await["credentials"]["access_token"],
        shown["credentials"]["access_token"].clone(),
    );
    let forced =
        section.returns("`force_refresh=true`", get(host, &format!("{path}&force_refresh=true")), 200).await;
    let is_new = body(&forced)["credentials"]["access_token"] != shown["credentials"]["access_token"];
    section.holds("`force_refresh=true` fetches a new token", is_new, &"the same token");

    expired(&mut section, &scene, &id).await;
    let no_state = get(&anonymous, "/oauth/callback").send().await;
    section.equal("A callback without `state` returns 400", &json!(no_state.status.as_u16()), 400);
    section.finish();
}

/// Imports credentials that expired an hour ago.
async fn import_expired(host: &Api, id: &str, refresh_token: &Value) -> Request {
    let expires_at = (chrono::Utc::now() - chrono::TimeDelta::hours(1)).to_rfc3339();
    let credentials = json!({
        "type": "OAUTH2", "access_token": "planted-expired", "refresh_token": refresh_token, "expires_at": expires_at,
    });
    let import = json!({ "connection_id": id, "provider_config_key": KEY, "credentials": credentials });
    host.post("/connections", &import).await.expect(201);
    get(host, &format!("/connections/{id}?provider_config_key={KEY}"))
}

async fn expired(section: &mut Section, scene: &OAuthScene, id: &str) {
    let host = &scene.host;
    let path = format!("/connections/{id}?provider_config_key={KEY}&refresh_token=true");
    let current = body(&get(host, &path).send().await)["credentials"]["refresh_token"].clone();
    let shown = import_expired(host, id, &current).await;
    let shown = section.returns("`GET` of a connection whose token has expired", shown, 200).await;
    let is_new = body(&shown)["credentials"]["access_token"] != "planted-expired";
    section.holds("The token is refreshed before the response", is_new, &"the expired token");
    let members = [("expires_at", Kind::Moment)];
    section.members("The refreshed credentials", &body(&shown)["credentials"], &members);

    let refused = import_expired(host, "c-2", &json!("planted-unknown")).await;
    let name = "`GET` of a connection whose refresh the provider rejects";
    let refused = section.rejects(name, refused, 400, "invalid_credentials").await;
    let connection = body(&refused)["error"]["payload"]["connection"].clone();
    section.equal("`payload.connection` is the connection", &connection["connection_id"], "c-2");
    section.equal("`payload.connection` has no credentials", &connection["credentials"], json!({}));
    let error = connection["errors"][0].clone();
    section.only_members("An active error", &error, &[("type", Kind::Text), ("log_id", Kind::Uuid)]);
    section.equal("A failed refresh is an error of the type `auth`", &error["type"], "auth");
    let again = get(host, &format!("/connections/c-2?provider_config_key={KEY}"));
    let name = "The next `GET`, while refreshes wait after the failure";
    section.rejects(name, again, 424, "invalid_credentials").await;
    let listed = body(&get(host, "/connections?connectionId=c-2").send().await);
    section.equal("The list shows the error, too", &listed["connections"][0]["errors"][0]["type"], "auth");
}
