//! A TCP relay between a host and Postgres, whose network a test can disturb. It knows nothing of the protocol.
//!
//! [`PostgresProxy`](super::PostgresProxy) causes faults at exact statements instead.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use url::Url;

/// The number of parts of a stream that can be in transit in one direction of a connection.
const PARTS_IN_TRANSIT: usize = 256;

/// The state of the network between the host and the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Network {
    /// Nothing that the host sends arrives, not even the end of a connection.
    pub is_cut_to_server: bool,
    /// Nothing that the server sends arrives.
    pub is_cut_to_host: bool,
    /// How long each byte is in transit.
    pub latency: Duration,
}

/// The effects of the faults so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effects {
    /// Parts of streams, and ends of connections, that a cut has held back.
    pub held_back: u64,
    /// Parts of streams that the latency has delayed.
    pub delayed: u64,
    /// Connections that were reset.
    pub reset: u64,
}

#[derive(Default)]
struct Counts {
    held_back: AtomicU64,
    delayed: AtomicU64,
    reset: AtomicU64,
}

struct Shared {
    server: PathBuf,
    network: watch::Sender<Network>,
    /// When this number grows, the open connections are reset.
    resets: watch::Sender<u64>,
    counts: Counts,
}

/// A relay to a Postgres that listens on a Unix socket. Dropping it closes its connections.
pub struct Relay {
    port: u16,
    shared: Arc<Shared>,
    _open: DropGuard,
}

impl Relay {
    /// Starts a relay to the server of this URL.
    pub async fn start(server_url: &str) -> Self {
        let server: PgConnectOptions = server_url.parse().expect("the URL is one");
        let folder = server.get_socket().expect("the server listens on a Unix socket");
        let shared = Arc::new(Shared {
            server: folder.join(format!(".s.PGSQL.{}", server.get_port())),
            network: watch::Sender::default(),
            resets: watch::Sender::default(),
            counts: Counts::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("the listener has an address").port();
        let closed = CancellationToken::new();
        tokio::spawn(serve(listener, Arc::clone(&shared), closed.clone()));
        Self { port, shared, _open: closed.drop_guard() }
    }

    /// Changes the URL of a database on the server into the URL through this relay.
    pub fn url_of(&self, database_url: &str) -> String {
        let mut url: Url = database_url.parse().expect("the URL is one");
        url.set_host(Some("127.0.0.1")).expect("a Postgres URL has a host");
        url.set_port(Some(self.port)).expect("a Postgres URL has a port");
        url.set_query(Some("sslmode=disable"));
        url.to_string()
    }

    /// Changes the network for all connections: the open ones and later ones.
    pub fn change(&self, change: impl FnOnce(&mut Network)) {
        self.shared.network.send_modify(change);
    }

    /// Resets the open connections.
    pub fn reset_connections(&self) {
        self.shared.resets.send_modify(|resets| *resets += 1);
    }

    pub fn effects(&self) -> Effects {
        let counts = &self.shared.counts;
        let [held_back, delayed, reset] =
            [&counts.held_back, &counts.delayed, &counts.reset].map(|count| count.load(Ordering::SeqCst));
        Effects { held_back, delayed, reset }
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>, closed: CancellationToken) {
    while let Some(Ok((host, _))) = closed.run_until_cancelled(listener.accept()).await {
        let (shared, closed) = (Arc::clone(&shared), closed.clone());
        tokio::spawn(async move { closed.run_until_cancelled(relay(host, &shared)).await });
    }
}

async fn relay(mut host: TcpStream, shared: &Shared) {
    host.set_nodelay(true).expect("the connection was just opened");
    let mut resets = shared.resets.subscribe();
    // If the server is unavailable, the relay closes the connection too.
    let Ok(mut server) = UnixStream::connect(&shared.server).await else { return };
    let (from_host, to_host) = host.split();
    let (from_server, to_server) = server.split();
    // A connection that one side closes is closed on the other side as soon as its end has arrived there.
    let is_reset = tokio::select! {
        () = forward(shared, from_host, to_server, |network| network.is_cut_to_server) => false,
        () = forward(shared, from_server, to_host, |network| network.is_cut_to_host) => false,
        _changed = resets.changed() => true,
    };
    if is_reset {
        shared.counts.reset.fetch_add(1, Ordering::SeqCst);
        host.set_zero_linger().expect("the connection is open");
    }
}

/// Forwards one direction of a connection, until its end has arrived.
async fn forward(
    shared: &Shared,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    is_cut: impl Fn(&Network) -> bool,
) {
    let (sender, mut in_transit) = mpsc::channel::<(Instant, Vec<u8>)>(PARTS_IN_TRANSIT);
    let mut network = shared.network.subscribe();
    let read = async move {
        let mut buffer = vec![0; 64 << 10];
        loop {
            // An empty part is the end of the connection. A reset ends it too.
            let length = from.read(&mut buffer).await.unwrap_or(0);
            let part = (Instant::now(), buffer[..length].to_vec());
            if sender.send(part).await.is_err() || length == 0 {
                break;
            }
        }
        // The end of the other future ends both.
        std::future::pending::<()>().await;
    };
    let write = async move {
        while let Some((sent_at, part)) = in_transit.recv().await {
            if is_cut(&network.borrow_and_update()) {
                shared.counts.held_back.fetch_add(1, Ordering::SeqCst);
                let _relay_is_open = network.wait_for(|network| !is_cut(network)).await;
            }
            let latency = network.borrow_and_update().latency;
            if !latency.is_zero() {
                shared.counts.delayed.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep_until(sent_at + latency).await;
            }
            if part.is_empty() || to.write_all(&part).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = write => {}
    }
}
