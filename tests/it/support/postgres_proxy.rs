//! A faulty proxy for Postgres. It forwards every message between a host and the server, until the fault that a test
//! has armed.
//!
//! It parses the protocol only to find the ends of messages and their statements.
//! <https://www.postgresql.org/docs/current/protocol-message-formats.html>

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_util::sync::CancellationToken;

use super::{TestDatabase, eventually};

/// A fault that happens once. A statement is identified by a part of its text.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// The server receives this `COPY` and waits for rows, which never arrive.
    StallCopy(&'static str),
    /// The transaction that contains this statement is committed, but the response is lost.
    LoseCommitOf(&'static str),
    /// The statement is executed, alone or in a transaction, but the response is lost.
    LoseAnswerOf(&'static str),
    /// The transaction that contains this statement is not committed: the connection breaks before.
    CutBeforeCommitOf(&'static str),
    /// The next connection gets the error that the server is starting up.
    Recover,
}

#[derive(Default)]
struct Shared {
    armed: Mutex<Option<Fault>>,
    has_happened: AtomicBool,
    drops_notifications: AtomicBool,
    closed: CancellationToken,
    statements: AtomicUsize,
}

pub struct PostgresProxy {
    url: String,
    shared: Arc<Shared>,
}

impl PostgresProxy {
    /// Starts a proxy for this database.
    pub async fn start(db: &TestDatabase) -> Self {
        let server: PgConnectOptions = db.url().parse().expect("the URL is one");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("the listener has an address");
        let name = server.get_database().expect("a test's database has a name");
        let url = format!("postgres://{}@{address}/{name}?sslmode=disable", server.get_username());
        let shared = Arc::new(Shared::default());
        tokio::spawn(serve(listener, server, Arc::clone(&shared)));
        Self { url, shared }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Arms a fault, which happens at the next opportunity.
    pub fn arm(&self, fault: Fault) {
        self.shared.has_happened.store(false, Ordering::SeqCst);
        *self.shared.armed() = Some(fault);
    }

    /// Waits until the armed fault has happened.
    pub async fn wait_for_fault(&self) {
        let what = format!("{:?} has happened", self.shared.armed());
        eventually(&what, async || self.shared.has_happened.load(Ordering::SeqCst).then_some(())).await;
    }

    /// Closes all connections, and accepts no more.
    pub fn close(&self) {
        self.shared.closed.cancel();
    }

    /// Number of statements so far.
    pub fn statements(&self) -> usize {
        self.shared.statements.load(Ordering::SeqCst)
    }

    /// Drops all notifications from now on.
    pub fn drop_notifications(&self) {
        self.shared.drops_notifications.store(true, Ordering::SeqCst);
    }
}

impl Shared {
    fn armed(&self) -> MutexGuard<'_, Option<Fault>> {
        self.armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the armed fault if the predicate accepts it.
    fn take_armed(&self, accepts: impl Fn(Fault) -> bool) -> bool {
        let mut armed = self.armed();
        let is_accepted = armed.is_some_and(accepts);
        if is_accepted {
            *armed = None;
        }
        is_accepted
    }

    fn report_fault(&self) {
        self.has_happened.store(true, Ordering::SeqCst);
    }
}

async fn serve(listener: TcpListener, server: PgConnectOptions, shared: Arc<Shared>) {
    while let Some(Ok((mut host, _))) = shared.closed.run_until_cancelled(listener.accept()).await {
        if shared.take_armed(|fault| matches!(fault, Fault::Recover)) {
            let _may_be_gone = refuse(&mut host).await;
            shared.report_fault();
            continue;
        }
        host.set_nodelay(true).expect("the connection was just opened");
        let (server, shared) = (server.clone(), Arc::clone(&shared));
        tokio::spawn(async move {
            let (from_host, to_host) = host.into_split();
            // If the server is unavailable, the proxy closes the connection too.
            if let Some(socket) = server.get_socket() {
                let path = socket.join(format!(".s.PGSQL.{}", server.get_port()));
                let Ok(server) = UnixStream::connect(path).await else { return };
                let (from_server, to_server) = server.into_split();
                Link::new(shared).run(from_host, to_host, from_server, to_server).await;
            } else {
                let address = (server.get_host(), server.get_port());
                let Ok(server) = TcpStream::connect(address).await else { return };
                server.set_nodelay(true).expect("the connection was just opened");
                let (from_server, to_server) = server.into_split();
                Link::new(shared).run(from_host, to_host, from_server, to_server).await;
            }
        });
    }
}

/// Answers like a server that is still starting.
async fn refuse(host: &mut TcpStream) -> std::io::Result<()> {
    read_body(host).await?;
    let fields = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0";
    host.write_u8(b'E').await?;
    host.write_u32(4 + fields.len() as u32).await?;
    host.write_all(fields).await
}

/// One connection of the host.
struct Link {
    shared: Arc<Shared>,
    /// The next response is dropped, and then the connection is closed.
    loses_answer: AtomicBool,
    /// Further messages of the host are not forwarded.
    is_stalled: AtomicBool,
    cut: CancellationToken,
}

impl Link {
    fn new(shared: Arc<Shared>) -> Self {
        let (loses_answer, is_stalled) = (AtomicBool::new(false), AtomicBool::new(false));
        let cut = shared.closed.child_token();
        Self { shared, loses_answer, is_stalled, cut }
    }

    async fn run(
        &self,
        from_host: impl AsyncRead + Unpin,
        to_host: impl AsyncWrite + Unpin,
        from_server: impl AsyncRead + Unpin,
        to_server: impl AsyncWrite + Unpin,
    ) {
        // When one side closes the connection, the other side is closed too.
        tokio::select! {
            _ended = self.ask(from_host, to_server) => {}
            _ended = self.answer(from_server, to_host) => {}
            () = self.cut.cancelled() => {}
        }
    }

    async fn ask(
        &self,
        mut host: impl AsyncRead + Unpin,
        mut server: impl AsyncWrite + Unpin,
    ) -> std::io::Result<()> {
        // The first message has no type byte.
        let start = read_body(&mut host).await?;
        server.write_all(&start).await?;
        let mut prepared: HashMap<String, String> = HashMap::new();
        let mut transaction: Vec<String> = Vec::new();
        loop {
            let kind = host.read_u8().await?;
            let body = read_body(&mut host).await?;
            match kind {
                b'P' => {
                    let (name, rest) = text(&body[4..]);
                    prepared.insert(name, text(rest).0);
                }
                b'B' => {
                    let (_portal, rest) = text(&body[4..]);
                    let statement = prepared.get(&text(rest).0).cloned().unwrap_or_default();
                    self.begin_statement(&statement);
                    transaction.push(statement);
                }
                b'Q' => {
                    let statement = text(&body[4..]).0;
                    match statement.split_whitespace().next() {
                        Some("BEGIN") => transaction.clear(),
                        Some("COMMIT") => self.begin_commit(&transaction),
                        _ => {
                            self.begin_statement(&statement);
                            transaction.push(statement);
                        }
                    }
                }
                _ => {}
            }
            if self.cut.is_cancelled() {
                return Ok(());
            }
            server.write_u8(kind).await?;
            server.write_all(&body).await?;
            if self.is_stalled.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
        }
    }

    fn begin_statement(&self, statement: &str) {
        self.shared.statements.fetch_add(1, Ordering::SeqCst);
        if self.shared.take_armed(|fault| matches!(fault, Fault::StallCopy(part) if statement.contains(part)))
        {
            self.is_stalled.store(true, Ordering::SeqCst);
        }
        if self
            .shared
            .take_armed(|fault| matches!(fault, Fault::LoseAnswerOf(part) if statement.contains(part)))
        {
            self.loses_answer.store(true, Ordering::SeqCst);
        }
    }

    fn begin_commit(&self, transaction: &[String]) {
        let made = |part: &str| transaction.iter().any(|statement| statement.contains(part));
        if self.shared.take_armed(|fault| matches!(fault, Fault::LoseCommitOf(part) if made(part))) {
            self.loses_answer.store(true, Ordering::SeqCst);
        }
        if self.shared.take_armed(|fault| matches!(fault, Fault::CutBeforeCommitOf(part) if made(part))) {
            self.cut.cancel();
            self.shared.report_fault();
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
            match kind {
                // `CopyInResponse`: the server waits for rows.
                b'G' if self.is_stalled.load(Ordering::SeqCst) => self.shared.report_fault(),
                b'A' if self.shared.drops_notifications.load(Ordering::SeqCst) => continue,
                // `ReadyForQuery`: the statement has been executed.
                b'Z' if self.loses_answer.load(Ordering::SeqCst) => {
                    self.cut.cancel();
                    self.shared.report_fault();
                    return Ok(());
                }
                _ if self.loses_answer.load(Ordering::SeqCst) => continue,
                _ => {}
            }
            host.write_u8(kind).await?;
            host.write_all(&body).await?;
        }
    }
}

/// Reads a message without its type byte: its length, which includes itself, and the rest.
async fn read_body(from: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut body = vec![0; 4];
    from.read_exact(&mut body).await?;
    let length = u32::from_be_bytes([body[0], body[1], body[2], body[3]]) as usize;
    body.resize(length.max(4), 0);
    from.read_exact(&mut body[4..]).await?;
    Ok(body)
}

/// Splits at the next NUL: the text before it, and the bytes after it.
fn text(bytes: &[u8]) -> (String, &[u8]) {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    (String::from_utf8_lossy(&bytes[..end]).into_owned(), bytes.get(end + 1..).unwrap_or_default())
}
