//! Goes on reading a request that was refused before its body was read.
//!
//! A client that is still sending must find an open connection, or it sees a network error in the place of the
//! refusal. What arrives is thrown away, up to a limit and not for long.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use futures_util::{Stream, StreamExt};

const MAX_THROWN_AWAY_BYTES: usize = 64 << 20;
const MAX_TIME: Duration = Duration::from_secs(10);

/// Runs the rest, and reads what it has left of the body while the answer is on its way.
pub async fn throw_away(request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let (parts, body) = request.into_parts();
    let body = SharedBody::new(body);
    let response = next.run(Request::from_parts(parts, Body::from_stream(body.clone()))).await;
    if !body.lock().has_ended {
        tokio::spawn(tokio::time::timeout(MAX_TIME, read_on(body)));
    }
    response
}

async fn read_on(mut body: SharedBody) {
    let mut left = MAX_THROWN_AWAY_BYTES;
    while let Some(Ok(bytes)) = body.next().await
        && bytes.len() <= left
    {
        left -= bytes.len();
    }
}

/// A body that outlives the handler that it was given to.
#[derive(Clone)]
struct SharedBody(Arc<Mutex<Progress>>);

struct Progress {
    stream: BodyDataStream,
    has_ended: bool,
}

impl SharedBody {
    fn new(body: Body) -> Self {
        Self(Arc::new(Mutex::new(Progress { stream: body.into_data_stream(), has_ended: false })))
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stream for SharedBody {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut progress = self.lock();
        let polled = progress.stream.poll_next_unpin(cx);
        progress.has_ended |= matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }
}
