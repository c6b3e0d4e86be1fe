//! Clients that open many connections, send long or slow requests, or send many of them: they reach a limit, and other
//! clients are served.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::operations::{self, Operation, Values};
use crate::support::webhook_scene::{self, SECRET};
use crate::support::{
    Answer, Api, Host, HostOptions, SECRET_KEY, Stage, TestDatabase, answer_to_slow_body, eventually,
    free_port,
};

const LOCALHOST: [u8; 4] = [127, 0, 0, 1];
/// Another address of this machine.
const OTHER_ADDRESS: [u8; 4] = [127, 0, 0, 2];
const UPGRADE: &str = "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: cGxhbnRlZC1ub25jZS0xMg==\r\n";

async fn host_with(variables: &[(&str, &str)]) -> (Host, TestDatabase) {
    let db = TestDatabase::create().await;
    let options = HostOptions::new().database(&db);
    let options = variables.iter().fold(options, |options, (name, value)| options.variable(name, value));
    (options.spawn().await, db)
}

async fn connect_from(host: &Host, address: [u8; 4]) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket can be made");
    socket.bind(SocketAddr::new(IpAddr::from(address), 0)).expect("the address is local");
    socket.connect(host.address().parse().expect("an address")).await.expect("the host listens")
}

/// Sends a request for `/health` and returns the answer, which is empty if the host has disconnected.
async fn ask_health(stream: &mut TcpStream) -> String {
    // The host may have disconnected already.
    let _result = stream.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").await;
    let mut answer = vec![0; 1024];
    let read = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut answer)).await;
    let read = read.expect("the host answers or disconnects").unwrap_or_default();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

/// Opens connections until the host rejects one.
async fn open_until_rejected(host: &Host, address: [u8; 4], most: usize) -> Vec<TcpStream> {
    let mut open = Vec::new();
    while open.len() <= most {
        let mut stream = connect_from(host, address).await;
        if !ask_health(&mut stream).await.starts_with("HTTP/1.1 200 ") {
            return open;
        }
        open.push(stream);
    }
    panic!("the host accepts {} connections", open.len());
}

async fn metric(api: &Api, line: &str) -> Option<u64> {
    let metrics = api.get("/metrics").await.expect(200).text();
    metrics.lines().find_map(|other| other.strip_prefix(line)?.trim().parse().ok())
}

#[tokio::test]
async fn connections_over_the_hosts_limit_are_rejected_until_others_end() {
    let metrics = format!("127.0.0.1:{}", free_port());
    let variables = [("SYNCLINE_MAX_CLIENT_CONNECTIONS", "8"), ("SYNCLINE_METRICS_LISTEN", &metrics)];
    let (host, _db) = host_with(&variables).await;
    let open = open_until_rejected(&host, LOCALHOST, 8).await;
    let mut rejected = connect_from(&host, OTHER_ADDRESS).await;
    let mut answer = String::new();
    let _ended = rejected.read_to_string(&mut answer).await;
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("retry-after: 5\r\n") && answer.contains("\"too_many_connections\""), "{answer}");

    // The limit of one listener does not affect the other.
    let beside = Api::new(format!("http://{metrics}"), None);
    let counted = "syncline_rejected_client_connections_total{limit=\"host\"}";
    assert!(metric(&beside, counted).await >= Some(2));
    assert!(metric(&beside, "syncline_client_connections").await >= Some(8));
    drop(open);
    eventually("connections are accepted again", async || {
        ask_health(&mut connect_from(&host, LOCALHOST).await).await.starts_with("HTTP/1.1 200 ").then_some(())
    })
    .await;
}

#[tokio::test]
async fn one_address_cannot_take_all_connections() {
    let (host, _db) = host_with(&[("SYNCLINE_MAX_CLIENT_CONNECTIONS_PER_ADDRESS", "4")]).await;
    let _open = open_until_rejected(&host, LOCALHOST, 4).await;
    let mut other = connect_from(&host, OTHER_ADDRESS).await;
    assert!(ask_health(&mut other).await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test]
async fn a_trusted_proxy_can_open_more_connections_than_a_client() {
    let variables = [
        ("SYNCLINE_MAX_CLIENT_CONNECTIONS_PER_ADDRESS", "2"),
        ("SYNCLINE_TRUSTED_PROXIES", "10.0.0.0/8, 127.0.0.1"),
    ];
    let (host, _db) = host_with(&variables).await;
    let mut open = Vec::new();
    for _ in 0..6 {
        let mut stream = connect_from(&host, LOCALHOST).await;
        assert!(ask_health(&mut stream).await.starts_with("HTTP/1.1 200 "));
        open.push(stream);
    }
    open_until_rejected(&host, OTHER_ADDRESS, 2).await;
}

/// Opens a WebSocket and returns it with the head of the response.
async fn open_socket(host: &Host, forwarded_for: &str) -> (TcpStream, String) {
    let mut stream = connect_from(host, LOCALHOST).await;
    let request = format!("{UPGRADE}X-Forwarded-For: {forwarded_for}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("the host reads");
    let mut head = String::new();
    while !head.contains("\r\n\r\n") {
        head.push(stream.read_u8().await.expect("the host answers").into());
    }
    (stream, head)
}

#[tokio::test]
async fn one_client_behind_a_proxy_cannot_take_all_websockets() {
    let variables = [("SYNCLINE_MAX_WEBSOCKETS_PER_ADDRESS", "2"), ("SYNCLINE_TRUSTED_PROXIES", "127.0.0.1")];
    let (host, _db) = host_with(&variables).await;
    let first = open_socket(&host, "192.0.2.1").await;
    let second = open_socket(&host, "192.0.2.1").await;
    for (_, head) in [&first, &second] {
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    }
    // A client can send the header itself. The proxy appends the client's address.
    let (mut rejected, head) = open_socket(&host, "192.0.2.7, 192.0.2.1").await;
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    let mut body = vec![0; 1024];
    let read = rejected.read(&mut body).await.expect("the response has a body");
    assert!(String::from_utf8_lossy(&body[..read]).contains("\"too_many_sockets\""));
    let (_neighbour, head) = open_socket(&host, "192.0.2.2").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    assert_eq!(metric(&host, "syncline_websockets").await, Some(3));
    drop(first);
    eventually("the client can open another WebSocket", async || {
        open_socket(&host, "192.0.2.1").await.1.starts_with("HTTP/1.1 101 ").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_websocket_without_an_authorization_is_closed_early() {
    let (host, _db) = host_with(&[("SYNCLINE_CLIENT_TIMEOUT_SECONDS", "1")]).await;
    let (mut socket, head) = open_socket(&host, "192.0.2.1").await;
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    let mut received = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(60), async {
        // The host sends a close frame without a body.
        while !received.ends_with(&[0x88, 0]) {
            assert!(
                socket.read_buf(&mut received).await.expect("the host sends") > 0,
                "it ends without a close frame"
            );
        }
    });
    ended.await.expect("the host closes the WebSocket");
    assert!(String::from_utf8_lossy(&received).contains("connection_ack"));
}

#[tokio::test]
async fn open_websockets_cost_one_query_together() {
    const SOCKETS: usize = 200;
    const WATCHED: Duration = Duration::from_secs(10);
    let (host, db) = host_with(&[]).await;
    let transactions = async || {
        db.number("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()").await
    };
    let during = async || {
        let before = transactions().await;
        tokio::time::sleep(WATCHED).await;
        transactions().await - before
    };
    let idle = during().await;
    let sockets = join_all((0..SOCKETS).map(|_| open_socket(&host, "192.0.2.1"))).await;
    assert!(sockets.iter().all(|(_, head)| head.starts_with("HTTP/1.1 101 ")));
    // Postgres reports statistics with a delay.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let with_sockets = during().await;
    // A query for each socket every 3 s would be 600.
    assert!(with_sockets - idle < 200, "{with_sockets} transactions with WebSockets, {idle} without");
}

#[tokio::test]
async fn a_key_over_its_rate_limit_gets_429_and_other_keys_are_served() {
    let (host, db) = host_with(&[("SYNCLINE_MAX_REQUESTS_PER_MINUTE_PER_KEY", "5")]).await;
    let other = host.create_key(&db, "other", "full");
    for _ in 0..5 {
        host.get("/environment-variables").await.expect(200);
    }
    let refused = host.get("/environment-variables").await;
    assert_eq!(refused.refusal(), (429, "too_many_request".to_owned()));
    let seconds: u64 = refused.header("retry-after").expect("it says when").parse().expect("a number");
    assert!((1..=12).contains(&seconds), "a fifth of a minute: {seconds}");
    assert!(refused.message().contains("5 requests per minute"), "{}", refused.message());
    host.with_key(Some(&other)).get("/integrations").await.expect(200);
    host.with_key(None).get("/health").await.expect(200);
    assert_eq!(metric(&host, "syncline_rate_limited_requests_total{limit=\"key\"}").await, Some(1));
}

#[tokio::test]
async fn an_environment_over_its_rate_limit_gets_429_with_all_keys() {
    let (host, db) = host_with(&[("SYNCLINE_MAX_REQUESTS_PER_MINUTE_PER_ENVIRONMENT", "4")]).await;
    let other = host.create_key(&db, "other", "full");
    let other = host.with_key(Some(&other));
    for _ in 0..2 {
        host.get("/integrations").await.expect(200);
        other.get("/integrations").await.expect(200);
    }
    for client in [&host as &Api, &other] {
        assert_eq!(client.get("/integrations").await.refusal(), (429, "too_many_request".to_owned()));
    }
    assert_eq!(metric(&host, "syncline_rate_limited_requests_total{limit=\"environment\"}").await, Some(2));
}

#[tokio::test]
async fn responses_state_what_is_left_of_the_rate_limit() {
    let limits = [
        ("SYNCLINE_MAX_REQUESTS_PER_MINUTE_PER_KEY", "5"),
        ("SYNCLINE_MAX_REQUESTS_PER_MINUTE_PER_ENVIRONMENT", "7"),
    ];
    let (host, db) = host_with(&limits).await;
    let other = host.create_key(&db, "other", "full");
    let other = host.with_key(Some(&other));
    let state = |answer: &Answer| {
        let number =
            |name: &str| -> i64 { answer.header(name).expect("it is limited").parse().expect("a number") };
        let reset = number("x-ratelimit-reset") - chrono::Utc::now().timestamp();
        assert!((1..=61).contains(&reset), "all requests are available again in {reset} s");
        (number("x-ratelimit-limit"), number("x-ratelimit-remaining"))
    };
    for left in [4, 3] {
        assert_eq!(state(&host.get("/integrations").await.expect(200)), (5, left));
    }
    let failed = host.get("/connections/unknown?provider_config_key=unknown").await.expect(404);
    assert_eq!(state(&failed), (5, 2), "errors have the headers, too");
    assert_eq!(
        state(&other.get("/integrations").await.expect(200)),
        (7, 3),
        "the environment has fewer left"
    );
    host.get("/integrations").await.expect(200);
    host.get("/integrations").await.expect(200);
    let refused = host.get("/integrations").await.expect(429);
    assert_eq!(state(&refused), (5, 0));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(host.with_key(None).get("/health").await.expect(200).header("x-ratelimit-limit"), None);
}

/// The body limit of an operation. An operation without an entry has the default.
const BODY_LIMITS: &[(&str, &str)] = &[
    ("PATCH /connections/metadata", "4 MiB"),
    ("PATCH /connections/{connection_id}", "4 MiB"),
    ("PATCH /integrations/quickstart", "4 MiB"),
    ("PATCH /integrations/{unique_key}", "4 MiB"),
    ("POST /action/trigger", "75 MiB"),
    ("POST /connect/sessions", "4 MiB"),
    ("POST /connect/sessions/reconnect", "4 MiB"),
    ("POST /connect/telemetry", "4 KiB"),
    ("POST /connections", "4 MiB"),
    ("POST /connections/metadata", "4 MiB"),
    ("POST /deployments", "256 MiB"),
    ("POST /integrations", "4 MiB"),
    ("POST /mcp", "75 MiB"),
    ("POST /sync/pause", "4 MiB"),
    ("POST /sync/start", "4 MiB"),
    ("POST /sync/trigger", "4 MiB"),
    ("POST /webhook/{environment_uuid}/{unique_key}", "25 MiB"),
    ("PUT /environment-variables/{name}", "4 MiB"),
];
const DEFAULT_BODY_LIMIT: &str = "64 KiB";

/// The number of bytes that a limit such as `4 MiB` stands for.
fn bytes_of(limit: &str) -> usize {
    let (number, unit) = limit.split_once(' ').expect("a number and a unit");
    let number: usize = number.parse().expect("a number");
    number << if unit == "MiB" { 20 } else { 10 }
}

/// Creates an integration that receives webhooks, and adds the parameters of its webhook URL to the values.
async fn add_webhooks(api: &Api, values: &mut Values) {
    let path = webhook_scene::integration(api, "gitlab-pat", Value::Null, Some(SECRET)).await;
    let parameters: Vec<&str> = path.trim_start_matches("/webhook/").split('/').collect();
    assert_eq!(parameters.len(), 2, "{path}");
    values.insert("environment_uuid", parameters[0].to_owned());
    values.insert("unique_key", parameters[1].to_owned());
}

#[tokio::test]
async fn each_route_has_a_body_limit_for_its_purpose() {
    let (_stage, api, values) = operations::stage().await;
    let mut of_webhooks = values.clone();
    add_webhooks(&api, &mut of_webhooks).await;
    let mut exceptions: BTreeMap<&str, &str> = BODY_LIMITS.iter().copied().collect();
    let mut sent = 0;
    for operation in Operation::all().into_iter().filter(Operation::has_body) {
        let name = operation.name();
        let limit = exceptions.remove(&*name).unwrap_or(DEFAULT_BODY_LIMIT);
        let values = if operation.path.starts_with("/webhook/") { &of_webhooks } else { &values };
        let request = operation.request(&operation.api(&api, values), values);
        // The host refuses the body because of the announced length. It does not wait for the body.
        let refused = request.announcing(bytes_of(limit) + 1).send().await;
        assert_eq!(refused.refusal(), (413, "payload_too_large".to_owned()), "{name}: {}", refused.text());
        let message = refused.message();
        assert!(message.contains(&format!("longer than {limit}")), "{name}: {message}");
        sent += 1;
    }
    assert!(sent > 35, "{sent} operations");
    assert!(exceptions.is_empty(), "no operation with a body has these names: {exceptions:?}");
}

#[tokio::test]
async fn a_body_of_the_longest_permitted_length_is_read_and_a_longer_one_is_refused() {
    let stage = Stage::hostile().await;
    let longest = bytes_of(DEFAULT_BODY_LIMIT);
    let send = async |body: reqwest::Body| {
        let request = stage.request("PATCH", "/records/prune").header("Content-Type", "application/json");
        request.bytes(body).send().await.refusal()
    };
    // A streamed body has no announced length, so the host has to count its bytes.
    let streamed = |length: usize| {
        let parts = [length - 1, 1].map(|length| Ok::<_, std::io::Error>(" ".repeat(length)));
        reqwest::Body::wrap_stream(stream::iter(parts))
    };
    for body in [reqwest::Body::from(" ".repeat(longest)), streamed(longest)] {
        assert_eq!(send(body).await, (400, "invalid_json".to_owned()));
    }
    for body in [reqwest::Body::from(" ".repeat(longest + 1)), streamed(longest + 1)] {
        assert_eq!(send(body).await, (413, "payload_too_large".to_owned()));
    }
}

#[tokio::test]
async fn a_steady_but_very_slow_body_is_rejected() {
    let (host, _db) = host_with(&[("SYNCLINE_CLIENT_TIMEOUT_SECONDS", "2")]).await;
    let head = format!(
        "PATCH /environment HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET_KEY}\r\n\
         Content-Type: application/json\r\nConnection: close\r\nContent-Length: 60000\r\n\r\n"
    );
    let answer = answer_to_slow_body(connect_from(&host, LOCALHOST).await, &head).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("\"body_timeout\""), "{answer}");
    assert!(answer.contains("within 2 seconds"), "{answer}");
}

#[tokio::test]
async fn bodies_beyond_the_hosts_memory_are_rejected_and_small_ones_are_read() {
    let stage = {
        let (host, db) = host_with(&[("SYNCLINE_MAX_BODY_MEMORY_BYTES", "8388608")]).await;
        Stage::at(host, db).await
    };
    let head = |path: &str, length: usize| {
        format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {SECRET_KEY}\r\nConnection-Id: customer-1\r\n\
             Provider-Config-Key: hostile\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    let mut stalled = Vec::new();
    let refused = eventually("the memory is full", async || {
        let mut stream = connect_from(&stage.host, LOCALHOST).await;
        // The host may answer before it has read everything.
        let _result = stream.write_all(head("/action/trigger", 2 << 20).as_bytes()).await;
        let _result = stream.write_all(&vec![b' '; (2 << 20) - 1]).await;
        stalled.push(stream);
        let request = stage.request("POST", "/action/trigger").header("Content-Type", "application/json");
        let answer = request.bytes(" ".repeat(1 << 20)).send().await;
        (answer.status != 400).then_some(answer)
    })
    .await;
    assert_eq!(refused.refusal(), (503, "too_many_bodies".to_owned()));
    assert_eq!(refused.header("retry-after"), Some("1"));
    stage.action("print", &json!("x")).await.expect(200);
    // Longer than any memory that would become free.
    let request = stage.request("POST", "/action/trigger").header("Content-Type", "application/json");
    let refused = request.bytes(" ".repeat(6 << 20)).send().await;
    assert_eq!(refused.refusal(), (413, "payload_too_large".to_owned()));
    drop(stalled);
    eventually("the memory is free again", async || {
        let request = stage.request("POST", "/action/trigger").header("Content-Type", "application/json");
        (request.bytes(" ".repeat(1 << 20)).send().await.status == 400).then_some(())
    })
    .await;
}

/// The longest request head that a host accepts, without the lines that every request has.
fn longest_head() -> String {
    (0..60).map(|number| format!("X-Long-{number}: {}\r\n", "x".repeat(980))).collect()
}

/// Sends requests for `/health` until `until` is set, but at least five, each as a new client. Returns the median time
/// until the response.
async fn median_latency(host: &Host, until: &Cell<bool>) -> Duration {
    let mut latencies = Vec::new();
    while latencies.len() < 5 || !until.get() {
        let asked = Instant::now();
        let answer = ask_health(&mut connect_from(host, OTHER_ADDRESS).await).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        latencies.push(asked.elapsed());
    }
    latencies.sort_unstable();
    latencies[latencies.len() / 2]
}

/// Sends the head of a request, and as much of its body as the host reads until `ends`.
async fn send_until(mut stream: TcpStream, head: &str, body: &[u8], ends: Instant) -> TcpStream {
    // The host may answer, and disconnect, before it has read everything.
    let _result = stream.write_all(head.as_bytes()).await;
    let _result = tokio::time::timeout_at(ends.into(), stream.write_all(body)).await;
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn anonymous_clients_with_the_largest_requests_do_not_block_others() {
    const CLIENTS: usize = 24;
    /// Time limit for sending the bodies of all routes. The longest bodies are last.
    const TIME: Duration = Duration::from_secs(6);
    /// Others are blocked if their responses take longer than this, and longer than before by this factor. On a busy
    /// machine, all responses are slow.
    const BLOCKED: Duration = Duration::from_secs(1);
    const FACTOR: u32 = 20;
    let (host, _db) = host_with(&[]).await;
    let mut values = Values::new();
    add_webhooks(&host, &mut values).await;
    values.insert("key", "gitlab-pat".to_owned());
    let mut routes = vec![("POST".to_owned(), "/dashboard/sign-in".to_owned(), "16 KiB")];
    for operation in Operation::all().into_iter().filter(Operation::is_open) {
        let name = operation.name();
        let limit =
            BODY_LIMITS.iter().find(|(of, _)| *of == name).map_or(DEFAULT_BODY_LIMIT, |(_, limit)| *limit);
        routes.push((operation.method.to_uppercase(), operation.target(&values), limit));
    }
    assert!(routes.len() > 15, "{routes:?}");
    routes.sort_by_key(|(_, _, limit)| bytes_of(limit));
    let (_, largest_path, largest) = &routes[routes.len() - 1];
    assert!(largest_path.starts_with("/webhook/"), "{largest_path}");
    let longest_body = vec![b'&'; bytes_of(largest)];
    let before = median_latency(&host, &Cell::new(true)).await;
    let allowed = BLOCKED.max(before * FACTOR);
    let head = longest_head();
    let ends = Instant::now() + TIME;
    for (method, path, limit) in &routes {
        assert!(!path.contains(['{', '}']), "{path}");
        let body = &longest_body[..bytes_of(limit)];
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {}\r\n\r\n", body.len());
        let is_sent = Cell::new(false);
        let flood = async {
            let clients = (0..CLIENTS)
                .map(async |_| send_until(connect_from(&host, LOCALHOST).await, &head, body, ends).await);
            let clients = join_all(clients).await;
            is_sent.set(true);
            clients
        };
        // The connections stay open until the neighbour has its answers.
        let (_clients, latency) = tokio::join!(flood, median_latency(&host, &is_sent));
        assert!(latency < allowed, "{method} {path}: /health took {latency:?}, and {before:?} before");
    }
    let integrations = host.get("/integrations").await.expect(200).json();
    assert_eq!(integrations["data"][0]["unique_key"], "gitlab-pat");
}
