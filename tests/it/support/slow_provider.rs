//! A provider whose responses a test controls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

use super::Bundle;

pub struct SlowProvider {
    address: String,
    pending_requests: Mutex<mpsc::UnboundedReceiver<PendingRequest>>,
    /// Connections that no test has received yet.
    connected: Arc<AtomicUsize>,
    /// Accepts connections, and stops when the value is dropped.
    _listening: JoinSet<()>,
}

/// A request that waits for its response.
pub struct PendingRequest {
    stream: TcpStream,
    pub path: String,
}

impl SlowProvider {
    pub async fn listen() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("the listener has an address").to_string();
        let (asked, pending_requests) = mpsc::unbounded_channel();
        let connected = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connected);
        let mut listening = JoinSet::new();
        listening.spawn(async move {
            // Connections are read concurrently, because a client may connect and send nothing.
            let mut readers = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.expect("a connection can be accepted");
                count.fetch_add(1, Ordering::SeqCst);
                let asked = asked.clone();
                readers.spawn(async move {
                    if let Some(pending) = PendingRequest::read(stream).await {
                        let _test_has_ended = asked.send(pending);
                    }
                });
            }
        });
        Self { address, pending_requests: Mutex::new(pending_requests), connected, _listening: listening }
    }

    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// The hostile guest with this provider.
    pub fn bundle(&self) -> Bundle {
        Bundle::guest("hostile").at_address(&format!("http://{}", self.address()))
    }

    /// Waits for the next request.
    pub async fn next_request(&self) -> PendingRequest {
        let asked =
            async { self.pending_requests.lock().await.recv().await.expect("the provider is listening") };
        let pending = tokio::time::timeout(Duration::from_secs(60), asked).await;
        self.connected.fetch_sub(1, Ordering::SeqCst);
        pending.expect("a request arrives within a minute")
    }

    /// Returns whether no client connects for this long.
    pub async fn receives_nothing_for(&self, time: Duration) -> bool {
        tokio::time::sleep(time).await;
        self.connected.load(Ordering::SeqCst) == 0
    }
}

impl PendingRequest {
    /// Reads the head of a request, or returns `None` if the client sends none.
    async fn read(mut stream: TcpStream) -> Option<Self> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.ok()?);
        }
        let head = String::from_utf8(head).expect("a head is text");
        let path = head.split(' ').nth(1).expect("a request has a path").to_owned();
        Some(Self { stream, path })
    }

    pub async fn answer(mut self, body: &str) {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        let answer = format!("{head}{body}");
        self.stream.write_all(answer.as_bytes()).await.expect("the host reads the answer");
    }

    /// Responds to a client that may have disconnected.
    pub async fn answer_if_connected(mut self, body: &str) {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
        let _may_be_gone = self.stream.write_all(format!("{head}{body}").as_bytes()).await;
    }

    /// Waits until the client disconnects.
    pub async fn wait_for_disconnect(mut self) {
        let ended = tokio::time::timeout(Duration::from_secs(10), self.stream.read_u8()).await;
        assert!(ended.expect("the request ends within ten seconds").is_err());
    }
}
