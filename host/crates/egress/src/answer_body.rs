//! The body of an answer that is forwarded as it arrives.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use tokio::time::{Sleep, sleep};

use super::decode::Incoming;
use super::error::EgressError;
use super::failure::cut;

/// Streams the body. An error means that the provider's connection broke or was silent for too long, so the answer is
/// incomplete. Dropping the stream ends the exchange with the provider.
pub struct AnswerBody {
    host: String,
    incoming: Incoming,
    idle: Duration,
    /// The idle timer, which runs while the provider's next part is awaited.
    stall: Option<Pin<Box<Sleep>>>,
}

impl AnswerBody {
    pub(super) fn new(host: &str, incoming: Incoming, idle: Duration) -> Self {
        Self { host: host.to_owned(), incoming, idle, stall: None }
    }
}

impl Stream for AnswerBody {
    type Item = Result<Bytes, EgressError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        match this.incoming.as_mut().poll_next(cx) {
            Poll::Ready(next) => {
                this.stall = None;
                Poll::Ready(next.map(|chunk| chunk.map_err(|error| cut(&this.host, &error, this.idle))))
            }
            Poll::Pending => {
                let idle = this.idle;
                let stall = this.stall.get_or_insert_with(|| Box::pin(sleep(idle)));
                stall
                    .as_mut()
                    .poll(cx)
                    .map(|()| Some(Err(EgressError::Timeout { host: this.host.clone(), after: idle })))
            }
        }
    }
}
