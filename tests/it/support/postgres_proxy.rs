//! A way to Postgres on which things go wrong: between a host and the server it passes on every message, until one comes
//! that a test has named.
//!
//! It reads as much of the protocol as it takes to know where a message ends and which statement it is about.
//! <https://www.postgresql.org/docs/current/protocol-message-formats.html>

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use super::{TestDatabase, eventually};

/// What goes wrong, once. A statement is named by a part of its text.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// The server was asked for this `COPY` and waits for the rows, which do not come.
    StallCopy(&'static str),
}

#[derive(Default)]
struct Shared {
    armed: Mutex<Option<Fault>>,
    struck: AtomicBool,
}

pub struct PostgresProxy {
    url: String,
    shared: Arc<Shared>,
}

impl PostgresProxy {
    /// One in front of that database.
    pub async fn start(db: &TestDatabase) -> Self {
        let server: PgConnectOptions = db.url().parse().expect("the URL is one");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let name = server.get_database().expect("a test's database has a name");
        let url = format!("postgres://{}@{address}/{name}?sslmode=disable", server.get_username());
        let shared = Arc::new(Shared::default());
        tokio::spawn(serve(listener, server, Arc::clone(&shared)));
        Self { url, shared }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Has this go wrong the next time that it can.
    pub fn arm(&self, fault: Fault) {
        self.shared.struck.store(false, Ordering::SeqCst);
        *self.shared.armed() = Some(fault);
    }

    /// Waits until it has gone wrong.
    pub async fn struck(&self) {
        let what = format!("{:?} has struck", self.shared.armed());
        eventually(&what, async || self.shared.struck.load(Ordering::SeqCst).then_some(())).await;
    }
}

impl Shared {
    fn armed(&self) -> MutexGuard<'_, Option<Fault>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the fault that is to strike, if that is one of this kind.
    fn strike(&self, suits: impl Fn(Fault) -> bool) -> bool {
        let mut armed = self.armed();
        let strikes = armed.is_some_and(suits);
        if strikes {
            *armed = None;
        }
        strikes
    }

    fn has_struck(&self) {
        self.struck.store(true, Ordering::SeqCst);
    }
}

async fn serve(listener: TcpListener, server: PgConnectOptions, shared: Arc<Shared>) {
    while let Ok((host, _)) = listener.accept().await {
        let (server, shared) = (server.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            let (from_host, to_host) = host.into_split();
            // A server that is away refuses: so does the way to it.
            if let Some(socket) = server.get_socket() {
                let path = socket.join(format!(".s.PGSQL.{}", server.get_port()));
                let Ok(server) = UnixStream::connect(path).await else { return };
                let (from_server, to_server) = server.into_split();
                Link::new(shared).run(from_host, to_host, from_server, to_server).await;
            } else {
                let address = (server.get_host(), server.get_port());
                let Ok(server) = TcpStream::connect(address).await else { return };
                let (from_server, to_server) = server.into_split();
                Link::new(shared).run(from_host, to_host, from_server, to_server).await;
            }
        });
    }
}

/// One connection of the host.
struct Link {
    shared: Arc<Shared>,
    /// Nothing more of what the host sends is passed on.
    is_stalled: AtomicBool,
}

impl Link {
    fn new(shared: Arc<Shared>) -> Self {
        Self { shared, is_stalled: AtomicBool::new(false) }
    }

    async fn run(
        &self,
        from_host: impl AsyncRead + Unpin,
        to_host: impl AsyncWrite + Unpin,
        from_server: impl AsyncRead + Unpin,
        to_server: impl AsyncWrite + Unpin,
    ) {
        // Whichever end hangs up, the other one is hung up on.
        tokio::select! {
            _ended = self.ask(from_host, to_server) => {}
            _ended = self.answer(from_server, to_host) => {}
        }
    }

    async fn ask(
        &self,
        mut host: impl AsyncRead + Unpin,
        mut server: impl AsyncWrite + Unpin,
    ) -> std::io::Result<()> {
        // The first message has no kind.
        let start = read_body(&mut host).await?;
        server.write_all(&start).await?;
        loop {
            let kind = host.read_u8().await?;
            let body = read_body(&mut host).await?;
            if kind == b'Q' {
                self.begin_statement(&String::from_utf8_lossy(&body[4..]));
            }
            server.write_u8(kind).await?;
            server.write_all(&body).await?;
            if self.is_stalled.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
        }
    }

    fn begin_statement(&self, statement: &str) {
        if self.shared.strike(|fault| match fault {
            Fault::StallCopy(part) => statement.contains(part),
        }) {
            self.is_stalled.store(true, Ordering::SeqCst);
        }
    }

    async fn answer(
        &self,
        mut server: impl AsyncRead + Unpin,
        mut host: impl AsyncWrite + Unpin,
    ) -> std::io::Result<()> {
        loop {
            let kind = server.read_u8().await?;
            let body = read_body(&mut server).await?;
            // It waits for the rows of a copy.
            if kind == b'G' && self.is_stalled.load(Ordering::SeqCst) {
                self.shared.has_struck();
            }
            host.write_u8(kind).await?;
            host.write_all(&body).await?;
        }
    }
}

/// A message without its kind: its length, which counts itself, and the rest.
async fn read_body(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut body = vec![0; 4];
    from.read_exact(&mut body).await?;
    let length = u32::from_be_bytes([body[0], body[1], body[2], body[3]]) as usize;
    body.resize(length.max(4), 0);
    from.read_exact(&mut body[4..]).await?;
    Ok(body)
}
