//! Tests that every request to the provider has its own signature.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Redirect;
use serde_json::{Value, json};

use crate::stage::{Keys, Recorder, gateway, get, post, route_of};
use syncline_egress::{Credentials, OAuth1Keys};
use syncline_providers::Provider;
use syncline_test_server::{Seen, Server};

fn provider(mode: &str, more: Value) -> Arc<Provider> {
    let mut entry = json!({
        "name": "acme", "display_name": "Acme", "auth_mode": mode, "docs": "https://example.com",
        "source": { "address": "https://example.com", "checked_at": "2026-11-21" },
    });
    entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Arc::new(serde_json::from_value(entry).unwrap())
}

fn oauth1_keys() -> Credentials {
    Credentials::OAuth1(OAuth1Keys {
        consumer_key: "consumer".to_owned(),
        consumer_secret: "s3cret-1".into(),
        token: "token".into(),
        token_secret: "s3cret-2".into(),
    })
}

fn username_token() -> Credentials {
    Credentials::UsernameToken { username: "ada".into(), password: "s3cret".into() }
}

fn parameter<'a>(seen: &'a Seen, header: &str, name: &str) -> &'a str {
    let text = seen.headers[header].to_str().unwrap();
    let start = text.find(&format!("{name}=\"")).unwrap_or_else(|| panic!("no `{name}` in {text}"));
    text[start + name.len() + 2..].split('"').next().unwrap()
}

#[tokio::test]
async fn every_retry_and_redirect_has_a_new_signature() {
    let server = Server::start().await;
    server.answer(StatusCode::SERVICE_UNAVAILABLE).answer(Redirect::temporary("/b"));
    let gateway = gateway(&[server.address]);
    let mut route = route_of(
        provider("TBA", json!({ "signature_method": "HMAC-SHA256" })),
        &server.url(),
        Keys::one(oauth1_keys()),
    );
    route.connection_config.insert("accountId".to_owned(), json!("77-sb1"));
    let mut request = get("/a?q=1");
    request.retries = Some(1);
    gateway.send(&route, request, &()).await.unwrap();
    let seen = server.seen();
    assert_eq!(seen.iter().map(|seen| &*seen.path).collect::<Vec<_>>(), ["/a?q=1", "/a?q=1", "/b"]);
    for name in ["oauth_nonce", "oauth_signature"] {
        let different: BTreeSet<&str> =
            seen.iter().map(|seen| parameter(seen, "authorization", name)).collect();
        assert_eq!(different.len(), 3, "{name}: {different:?}");
    }
    assert_eq!(parameter(&seen[0], "authorization", "realm"), "77_SB1");
    assert_eq!(parameter(&seen[0], "authorization", "oauth_signature_method"), "HMAC-SHA256");
}

#[tokio::test]
async fn every_request_has_a_new_username_token_in_the_configured_header() {
    let server = Server::start().await;
    let gateway = gateway(&[server.address]);
    let usual = provider("SIGNATURE", json!({ "signature": "WSSE" }));
    let headers = json!({
        "signature": "WSSE", "proxy": { "headers": { "x-proof": "${accessToken}", "x-user": "${credentials.username}" } },
    });
    let elsewhere = provider("SIGNATURE", headers);
    for (provider, header) in [(usual, "x-wsse"), (elsewhere, "x-proof")] {
        let route = route_of(provider, &server.url(), Keys::one(username_token()));
        let before = server.seen().len();
        for _ in 0..2 {
            gateway.send(&route, get("/"), &()).await.unwrap();
        }
        let seen = &server.seen()[before..];
        assert_eq!(parameter(&seen[0], header, "Username"), "ada");
        assert_ne!(parameter(&seen[0], header, "Nonce"), parameter(&seen[1], header, "Nonce"));
        assert!(seen.iter().all(|seen| seen.headers.contains_key("x-wsse") == (header == "x-wsse")));
    }
}

#[tokio::test]
async fn other_origins_receive_no_signature_and_callers_cannot_set_one() {
    let (server, other) = (Server::start().await, Server::start().await);
    server.answer(Redirect::temporary(&format!("{}stolen", other.url())));
    let gateway = gateway(&[server.address, other.address]);
    let mut route = route_of(provider("OAUTH1", json!({})), &server.url(), Keys::one(oauth1_keys()));
    route.allow_hosts = vec![other.address.to_string().parse().unwrap()];
    gateway.send(&route, get("/"), &()).await.unwrap();
    assert!(server.seen()[0].headers.contains_key("authorization"));
    assert!(!other.seen()[0].headers.contains_key("authorization"));

    let mut request = get("/");
    request.headers.push(("Authorization".to_owned(), "OAuth oauth_token=\"mine\"".to_owned()));
    assert_eq!(gateway.send(&route, request, &()).await.unwrap_err().code().as_str(), "invalid-request");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn signing_secrets_are_neither_sent_nor_logged() {
    let server = Server::start().await;
    let gateway = gateway(&[server.address]);
    let recorder = Recorder::default();
    for (mode, credentials) in [("OAUTH1", oauth1_keys()), ("SIGNATURE", username_token())] {
        let route = route_of(provider(mode, json!({})), &server.url(), Keys::one(credentials));
        gateway.send(&route, post("/", "a=1"), &recorder).await.unwrap();
    }
    assert!(!format!("{:?} {:?}", server.seen(), recorder.lines()).contains("s3cret"));
}

#[tokio::test]
async fn a_provider_file_can_send_entered_fields_with_the_token() {
    let server = Server::start().await;
    let gateway = gateway(&[server.address]);
    let headers = json!({ "proxy": {
        "headers": { "authorization": "Token ${accessToken}", "x-tenant": "${credentials.tenant}" },
        "query": { "dev": "${credentials.key}" },
    } });
    let fields = [("tenant".to_owned(), "acme".into()), ("key".to_owned(), "s3cret".into())].into();
    let two_step = Credentials::Token { token: "t-1".into(), fields };
    let recorder = Recorder::default();
    let route = route_of(provider("TWO_STEP", headers), &server.url(), Keys::one(two_step));
    gateway.send(&route, get("/"), &recorder).await.unwrap();
    let seen = &server.seen()[0];
    assert_eq!(seen.headers["authorization"], "Token t-1");
    assert_eq!((seen.headers["x-tenant"].to_str().unwrap(), &*seen.path), ("acme", "/?dev=s3cret"));
    assert!(recorder.lines()[0].contains("dev=***"));

    let with_client_id = json!({ "proxy": { "headers": { "client-id": "${clientId}" } } });
    let oauth2 = Credentials::OAuth2 { access_token: "t-2".into(), client_id: Some("app-1".to_owned()) };
    let route = route_of(provider("OAUTH2", with_client_id), &server.url(), Keys::one(oauth2));
    gateway.send(&route, get("/"), &()).await.unwrap();
    let seen = &server.seen()[1];
    assert_eq!(
        (&seen.headers["client-id"], &seen.headers["authorization"]),
        (&"app-1".parse().unwrap(), &"Bearer t-2".parse().unwrap())
    );
}
