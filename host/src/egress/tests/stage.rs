//! What the tests of the gate play against: servers on the loopback interface, scripted, that remember what
//! they saw; and routes that lead there.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::extract::{Request as Incoming, State};
use axum::response::{IntoResponse, Response as Outgoing};
use http::HeaderMap;
use serde_json::Map;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use url::Url;

use crate::egress::{
    CredentialSource, Credentials, CredentialsUnavailable, Exchange, GateSettings, Observer, Request, Route,
    UsualBase,
};
use crate::providers::{Catalogue, Provider};

/// A server that gives its prepared answers in order, then 200 for ever.
pub struct Server {
    pub address: SocketAddr,
    stage: Arc<Stage>,
    task: tokio::task::JoinHandle<()>,
}

/// What a server was sent.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub headers: HeaderMap,
    pub body: String,
}

#[derive(Default)]
struct Stage {
    answers: Mutex<VecDeque<Outgoing>>,
    seen: Mutex<Vec<Seen>>,
}

impl Server {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stage = Arc::new(Stage::default());
        let app = axum::Router::new().fallback(play).with_state(Arc::clone(&stage));
        let task = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { address, stage, task }
    }

    pub fn answer(&self, answer: impl IntoResponse) -> &Self {
        self.stage.answers.lock().unwrap().push_back(answer.into_response());
        self
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.stage.seen.lock().unwrap().clone()
    }

    pub fn url(&self) -> Url {
        Url::parse(&format!("http://{}", self.address)).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn play(State(stage): State<Arc<Stage>>, request: Incoming) -> Outgoing {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    stage.seen.lock().unwrap().push(Seen {
        method: parts.method.to_string(),
        path: parts.uri.to_string(),
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    });
    let prepared = stage.answers.lock().unwrap().pop_front();
    prepared.unwrap_or_else(|| Outgoing::new(Body::from("ok")))
}

/// Answers each connection with these bytes as they are, and closes it.
pub async fn raw_server(bytes: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            drop(stream.read(&mut head).await);
            drop(stream.write_all(bytes).await);
        }
    });
    address
}

/// Settings that let these servers through and do not dawdle.
pub fn settings(servers: &[SocketAddr]) -> GateSettings {
    GateSettings {
        allow: servers.iter().map(|address| address.to_string().parse().unwrap()).collect(),
        first_backoff: Duration::from_millis(1),
        max_wait: Duration::from_secs(2),
        request_timeout: Duration::from_secs(5),
        ..GateSettings::default()
    }
}

/// A route to a provider of the catalogue, moved to another address.
pub fn route(provider: &str, base_url: &Url, credentials: impl CredentialSource + 'static) -> Route {
    let catalogue = Catalogue::load(None).unwrap();
    let provider = Arc::clone(catalogue.find(&provider.parse().unwrap()).unwrap());
    route_of(provider, base_url, credentials)
}

pub fn route_of(
    provider: Arc<Provider>,
    base_url: &Url,
    credentials: impl CredentialSource + 'static,
) -> Route {
    Route {
        provider,
        base_url: Some(base_url.clone()),
        connection_config: Map::new(),
        usual_base: UsualBase::default(),
        allow_hosts: Vec::new(),
        credentials: Arc::new(credentials),
        max_response_bytes: None,
        pace: Arc::new(()),
    }
}

pub fn get(url: &str) -> Request {
    Request { method: "GET".to_owned(), url: url.to_owned(), ..Request::default() }
}

pub fn post(url: &str, body: &'static str) -> Request {
    Request { method: "POST".to_owned(), url: url.to_owned(), body: Some(body.into()), ..Request::default() }
}

/// Credentials that get better once: the first are given until they are rejected, then the next.
pub struct Keys(Mutex<VecDeque<Arc<Credentials>>>);

impl Keys {
    pub fn one(credentials: Credentials) -> Self {
        Self::several([credentials])
    }

    pub fn several(credentials: impl IntoIterator<Item = Credentials>) -> Self {
        Self(Mutex::new(credentials.into_iter().map(Arc::new).collect()))
    }
}

#[async_trait]
impl CredentialSource for Keys {
    async fn current(&self) -> Result<Arc<Credentials>, CredentialsUnavailable> {
        let first = self.0.lock().unwrap().front().cloned();
        first.ok_or_else(|| CredentialsUnavailable { reason: "the refresh token was revoked".to_owned() })
    }

    async fn refresh_after_rejection(
        &self,
        rejected: &Arc<Credentials>,
    ) -> Result<Option<Arc<Credentials>>, CredentialsUnavailable> {
        let mut keys = self.0.lock().unwrap();
        if keys.len() > 1 && Arc::ptr_eq(&keys[0], rejected) {
            keys.pop_front();
            return Ok(Some(Arc::clone(&keys[0])));
        }
        Ok(None)
    }
}

/// Writes down every exchange as one line.
#[derive(Default)]
pub struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for Recorder {
    fn exchanged(&self, exchange: &Exchange<'_>) {
        let outcome = match exchange.outcome {
            Ok(status) => status.as_u16().to_string(),
            Err(error) => error.code().to_owned(),
        };
        let line = format!("{} {} {} {outcome}", exchange.attempt, exchange.method, exchange.url);
        self.0.lock().unwrap().push(line);
    }
}
