//! A provider for behaviour that existing servers do not have: it stalls, breaks connections, redirects, and returns
//! what it was sent.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::{Connection, Host, HostOptions, TestDatabase};

/// The API key of the connection.
pub const PROVIDER_KEY: &str = "planted-provider-key-93ab";
/// The access token that `/api/token` returns.
pub const REFRESHED_TOKEN: &str = "planted-token-after-the-refresh-40d2";
/// Length of the decompressed body of `/api/bomb`.
pub const BOMB_BYTES: usize = 100_000_000;

/// The provider with a host and one connection.
pub struct Provider {
    pub connection: Connection,
    pub host: Host,
    pub db: TestDatabase,
    pub server: Server,
    /// A server of the same kind at another address, which the operator allows.
    pub elsewhere: Server,
    folder: TempDir,
}

/// One server. Its API is below `/api`.
pub struct Server {
    pub address: SocketAddr,
    pub seen: Arc<Seen>,
}

/// What a server has received.
#[derive(Default)]
pub struct Seen {
    requests: Mutex<Vec<Value>>,
    pub received_bytes: AtomicU64,
    attempts: AtomicUsize,
    /// Each permit sends one part of the response to `/api/paced`.
    pub parts: Parts,
    /// Whether a client stopped waiting for `/api/silence`.
    pub was_abandoned: AtomicBool,
}

pub struct Parts(Semaphore);

impl Default for Parts {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Parts {
    pub fn send_one(&self) {
        self.0.add_permits(1);
    }
}

impl Seen {
    /// All requests so far: `method`, `target`, `headers`.
    pub fn requests(&self) -> Vec<Value> {
        self.requests.lock().expect("the lock is not poisoned").clone()
    }
}

impl Provider {
    pub async fn start() -> Self {
        Self::start_with(|options| options).await
    }

    pub async fn start_with(options: impl FnOnce(HostOptions) -> HostOptions) -> Self {
        Self::start_entry("", options).await
    }

    /// With additional lines in the `[proxy]` table of the entry.
    pub async fn start_entry(more: &str, options: impl FnOnce(HostOptions) -> HostOptions) -> Self {
        let (server, elsewhere) = (Server::start().await, Server::start().await);
        let folder = TempDir::new().expect("a temporary folder can be made");
        let file = format!(
            r#"
            name = "tests-own"
            display_name = "The tests' own"
            auth_mode = "API_KEY"
            docs = "https://example.com"
            [source]
            address = "https://example.com"
            checked_at = "2026-01-01"
            [credentials.apiKey]
            title = "Key"
            description = "Any."
            [proxy]
            base_url = "http://{}/api"
            {more}
            [proxy.headers]
            x-api-key = "${{apiKey}}"
            "#,
            server.address
        );
        std::fs::write(folder.path().join("tests-own.toml"), file).expect("the folder is writable");
        let db = TestDatabase::create().await;
        let host = options(host_options(&db, &folder, &server, &elsewhere)).spawn().await;
        let integration = json!({ "provider": "tests-own", "unique_key": "own" });
        host.post("/integrations", &integration).await.expect(200);
        let credentials = json!({ "type": "API_KEY", "apiKey": PROVIDER_KEY });
        let connection = Connection::import(&host, "own", "customer-1", credentials, json!({})).await;
        Self { connection, host, db, server, elsewhere, folder }
    }

    /// Another host on the same database.
    pub async fn second_host(&self) -> Host {
        host_options(&self.db, &self.folder, &self.server, &self.elsewhere).spawn().await
    }
}

fn host_options(db: &TestDatabase, folder: &TempDir, server: &Server, elsewhere: &Server) -> HostOptions {
    HostOptions::new()
        .database(db)
        .variable("SYNCLINE_PROVIDERS_DIR", &folder.path().display().to_string())
        .variable("SYNCLINE_EGRESS_ALLOW", &format!("{},{}", server.address, elsewhere.address))
}

impl Server {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("the listener has an address");
        let seen = Arc::new(Seen::default());
        let api = Router::new()
            .route("/upload", any(upload))
            .route("/paced", any(paced))
            .route("/cut", any(cut))
            .route("/cut-early", any(break_early))
            .route("/silence", any(silence))
            .route("/stall", any(stall))
            .route("/redirect", any(redirect))
            .route("/slow-redirect", any(slow_redirect))
            .route("/loop", any(|| async { (StatusCode::FOUND, [(header::LOCATION, "loop")]) }))
            .route("/flaky", any(flaky))
            .route("/limited", any(limited))
            .route("/refuse", any(refuse))
            .route("/token", any(token))
            .route("/token-refusal", any(refuse_token))
            .route("/bomb", any(bomb))
            .route("/members", any(members))
            .route("/long", any(long))
            .route("/list", any(list))
            .fallback(echo);
        let router = Router::new()
            .nest("/api", api)
            .layer(axum::middleware::map_request_with_state(Arc::clone(&seen), note))
            .with_state(Arc::clone(&seen));
        let listener =
            listener.tap_io(|stream| stream.set_nodelay(true).expect("the connection was just opened"));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { address, seen }
    }

    pub fn base_url(&self) -> String {
        format!("http://{}/api", self.address)
    }
}

async fn note(State(seen): State<Arc<Seen>>, request: Request) -> Request {
    let headers: serde_json::Map<String, Value> = request
        .headers()
        .iter()
        .map(|(name, value)| (name.to_string(), json!(String::from_utf8_lossy(value.as_bytes()))))
        .collect();
    let noted = json!({
        "method": request.method().as_str(), "target": request.uri().to_string(), "headers": headers,
    });
    seen.requests.lock().expect("the lock is not poisoned").push(noted);
    request
}

/// Responds with the received request.
async fn echo(State(seen): State<Arc<Seen>>, body: Bytes) -> Response {
    let mut received = seen.requests().pop().unwrap_or_default();
    received["body"] = json!(String::from_utf8_lossy(&body));
    let headers = [
        (HeaderName::from_static("x-request-id"), "of-the-provider"),
        (HeaderName::from_static("keep-alive"), "timeout=5"),
        (HeaderName::from_static("access-control-allow-origin"), "https://example.com"),
        (HeaderName::from_static("syncline-proxied"), "forged"),
        (HeaderName::from_static("x-of-provider"), "1"),
    ];
    (headers, Json(received)).into_response()
}

/// Counts the bytes of the body as they arrive.
async fn upload(State(seen): State<Arc<Seen>>, body: Body) -> Response {
    let mut stream = body.into_data_stream();
    let mut bytes = 0;
    while let Some(chunk) = stream.next().await {
        match chunk {
            Ok(chunk) => {
                bytes += chunk.len() as u64;
                seen.received_bytes.fetch_add(chunk.len() as u64, Ordering::SeqCst);
            }
            Err(_) => return StatusCode::BAD_REQUEST.into_response(),
        }
    }
    Json(json!({ "bytes": bytes })).into_response()
}

async fn paced(State(seen): State<Arc<Seen>>) -> Body {
    Body::from_stream(stream::unfold(seen, async |seen| {
        seen.parts.0.acquire().await.expect("it is never closed").forget();
        Some((Ok::<_, std::io::Error>(Bytes::from_static(b"part;")), seen))
    }))
}

/// Sends two parts of a response, and then breaks the connection.
fn broken() -> impl Stream<Item = std::io::Result<Bytes>> {
    let end = stream::once(async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Err(std::io::Error::other("cut"))
    });
    stream::iter([Ok(Bytes::from_static(b"12345"))]).chain(end)
}

async fn cut(request: Request) -> Response {
    let mut response = Response::new(Body::from_stream(broken()));
    if request.uri().query() == Some("with-length") {
        response.headers_mut().insert(header::CONTENT_LENGTH, 10.into());
    }
    response
}

/// Breaks the connection before a response.
async fn break_early() -> Response {
    panic!("the connection is dropped with its task")
}

async fn silence(State(seen): State<Arc<Seen>>) -> Response {
    struct Left(Arc<Seen>);
    impl Drop for Left {
        fn drop(&mut self) {
            self.0.was_abandoned.store(true, Ordering::SeqCst);
        }
    }
    let _left = Left(seen);
    std::future::pending().await
}

async fn stall() -> Body {
    let part = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"part;"))]);
    Body::from_stream(part.chain(stream::pending()))
}

/// `?STATUS=LOCATION`
async fn redirect(request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default().to_owned();
    // A response in the middle of a long request body might not be read.
    axum::body::to_bytes(request.into_body(), usize::MAX).await.expect("the body is complete");
    let (status, location) = url::form_urlencoded::parse(query.as_bytes())
        .next()
        .map(|(status, location)| (status.into_owned(), location.into_owned()))
        .expect("the test specifies the location");
    let status: StatusCode = status.parse().expect("the test specifies a valid status");
    (status, [(header::LOCATION, location)]).into_response()
}

/// `?TIMES` redirects, each after a second, and then an echo.
async fn slow_redirect(State(seen): State<Arc<Seen>>, request: Request) -> Response {
    tokio::time::sleep(Duration::from_secs(1)).await;
    let times = request
        .uri()
        .query()
        .and_then(|times| times.parse::<u8>().ok())
        .expect("the test specifies the number");
    match times.checked_sub(1) {
        Some(left) => {
            let location = format!("slow-redirect?{left}");
            (StatusCode::FOUND, [(header::LOCATION, location)]).into_response()
        }
        None => echo(State(seen), Bytes::new()).await,
    }
}

/// `?STATUS` for the first request, and an echo for the following ones.
async fn flaky(State(seen): State<Arc<Seen>>, request: Request) -> Response {
    let status = request.uri().query().unwrap_or_default().to_owned();
    let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap_or_default();
    if seen.attempts.fetch_add(1, Ordering::SeqCst) == 0 {
        let status: StatusCode = status.parse().expect("the test specifies a valid status");
        return (status, [(header::RETRY_AFTER, "0")], "not now").into_response();
    }
    echo(State(seen), body).await
}

/// 429 with `Retry-After: ?SECONDS` for the first request, and an echo for the following ones.
async fn limited(State(seen): State<Arc<Seen>>, request: Request) -> Response {
    let seconds = request.uri().query().unwrap_or_default().to_owned();
    if seen.attempts.fetch_add(1, Ordering::SeqCst) == 0 {
        return (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, seconds)], "slow down")
            .into_response();
    }
    echo(State(seen), Bytes::new()).await
}

/// `?STATUS`, with an echo in the body and the received credentials in a header.
async fn refuse(State(seen): State<Arc<Seen>>, request: Request) -> Response {
    let status: StatusCode = request
        .uri()
        .query()
        .and_then(|status| status.parse().ok())
        .expect("the test specifies a valid status");
    let key = [header::AUTHORIZATION.as_str(), "x-api-key"]
        .into_iter()
        .find_map(|name| request.headers().get(name));
    let key = key.cloned().unwrap_or(HeaderValue::from_static("none"));
    let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap_or_default();
    let mut response = echo(State(seen), body).await;
    *response.status_mut() = status;
    response.headers_mut().insert("x-rate-limit-of", key);
    response
}

/// A successful refresh at an OAuth 2 token endpoint.
async fn token() -> Json<Value> {
    Json(json!({ "access_token": REFRESHED_TOKEN, "token_type": "Bearer", "expires_in": 3600 }))
}

/// A rejected refresh at an OAuth 2 token endpoint, with the request in the description.
async fn refuse_token(body: String) -> Response {
    let refusal = json!({ "error": "invalid_grant", "error_description": format!("you sent {body}") });
    (StatusCode::BAD_REQUEST, Json(refusal)).into_response()
}

/// `?BYTES`
async fn long(request: Request) -> Body {
    let bytes = request.uri().query().and_then(|bytes| bytes.parse().ok());
    Body::from(vec![b'x'; bytes.expect("the test specifies the length")])
}

/// A list of two pages. `?after=2` is the second one.
async fn list(request: Request) -> Json<Value> {
    let is_second = request.uri().query().is_some_and(|query| query.contains("after=2"));
    Json(if is_second {
        json!({ "items": [{ "id": 3, "name": "Linus" }], "next": null })
    } else {
        json!({ "items": [{ "id": 1, "name": "Ada" }, { "id": 2, "name": "Grace" }], "next": "2" })
    })
}

async fn bomb() -> Response {
    ([(header::CONTENT_ENCODING, "gzip")], gzip(&vec![0; BOMB_BYTES])).into_response()
}

/// A gzip body with two members, as appending to a compressed file produces it.
async fn members() -> Response {
    let body = [gzip(b"one;"), gzip(b"two;")].concat();
    ([(header::CONTENT_ENCODING, "GZIP")], body).into_response()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).expect("writing to memory succeeds");
    encoder.finish().expect("writing to memory succeeds")
}
