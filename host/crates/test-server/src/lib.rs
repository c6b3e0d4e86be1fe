//! A scripted HTTP server on the loopback interface that records the requests it receives, for tests of other crates.
#![expect(clippy::unwrap_used, reason = "only tests use this crate, and a panic fails the test")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::extract::{Request as Incoming, State};
use axum::response::{IntoResponse, Response as Outgoing};
use http::HeaderMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use url::Url;

/// A server that returns its prepared answers in order, and then always answers 200.
pub struct Server {
    pub address: SocketAddr,
    stage: Arc<Stage>,
    task: tokio::task::JoinHandle<()>,
}

/// A request that the server received.
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

/// Starts a server that answers each connection with exactly these bytes and then closes it.
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
