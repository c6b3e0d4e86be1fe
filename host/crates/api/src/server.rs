//! Takes connections, and has patience with clients, but not for ever.
//!
//! `axum::serve` waits without end for a request's head and for a client that does not read. Here both have a limit, as
//! has the silence between two requests of a connection. The size of a request's head is limited, too.

use std::io;
use std::pin::pin;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::extract::Patience;

/// The longest head of a request, in bytes: its first line and its headers. A longer one is answered with 431 and an
/// empty body, and so is one with more than 100 headers, which is hyper's default. Anyone can send a head, so it must
/// not cost much to read; the URL may still be as long as servers usually accept.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// After the system refused a connection for want of something that others may give back.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(500);

/// Serves until `stop`, and then what was begun. A client that says nothing for `patience` is left: within a head,
/// within a body, between two requests, or while it has an answer to read.
pub async fn serve(listener: TcpListener, routes: Router, patience: Duration, stop: CancellationToken) {
    let routes = routes.layer(Extension(Patience(patience)));
    let connections = TaskTracker::new();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        let stream = match accepted {
            Ok((stream, _)) => stream,
            // Of the one connection that was to be taken.
            Err(error) if is_of_the_connection(&error) => continue,
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "a connection could not be taken");
                tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                continue;
            }
        };
        // The parts of an answer that comes in parts do not wait until those before them are acknowledged. If this fails,
        // the connection has ended.
        let _at_once = stream.set_nodelay(true);
        limit_reading(&stream, patience);
        connections.spawn(attend(stream, routes.clone(), patience, stop.clone()));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Answers the requests of one connection. Not by `hyper_util`'s builder, which would wait without end for the first
/// bytes to tell HTTP/2 by.
async fn attend(stream: TcpStream, routes: Router, patience: Duration, stop: CancellationToken) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .max_header_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes))
        .with_upgrades();
    let mut connection = pin!(connection);
    // What goes wrong here is the client's: it has left, or speaks something else.
    if stop.run_until_cancelled(connection.as_mut()).await.is_none() {
        connection.as_mut().graceful_shutdown();
        let _ended = connection.await;
    }
}

/// Limits how long what was sent may remain without an answer, or the client's window closed. Elsewhere than on Linux
/// the system's own limits hold.
fn limit_reading(stream: &TcpStream, patience: Duration) {
    #[cfg(target_os = "linux")]
    if let Ok(milliseconds) = u32::try_from(patience.as_millis()) {
        // The connection has ended if this fails.
        let _limited = rustix::net::sockopt::set_tcp_user_timeout(stream, milliseconds);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (stream, patience);
}

fn is_of_the_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
