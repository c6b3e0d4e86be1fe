//! Tests that redirects follow the same rules as other requests, and that no destination receives more than it may.

use axum::response::{IntoResponse, Redirect, Response};

use crate::stage::{Keys, Recorder, gateway, get, post, route};
use syncline_egress::{Credentials, Route};
use syncline_test_server::Server;

fn to(server: &Server, path: &str) -> Response {
    Redirect::temporary(&format!("{}{path}", server.url())).into_response()
}

fn oauth_route(server: &Server) -> Route {
    route(
        "unauthenticated",
        &server.url(),
        Keys::one(Credentials::OAuth2 { access_token: "t-1".into(), client_id: None }),
    )
}

#[tokio::test]
async fn a_redirect_within_the_provider_keeps_credentials_and_headers() {
    let server = Server::start().await;
    server.answer(Redirect::temporary("/b?x=1"));
    let gateway = gateway(&[server.address]);
    let mut request = post("/a", "{}");
    request.headers.push(("x-tenant".to_owned(), "t".to_owned()));
    let recorder = Recorder::default();
    let response = gateway.send(&oauth_route(&server), request, &recorder).await.unwrap();
    assert_eq!(response.status, 200);
    let last = &server.seen()[1];
    assert_eq!((last.method.as_str(), last.path.as_str(), last.body.as_str()), ("POST", "/b?x=1", "{}"));
    assert_eq!(last.headers["authorization"], "Bearer t-1");
    assert_eq!(last.headers["x-tenant"], "t");
    let url = server.url();
    assert_eq!(recorder.lines(), [format!("1 POST {url}a 307"), format!("1 POST {url}b?x=1 200")]);
}

#[tokio::test]
async fn a_redirect_to_another_origin_drops_credentials_for_the_rest_of_the_chain() {
    let (provider, other) = (Server::start().await, Server::start().await);
    provider.answer(to(&other, "file"));
    other.answer(to(&provider, "v1/admin/delete"));
    let gateway = gateway(&[provider.address, other.address]);
    let mut route = oauth_route(&provider);
    route.allow_hosts = vec![other.address.to_string().parse().unwrap()];
    let mut request = post("/export", "{}");
    for (name, value) in [("x-tenant", "t"), ("cookie", "c"), ("content-type", "application/json")] {
        request.headers.push((name.to_owned(), value.to_owned()));
    }
    gateway.send(&route, request, &()).await.unwrap();
    for seen in [&other.seen()[0], &provider.seen()[1]] {
        assert_eq!(seen.body, "{}");
        assert_eq!(seen.headers["content-type"], "application/json");
        for name in ["authorization", "x-tenant", "cookie", "referer"] {
            assert!(!seen.headers.contains_key(name), "{name} went to {}", seen.path);
        }
    }
}

#[tokio::test]
async fn a_redirect_to_a_host_that_is_not_allowed_fails() {
    let (provider, other) = (Server::start().await, Server::start().await);
    provider.answer(to(&other, "file"));
    let gateway = gateway(&[provider.address, other.address]);
    let error = gateway.send(&oauth_route(&provider), get("/a"), &()).await.unwrap_err();
    assert_eq!(error.code().as_str(), "host-not-allowed");
    assert!(error.to_string().contains(&other.address.to_string()), "{error}");
    assert!(other.seen().is_empty());
}

#[tokio::test]
async fn a_redirect_to_a_private_address_fails() {
    let (provider, internal) = (Server::start().await, Server::start().await);
    // The integration allows the address, but the operator does not.
    let gateway = gateway(&[provider.address]);
    let mut route = oauth_route(&provider);
    let port = internal.address.port();
    route.allow_hosts = vec![format!("127.0.0.1:{port}").parse().unwrap()];
    for location in [
        format!("http://127.0.0.1:{port}/"),
        format!("https://0x7f.1:{port}/"),
        format!("//2130706433:{port}/"),
    ] {
        provider.answer(Redirect::temporary(&location));
        let error = gateway.send(&route, get("/a"), &()).await.unwrap_err();
        assert_eq!(error.code().as_str(), "address-not-allowed", "{location}");
    }
    assert!(internal.seen().is_empty());
}

#[tokio::test]
async fn a_redirect_after_a_form_becomes_a_get_without_a_body() {
    let server = Server::start().await;
    server.answer(Redirect::to("/done"));
    let gateway = gateway(&[server.address]);
    let mut request = post("/a", "x=1");
    request.headers.push(("content-type".to_owned(), "application/x-www-form-urlencoded".to_owned()));
    gateway.send(&oauth_route(&server), request, &()).await.unwrap();
    let last = &server.seen()[1];
    assert_eq!((last.method.as_str(), last.path.as_str(), last.body.as_str()), ("GET", "/done", ""));
    assert!(!last.headers.contains_key("content-type"));
}

#[tokio::test]
async fn the_sixth_redirect_fails() {
    let server = Server::start().await;
    let gateway = gateway(&[server.address]);
    for _ in 0..5 {
        server.answer(Redirect::temporary("/again"));
    }
    assert_eq!(gateway.send(&oauth_route(&server), get("/a"), &()).await.unwrap().status, 200);
    for _ in 0..6 {
        server.answer(Redirect::temporary("/again"));
    }
    let error = gateway.send(&oauth_route(&server), get("/a"), &()).await.unwrap_err();
    assert_eq!(error.code().as_str(), "too-many-redirects");
    assert_eq!(server.seen().len(), 6 + 6);
}

#[tokio::test]
async fn a_redirect_without_a_usable_location_is_an_answer() {
    let server = Server::start().await;
    server.answer(http::StatusCode::FOUND).answer((http::StatusCode::FOUND, [("location", "https://[")]));
    let gateway = gateway(&[server.address]);
    for _ in 0..2 {
        assert_eq!(gateway.send(&oauth_route(&server), get("/a"), &()).await.unwrap().status, 302);
    }
}
