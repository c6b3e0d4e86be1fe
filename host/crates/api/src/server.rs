//! The HTTP server. It limits connections, pauses of clients, and the size of request heads.
//!
//! `axum::serve` has no time limit for the head of a request, for a client that does not read its response, and for idle
//! connections. This server has.

use std::io::{self, Write};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::extract::Patience;
use syncline_telemetry::metrics::{Counted, metrics};
use syncline_types::error_code::ErrorCode;
use syncline_web::address_limit::{AddressLimit, AddressPermit};
use syncline_web::client_address::ClientAddress;
pub use syncline_web::client_address::TrustedProxies;

/// The longest head of a request (request line and headers), in bytes. A longer one is answered with 431 and an empty
/// body, and so is one with more than 100 headers, hyper's default. Heads are read before authentication, so they must
/// be cheap; common URL lengths still fit.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Delay after `accept` failed because a resource, such as file descriptors, was exhausted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(500);

/// The head of the response to a client that reached a limit of connections. It is sent before the request is read.
const REJECTION: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\n\
                         connection: close\r\n\r\n";

/// Settings of the server that an operator can change.
#[derive(Debug, Clone)]
pub struct ServerSettings {
    /// How long a client may be silent: within a head or a body, between two requests, or while a response waits to be
    /// read.
    pub patience: Duration,
    pub max_connections: usize,
    pub max_connections_per_address: usize,
    /// The limit for one address does not apply to these proxies.
    pub trusted_proxies: TrustedProxies,
}

/// Serves until `stop`, and then completes the requests in progress.
pub async fn serve(listener: TcpListener, routes: Router, settings: ServerSettings, stop: CancellationToken) {
    let patience = settings.patience;
    let routes = routes.layer(Extension(Patience(patience)));
    let limits = ConnectionLimits::new(&settings);
    let connections = TaskTracker::new();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let (stream, peer) = match accepted {
            Ok((stream, peer)) => (stream, peer.ip().to_canonical()),
            // Only this connection failed.
            Err(error) if concerns_one_connection(&error) => continue,
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "could not accept a connection");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        let permit = match limits.admit(peer) {
            Ok(permit) => permit,
            Err(limit) => {
                metrics().count_rejected_client_connection(limit);
                reject(stream);
                continue;
            }
        };
        // Sends each part of a streamed response without waiting for acknowledgements. Fails only if the connection has
        // ended.
        let _result = stream.set_nodelay(true);
        limit_reading(&stream, patience);
        let (routes, proxies) = (routes.clone(), settings.trusted_proxies.clone());
        let served = serve_connection(stream, (peer, proxies), routes, patience, stop.clone());
        connections.spawn(async move {
            served.await;
            drop(permit);
        });
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Serves one connection. Does not use the builder of `hyper_util`, which waits without a limit for the first bytes in
/// order to detect HTTP/2.
async fn serve_connection(
    stream: TcpStream,
    (peer, proxies): (IpAddr, TrustedProxies),
    routes: Router,
    patience: Duration,
    stop: CancellationToken,
) {
    let routes = routes.map_request(move |mut request: Request<Incoming>| {
        let client = proxies.client(peer, request.headers());
        request.extensions_mut().insert(ClientAddress(client));
        request
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_header_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes))
        .with_upgrades();
    let mut connection = pin!(connection);
    // Errors are caused by the client: it has disconnected, or does not speak HTTP.
    if stop.run_until_cancelled(connection.as_mut()).await.is_none() {
        connection.as_mut().graceful_shutdown();
        let _ended = connection.await;
    }
}

/// The limits of connections.
struct ConnectionLimits {
    host: Arc<Semaphore>,
    address: Arc<AddressLimit>,
    trusted_proxies: TrustedProxies,
}

/// Permission for one connection, until it is dropped.
struct ConnectionPermit {
    _host: OwnedSemaphorePermit,
    /// `None` for a trusted proxy.
    _address: Option<AddressPermit>,
    _counted: Counted,
}

impl ConnectionLimits {
    fn new(settings: &ServerSettings) -> Self {
        Self {
            host: Arc::new(Semaphore::new(settings.max_connections)),
            address: AddressLimit::new(settings.max_connections_per_address),
            trusted_proxies: settings.trusted_proxies.clone(),
        }
    }

    /// Returns a permit, or the limit that is reached.
    fn admit(&self, peer: IpAddr) -> Result<ConnectionPermit, &'static str> {
        let address = match self.trusted_proxies.contains(peer) {
            true => None,
            false => Some(self.address.try_acquire(peer).ok_or("address")?),
        };
        let host = Arc::clone(&self.host).try_acquire_owned().map_err(|_| "host")?;
        let counted = metrics().count_client_connection();
        Ok(ConnectionPermit { _host: host, _address: address, _counted: counted })
    }
}

/// Tells a client why its connection is closed, without waiting for the client.
fn reject(stream: TcpStream) {
    let message = "this host's limit of network connections is reached; retry after the seconds in Retry-After, and \
                   use one connection for several requests";
    let body = json!({ "error": { "code": ErrorCode::TooManyConnections, "message": message } });
    let response = format!("{REJECTION}{body}");
    // The send buffer of a new connection is empty, so the write does not block. It fails only if the client is gone.
    let _result = stream.into_std().and_then(|mut stream| stream.write_all(response.as_bytes()));
}

/// Limits the time during which sent data stays unacknowledged or the receive window stays closed. Only on Linux; other
/// systems use their own limits.
fn limit_reading(stream: &TcpStream, patience: Duration) {
    #[cfg(target_os = "linux")]
    if let Ok(milliseconds) = u32::try_from(patience.as_millis()) {
        // Fails only if the connection has ended.
        let _result = rustix::net::sockopt::set_tcp_user_timeout(stream, milliseconds);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, patience);
}

fn concerns_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
