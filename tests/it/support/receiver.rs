//! A webhook receiver: a real HTTP server that records requests and sends the configured replies.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::eventually;

/// One received request.
#[derive(Debug, Clone)]
pub struct Webhook {
    pub at: Instant,
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub text: String,
}

impl Webhook {
    pub fn body(&self) -> Value {
        serde_json::from_str(&self.text).expect("a webhook's body is JSON")
    }

    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no header `{name}`: {:?}", self.headers))
    }

    pub fn id(&self) -> &str {
        self.header("webhook-id")
    }
}

/// The reply to a request.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    status: u16,
    header: Option<(&'static str, String)>,
    body: Option<String>,
    delay: Duration,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub fn header(self, name: &'static str, value: &str) -> Self {
        Self { header: Some((name, value.to_owned())), ..self }
    }

    pub fn body(self, body: &str) -> Self {
        Self { body: Some(body.to_owned()), ..self }
    }

    pub fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }
}

#[derive(Default)]
struct Shared {
    webhooks: Vec<Webhook>,
    replies: VecDeque<Reply>,
    otherwise: Option<Reply>,
}

pub struct Receiver {
    port: u16,
    shared: Arc<Mutex<Shared>>,
}

impl Receiver {
    /// Starts a receiver that answers 200.
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("the listener has an address").port();
        let shared = Arc::new(Mutex::new(Shared::default()));
        let router = Router::new().fallback(receive).with_state(Arc::clone(&shared));
        tokio::spawn(axum::serve(listener, router).into_future());
        Self { port, shared }
    }

    /// The address in the format of `SYNCLINE_EGRESS_ALLOW`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address())
    }

    /// Sets the replies to the next requests, in order.
    pub fn reply(&self, replies: impl IntoIterator<Item = Reply>) {
        self.shared().replies.extend(replies);
    }

    /// Sets the reply to all later requests.
    pub fn always(&self, reply: Reply) {
        self.shared().otherwise = Some(reply);
    }

    /// All requests so far.
    pub fn webhooks(&self) -> Vec<Webhook> {
        self.shared().webhooks.clone()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the given number of requests, and returns all of them.
    pub async fn wait_for(&self, count: usize) -> Vec<Webhook> {
        eventually(&format!("the receiver got {count} webhooks"), async || {
            let webhooks = self.webhooks();
            (webhooks.len() >= count).then_some(webhooks)
        })
        .await
    }
}

async fn receive(State(shared): State<Arc<Mutex<Shared>>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let text = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_else(|_| Bytes::new());
    let reply = {
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.webhooks.push(Webhook {
            at: Instant::now(),
            path: parts.uri.to_string(),
            headers: text_of(&parts.headers),
            text: String::from_utf8_lossy(&text).into_owned(),
        });
        let next = shared.replies.pop_front();
        next.or_else(|| shared.otherwise.clone()).unwrap_or_else(|| Reply::status(200))
    };
    tokio::time::sleep(reply.delay).await;
    let status = StatusCode::from_u16(reply.status).expect("the test specifies a valid status");
    let mut response = (status, reply.body.unwrap_or_else(|| "noted".to_owned())).into_response();
    if let Some((name, value)) = reply.header {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_str(&value).expect("the test specifies valid headers"));
    }
    response
}

fn text_of(headers: &HeaderMap) -> BTreeMap<String, String> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}
