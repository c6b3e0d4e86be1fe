//! Reads the rest of request bodies that a handler did not read, for example because it rejected the request.
//!
//! If the host closed the connection while the client is still sending, the client would see a network error instead of
//! the response. The bytes are discarded, with limits on size and time.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes, HttpBody};
use axum::extract::Request;
use futures_util::{Stream, StreamExt};
use tokio::runtime::Handle;

const MAX_DISCARDED_BYTES: usize = 64 << 20;
const MAX_TIME: Duration = Duration::from_secs(10);

/// Wraps the body of a request, so that its rest is read and discarded when the body is dropped.
pub fn discard_unread(request: Request) -> Request {
    if request.body().is_end_stream() {
        return request;
    }
    let (parts, body) = request.into_parts();
    let body = ReadOnDrop(Some(body.into_data_stream()));
    Request::from_parts(parts, Body::from_stream(body))
}

/// A body whose rest is read and discarded when it is dropped.
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
            runtime.spawn(tokio::time::timeout(MAX_TIME, discard(rest)));
        }
    }
}

async fn discard(mut rest: BodyDataStream) {
    let mut left = MAX_DISCARDED_BYTES;
    while let Some(Ok(bytes)) = rest.next().await
        && bytes.len() <= left
    {
        left -= bytes.len();
    }
}
