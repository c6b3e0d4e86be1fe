//! Tests that answers are complete, decompressed, limited in size and in time.

use std::io::Write;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::StatusCode;

use crate::stage::{Keys, Recorder, gateway, get, route, settings};
use syncline_egress::{
    Credentials, EgressError, EgressGateway, EgressSettings, Request, Response as Answer, Route,
};
use syncline_telemetry::clock::Clock;
use syncline_test_server::{Server, raw_server};

fn plain_route(base: &str) -> Route {
    route("unauthenticated", &base.parse().unwrap(), Keys::one(Credentials::None))
}

async fn send_once(
    gateway: &EgressGateway,
    server: &Server,
    mut request: Request,
) -> Result<Answer, EgressError> {
    request.retries = Some(0);
    gateway.send(&plain_route(server.url().as_str()), request, &()).await
}

fn gzip(zeros: usize) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&vec![0; zeros]).unwrap();
    encoder.finish().unwrap()
}

fn gzipped(body: Vec<u8>) -> Response {
    ([("content-encoding", "gzip")], body).into_response()
}

#[tokio::test]
async fn an_answer_is_decompressed_and_its_headers_are_adapted() {
    let server = Server::start().await;
    server.answer(gzipped(gzip(100_000)));
    let gateway = gateway(&[server.address]);
    let mut request = get("/a");
    request.headers.push(("accept-encoding".to_owned(), "identity".to_owned()));
    let response = send_once(&gateway, &server, request).await.unwrap();
    assert_eq!(response.body.len(), 100_000);
    assert!(!response.headers.contains_key("content-encoding"));
    assert!(!response.headers.contains_key("content-length"));
    assert_eq!(server.seen()[0].headers["accept-encoding"], "gzip,br");
}

#[tokio::test]
async fn an_answer_with_several_gzip_members_is_read_completely() {
    let server = Server::start().await;
    let members = [gzip(100), gzip(20)].concat();
    let gateway = gateway(&[server.address]);
    for name in ["gzip", "GZIP", "x-gzip"] {
        server.answer(([("content-encoding", name)], members.clone()));
        let answer = send_once(&gateway, &server, get("/a")).await.unwrap();
        assert_eq!(answer.body.len(), 120, "{name}");
        assert!(!answer.headers.contains_key("content-encoding"), "{name}");
    }
    let broken = [&members[..], b"junk"].concat();
    server.answer(gzipped(broken));
    assert_eq!(send_once(&gateway, &server, get("/a")).await.unwrap_err().code().as_str(), "network-error");
    // An answer with an unknown encoding is returned as it is.
    server.answer(([("content-encoding", "gzip, gzip")], members.clone()));
    let answer = send_once(&gateway, &server, get("/a")).await.unwrap();
    assert_eq!(answer.body, members);
    assert_eq!(answer.headers["content-encoding"], "gzip, gzip");
}

#[tokio::test]
async fn a_small_body_that_decompresses_to_a_huge_one_is_rejected() {
    let server = Server::start().await;
    let bomb = gzip(200_000_000);
    assert!(bomb.len() < 1_000_000);
    server.answer(gzipped(bomb));
    let gateway = gateway(&[server.address]);
    let mut route = plain_route(server.url().as_str());
    route.max_response_bytes = Some(1_000_000);
    let error = gateway.send(&route, get("/a"), &()).await.unwrap_err();
    assert_eq!(error.code().as_str(), "response-too-large");
    assert!(error.to_string().ends_with("is longer than 1000000 bytes"), "{error}");
    assert_eq!(error.with_advice(), format!("{error}; request smaller pages"));
    assert_eq!(server.seen().len(), 1, "a retry would have the same result");
}

#[tokio::test]
async fn an_answer_may_be_exactly_as_long_as_the_limit() {
    let server = Server::start().await;
    server.answer("x".repeat(1000)).answer("x".repeat(1001));
    let gateway = EgressGateway::new(
        EgressSettings { max_response_bytes: 1000, ..settings(&[server.address]) },
        Clock::system(),
    );
    let gateway = gateway.unwrap();
    assert_eq!(send_once(&gateway, &server, get("/a")).await.unwrap().body.len(), 1000);
    assert_eq!(
        send_once(&gateway, &server, get("/a")).await.unwrap_err().code().as_str(),
        "response-too-large"
    );
}

#[tokio::test]
async fn an_empty_answer_with_a_content_encoding_is_accepted() {
    let server = Server::start().await;
    for status in [StatusCode::NO_CONTENT, StatusCode::NOT_MODIFIED, StatusCode::OK] {
        server.answer((status, [("content-encoding", "gzip")]));
    }
    let gateway = gateway(&[server.address]);
    for status in [204, 304] {
        assert_eq!(send_once(&gateway, &server, get("/a")).await.unwrap().status, status);
    }
    let head = Request { method: "HEAD".to_owned(), ..get("/a") };
    assert!(send_once(&gateway, &server, head).await.unwrap().body.is_empty());
}

#[tokio::test]
async fn a_connection_that_breaks_within_the_body_is_an_error() {
    for bytes in [
        &b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc"[..],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabcde\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\ncontent-encoding: gzip\r\n\r\n\x1f\x8b\x08\0\0\0\0\0\0\x03\x4b\x4c",
        b"HTTP/1.1 200 OK\r\ncontent-le",
        b"nonsense\r\n\r\n",
        b"",
    ] {
        let address = raw_server(bytes).await;
        let gateway = gateway(&[address]);
        let mut request = get("/a");
        request.retries = Some(0);
        let error = gateway.send(&plain_route(&format!("http://{address}")), request, &()).await.unwrap_err();
        assert_eq!(error.code().as_str(), "network-error", "{}", bytes.escape_ascii());
    }
}

#[tokio::test]
async fn an_unreachable_provider_is_a_network_error_with_its_cause() {
    let closed = Server::start().await.address;
    let gateway = gateway(&[closed]);
    let mut request = get("/a");
    request.retries = Some(0);
    let error = gateway.send(&plain_route(&format!("http://{closed}")), request, &()).await.unwrap_err();
    assert_eq!(error.code().as_str(), "network-error");
    assert!(error.to_string().starts_with(&format!("the request to `{closed}` failed: ")), "{error}");
    assert_eq!(error.with_advice(), format!("{error}; try again, or configure retries"));
}

#[tokio::test]
async fn a_server_without_tls_is_a_network_error() {
    let server = Server::start().await;
    let gateway = gateway(&[server.address]);
    let mut request = get("/a");
    request.retries = Some(0);
    let error =
        gateway.send(&plain_route(&format!("https://{}", server.address)), request, &()).await.unwrap_err();
    assert_eq!(error.code().as_str(), "network-error");
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn the_time_limit_covers_headers_and_body() {
    let server = Server::start().await;
    let never = futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>();
    server.answer(Body::from_stream(never));
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent_address = silent.local_addr().unwrap();
    let gateway = gateway(&[server.address, silent_address]);
    for base in [server.url().to_string(), format!("http://{silent_address}")] {
        let request = Request { timeout: Some(Duration::from_millis(200)), retries: Some(0), ..get("/a") };
        let started = Instant::now();
        let recorder = Recorder::default();
        let error = gateway.send(&plain_route(&base), request, &recorder).await.unwrap_err();
        assert_eq!(error.code().as_str(), "timeout");
        assert!(error.to_string().ends_with("did not answer within 0.2 s"), "{error}");
        assert_eq!(error.with_advice(), format!("{error}; try again, or configure retries"));
        assert!(started.elapsed() < Duration::from_secs(3));
        assert!(recorder.lines()[0].ends_with(" timeout"), "{:?}", recorder.lines());
    }
}

#[tokio::test]
async fn an_invalid_request_is_not_sent() {
    let server = Server::start().await;
    let gateway = gateway(&[server.address]);
    for method in ["", "GET /", "G\r\nT", "CONNECT", "trace"] {
        let request = Request { method: method.to_owned(), ..get("/a") };
        assert_eq!(
            send_once(&gateway, &server, request).await.unwrap_err().code().as_str(),
            "invalid-request",
            "{method}"
        );
    }
    let request = Request { headers: vec![("x".to_owned(), "1\r\ny: 2".to_owned())], ..get("/a") };
    assert_eq!(send_once(&gateway, &server, request).await.unwrap_err().code().as_str(), "invalid-request");
    assert!(server.seen().is_empty());
}
