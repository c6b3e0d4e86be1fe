//! Goes on reading a request that was refused before its body was read.
//!
//! A client that is still sending must find an open connection, or it sees a network error in the place of the
//! refusal. What arrives is thrown away, up to a limit and not for long.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::Request;
use futures_util::{Stream, StreamExt};
use tokio::runtime::Handle;

const MAX_THROWN_AWAY_BYTES: usize = 64 << 20;
const MAX_TIME: Duration = Duration::from_secs(10);

/// The request with a body whose rest is read when it is let go of: with the answer or, if the body is passed on
/// somewhere else, later.
pub fn throw_away(request: Request) -> Request {
    if request.body().is_end_stream() {
        return request;
    }
    let (parts, body) = request.into_parts();
    let body = ReadOnDrop(Some(body.into_data_stream()));
    Request::from_parts(parts, Body::from_stream(body))
}

/// A body whose rest is read and thrown away when it is dropped.
struct ReadOnDrop(Option<BodyDataStream>);

impl Stream for ReadOnDrop {
    type Item = Result<Bytes, axum::Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(stream) = &mut self.0 else { return Poll::Ready(None) };
        let polled = stream.poll_next_unpin(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.0 = None;
        }
        polled
    }
}

impl Drop for ReadOnDrop {
    fn drop(&mut self) {
        if let (Some(rest), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(tokio::time::timeout(MAX_TIME, read_on(rest)));
        }
    }
}

async fn read_on(mut rest: BodyDataStream) {
    let mut left = MAX_THROWN_AWAY_BYTES;
    while let Some(Ok(bytes)) = rest.next().await
        && bytes.len() <= left
    {
        left -= bytes.len();
    }
}
