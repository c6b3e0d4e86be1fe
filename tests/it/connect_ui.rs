//! The Connect UI in a browser. The steps of end users are in `tests/node/connect-ui/scenarios.mjs`, and run here in a
//! headless Chromium. If SYNCLINE_SCREENSHOTS names a folder, a screenshot of each state is saved there.

use serde_json::{Value, json};

use crate::support::{
    Host, HostOptions, OAUTH_PROVIDER, OAuthServer, SECRET_KEY, SHOP_KEY, Shop, TestDatabase, repository,
    run_in_browser,
};

/// A host with the integrations that the scenarios use.
async fn stage(shop: &Shop) -> (TestDatabase, Host) {
    let db = TestDatabase::create().await;
    let providers = shop.provider_files();
    let host = HostOptions::new()
        .database(&db)
        .allow(shop)
        .variable("SYNCLINE_PROVIDERS_DIR", &providers.path().display().to_string())
        .spawn()
        .await;
    let integrations =
        [("stripe-api-key", "stripe"), ("zendesk-api-key", "desk"), ("unauthenticated", "open")];
    let fill = (1..=4).map(|number| ("sendgrid", format!("fill-{number}")));
    let all = integrations.map(|(provider, key)| (provider, key.to_owned())).into_iter().chain(fill);
    for (provider, key) in all {
        host.post("/integrations", &json!({ "provider": provider, "unique_key": key })).await.expect(200);
    }
    (db, host)
}

/// Runs scenarios with typed credentials, and fails with their output.
async fn run_scenarios(scenarios: &[&str]) {
    let shop = Shop::start().await;
    let (_db, host) = stage(&shop).await;
    run_scenarios_on(&host, scenarios).await;
}

/// Runs scenarios with a certified OAuth server.
async fn run_scenarios_with_oauth(scenarios: &[&str]) {
    let (db, server) = (TestDatabase::create().await, OAuthServer::start().await);
    let host = server.spawn_host(&db).await;
    server.integrate(&host, "crm", OAUTH_PROVIDER).await;
    run_scenarios_on(&host, scenarios).await;
}

async fn run_scenarios_on(host: &Host, scenarios: &[&str]) {
    let screenshots = std::env::var_os("SYNCLINE_SCREENSHOTS").map(repository);
    let options = json!({
        "host": host.base_url(), "secretKey": SECRET_KEY, "shopKey": SHOP_KEY, "scenarios": scenarios,
        "screenshots": screenshots,
    });
    run_in_browser("connect-ui/run.mjs", &options).await;
}

#[tokio::test]
async fn the_page_has_a_strict_security_policy_and_an_etag() {
    let db = TestDatabase::create().await;
    let ancestors = ("SYNCLINE_CONNECT_FRAME_ANCESTORS", "https://app.example.com");
    let host = HostOptions::new().database(&db).variable(ancestors.0, ancestors.1).spawn().await;
    let open = host.with_key(None);
    let page = open.get("/connect/").await.expect(200);
    assert_eq!(
        page.header("content-security-policy"),
        Some(
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
             base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; \
             frame-ancestors https://app.example.com"
        )
    );
    assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
    for (path, content_type) in [
        ("/connect/", "text/html; charset=utf-8"),
        ("/connect/connect.js", "text/javascript; charset=utf-8"),
        ("/connect/assets/main.js", "text/javascript; charset=utf-8"),
        ("/connect/assets/style.css", "text/css; charset=utf-8"),
        ("/connect/assets/locales/en.json", "application/json"),
    ] {
        let first = open.get(path).await.expect(200);
        assert_eq!(first.header("content-type"), Some(content_type), "{path}");
        assert_eq!(first.header("x-content-type-options"), Some("nosniff"), "{path}");
        let tag = first.header("etag").expect("the response has an ETag");
        let again =
            open.request("GET", path).header("If-None-Match", &format!("\"old\", {tag}")).send().await;
        assert_eq!(again.expect(304).text(), "", "{path}");
    }
    for path in ["/connect/assets/none.js", "/connect/assets/..%2f..%2fCargo.toml", "/connect/index.html"] {
        open.get(path).await.expect(404);
    }
}

#[tokio::test]
async fn a_page_on_another_domain_uses_the_public_api_url() {
    let db = TestDatabase::create().await;
    let host = HostOptions::new()
        .database(&db)
        .variable("SYNCLINE_CONNECT_URL", "https://connect.example.com/")
        .variable("SYNCLINE_PUBLIC_URL", "https://api.example.com/sync/")
        .spawn()
        .await;
    let page = host.with_key(None).get("/connect/").await.expect(200);
    assert!(page.text().contains(r#"content="https://api.example.com/sync""#), "{}", page.text());
    let policy = page.header("content-security-policy").expect("there is a policy");
    assert!(policy.contains("connect-src 'self' https://api.example.com wss://api.example.com;"), "{policy}");
    let made: Value = host.post("/connect/sessions", &json!({ "tags": {} })).await.expect(201).json();
    let link = made["data"]["connect_link"].as_str().unwrap_or_default();
    assert!(link.starts_with("https://connect.example.com/?session_token=nango_connect_session_"), "{link}");
}

#[tokio::test]
async fn end_users_connect_by_typing_credentials() {
    run_scenarios(&[
        "an_api_key_is_typed_and_checked",
        "mistakes_are_shown_at_their_fields",
        "predefined_values_are_not_asked_for",
        "integrations_with_the_same_name_show_their_keys",
        "everything_works_with_the_keyboard",
    ])
    .await;
}

#[tokio::test]
async fn end_users_connect_in_a_popup_window() {
    run_scenarios_with_oauth(&[
        "consent_is_given_in_a_popup",
        "consent_is_denied_in_a_popup",
        "a_connection_is_reconnected",
    ])
    .await;
}

#[tokio::test]
async fn a_closed_or_blocked_popup_can_be_reopened() {
    run_scenarios_with_oauth(&["the_popup_is_closed_early", "the_popup_is_blocked"]).await;
}

#[tokio::test]
async fn an_expired_session_shows_a_message() {
    run_scenarios(&[
        "an_ended_session_shows_a_message",
        "an_expiring_session_updates_the_page",
        "a_frame_without_a_token_shows_an_error",
    ])
    .await;
}

#[tokio::test]
async fn other_pages_embed_the_connect_ui() {
    run_scenarios(&[
        "the_published_client_opens_the_page",
        "connect_js_opens_the_page",
        "the_page_works_without_storage",
        "the_token_is_sent_only_to_the_api",
    ])
    .await;
}

#[tokio::test]
async fn theme_and_language_follow_the_settings() {
    run_scenarios(&["the_environment_sets_title_and_color", "the_page_uses_the_browsers_language"]).await;
}

#[tokio::test]
async fn every_state_is_accessible() {
    run_scenarios(&["every_state_is_accessible"]).await;
}
