//! Slow, silent or misbehaving clients: the host answers or disconnects them, and waits for none indefinitely.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::webhook_scene::{SECRET, integration};
use crate::support::{
    EventStream, HostOptions, SECRET_KEY, Stage, TestDatabase, answer_to_slow_body, eventually,
};

/// A host with a client timeout of one second.
async fn with_short_timeout(variables: &[(&str, &str)]) -> Stage {
    let db = TestDatabase::create().await;
    let options = HostOptions::new().database(&db).variable("SYNCLINE_CLIENT_TIMEOUT_SECONDS", "1");
    let options = variables.iter().fold(options, |options, (name, value)| options.variable(name, value));
    let host = options.spawn().await;
    Stage::at(host, db).await
}

/// Sends bytes, and reads until the host disconnects.
async fn send_raw(stage: &Stage, bytes: &str) -> String {
    let mut stream = TcpStream::connect(stage.host.address()).await.expect("the host listens");
    stream.write_all(bytes.as_bytes()).await.expect("the host reads");
    let mut answer = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(15), stream.read_to_end(&mut answer)).await;
    // The connection may end regularly or with a reset.
    let _ended = read.expect("the host disconnects");
    String::from_utf8_lossy(&answer).into_owned()
}

fn head(path: &str, further: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET_KEY}\r\nConnection-Id: customer-1\r\n\
         Provider-Config-Key: hostile\r\nContent-Type: application/json\r\n{further}\r\n"
    )
}

#[tokio::test]
async fn a_client_that_stops_sending_is_disconnected() {
    let stage = with_short_timeout(&[]).await;
    // Before, within and after the request head.
    assert_eq!(send_raw(&stage, "").await, "");
    let within = send_raw(&stage, "GET /health HTTP/1.1\r\nHost: x\r\nX-Slow").await;
    assert!(!within.contains(" 200 "), "{within}");
    let behind = send_raw(&stage, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(behind.starts_with("HTTP/1.1 200 "), "{behind}");
    // Within a body with a length, and within a chunked body.
    let bodies = ["Content-Length: 100\r\n\r\n{\"action", "Transfer-Encoding: chunked\r\n\r\n4\r\n{\"ac\r\n"];
    let paths = ["/action/trigger", "/mcp", "/deployments", "/connections"];
    let requests = paths.into_iter().flat_map(|path| bodies.map(|body| (path, body)));
    futures_util::future::join_all(requests.map(async |(path, body)| {
        let kind = if path == "/deployments" { "application/x-tar" } else { "application/json" };
        let sent = head(path, "").replace("application/json", kind);
        let answer = send_raw(&stage, &format!("{}\r\nConnection: close\r\n{body}", sent.trim_end())).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{path}: {answer}");
        assert!(answer.contains("\"body_timeout\""), "{path}: {answer}");
    }))
    .await;
}

#[tokio::test]
async fn a_slow_but_steady_client_is_served() {
    let stage = with_short_timeout(&[]).await;
    let body = json!({ "action_name": "print", "input": "x" }).to_string();
    let length = format!("Content-Length: {}\r\nConnection: close\r\n", body.len());
    let mut stream = TcpStream::connect(stage.host.address()).await.unwrap();
    stream.write_all(head("/action/trigger", &length).as_bytes()).await.unwrap();
    let began = Instant::now();
    for part in body.as_bytes().chunks(8) {
        stream.write_all(part).await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(began.elapsed() > Duration::from_secs(1), "the upload takes longer than the client timeout");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn a_slow_unauthenticated_body_is_rejected_after_ten_seconds() {
    let db = TestDatabase::create().await;
    let host = HostOptions::new().database(&db).spawn().await;
    let webhook = integration(&host, "stripe-api-key", Value::Null, Some(SECRET)).await;
    futures_util::future::join_all(["/connect/telemetry", &webhook].map(async |path| {
        let stream = TcpStream::connect(host.address()).await.expect("the host listens");
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 4000\r\n\r\n");
        let answer = answer_to_slow_body(stream, &head).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{path}: {answer}");
        assert!(answer.contains("\"body_timeout\""), "{path}: {answer}");
        assert!(answer.contains("within 10 seconds"), "{path}: {answer}");
    }))
    .await;
}

#[tokio::test]
async fn an_unauthenticated_client_cannot_send_large_websocket_frames() {
    let db = TestDatabase::create().await;
    let host = HostOptions::new().database(&db).spawn().await;
    let mut stream = TcpStream::connect(host.address()).await.expect("the host listens");
    let upgrade = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                   Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: cGxhbnRlZC1ub25jZS0xMg==\r\n\r\n";
    stream.write_all(upgrade.as_bytes()).await.expect("the host reads");
    // A masked text frame that announces one megabyte and sends nothing of it.
    let mut frame = vec![0x81, 0xff];
    frame.extend((1_u64 << 20).to_be_bytes());
    frame.extend([0; 4]);
    stream.write_all(&frame).await.expect("the host reads");
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer)).await;
    let _ended = ended.expect("the host disconnects instead of waiting for the frame");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 101 ") && answer.contains("connection_ack"), "{answer}");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_disconnected() {
    let stage = with_short_timeout(&[("SYNCLINE_MAX_CHANGE_READERS", "1")]).await;
    let name = "x".repeat(500_000);
    for number in 0..8 {
        let items: Value =
            (0..6).map(|part| json!({ "id": format!("{number}-{part}"), "name": name })).collect();
        stage.save_raw("Item", &items.to_string()).await.expect(200);
    }
    // More data waits for the reader than the network buffers can hold.
    let unread = EventStream::open(&stage, &[("model", "Item")]).await;
    eventually("the reader's permit is free again", async || {
        let answer = stage.request("GET", "/records/changes?model=Item&wait=0&limit=1").send().await;
        (answer.status == 200).then_some(())
    })
    .await;
    drop(unread);
}

#[tokio::test]
async fn a_compressed_body_is_rejected_without_decompressing_it() {
    let stage = Stage::hostile().await;
    for encoding in ["gzip", "br", "deflate", "gzip, identity"] {
        for path in ["/action/trigger", "/mcp", "/connections"] {
            let request = stage.request("POST", path).header("Content-Encoding", encoding);
            let answer =
                request.header("Content-Type", "application/json").bytes(vec![31, 139, 8, 0]).send().await;
            assert_eq!(answer.refusal(), (415, "invalid_content_encoding".to_owned()), "{path} {encoding}");
        }
    }
    let body = json!({ "action_name": "print", "input": "x" });
    let plain = stage.request("POST", "/action/trigger").header("Content-Encoding", "identity").json(&body);
    plain.send().await.expect(200);
}

#[tokio::test]
async fn an_incomplete_request_has_no_effect() {
    let stage = Stage::hostile().await;
    for path in ["/action/trigger", "/mcp"] {
        let mut stream = TcpStream::connect(stage.host.address()).await.unwrap();
        let body =
            r#"{"action_name": "save-raw", "input": {"model": "Item", "items": "[{\"id\": \"half\"}]"}}"#;
        let length = format!("Content-Length: {}\r\n", body.len() + 1);
        stream.write_all(format!("{}{body}", head(path, &length)).as_bytes()).await.unwrap();
        drop(stream);
    }
    stage.save_raw("Item", r#"[{"id": "whole"}]"#).await.expect(200);
    assert_eq!(
        stage.page(&[("model", "Item")]).await.ids(),
        ["whole"],
        "an incomplete request has no effect"
    );
}
