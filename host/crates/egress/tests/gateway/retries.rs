//! Tests when a request is sent again, and with which credentials.

use std::time::Duration;

use chrono::DateTime;
use http::StatusCode;

use crate::stage::{Keys, Recorder, gateway, get, post, route, settings};
use syncline_egress::{Credentials, EgressGateway, Route};
use syncline_telemetry::clock::Clock;
use syncline_test_server::Server;

fn plain_route(server: &Server) -> Route {
    route("unauthenticated", &server.url(), Keys::one(Credentials::None))
}

fn token(text: &str) -> Credentials {
    Credentials::OAuth2 { access_token: text.into(), client_id: None }
}

#[tokio::test]
async fn temporary_errors_are_retried() {
    let server = Server::start().await;
    server.answer(StatusCode::SERVICE_UNAVAILABLE).answer(StatusCode::TOO_MANY_REQUESTS);
    let gateway = gateway(&[server.address]);
    let recorder = Recorder::default();
    let response = gateway.send(&plain_route(&server), get("/a"), &recorder).await.unwrap();
    assert_eq!(response.status, 200);
    let url = server.url();
    assert_eq!(
        recorder.lines(),
        [format!("1 GET {url}a 503"), format!("2 GET {url}a 429"), format!("3 GET {url}a 200")]
    );
}

#[tokio::test]
async fn the_last_answer_is_returned_after_all_retries() {
    let server = Server::start().await;
    for _ in 0..3 {
        server.answer((StatusCode::BAD_GATEWAY, "upstream"));
    }
    let gateway = gateway(&[server.address]);
    let response = gateway.send(&plain_route(&server), get("/a"), &()).await.unwrap();
    assert_eq!((response.status.as_u16(), &response.body[..]), (502, &b"upstream"[..]));
    assert_eq!(server.seen().len(), 3);
}

#[tokio::test]
async fn unsafe_requests_are_sent_once_unless_the_caller_asks_for_retries() {
    let server = Server::start().await;
    let gateway = gateway(&[server.address]);
    server.answer(StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(gateway.send(&plain_route(&server), post("/a", "x"), &()).await.unwrap().status, 503);
    assert_eq!(server.seen().len(), 1);
    server.answer(StatusCode::SERVICE_UNAVAILABLE);
    let mut request = post("/a", "x");
    request.retries = Some(1);
    assert_eq!(gateway.send(&plain_route(&server), request, &()).await.unwrap().status, 200);
    assert_eq!(server.seen()[2].body, "x");
}

#[tokio::test]
async fn a_retry_waits_as_long_as_the_provider_says() {
    let server = Server::start().await;
    server.answer((StatusCode::TOO_MANY_REQUESTS, [("retry-after", "2")]));
    let time = Clock::manual(DateTime::UNIX_EPOCH);
    let gateway = EgressGateway::new(settings(&[server.address]), time.clock()).unwrap();
    let route = plain_route(&server);
    let waits = async {
        time.wait_for_sleeper().await;
        time.advance(Duration::from_millis(1999));
        tokio::task::yield_now().await;
        assert_eq!(server.seen().len(), 1);
        time.advance(Duration::from_millis(1));
    };
    let (answer, ()) = tokio::join!(gateway.send(&route, get("/a"), &()), waits);
    assert_eq!(answer.unwrap().status, 200);
    assert_eq!(server.seen().len(), 2);
}

#[tokio::test]
async fn a_requested_delay_over_the_maximum_is_returned_to_the_caller() {
    let server = Server::start().await;
    server.answer((StatusCode::TOO_MANY_REQUESTS, [("retry-after", "3600")]));
    let gateway = gateway(&[server.address]);
    let response = gateway.send(&plain_route(&server), get("/a"), &()).await.unwrap();
    assert_eq!((response.status.as_u16(), &response.headers["retry-after"]), (429, &"3600".parse().unwrap()));
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_broken_connection_is_retried() {
    let broken = syncline_test_server::raw_server(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc").await;
    let gateway = gateway(&[broken]);
    let base = format!("http://{broken}").parse().unwrap();
    let route = route("unauthenticated", &base, Keys::one(Credentials::None));
    let recorder = Recorder::default();
    let error = gateway.send(&route, get("/a"), &recorder).await.unwrap_err();
    assert_eq!(error.code().as_str(), "network-error");
    assert_eq!(recorder.lines().len(), 3);
}

#[tokio::test]
async fn rejected_credentials_are_refreshed_once_for_any_method() {
    let server = Server::start().await;
    server.answer(StatusCode::UNAUTHORIZED);
    let gateway = gateway(&[server.address]);
    let stale = route("unauthenticated", &server.url(), Keys::several([token("old"), token("new")]));
    assert_eq!(gateway.send(&stale, post("/a", "x"), &()).await.unwrap().status, 200);
    let sent: Vec<_> = server.seen().iter().map(|seen| seen.headers["authorization"].clone()).collect();
    assert_eq!(sent, ["Bearer old", "Bearer new"]);

    server.answer(StatusCode::UNAUTHORIZED).answer(StatusCode::UNAUTHORIZED);
    let hopeless =
        route("unauthenticated", &server.url(), Keys::several([token("a"), token("b"), token("c")]));
    assert_eq!(gateway.send(&hopeless, get("/a"), &()).await.unwrap().status, 401);
    assert_eq!(server.seen().len(), 4);
}

#[tokio::test]
async fn a_401_without_newer_credentials_is_returned() {
    let server = Server::start().await;
    server.answer(StatusCode::UNAUTHORIZED);
    let gateway = gateway(&[server.address]);
    let route = route("unauthenticated", &server.url(), Keys::one(token("only")));
    assert_eq!(gateway.send(&route, get("/a"), &()).await.unwrap().status, 401);
    assert_eq!(server.seen().len(), 1);
}
