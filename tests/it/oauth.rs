//! OAuth 2 from the end user's side: authorization at a certified server, the callback, and every way in which it is
//! rejected.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use url::Url;
use uuid::Uuid;

use crate::support::{
    Answer, Api, Browser, Bundle, KEY, OAUTH_PROVIDER, OAuthScene as Scene, OAuthServer, TestDatabase,
    consent, open_session, repository, text,
};

/// Status and code of a result page, after checking its security headers.
fn result_page(answer: &Answer) -> (u16, String) {
    let policy = answer.header("content-security-policy").expect("a policy");
    assert!(policy.starts_with("default-src 'none'; script-src 'nonce-"), "{policy}");
    assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let page = answer.text();
    let code = page.split("data-code=\"").nth(1).and_then(|rest| rest.split('"').next());
    (answer.status.as_u16(), code.unwrap_or("connected").to_owned())
}

fn param(url: &Url, name: &str) -> String {
    let found = url.query_pairs().find(|(given, _)| given == name);
    found.unwrap_or_else(|| panic!("no `{name}` in {url}")).1.into_owned()
}

fn with_param(url: &Url, name: &str, value: &str) -> String {
    let remaining: Vec<(String, String)> =
        url.query_pairs().into_owned().filter(|(given, _)| given != name).collect();
    let mut changed = url.clone();
    changed.query_pairs_mut().clear().extend_pairs(remaining).append_pair(name, value);
    changed.into()
}

#[tokio::test]
async fn a_validation_function_can_reject_an_authorized_account() {
    let scene = Scene::create().await;
    scene.server.integrate(&scene.host, "lifecycle", OAUTH_PROVIDER).await;
    let provider = format!("\"{OAUTH_PROVIDER}\"");
    scene.host.deploy(&Bundle::guest("lifecycle").replace("\"unauthenticated\"", &provider)).await;
    for (tags, outcome, connections) in [
        (json!({ "refuse": "this account has no plan" }), (400, "connection_validation_failed"), 0),
        (json!({}), (200, "connected"), 1),
    ] {
        let (token, mut browser) = (scene.session(json!({ "tags": tags })).await, Browser::new());
        let start =
            format!("{}/oauth/connect/lifecycle?connect_session_token={token}", scene.host.base_url());
        let login = browser.visit(&start).await;
        let callback = consent(&mut browser, login, "none").await;
        assert_eq!(result_page(&callback.answer), (outcome.0, outcome.1.to_owned()));
        assert_eq!(scene.db.number("SELECT count(*) FROM connections").await, connections);
        assert_eq!(scene.connections().await.len() as i64, connections);
    }
}

#[tokio::test]
async fn an_end_user_connects_an_account() {
    let scene = Scene::create().await;
    let token = scene.user_session().await;
    let mut browser = Browser::new();
    let login = browser.visit(&scene.start(&token, "&authorization_params[login_hint]=ada")).await;
    let sent = &login.visited[1];
    assert_eq!(sent.as_str().split('?').next(), Some(format!("{}/auth", scene.server.issuer()).as_str()));
    for (name, value) in [
        ("response_type", "code"),
        ("redirect_uri", scene.callback().as_str()),
        ("code_challenge_method", "S256"),
        ("scope", "openid offline_access"),
        ("prompt", "consent"),
        ("login_hint", "ada"),
    ] {
        assert_eq!(param(sent, name), value);
    }
    assert!(param(sent, "state").len() >= 43, "the state has 256 bits");
    let callback = consent(&mut browser, login, "none").await;
    assert_eq!(result_page(&callback.answer), (200, "connected".to_owned()));

    let listed = scene.connections().await;
    assert_eq!(listed.len(), 1);
    let connection = scene.connection(text(&listed[0]["connection_id"])).await;
    assert!(Uuid::parse_str(text(&connection["connection_id"])).is_ok());
    assert_eq!(connection["end_user"]["id"], "u-1");
    assert_eq!(connection["tags"]["end_user_email"], "ada@example.com");
    let credentials = &connection["credentials"];
    assert_eq!(credentials["type"], "OAUTH2");
    assert_eq!(credentials["raw"]["token_type"], "Bearer");
    let me =
        Api::new(scene.server.issuer().to_owned(), credentials["access_token"].as_str()).get("/me").await;
    assert_eq!(me.expect(200).json(), json!({ "sub": "ada" }));
    let log = scene.host.log();
    for secret in [&token, text(&credentials["access_token"]), &param(&callback.url, "code")] {
        assert!(!log.contains(secret), "a secret is in the log: {log}");
    }
}

#[tokio::test]
async fn session_settings_override_browser_parameters() {
    let scene = Scene::with_entry(
        "[connection_config.region]\ntitle = \"Region\"\ndescription = \"Where.\"\npattern = '[a-z]+'\n\
         [connection_config.issuer]\ntitle = \"Issuer\"\ndescription = \"Who.\"\nautomated = true\n\
         from_redirect = \"iss\"\nextract = 'http://([0-9.]+):\\d+'",
    )
    .await;
    let token = scene
        .session(json!({
            "tags": {},
            "integrations_config_defaults": { KEY: {
                "connection_config": { "region": "eu", "oauth_scopes_override": "openid,read" },
                "authorization_params": { "ui_locales": "de" },
            } },
        }))
        .await;
    let asked = "&params[region]=us&params[issuer]=forged&params[oauth_scopes_override]=openid,write\
                 &params[webhook_url]=https://evil.example&authorization_params[ui_locales]=fr\
                 &authorization_params[state]=forged&authorization_params[prompt]=undefined";
    let mut browser = Browser::new();
    let login = browser.visit(&scene.start(&token, asked)).await;
    let sent = login.visited[1].clone();
    assert_eq!((param(&sent, "scope"), param(&sent, "ui_locales")), ("openid read".into(), "de".into()));
    assert_ne!(param(&sent, "state"), "forged");
    assert!(sent.query_pairs().all(|(name, _)| name != "prompt"), "the parameter is removed: {sent}");
    let callback = consent(&mut browser, login, "none").await;
    assert_eq!(result_page(&callback.answer), (200, "connected".to_owned()));
    let connection = scene.connection(text(&scene.connections().await[0]["connection_id"])).await;
    let expected = json!({ "region": "eu", "issuer": "127.0.0.1", "oauth_scopes_override": "openid,read" });
    assert_eq!(connection["connection_config"], expected);
}

#[tokio::test]
async fn a_browser_cannot_change_the_scope_or_the_response_mode() {
    let scene = Scene::create().await;
    let asked = "&authorization_params[scope]=openid%20write&authorization_params[Scope]=write\
                 &authorization_params[optional_scope]=write&authorization_params[response_type]=token\
                 &authorization_params[response_mode]=fragment&authorization_params[request_uri]=urn:x\
                 &authorization_params[login_hint]=ada&authorization_params[access_type]=online";
    let leave = async |token: &str, asked: &str| {
        Browser::new().visit(&scene.start(token, asked)).await.visited[1].clone()
    };
    let plain = scene.user_session().await;
    for asked in [asked, "&authorization_params[scope]=undefined"] {
        let url = leave(&plain, asked).await;
        assert_eq!(param(&url, "scope"), "openid offline_access");
        assert_eq!(param(&url, "response_type"), "code");
        let refused = ["Scope", "optional_scope", "response_mode", "request_uri"];
        assert!(url.query_pairs().all(|(name, _)| !refused.contains(&&*name)), "{url}");
    }
    let url = leave(&plain, asked).await;
    assert_eq!((param(&url, "login_hint"), param(&url, "access_type")), ("ada".into(), "online".into()));
    let settled = json!({ "authorization_params": { "scope": "openid read" } });
    let token = scene.session(json!({ "tags": {}, "integrations_config_defaults": { KEY: settled } })).await;
    assert_eq!(param(&leave(&token, asked).await, "scope"), "openid read", "a session can set the scope");
}

#[tokio::test]
async fn parameters_of_existing_clients_are_accepted() {
    let scene = Scene::create().await;
    let (token, mut browser) = (scene.user_session().await, Browser::new());
    let own = "&hmac=0f3a&credentials[oauth_refresh_token_override]=planted-own-token";
    let callback = scene.authorize(&mut browser, &token, own).await;
    browser.visit(callback.as_str()).await.answer.expect(200);
    let id = text(&scene.connections().await[0]["connection_id"]).to_owned();
    let path = format!("/connections/{id}?provider_config_key={KEY}&refresh_token=true");
    let shown = scene.host.get(&path).await.expect(200).json();
    assert_eq!(shown["credentials"]["refresh_token"], "planted-own-token");
}

#[tokio::test]
async fn a_browser_can_set_only_declared_configuration_fields() {
    let scene = Scene::with_entry(
        "[connection_config.region]\ntitle = \"Region\"\ndescription = \"Where.\"\npattern = '[a-z]+'",
    )
    .await;
    let token = scene.user_session().await;
    let mut browser = Browser::new();
    let asked = "&params[region]=eu&params[portalId]=62515&params[team.id]=T1&params[installation_id]=77";
    let callback = scene.authorize(&mut browser, &token, asked).await;
    browser.visit(callback.as_str()).await.answer.expect(200);
    let connection = scene.connection(text(&scene.connections().await[0]["connection_id"])).await;
    assert_eq!(connection["connection_config"], json!({ "region": "eu" }));
    let known =
        scene.db.texts("SELECT name FROM connection_identifiers WHERE name LIKE 'connection_config%'").await;
    assert_eq!(known, ["connection_config.region"], "webhooks are matched by nothing else");
}

#[tokio::test]
async fn reconnecting_an_account_keeps_its_connection() {
    let scene = Scene::create().await;
    let (mut browser, token) = (Browser::new(), scene.user_session().await);
    let callback = scene.authorize(&mut browser, &token, "").await;
    browser.visit(callback.as_str()).await.answer.expect(200);
    let before = scene.connections().await[0].clone();
    let body = json!({
        "connection_id": before["connection_id"], "integration_id": KEY, "tags": { "plan": "pro" },
    });
    let token = open_session(&scene.host, "/connect/sessions/reconnect", body).await;
    let callback = scene.authorize(&mut Browser::new(), &token, "").await;
    let refused = Browser::new().visit(callback.as_str()).await;
    assert_eq!(result_page(&refused.answer), (400, "state_cookie_err".to_owned()));
    let mut browser = Browser::new();
    let callback = scene.authorize(&mut browser, &token, "").await;
    let callback = browser.visit(callback.as_str()).await;
    assert_eq!(result_page(&callback.answer), (200, "connected".to_owned()));
    let after = scene.connections().await;
    assert_eq!(after.len(), 1);
    assert_eq!((&after[0]["id"], &after[0]["connection_id"]), (&before["id"], &before["connection_id"]));
    assert_eq!(
        after[0]["tags"],
        json!({
            "end_user_id": "u-1", "end_user_email": "ada@example.com", "plan": "pro",
        })
    );
}

#[tokio::test]
async fn a_callback_works_once_and_only_in_the_browser_that_started_it() {
    let scene = Scene::create().await;
    let (mut browser, token) = (Browser::new(), scene.user_session().await);
    let callback = scene.authorize(&mut browser, &token, "").await;
    for (address, code) in [
        (scene.callback(), "state_err"),
        (with_param(&callback, "state", "c29tZXRoaW5nLWVsc2U"), "state_err"),
        (with_param(&callback, "state", &param(&callback, "state")[1..]), "state_err"),
        (with_param(&callback, "iss", "https://evil.example"), "state_cookie_err"),
        (callback.to_string(), "state_cookie_err"),
    ] {
        let refused = Browser::new().visit(&address).await;
        assert_eq!(result_page(&refused.answer), (400, code.to_owned()), "{address}");
    }
    assert!(scene.connections().await.is_empty());
    // A failed attempt in another browser does not use up the callback.
    assert_eq!(result_page(&browser.visit(callback.as_str()).await.answer), (200, "connected".to_owned()));
    assert_eq!(result_page(&browser.visit(callback.as_str()).await.answer), (400, "state_err".to_owned()));
    assert_eq!(scene.connections().await.len(), 1);
}

#[tokio::test]
async fn a_callback_from_another_issuer_is_rejected_without_a_token_request() {
    let scene = Scene::create().await;
    let (mut browser, token) = (Browser::new(), scene.user_session().await);
    let callback = scene.authorize(&mut browser, &token, "").await;
    scene.server.set_fault("error").await;
    let mixed_up = browser.visit(&with_param(&callback, "iss", "https://evil.example")).await;
    assert_eq!(result_page(&mixed_up.answer), (400, "callback_err".to_owned()));
    assert!(
        mixed_up.answer.text().contains("https://evil.example"),
        "the token endpoint received no request"
    );
    assert!(scene.connections().await.is_empty());
}

#[tokio::test]
async fn a_denied_consent_is_reported_on_the_page_and_to_the_client() {
    let scene = Scene::create().await;
    let (mut browser, token, listener) = (Browser::new(), scene.user_session().await, Uuid::new_v4());
    let start = scene.start(&token, &format!("&ws_client_id={listener}"));
    let login = browser.visit(&start).await.expect_page("Sign-in");
    let callback = browser.visit(&format!("{login}/abort")).await;
    assert_eq!(result_page(&callback.answer), (400, "access_denied".to_owned()));
    let api = scene.host.with_key(Some(&token));
    let result = api.get(&format!("/connect/authorizations/{listener}")).await.expect(200).json();
    assert_eq!(
        (&result["data"]["status"], &result["data"]["error"]["code"], &result["data"]["provider_config_key"]),
        (&json!("failed"), &json!("access_denied"), &json!(KEY))
    );
}

#[tokio::test]
async fn provider_error_text_is_html_escaped() {
    let scene = Scene::create().await;
    let (mut browser, token) = (Browser::new(), scene.user_session().await);
    let callback = scene.authorize(&mut browser, &token, "").await;
    let callback_url = with_param(&callback, "error", "server_error");
    let callback_url = with_param(
        &Url::parse(&callback_url).unwrap(),
        "error_description",
        "<script>alert(1)</script>\u{7}",
    );
    let page = browser.visit(&callback_url).await.answer;
    assert_eq!(result_page(&page), (400, "callback_err".to_owned()));
    assert!(page.text().contains("&lt;script&gt;alert(1)&lt;/script&gt; (server_error)"), "{}", page.text());
    assert!(!page.text().contains("<script>alert"));
}

#[tokio::test]
async fn a_failed_token_request_is_reported_with_its_cause() {
    let scene = Scene::create().await;
    let token = scene.user_session().await;
    for (fault, words) in [("html", "an HTML page"), ("error", "500"), ("slow", "did not answer")] {
        let mut browser = Browser::new();
        let callback = scene.authorize(&mut browser, &token, "").await;
        scene.server.set_fault(fault).await;
        let page = browser.visit(callback.as_str()).await.answer;
        scene.server.set_fault("none").await;
        assert_eq!(result_page(&page), (400, "token_err".to_owned()), "{fault}");
        assert!(page.text().contains(words), "{fault}: {}", page.text());
    }
    assert!(scene.connections().await.is_empty());
}

#[tokio::test]
async fn a_callback_fails_when_its_session_has_ended() {
    let scene = Scene::create().await;
    let (mut browser, token) = (Browser::new(), scene.user_session().await);
    let callback = scene.authorize(&mut browser, &token, "").await;
    scene.db.execute("UPDATE connect_sessions SET expires_at = now() - interval '1 second'").await;
    let page = browser.visit(callback.as_str()).await.answer;
    assert_eq!(result_page(&page), (401, "unknown_connect_session_token".to_owned()));

    let (mut browser, token) = (Browser::new(), scene.user_session().await);
    let callback = scene.authorize(&mut browser, &token, "").await;
    let ended = scene.host.with_key(Some(&token)).request("DELETE", "/connect/session").send().await;
    ended.expect(204);
    let page = browser.visit(callback.as_str()).await.answer;
    assert_eq!(result_page(&page), (400, "state_err".to_owned()));

    let (mut browser, token) = (Browser::new(), scene.user_session().await);
    let callback = scene.authorize(&mut browser, &token, "").await;
    scene.db.execute("UPDATE authorizations SET expires_at = now() - interval '1 second'").await;
    assert_eq!(result_page(&browser.visit(callback.as_str()).await.answer), (400, "state_err".to_owned()));

    let (mut browser, token) = (Browser::new(), scene.user_session().await);
    let callback = scene.authorize(&mut browser, &token, "").await;
    scene.db.execute("UPDATE connect_sessions SET allowed_integrations = ARRAY['other']").await;
    let page = browser.visit(callback.as_str()).await.answer;
    assert_eq!(result_page(&page), (400, "integration_not_allowed".to_owned()));
    assert!(scene.connections().await.is_empty());
}

#[tokio::test]
async fn an_invalid_start_request_is_rejected() {
    let scene = Scene::with_entry(
        "[connection_config.region]\ntitle = \"Region\"\ndescription = \"Where.\"\npattern = '[a-z]+'",
    )
    .await;
    let other = json!({ "provider": "unauthenticated", "unique_key": "open" });
    scene.host.post("/integrations", &other).await.expect(200);
    let token = scene.user_session().await;
    let narrow = scene.session(json!({ "tags": {}, "allowed_integrations": ["open"] })).await;
    let host = scene.host.with_key(None);
    let good = format!("connect_session_token={token}&params[region]=eu");
    let unknown = format!("nango_connect_session_{}", "0".repeat(64));
    for (path, status, code) in [
        (format!("{KEY}?params[region]=eu"), 401, "missing_public_key"),
        (format!("{KEY}?connect_session_token=x"), 401, "invalid_connect_session_token_format"),
        (format!("{KEY}?connect_session_token={unknown}"), 401, "unknown_connect_session_token"),
        (format!("{KEY}?{good}&connection_id=mine"), 400, "invalid_query_params"),
        (format!("{KEY}?{good}&colour=red"), 400, "invalid_query_params"),
        (format!("{KEY}?{good}&ws_client_id=me"), 400, "invalid_query_params"),
        (format!("{KEY}?{good}&credentials[oauth_client_secret_override]=s"), 400, "invalid_query_params"),
        (format!("{KEY}?connect_session_token={token}"), 400, "invalid_connection_config"),
        (format!("{KEY}?connect_session_token={token}&params[region]=E.U"), 400, "invalid_connection_config"),
        (format!("nobody?{good}"), 404, "unknown_integration"),
        (format!("open?{good}"), 400, "invalid_auth_mode"),
        (format!("{KEY}?connect_session_token={narrow}"), 400, "integration_not_allowed"),
    ] {
        let refused = host.get(&format!("/oauth/connect/{path}")).await;
        assert_eq!(refused.refusal(), (status, code.to_owned()), "{path}");
        let page = Browser::new().visit(&format!("{}/oauth/connect/{path}", host.base_url())).await;
        assert_eq!(result_page(&page.answer), (status, code.to_owned()), "{path}");
    }
    assert_eq!(host.get("/").await.refusal(), (404, "not_found".to_owned()));
}

/// The published client, with a script in the place of a browser.
struct PublishedClient {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl PublishedClient {
    fn run(host: &Api, token: &str, integration: &str) -> Self {
        let mut child = Command::new("node")
            .args(["--experimental-websocket", "--no-warnings"])
            .arg(repository("tests/node/frontend_auth.mjs"))
            .args([host.base_url(), token, integration])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("Node.js is not installed; `scripts/setup` says what to install");
        let stdout = child.stdout.take().expect("it is piped");
        Self { _child: child, lines: BufReader::new(stdout).lines() }
    }

    /// Reads the next line, and returns the text after this word.
    async fn expect(&mut self, word: &str) -> String {
        let line = self.lines.next_line().await.expect("it is text").unwrap_or_default();
        let rest = line.strip_prefix(word).unwrap_or_else(|| panic!("`{line}` where `{word}` was expected"));
        rest.trim().to_owned()
    }
}

#[tokio::test]
async fn the_published_client_is_notified_across_hosts() {
    let (db, server) = (TestDatabase::create().await, OAuthServer::start().await);
    let called_back = server.spawn_host(&db).await;
    let first =
        server.host_options(&db).variable("SYNCLINE_PUBLIC_URL", called_back.base_url()).spawn().await;
    server.integrate(&called_back, KEY, OAUTH_PROVIDER).await;

    let token = open_session(&first, "/connect/sessions", json!({ "tags": {} })).await;
    let mut client = PublishedClient::run(&first, &token, KEY);
    let start = client.expect("open").await;
    let mut browser = Browser::new();
    let login = browser.visit(&start).await;
    let callback = consent(&mut browser, login, "none").await;
    assert_eq!(result_page(&callback.answer), (200, "connected".to_owned()));
    assert!(callback.url.as_str().starts_with(called_back.base_url()), "{}", callback.url);
    let result: Value = serde_json::from_str(&client.expect("connected").await).unwrap();
    let listed = first.get("/connections").await.expect(200).json();
    let expected = json!({
        "providerConfigKey": KEY, "connectionId": listed["connections"][0]["connection_id"], "isPending": false,
    });
    assert_eq!(result, expected);

    let mut client = PublishedClient::run(&first, &token, "nobody");
    drop(Browser::new().visit(&client.expect("open").await).await);
    let result: Value = serde_json::from_str(&client.expect("failed").await).unwrap();
    assert_eq!(result["type"], "unknown_integration");
}

#[tokio::test]
async fn a_websocket_stays_open_while_its_authorization_is_in_progress() {
    const CLIENT_TIMEOUT: Duration = Duration::from_secs(3);
    let (db, server) = (TestDatabase::create().await, OAuthServer::start().await);
    let timeout = CLIENT_TIMEOUT.as_secs().to_string();
    let host = server.host_options(&db).variable("SYNCLINE_CLIENT_TIMEOUT_SECONDS", &timeout).spawn().await;
    server.integrate(&host, KEY, OAUTH_PROVIDER).await;
    let token = open_session(&host, "/connect/sessions", json!({ "tags": {} })).await;
    let mut client = PublishedClient::run(&host, &token, KEY);
    let mut browser = Browser::new();
    let login = browser.visit(&client.expect("open").await).await;
    tokio::time::sleep(CLIENT_TIMEOUT * 2).await;
    let callback = consent(&mut browser, login, "none").await;
    assert_eq!(result_page(&callback.answer), (200, "connected".to_owned()));
    client.expect("connected").await;
}

#[tokio::test]
async fn an_authorization_result_is_visible_only_to_its_session() {
    let scene = Scene::create().await;
    let (mut browser, token, listener) = (Browser::new(), scene.user_session().await, Uuid::new_v4());
    let path = format!("/connect/authorizations/{listener}");
    let waiting = tokio::spawn({
        let (api, path) = (scene.host.with_key(Some(&token)), path.clone());
        async move { api.get(&path).await.expect(200).json() }
    });
    let callback = scene.authorize(&mut browser, &token, &format!("&ws_client_id={listener}")).await;
    browser.visit(callback.as_str()).await.answer.expect(200);
    let id = scene.connections().await[0]["connection_id"].clone();
    let expected = json!({ "status": "connected", "provider_config_key": KEY, "connection_id": id });
    assert_eq!(waiting.await.unwrap()["data"], expected);
    let other = scene.user_session().await;
    let hidden = scene.host.with_key(Some(&other)).get(&path).await.expect(200).json();
    assert_eq!(hidden["data"], json!({ "status": "pending" }));
    let malformed = scene.host.with_key(Some(&token)).get("/connect/authorizations/me").await;
    assert_eq!(malformed.refusal(), (400, "invalid_uri_params".to_owned()));
}

#[tokio::test]
async fn a_revoked_grant_shows_an_error_that_reconnecting_clears() {
    let scene = Scene::create().await;
    let (mut browser, token) = (Browser::new(), scene.user_session().await);
    let callback = scene.authorize(&mut browser, &token, "").await;
    browser.visit(callback.as_str()).await.answer.expect(200);
    let id = text(&scene.connections().await[0]["connection_id"]).to_owned();
    let show = format!("/connections/{id}?provider_config_key={KEY}");
    let before = scene.host.get(&format!("{show}&refresh_token=true")).await.expect(200).json();
    let forced = scene.host.get(&format!("{show}&force_refresh=true&refresh_token=true")).await;
    let rotated = forced.expect(200).json();
    let refresh_token = |shown: &Value| shown["credentials"]["refresh_token"].as_str().map(str::to_owned);
    assert!(refresh_token(&before).is_some() && refresh_token(&before) != refresh_token(&rotated));
    scene.server.revoke(&scene.client, &refresh_token(&rotated).expect("one is shown")).await;
    let refused = scene.host.get(&format!("{show}&force_refresh=true")).await;
    assert_eq!(refused.status.as_u16() / 100, 4, "{}", refused.text());
    let errors = async || scene.db.number("SELECT count(*) FROM connection_errors WHERE type = 'auth'").await;
    assert_eq!(errors().await, 1);
    let body = json!({ "connection_id": id, "integration_id": KEY });
    let token = open_session(&scene.host, "/connect/sessions/reconnect", body).await;
    let mut browser = Browser::new();
    let callback = scene.authorize(&mut browser, &token, "").await;
    browser.visit(callback.as_str()).await.answer.expect(200);
    assert_eq!(errors().await, 0);
    scene.host.get(&format!("{show}&force_refresh=true")).await.expect(200);
}
