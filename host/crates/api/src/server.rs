//! The HTTP server. It limits pauses of clients and the size of request heads.
//!
//! `axum::serve` has no time limit for the head of a request, for a client that does not read its response, and for idle
//! connections. This server has.

use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::extract::Patience;
use syncline_web::request_source::PeerAddress;

/// The longest head of a request (request line and headers), in bytes. A longer one is answered with 431 and an empty
/// body, and so is one with more than 100 headers, hyper's default. Heads are read before authentication, so they must
/// be cheap; common URL lengths still fit.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Delay after `accept` failed because a resource, such as file descriptors, was exhausted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Serves until `stop`, and then completes the requests in progress. Closes connections of clients that are silent for
/// `patience`: within a head or a body, between two requests, or while a response waits to be read.
pub async fn serve(listener: TcpListener, routes: Router, patience: Duration, stop: CancellationToken) {
    let routes = routes.layer(Extension(Patience(patience)));
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
        // Sends each part of a streamed response without waiting for acknowledgements. Fails only if the connection has
        // ended.
        let _result = stream.set_nodelay(true);
        limit_reading(&stream, patience);
        connections.spawn(serve_connection(stream, peer, routes.clone(), patience, stop.clone()));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Serves one connection. Does not use the builder of `hyper_util`, which waits without a limit for the first bytes in
/// order to detect HTTP/2.
async fn serve_connection(
    stream: TcpStream,
    peer: IpAddr,
    routes: Router,
    patience: Duration,
    stop: CancellationToken,
) {
    let routes = routes.map_request(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(PeerAddress(peer));
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
