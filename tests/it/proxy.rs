//! `/proxy/…`: requests of a backend to a provider, with the connection's credentials.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{
    Answer, BOMB_BYTES, Bundle, Connection, PROVIDER_KEY, Provider, SECRET_KEY, SHOP_KEY, Shop, Stage,
    eventually, repository,
};

/// Errors of the host do not have this header.
#[track_caller]
fn refusal(answer: &Answer) -> (u16, String) {
    assert_eq!(answer.header("syncline-proxied"), None, "{}", answer.text());
    answer.refusal()
}

#[track_caller]
fn assert_rejected(answer: &Answer, status: u16, code: &str) {
    assert_eq!(refusal(answer), (status, code.to_owned()), "{}", answer.text());
}

/// Sends a request of the connection as bytes on a new TCP connection.
async fn send_raw(provider: &Provider, head: &str) -> TcpStream {
    let mut stream = TcpStream::connect(provider.host.address()).await.expect("the connection works");
    let (first, rest) = head.split_once("\r\n").unwrap_or((head, ""));
    let request = format!(
        "{first}\r\nHost: x\r\nAuthorization: Bearer {SECRET_KEY}\r\nConnection-Id: {}\r\nProvider-Config-Key: {}\r\n{rest}",
        provider.connection.id, provider.connection.integration,
    );
    stream.write_all(request.as_bytes()).await.expect("the connection works");
    stream
}

/// Reads the first bytes of the response.
async fn read_first(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 4096];
    let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut bytes))
        .await
        .expect("the response arrives in time")
        .expect("the connection works");
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

/// Reads until the host closes the connection.
async fn read_raw(mut stream: TcpStream) -> String {
    let mut read = Vec::new();
    tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut read))
        .await
        .expect("the response arrives in time")
        .expect("the connection works");
    String::from_utf8_lossy(&read).into_owned()
}

/// A provider that answers every request with these bytes, and then closes the connection.
async fn raw_provider(answer: &'static [u8]) -> Provider {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("the listener has an address");
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection can be accepted");
            let mut seen = Vec::new();
            while !seen.ends_with(b"\r\n\r\n")
                && stream.read_buf(&mut seen).await.expect("the connection works") > 0
            {}
            stream.write_all(answer).await.expect("the connection works");
        }
    });
    let allow = address.to_string();
    let provider = Provider::start_with(|host| host.variable("SYNCLINE_EGRESS_ALLOW", &allow)).await;
    deploy_own(&provider, &format!("base_url = \"http://{address}\"")).await;
    provider
}

/// The bytes of the response to a request.
async fn raw_answer(provider: &Provider, request: &str) -> String {
    read_raw(send_raw(provider, &format!("{request}\r\nConnection: close\r\n\r\n")).await).await
}

#[tokio::test]
async fn a_backend_uses_a_real_api_through_its_connection() {
    let shop = Shop::start().await;
    let stage = Stage::stripe(&shop).await;
    let form = "application/x-www-form-urlencoded";
    let made = stage.request("POST", "/proxy/v1/customers").header("Content-Type", form);
    let made = made.bytes("name=Ada&email=ada%40example.com").send().await.expect(200);
    assert_eq!(made.header("syncline-proxied"), Some("true"));
    let id = made.json()["id"].as_str().expect("it exists").to_owned();
    assert_eq!(shop.get(&format!("/v1/customers/{id}")).await.json()["email"], "ada@example.com");

    let listed = stage.request("GET", "/proxy/v1/customers?limit=1&expand[]=data.sources").send().await;
    assert_eq!(listed.expect(200).json()["data"][0]["id"], json!(id));
    // The provider's usual address, although the integration has another base URL.
    let whole = format!("/proxy/https://api.stripe.com/v1/customers/{id}");
    assert_eq!(stage.request("GET", &whole).send().await.expect(200).json()["name"], "Ada");
    let gone = stage.request("DELETE", &format!("/proxy/v1/customers/{id}")).send().await.expect(200);
    assert_eq!(gone.json()["deleted"], true);

    let missing = stage.request("GET", "/proxy/v1/customers/cus_nobody").send().await.expect(404);
    assert_eq!(missing.header("syncline-proxied"), Some("true"));
    assert!(missing.json()["error"]["type"].is_string(), "the shop's own error: {}", missing.text());
    assert!(!stage.host.log().contains(SHOP_KEY));
}

#[tokio::test]
async fn the_provider_receives_the_path_query_and_forwarded_headers() {
    let provider = Provider::start().await;
    let answer = provider
        .connection
        .request("PATCH", "/proxy/v1/a%2Fb%20c/%E2%9C%93?x=%20y&tags[]=1&tags[]=2&e")
        .header("Nango-Proxy-X-Tenant", "t 1")
        .header("NANGO-PROXY-ACCEPT", "application/vnd.api+json")
        .header("X-Private", "for the host")
        .header("Base-Url-Override", "")
        .header("Nango-Activity-Log-Id", "")
        .header("Content-Type", "application/json; charset=utf-8")
        .bytes(r#"{"a":1}"#)
        .send()
        .await
        .expect(200);
    let seen = answer.json();
    assert_eq!(seen["method"], "PATCH");
    assert_eq!(seen["target"], "/api/v1/a%2Fb%20c/%E2%9C%93?x=%20y&tags[]=1&tags[]=2&e");
    assert_eq!(seen["body"], r#"{"a":1}"#);
    let headers = seen["headers"].as_object().unwrap();
    let mut names: Vec<&str> = headers.keys().map(String::as_str).collect();
    names.sort_unstable();
    let expected =
        ["accept", "content-length", "content-type", "host", "user-agent", "x-api-key", "x-tenant"];
    assert_eq!(names, expected);
    assert_eq!(headers["accept"], "application/vnd.api+json");
    assert_eq!(headers["content-type"], "application/json; charset=utf-8");
    assert_eq!(headers["x-tenant"], "t 1");
    assert_eq!(headers["x-api-key"], PROVIDER_KEY);

    assert_eq!(answer.header("syncline-proxied"), Some("true"));
    assert_eq!(answer.header("x-of-provider"), Some("1"));
    assert_eq!(answer.header("x-request-id"), Some("of-the-provider"));
    assert_eq!(answer.header("content-length"), Some(answer.body.len().to_string().as_str()));
    assert_eq!(answer.header("keep-alive"), None);
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
}

#[tokio::test]
async fn every_method_is_forwarded() {
    let provider = Provider::start().await;
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND", "REPORT"] {
        let answer = provider.connection.request(method, "/proxy/v1").send().await.expect(200);
        assert_eq!(answer.json()["method"], method);
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
        // Some servers answer 411 if a request that usually has a body does not state its length.
        let length = if ["POST", "PUT", "PATCH"].contains(&method) { json!("0") } else { Value::Null };
        assert_eq!(answer.json()["headers"]["content-length"], length, "{method}");
    }
    let head = provider.connection.request("HEAD", "/proxy/v1").send().await.expect(200);
    assert_eq!((head.header("x-of-provider"), head.body.len()), (Some("1"), 0));
    for path in ["/proxy", "/proxy/"] {
        let answer = provider.connection.request("GET", path).send().await;
        assert_eq!(answer.header("syncline-proxied"), Some("true"), "{path}");
    }
    for path in ["/proxy/v1", "/proxy", "/proxy/"] {
        let trace = provider.connection.request("TRACE", path).send().await;
        assert_rejected(&trace, 405, "method_not_allowed");
        assert_eq!(trace.header("allow"), Some("GET,HEAD,POST,PUT,PATCH,DELETE,OPTIONS"), "{path}");
    }
}

#[tokio::test]
async fn cors_preflight_requests_are_answered_by_the_host() {
    let provider = Provider::start().await;
    for path in ["/proxy/v1", "/proxy", "/connections"] {
        let asked =
            provider.host.with_key(None).request("OPTIONS", path).header("Origin", "https://app.example.com");
        let answer = asked.header("Access-Control-Request-Method", "POST").send().await.expect(200);
        assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "{path}");
        assert!(
            answer.header("access-control-allow-methods").is_some_and(|methods| methods.contains("POST"))
        );
        assert_eq!(answer.header("syncline-proxied"), None);
        let headers = answer.header("access-control-allow-headers").expect("some are allowed");
        // Headers that browser tracing adds automatically.
        assert!(headers.contains("sentry-trace") && headers.contains("baggage"), "{headers}");
    }
    // Without the preflight headers it is an ordinary request, which requires a key.
    let stranger = provider.connection.through(&provider.host.with_key(None));
    assert_rejected(&stranger.request("OPTIONS", "/proxy/v1").send().await, 401, "missing_auth_header");
    assert_eq!(provider.server.seen.requests(), [] as [Value; 0]);
}

#[tokio::test]
async fn a_request_requires_a_key_a_scope_and_an_existing_connection() {
    let provider = Provider::start().await;
    let api = &provider.host;
    assert_rejected(&api.with_key(None).get("/proxy/v1").await, 401, "missing_auth_header");
    assert_rejected(&api.get("/proxy/v1").await, 400, "invalid_headers");
    let unknown = provider.connection.with_id("nobody");
    assert_rejected(&unknown.request("GET", "/proxy/v1").send().await, 404, "unknown_connection");
    let request = api.request("GET", "/proxy/v1").header("Connection-Id", "customer-1");
    let answer = request.header("Provider-Config-Key", "nowhere").send().await;
    assert_rejected(&answer, 404, "unknown_integration");
    let reader = provider.host.create_key(&provider.db, "reader", "read-only");
    let reading = provider.connection.through(&api.with_key(Some(&reader)));
    assert_rejected(&reading.request("GET", "/proxy/v1").send().await, 403, "forbidden");
    assert_eq!(provider.server.seen.requests(), [] as [Value; 0]);
}

#[tokio::test]
async fn invalid_settings_and_reserved_headers_are_rejected() {
    let provider = Provider::start().await;
    for (name, value, code) in [
        ("Retries", "many", "invalid_headers"),
        ("Retries", "-1", "invalid_headers"),
        ("Retry-On", "4xx", "invalid_headers"),
        ("Decompress", "perhaps", "invalid_headers"),
        ("Forward-Headers-On-Redirect", "2", "invalid_headers"),
        ("Base-Url-Override", "example.com", "invalid_headers"),
        ("Base-Url-Override", "https://u:p@example.com", "invalid_headers"),
        ("Nango-Is-Sync", "maybe", "invalid_headers"),
        ("Nango-Proxy-", "x", "invalid_headers"),
        ("Nango-Proxy-Host", "example.com", "invalid_proxy_request"),
        ("Nango-Proxy-Connection", "close", "invalid_proxy_request"),
        ("Nango-Proxy-Transfer-Encoding", "chunked", "invalid_proxy_request"),
        ("Nango-Proxy-Upgrade", "websocket", "invalid_proxy_request"),
        ("Nango-Proxy-Proxy-Authorization", "Basic x", "invalid_proxy_request"),
        ("Nango-Proxy-TE", "trailers", "invalid_proxy_request"),
        ("Nango-Proxy-X-Api-Key", "mine", "invalid_proxy_request"),
    ] {
        let answer = provider.connection.request("GET", "/proxy/v1").header(name, value).send().await;
        assert_rejected(&answer, 400, code);
    }
    let long = "x".repeat(256);
    let request = provider.connection.request("GET", "/proxy/v1").header("Nango-Activity-Log-Id", &long);
    assert_rejected(&request.send().await, 400, "invalid_headers");
    assert_eq!(provider.server.seen.requests(), [] as [Value; 0]);
}

#[tokio::test]
async fn header_and_path_smuggling_is_rejected() {
    let provider = Provider::start().await;
    for head in [
        "GET /proxy/../health HTTP/1.1\r\n",
        "GET /proxy/../../v1 HTTP/1.1\r\n",
        "GET /proxy/%2e%2e/v1 HTTP/1.1\r\n",
        "GET /proxy/..%2fv1 HTTP/1.1\r\n",
        "GET /proxy/a/%2e%2e%2f..%5cv1 HTTP/1.1\r\n",
        "GET /proxy/v1 HTTP/1.1\r\nNango-Proxy-X: a\rNango-Proxy-Y: b\r\n",
        "GET /proxy/v1 HTTP/1.1\r\nNango-Proxy-X: a\r\n folded: b\r\n",
        "GET /proxy/v1 HTTP/1.1\r\nNango-Proxy-X Y: a\r\n",
        "GET /proxy/v1 HTTP/1.1\r\nNango-Proxy-X: a\0b\r\n",
        "POST /proxy/v1 HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
    ] {
        let stream = send_raw(&provider, &format!("{head}Connection: close\r\n\r\n")).await;
        let answer = read_raw(stream).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{head:?}: {answer}");
        assert!(!answer.contains("\r\nsyncline-proxied:"), "{head:?}: {answer}");
    }
    let long = format!("GET /proxy/v1 HTTP/1.1\r\nNango-Proxy-X: {}\r\n\r\n", "x".repeat(600_000));
    let answer = read_raw(send_raw(&provider, &long).await).await;
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(provider.server.seen.requests(), [] as [Value; 0]);
    // In the path, an encoded line break is an ordinary character.
    let answer = provider.connection.request("GET", "/proxy/a%0d%0aX-Y:%20z").send().await.expect(200);
    assert_eq!(answer.json()["target"], "/api/a%0d%0aX-Y:%20z");
}

#[tokio::test]
async fn an_oversized_body_is_rejected_before_it_is_sent() {
    let provider = Provider::start().await;
    let gibibyte = 1_u64 << 30;
    let head = format!(
        "POST /proxy/upload HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        gibibyte + 1
    );
    let mut stream = send_raw(&provider, &head).await;
    let answer = read_first(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("payload_too_large"), "{answer}");
    assert_eq!(provider.server.seen.requests(), [] as [Value; 0]);
}

#[tokio::test]
async fn bodies_are_streamed_in_both_directions() {
    let provider = Provider::start().await;
    // Request body: the provider receives the first part before the second is sent.
    let head = "POST /proxy/upload HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let mut stream = send_raw(&provider, head).await;
    stream.write_all(b"5\r\nhello\r\n").await.unwrap();
    let received = &provider.server.seen.received_bytes;
    eventually("the first part has arrived", async || (received.load(Ordering::SeqCst) == 5).then_some(()))
        .await;
    stream.write_all(b"3\r\nyou\r\n0\r\n\r\n").await.unwrap();
    let answer = read_raw(stream).await;
    assert!(answer.contains(r#"{"bytes":8}"#), "{answer}");

    // Response body: each part arrives before the next is produced.
    let mut stream = send_raw(&provider, "GET /proxy/paced HTTP/1.1\r\n\r\n").await;
    let mut seen = String::new();
    for number in 1..=3 {
        provider.server.seen.parts.send_one();
        while seen.matches("part;").count() < number {
            let read = read_first(&mut stream).await;
            assert!(!read.is_empty(), "{seen}");
            seen.push_str(&read);
        }
        assert_eq!(seen.matches("part;").count(), number);
    }
}

#[tokio::test]
async fn small_response_chunks_do_not_wait_for_tcp_acknowledgements() {
    let provider = Provider::start().await;
    let mut stream = send_raw(&provider, "GET /proxy/paced HTTP/1.1\r\n\r\n").await;
    let mut waits = Vec::new();
    for _ in 0..60 {
        // As a client that sends nothing else, which acknowledges only after 40 ms.
        #[cfg(target_os = "linux")]
        rustix::net::sockopt::set_tcp_quickack(&stream, false).expect("it is open");
        let began = Instant::now();
        provider.server.seen.parts.send_one();
        loop {
            let read = read_first(&mut stream).await;
            assert!(!read.is_empty(), "the answer ends after {waits:?}");
            if read.contains("part;") {
                break;
            }
        }
        waits.push(began.elapsed());
    }
    waits.sort_unstable();
    assert!(waits[waits.len() * 3 / 4] < Duration::from_millis(30), "{waits:?}");
}

#[tokio::test]
async fn a_long_body_is_not_buffered() {
    let provider = Provider::start().await;
    let before = provider.host.peak_memory_mb();
    let chunk = bytes::Bytes::from(vec![b'x'; 1 << 20]);
    let body = stream::iter(std::iter::repeat_n(chunk, 300).map(Ok::<_, std::io::Error>));
    let body = reqwest::Body::wrap_stream(body);
    let answer = provider.connection.request("PUT", "/proxy/upload").bytes(body).send().await.expect(200);
    assert_eq!(answer.json()["bytes"], 300 << 20);
    let more = provider.host.peak_memory_mb() - before;
    assert!(more < 50, "the host used {more} MB");
}

#[tokio::test]
async fn a_truncated_response_does_not_look_complete() {
    let provider = Provider::start().await;
    let chunked = send_raw(&provider, "GET /proxy/cut HTTP/1.1\r\n\r\n").await;
    let answer = read_raw(chunked).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("12345"), "{answer}");
    assert!(!answer.ends_with("0\r\n\r\n"), "{answer}");
    let with_length = send_raw(&provider, "GET /proxy/cut?with-length HTTP/1.1\r\n\r\n").await;
    let answer = read_raw(with_length).await;
    assert!(answer.contains("content-length: 10") && answer.ends_with("12345"), "{answer}");
    // Before the response head is sent, the host can still answer with its own error.
    let answer = provider.connection.request("GET", "/proxy/cut-early").send().await;
    assert_rejected(&answer, 502, "upstream_failed");
    assert!(!answer.message().contains("/api/"), "{}", answer.message());
}

#[tokio::test]
async fn a_response_keeps_the_providers_framing() {
    const GET: &str = "GET /proxy/v1 HTTP/1.1";
    // A length that is too small would truncate the response. One that is too large would make the client wait.
    for length in ["5", "500"] {
        let framed =
            format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n");
        let answer = format!("{framed}14\r\n0123456789abcdefghij\r\n0\r\n\r\n");
        let provider = raw_provider(answer.leak().as_bytes()).await;
        let answer = raw_answer(&provider, GET).await;
        assert!(answer.ends_with("\r\n\r\n14\r\n0123456789abcdefghij\r\n0\r\n\r\n"), "{answer}");
        assert!(!answer.contains("\r\ncontent-length:"), "{answer}");
    }
    let provider = raw_provider(b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\n\r\nhello").await;
    let answer = raw_answer(&provider, GET).await;
    assert!(answer.contains("\r\ncontent-length: 5\r\n") && answer.ends_with("\r\n\r\nhello"), "{answer}");
    let provider = raw_provider(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n").await;
    let answer = raw_answer(&provider, GET).await;
    assert!(answer.starts_with("HTTP/1.1 204 ") && !answer.contains("\r\ncontent-length:"), "{answer}");
}

#[tokio::test]
async fn a_partial_response_is_forwarded_before_the_connection_breaks() {
    const CHUNKED: &str = "HTTP/1.1 200 OK\r\nX-Of-Provider: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
    const PACKED: &str =
        "HTTP/1.1 200 OK\r\nX-Of-Provider: 1\r\nContent-Encoding: gzip\r\nContent-Length: 8\r\n\r\n";
    for (answer, headers, last) in [
        (format!("{CHUNKED}zz\r\nhello\r\n"), "", "\r\n\r\n"),
        (format!("{CHUNKED}5\r\nhello\r\nzz\r\n"), "", "\r\n5\r\nhello\r\n"),
        (CHUNKED.to_owned(), "", "\r\n\r\n"),
        (format!("{PACKED}nonsense"), "\r\nDecompress: true", "\r\n\r\n"),
    ] {
        let provider = raw_provider(answer.clone().leak().as_bytes()).await;
        let passed = raw_answer(&provider, &format!("GET /proxy/v1 HTTP/1.1{headers}")).await;
        assert!(passed.starts_with("HTTP/1.1 200 "), "{answer:?}: {passed:?}");
        assert!(passed.contains("\r\nx-of-provider: 1\r\n"), "{answer:?}: {passed:?}");
        // The last chunk is missing.
        assert!(passed.ends_with(last), "{answer:?}: {passed:?}");
    }
}

#[tokio::test]
async fn a_silent_provider_or_client_times_out() {
    let provider = Provider::start_with(|host| host.variable("SYNCLINE_PROXY_TIMEOUT_SECONDS", "1")).await;
    let began = Instant::now();
    let answer = provider.connection.request("GET", "/proxy/silence").send().await;
    assert_rejected(&answer, 504, "upstream_timeout");
    assert!(answer.message().ends_with("; try again, or configure retries"), "{}", answer.message());
    let was_abandoned = async || provider.server.seen.was_abandoned.load(Ordering::SeqCst).then_some(());
    eventually("the host disconnected from the provider", was_abandoned).await;

    let stalled = read_raw(send_raw(&provider, "GET /proxy/stall HTTP/1.1\r\n\r\n").await).await;
    assert!(stalled.contains("part;") && !stalled.ends_with("0\r\n\r\n"), "{stalled}");

    let head = "POST /proxy/upload HTTP/1.1\r\nContent-Length: 10\r\n\r\nhello";
    let answer = read_first(&mut send_raw(&provider, head).await).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("body_timeout"), "{answer}");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_slow_upload_does_not_count_as_a_silent_provider() {
    let provider = Provider::start_with(|host| host.variable("SYNCLINE_PROXY_TIMEOUT_SECONDS", "1")).await;
    let body = stream::iter(0..5).then(async |_| {
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok::<_, std::io::Error>("part;")
    });
    let body = reqwest::Body::wrap_stream(body);
    let answer = provider.connection.request("POST", "/proxy/upload").bytes(body).send().await.expect(200);
    assert_eq!(answer.json()["bytes"], 25);
}

#[tokio::test]
async fn redirects_restart_the_provider_timeout() {
    let provider = Provider::start_with(|host| host.variable("SYNCLINE_PROXY_TIMEOUT_SECONDS", "3")).await;
    let answer = provider.connection.request("GET", "/proxy/slow-redirect?3").send().await.expect(200);
    assert_eq!(answer.json()["target"], "/api/slow-redirect?0");
}

#[tokio::test]
async fn a_client_that_disconnects_cancels_the_provider_request() {
    let provider = Provider::start().await;
    let stream = send_raw(&provider, "GET /proxy/silence HTTP/1.1\r\n\r\n").await;
    let seen = &provider.server.seen;
    eventually("the provider receives the request", async || (!seen.requests().is_empty()).then_some(()))
        .await;
    drop(stream);
    eventually("the host disconnects from the provider", async || {
        seen.was_abandoned.load(Ordering::SeqCst).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_compressed_response_stays_compressed_unless_requested() {
    let provider = Provider::start().await;
    let before = provider.host.peak_memory_mb();
    let head = "GET /proxy/bomb HTTP/1.1\r\nConnection: close\r\n\r\n";
    let packed = read_raw(send_raw(&provider, head).await).await;
    assert!(packed.starts_with("HTTP/1.1 200 ") && packed.contains("content-encoding: gzip"));
    assert!(packed.len() < BOMB_BYTES / 100, "{}", packed.len());
    let request = provider.connection.request("GET", "/proxy/bomb").header("Decompress", "true");
    let unpacked = request.send().await.expect(200);
    assert_eq!((unpacked.header("content-encoding"), unpacked.header("content-length")), (None, None));
    assert_eq!(unpacked.body.len(), BOMB_BYTES);
    let more = provider.host.peak_memory_mb() - before;
    assert!(more < 50, "the host used {more} MB");
    let request = provider.connection.request("GET", "/proxy/members").header("Decompress", "true");
    assert_eq!(request.send().await.expect(200).text(), "one;two;");
    // The client chooses the accepted encodings.
    let request =
        provider.connection.request("GET", "/proxy/v1").header("Nango-Proxy-Accept-Encoding", "zstd");
    assert_eq!(request.send().await.expect(200).json()["headers"]["accept-encoding"], "zstd");
    let plain = provider.connection.request("GET", "/proxy/v1").send().await.expect(200);
    assert_eq!(plain.json()["headers"]["accept-encoding"], Value::Null);
}

async fn attempt(connection: &Connection, headers: &[(&str, &str)], body: Option<Vec<u8>>) -> Answer {
    let method = if body.is_some() { "POST" } else { "GET" };
    let status = headers.iter().find(|(name, _)| *name == "?").map_or("503", |(_, status)| *status);
    let request = connection.request(method, &format!("/proxy/flaky?{status}"));
    let headers = headers.iter().filter(|(name, _)| *name != "?");
    let request = headers.fold(request, |request, (name, value)| request.header(name, value));
    match body {
        Some(body) => request.bytes(body).send().await,
        None => request.send().await,
    }
}

#[tokio::test]
async fn a_request_is_retried_as_its_headers_specify() {
    let seen_requests = |provider: &Provider| provider.server.seen.requests().len();

    let provider = Provider::start().await;
    let answer = attempt(&provider.connection, &[], None).await.expect(503);
    assert_eq!((answer.text().as_str(), answer.header("syncline-proxied")), ("not now", Some("true")));
    assert_eq!(seen_requests(&provider), 1);

    let provider = Provider::start().await;
    let body = vec![b'x'; 100_000];
    let answer = attempt(&provider.connection, &[("Retries", "1")], Some(body.clone())).await.expect(200);
    assert_eq!(answer.json()["body"].as_str().unwrap().len(), body.len());
    assert_eq!(seen_requests(&provider), 2);

    let provider = Provider::start().await;
    let settings = [("?", "409"), ("Retries", "3"), ("Retry-On", "404,409")];
    attempt(&provider.connection, &settings, None).await.expect(200);
    assert_eq!(seen_requests(&provider), 2);

    // A body that is too long to buffer is sent only once.
    let provider = Provider::start().await;
    attempt(&provider.connection, &[("Retries", "3")], Some(vec![b'x'; 3 << 20])).await.expect(503);
    assert_eq!(seen_requests(&provider), 1);
}

#[tokio::test]
async fn redirects_are_followed_only_to_allowed_hosts() {
    let provider = Provider::start().await;
    let (own, other) = (provider.server.base_url(), provider.elsewhere.base_url());
    let redirect = |status: u16, to: &str| {
        let location: String = url::form_urlencoded::byte_serialize(to.as_bytes()).collect();
        format!("/proxy/redirect?{status}={location}")
    };
    let followed = provider.connection.request("POST", &redirect(307, &format!("{own}/v2"))).bytes("again");
    let followed = followed.send().await.expect(200).json();
    assert_eq!((&followed["target"], &followed["body"]), (&json!("/api/v2"), &json!("again")));
    assert_eq!(followed["headers"]["x-api-key"], PROVIDER_KEY);

    let away = provider.connection.request("GET", &redirect(302, &format!("{other}/v2"))).send().await;
    assert_rejected(&away, 502, "redirect_not_allowed");
    assert_eq!(provider.elsewhere.seen.requests(), [] as [Value; 0]);

    let long = provider.connection.request("PUT", &redirect(308, "/api/v2")).bytes(vec![b'x'; 3 << 20]);
    assert_rejected(&long.send().await, 502, "redirect_not_allowed");
    // A redirect that drops the body does not need a buffered one.
    for (method, status) in [("POST", 302), ("PUT", 303)] {
        let long =
            provider.connection.request(method, &redirect(status, "/api/v2")).bytes(vec![b'x'; 3 << 20]);
        let followed = long.send().await.expect(200).json();
        assert_eq!((&followed["method"], &followed["body"]), (&json!("GET"), &json!("")));
    }

    let round = provider.connection.request("GET", "/proxy/loop").send().await;
    assert_rejected(&round, 502, "too_many_redirects");
}

/// Allows the integration to reach the other server, as its author would.
async fn allow_elsewhere(provider: &Provider) {
    deploy_own(provider, &format!("allow_hosts = [\"{}\"]", provider.elsewhere.address)).await;
}

/// Deploys the integration with one more line of configuration.
async fn deploy_own(provider: &Provider, line: &str) {
    let allowed = format!("[integrations.own]\nprovider = \"tests-own\"\n{line}");
    let bundle = Bundle::example("minimal")
        .replace("[integrations.minimal]\nprovider = \"unauthenticated\"", &allowed)
        .replace("[integrations.minimal.syncs.numbers]", "[integrations.own.syncs.numbers]")
        .replace("[integrations.minimal.actions.echo]", "[integrations.own.actions.echo]");
    provider.host.deploy(&bundle).await;
}

#[tokio::test]
async fn an_overridden_base_url_must_be_allowed_and_gets_no_credentials() {
    let provider = Provider::start().await;
    let with =
        |base: &str, path: &str| provider.connection.request("GET", path).header("Base-Url-Override", base);
    // An address that the operator allows is not automatically allowed for this integration.
    let elsewhere = provider.elsewhere.base_url();
    let refused = with(&elsewhere, "/proxy/v1").send().await;
    assert_rejected(&refused, 400, "base_url_override_not_allowed");
    // The message must name the setting that helps.
    assert!(refused.message().contains("`allow_hosts`"), "{}", refused.message());
    assert!(!refused.message().contains("SYNCLINE_EGRESS_ALLOW"), "{}", refused.message());
    assert_eq!(provider.elsewhere.seen.requests().len(), 0);
    allow_elsewhere(&provider).await;

    let other = with(&elsewhere, "/proxy/v1?a=b").send().await.expect(200).json();
    assert_eq!(other["target"], "/api/v1?a=b");
    assert_eq!(other["headers"]["x-api-key"], Value::Null);
    assert_eq!(provider.elsewhere.seen.requests().len(), 1);
    assert_rejected(
        &with(&provider.elsewhere.base_url(), "/proxy/..%2fv1").send().await,
        400,
        "invalid_proxy_request",
    );

    let own = with(&format!("{}/v2", provider.server.base_url()), "/proxy/a").send().await.expect(200).json();
    assert_eq!((&own["target"], &own["headers"]["x-api-key"]), (&json!("/api/v2/a"), &json!(PROVIDER_KEY)));

    for base in ["https://example.com", "http://127.0.0.1:1", "http://169.254.169.254", "https://localhost"] {
        assert_rejected(&with(base, "/proxy/v1").send().await, 400, "base_url_override_not_allowed");
    }
    for whole in ["https://example.com/v1", "http://169.254.169.254/latest", "http://127.0.0.1:1/"] {
        let answer = provider.connection.request("GET", &format!("/proxy/{whole}")).send().await;
        assert_rejected(&answer, 400, "host_not_allowed");
    }
}

#[tokio::test]
async fn an_absolute_url_under_the_integrations_base_url_keeps_its_path() {
    let provider = Provider::start().await;
    let usual = provider.server.base_url();
    deploy_own(&provider, &format!("base_url = \"{usual}/shop\"")).await;
    for (whole, target) in [
        (format!("{usual}/shop/v1?a=b"), "/api/shop/v1?a=b"),
        (format!("{usual}/shop"), "/api/shop"),
        // The usual address is replaced by the base URL.
        (format!("{usual}/v1?a=b"), "/api/shop/v1?a=b"),
        (format!("{usual}/shopping"), "/api/shop/shopping"),
    ] {
        let answer = provider.connection.request("GET", &format!("/proxy/{whole}")).send().await.expect(200);
        assert_eq!(answer.json()["target"], target, "{whole}");
        assert_eq!(answer.json()["headers"]["x-api-key"], PROVIDER_KEY);
    }
}

#[tokio::test]
async fn forwarded_headers_follow_a_cross_origin_redirect_only_on_request() {
    let provider = Provider::start().await;
    allow_elsewhere(&provider).await;
    let to = format!("{}/v2", provider.elsewhere.base_url());
    let to: String = url::form_urlencoded::byte_serialize(to.as_bytes()).collect();
    for (wanted, tenant) in [(None, Value::Null), (Some("false"), Value::Null), (Some("true"), json!("t1"))] {
        let request = provider.connection.request("GET", &format!("/proxy/redirect?307={to}"));
        let request = request.header("Nango-Proxy-X-Tenant", "t1");
        let request = match wanted {
            Some(wanted) => request.header("Forward-Headers-On-Redirect", wanted),
            None => request,
        };
        let arrived = request.send().await.expect(200).json();
        assert_eq!(arrived["target"], "/api/v2");
        assert_eq!(arrived["headers"]["host"], provider.elsewhere.address.to_string());
        assert_eq!(arrived["headers"]["x-tenant"], tenant, "{wanted:?}");
        // The credentials are never forwarded.
        assert_eq!(arrived["headers"]["x-api-key"], Value::Null, "{wanted:?}");
    }
}

#[tokio::test]
async fn new_credentials_are_used_at_once_and_never_logged() {
    let provider = Provider::start_with(|host| host.variable("RUST_LOG", "syncline=debug")).await;
    let sent_key = async || {
        let answer =
            provider.connection.request("GET", "/proxy/v1?access_token=planted-in-query").send().await;
        answer.expect(200).json()["headers"]["x-api-key"].clone()
    };
    assert_eq!(sent_key().await, PROVIDER_KEY);
    let body = json!({
        "connection_id": provider.connection.id, "provider_config_key": provider.connection.integration,
        "credentials": { "type": "API_KEY", "apiKey": "planted-next-key" },
    });
    provider.host.post("/connections", &body).await.expect(201);
    assert_eq!(sent_key().await, "planted-next-key");
    let log = provider.host.log();
    assert!(log.contains("/api/v1?access_token=***: 200"), "{log}");
    assert!(!log.contains("planted"), "{log}");
}

#[tokio::test]
async fn a_cached_connection_needs_no_database_access() {
    let provider = Provider::start().await;
    provider.connection.request("GET", "/proxy/v1").send().await.expect(200);
    let hold = "BEGIN; LOCK TABLE connections, integrations, api_keys; SELECT pg_sleep(3); COMMIT";
    let ask = async {
        let locks = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted
                     AND relation IN ('connections'::regclass, 'integrations'::regclass)";
        eventually("the tables are locked", async || (provider.db.number(locks).await == 2).then_some(()))
            .await;
        let asked_at = Instant::now();
        provider.connection.request("GET", "/proxy/v1").send().await.expect(200);
        asked_at.elapsed()
    };
    let ((), took) = tokio::join!(provider.db.execute(hold), ask);
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[tokio::test]
async fn the_published_client_works_through_the_proxy() {
    let provider = Provider::start().await;
    allow_elsewhere(&provider).await;
    let script = tokio::process::Command::new("node")
        .arg(repository("tests/node/proxy_client.mjs"))
        .args([
            provider.host.base_url(),
            SECRET_KEY,
            &provider.connection.id,
            &provider.connection.integration,
        ])
        .arg(provider.elsewhere.base_url())
        .output()
        .await
        .expect("node is not installed; `scripts/setup` installs it");
    assert!(script.status.success(), "{}", String::from_utf8_lossy(&script.stderr));
    let results: Value = serde_json::from_slice(&script.stdout).unwrap();
    for method in ["get", "post", "put", "patch", "delete"] {
        let answer = &results[method];
        assert_eq!((&answer["status"], &answer["proxied"]), (&json!(200), &json!("true")), "{answer}");
        assert_eq!(answer["method"], method.to_uppercase());
        assert_eq!(answer["target"], "/api/v1/things?a=b+c");
        let body = if method == "get" { String::new() } else { json!({ "sent": method }).to_string() };
        assert_eq!(answer["body"], body);
        let headers = &answer["headers"];
        assert_eq!((&headers["x-tenant"], &headers["x-api-key"]), (&json!("t1"), &json!(PROVIDER_KEY)));
        assert_eq!(headers["authorization"], Value::Null, "the client's key is not forwarded");
    }
    assert_eq!(
        (&results["form"]["target"], &results["form"]["body"]),
        (&json!("/api/v1/text?x=%2F"), &json!("a=1"))
    );
    assert_eq!(results["form"]["headers"]["content-type"], "application/x-www-form-urlencoded");
    assert_eq!(results["moved"]["headers"]["x-api-key"], Value::Null);
    assert_eq!(results["moved"]["headers"]["host"], provider.elsewhere.address.to_string());
    assert_eq!(results["stream"]["target"], "/api/v1/stream");
    assert_eq!(results["ofProvider"], json!({ "status": 418, "code": "not now", "proxied": "true" }));
    assert_eq!(results["unknown"], json!({ "status": 404, "code": "unknown_connection", "proxied": null }));
    assert_eq!(
        results["climbing"],
        json!({ "status": 400, "code": "invalid_proxy_request", "proxied": null })
    );
}
