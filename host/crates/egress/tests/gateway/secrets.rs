//! Tests which requests carry the credentials, and that nothing else does.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;

use crate::stage::{Keys, Recorder, gateway, get, route, route_of};
use syncline_egress::Credentials;
use syncline_providers::Provider;
use syncline_test_server::Server;

fn stripe_key() -> Credentials {
    Credentials::Basic { username: "rk_live_1".into(), password: "".into() }
}

/// A provider that expects its key as a query parameter.
fn provider_with_key_in_query() -> Arc<Provider> {
    Arc::new(
        serde_json::from_value(json!({
            "name": "weather", "display_name": "Weather", "auth_mode": "API_KEY", "docs": "https://example.com",
            "source": {"address": "https://example.com", "checked_at": "2026-11-21"},
            "proxy": {"query": {"appid": "${apiKey}"}}
        }))
        .unwrap(),
    )
}

#[tokio::test]
async fn a_user_name_and_password_are_sent_as_basic_authentication() {
    let server = Server::start().await;
    let gateway = gateway(&[server.address]);
    let mut route = route("stripe-api-key", &server.url(), Keys::one(stripe_key()));
    route.connection_config.insert("context".to_owned(), json!("acct_1"));
    let response = gateway.send(&route, get("/v1/customers?limit=3"), &()).await.unwrap();
    assert_eq!((response.status.as_u16(), &response.body[..]), (200, &b"ok"[..]));
    let seen = &server.seen()[0];
    assert_eq!(seen.path, "/v1/customers?limit=3");
    assert_eq!(seen.headers["authorization"], "Basic cmtfbGl2ZV8xOg==");
    assert_eq!(seen.headers["stripe-context"], "acct_1");
    assert!(seen.headers["user-agent"].to_str().unwrap().starts_with("syncline/"));
}

#[tokio::test]
async fn a_provider_file_defines_the_parts_of_basic_authentication() {
    let server = Server::start().await;
    let gateway = gateway(&[server.address]);
    let keys = Keys::one(Credentials::Basic { username: "a@b.c".into(), password: "tok".into() });
    gateway.send(&route("zendesk-api-key", &server.url(), keys), get("/"), &()).await.unwrap();
    // a@b.c/token:tok
    assert_eq!(server.seen()[0].headers["authorization"], "Basic YUBiLmMvdG9rZW46dG9r");
}

#[tokio::test]
async fn a_key_is_sent_in_the_header_that_the_provider_file_defines() {
    let server = Server::start().await;
    let gateway = gateway(&[server.address]);
    let route =
        route("github-pat", &server.url(), Keys::one(Credentials::ApiKey { api_key: "ghp_1".into() }));
    let mut request = get("/user");
    request.headers.push(("Accept".to_owned(), "text/plain".to_owned()));
    gateway.send(&route, request, &()).await.unwrap();
    let headers = &server.seen()[0].headers;
    assert_eq!(headers["authorization"], "Bearer ghp_1");
    assert_eq!(headers["x-github-api-version"], "2022-11-28");
    assert_eq!(headers.get_all("accept").iter().collect::<Vec<_>>(), ["text/plain"]);
}

#[tokio::test]
async fn tokens_are_sent_as_bearer_tokens_by_default() {
    let server = Server::start().await;
    let gateway = gateway(&[server.address]);
    for credentials in [
        Credentials::OAuth2 { access_token: "t-1".into(), client_id: None },
        Credentials::Token { token: "t-1".into(), fields: BTreeMap::new() },
    ] {
        let route = route("unauthenticated", &server.url(), Keys::one(credentials));
        gateway.send(&route, get("/"), &()).await.unwrap();
    }
    assert!(server.seen().iter().all(|seen| seen.headers["authorization"] == "Bearer t-1"));
}

#[tokio::test]
async fn a_key_in_the_query_replaces_the_callers_parameter_and_is_masked() {
    let server = Server::start().await;
    let gateway = gateway(&[server.address]);
    let keys = Keys::one(Credentials::ApiKey { api_key: "s3cr&t".into() });
    let route = route_of(provider_with_key_in_query(), &server.url(), keys);
    let recorder = Recorder::default();
    gateway.send(&route, get("/w?appid=mine&q=Oslo"), &recorder).await.unwrap();
    assert_eq!(server.seen()[0].path, "/w?q=Oslo&appid=s3cr%26t");
    assert_eq!(recorder.lines(), [format!("1 GET {}w?q=Oslo&appid=*** 200", server.url())]);
}

#[tokio::test]
async fn a_caller_cannot_set_the_header_that_carries_the_credentials() {
    let server = Server::start().await;
    let gateway = gateway(&[server.address]);
    let route = route("stripe-api-key", &server.url(), Keys::one(stripe_key()));
    let mut request = get("/");
    request.headers.push(("AUTHORIZATION".to_owned(), "Bearer mine".to_owned()));
    let error = gateway.send(&route, request, &()).await.unwrap_err();
    assert_eq!(error.code().as_str(), "invalid-request");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn an_allowed_host_receives_the_callers_headers_without_credentials() {
    let (provider, files) = (Server::start().await, Server::start().await);
    let gateway = gateway(&[provider.address, files.address]);
    // Requesting these credentials would fail, so the test shows that they are not requested.
    let mut route = route("stripe-api-key", &provider.url(), Keys::several([]));
    route.allow_hosts = vec![files.address.to_string().parse().unwrap()];
    let mut request = get(&format!("{}a.csv", files.url()));
    request.headers.push(("authorization".to_owned(), "Bearer mine".to_owned()));
    gateway.send(&route, request, &()).await.unwrap();
    assert_eq!(files.seen()[0].headers["authorization"], "Bearer mine");
    assert!(files.seen()[0].headers.get("stripe-context").is_none());
}

#[tokio::test]
async fn unavailable_and_unsuitable_credentials_are_reported() {
    let server = Server::start().await;
    let gateway = gateway(&[server.address]);
    let none = route("stripe-api-key", &server.url(), Keys::several([]));
    let error = gateway.send(&none, get("/"), &()).await.unwrap_err();
    assert_eq!(
        (error.code().as_str(), error.to_string().as_str()),
        ("credentials-unavailable", "the refresh token was revoked")
    );

    let other_kind = route("github-pat", &server.url(), Keys::one(stripe_key()));
    let error = gateway.send(&other_kind, get("/"), &()).await.unwrap_err();
    assert_eq!(
        (error.code().as_str(), error.to_string().as_str()),
        (
            "credentials-unavailable",
            "the provider file uses `apiKey`, which the connection's credentials do not contain"
        )
    );

    let unsendable = Keys::one(Credentials::ApiKey { api_key: "a\nb".into() });
    let error =
        gateway.send(&route("github-pat", &server.url(), unsendable), get("/"), &()).await.unwrap_err();
    assert_eq!(error.code().as_str(), "credentials-unavailable");
    assert!(!error.to_string().contains("a\nb"));
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn errors_and_log_lines_contain_no_secrets() {
    let keys = || Keys::one(Credentials::ApiKey { api_key: "s3cret".into() });
    let closed = Server::start().await.address;
    let gateway = gateway(&[closed]);
    let base = format!("http://{closed}").parse().unwrap();
    let route = route_of(provider_with_key_in_query(), &base, keys());
    let recorder = Recorder::default();
    let mut request = get("/a?access_token=alsosecret");
    request.retries = Some(0);
    let error = gateway.send(&route, request, &recorder).await.unwrap_err();
    assert_eq!(error.code().as_str(), "network-error");
    let printed = format!(
        "{error} {error:?} {:?} {:?}",
        recorder.lines(),
        Credentials::ApiKey { api_key: "s3cret".into() }
    );
    assert!(!printed.contains("s3cret") && !printed.contains("alsosecret"), "{printed}");
    assert!(printed.contains("appid=***"), "{printed}");
}
