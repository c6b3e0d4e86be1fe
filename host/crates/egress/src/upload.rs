//! A request's body: empty, in memory, or still arriving from a client.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http::Method;
use tokio::time::{Instant, Sleep, sleep};

use super::error::{EgressError, UploadFailure};

/// A body that is forwarded while it arrives, as a stream from the server that receives it.
pub type Incoming = Pin<Box<dyn Stream<Item = Result<Bytes, ()>> + Send>>;

/// Limits for the size, the memory and the idle time of an upload.
#[derive(Debug, Clone, Copy)]
pub(super) struct UploadLimits {
    pub max_bytes: u64,
    /// Up to this many bytes are buffered, so that the body can be sent again.
    pub max_buffered_bytes: usize,
    pub idle: Duration,
}

/// The body of an exchange.
#[derive(Clone)]
pub(super) enum Payload {
    Empty,
    Whole(Bytes),
    Upload(Arc<Upload>),
}

impl Payload {
    /// Returns a body for one exchange. An earlier exchange that still reads the same upload is cut off.
    pub fn to_body(&self) -> Option<reqwest::Body> {
        match self {
            Self::Empty => None,
            Self::Whole(bytes) => Some(bytes.clone().into()),
            Self::Upload(upload) => Some(reqwest::Body::wrap_stream(Reading::begin(upload))),
        }
    }

    /// Returns the length that the HTTP client does not announce itself: the length that the calling client announced,
    /// or 0 for an empty body with a method that usually has one. Some servers answer 411 otherwise (RFC 9110, section
    /// 8.6).
    pub fn announced_bytes(&self, method: &Method) -> Option<u64> {
        let expects_content = [Method::POST, Method::PUT, Method::PATCH].contains(method);
        match self {
            Self::Upload(upload) => upload.announced_bytes,
            Self::Whole(bytes) if !bytes.is_empty() => None,
            Self::Empty | Self::Whole(_) => expects_content.then_some(0),
        }
    }

    pub fn can_be_sent_again(&self) -> bool {
        match self {
            Self::Empty | Self::Whole(_) => true,
            Self::Upload(upload) => upload.lock().is_complete_buffer,
        }
    }

    /// Reads the whole body, which is needed to sign a form.
    pub async fn whole(&self) -> Result<Option<Bytes>, EgressError> {
        match self {
            Self::Empty => Ok(None),
            Self::Whole(bytes) => Ok(Some(bytes.clone())),
            Self::Upload(upload) => {
                let limit_bytes = upload.limits.max_buffered_bytes;
                let mut whole = BytesMut::new();
                let mut reading = Reading::begin(upload);
                while let Some(chunk) = reading.next().await {
                    whole.extend_from_slice(&chunk.map_err(|_| upload.failed())?);
                    if whole.len() > limit_bytes {
                        return Err(EgressError::invalid(format!(
                            "a form that OAuth 1 signs must have at most {limit_bytes} bytes"
                        )));
                    }
                }
                Ok(Some(whole.freeze()))
            }
        }
    }

    /// The number of bytes that have been sent so far.
    pub fn sent_bytes(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Whole(bytes) => bytes.len(),
            Self::Upload(upload) => usize::try_from(upload.lock().read_bytes).unwrap_or(usize::MAX),
        }
    }

    /// When a part of the body was last requested or sent. `None` if that is unknown.
    pub fn last_moved(&self) -> Option<Instant> {
        match self {
            Self::Empty | Self::Whole(_) => None,
            Self::Upload(upload) => {
                let progress = upload.lock();
                // While the client's next part is awaited, the upload's own idle limit applies instead.
                if progress.stall.is_some() { Some(Instant::now()) } else { progress.moved_at }
            }
        }
    }

    /// Why the client failed to send the body, if it did.
    pub fn failure(&self) -> Option<UploadFailure> {
        match self {
            Self::Empty | Self::Whole(_) => None,
            Self::Upload(upload) => upload.lock().failure,
        }
    }
}

/// A body that is still arriving. Its beginning is buffered, so that a short body can be sent again.
pub(super) struct Upload {
    announced_bytes: Option<u64>,
    limits: UploadLimits,
    progress: Mutex<Progress>,
}

struct Progress {
    incoming: Incoming,
    has_ended: bool,
    read_bytes: u64,
    buffered: Vec<Bytes>,
    /// Whether `buffered` contains everything that was read.
    is_complete_buffer: bool,
    failure: Option<UploadFailure>,
    moved_at: Option<Instant>,
    /// The idle timer, which runs while the client's next part is awaited.
    stall: Option<Pin<Box<Sleep>>>,
    /// The number of the exchange that may read: the last one that began.
    reader: u64,
    waiting: Option<Waker>,
}

impl Upload {
    pub fn new(incoming: Incoming, announced_bytes: Option<u64>, limits: UploadLimits) -> Arc<Self> {
        let progress = Progress {
            incoming,
            has_ended: false,
            read_bytes: 0,
            buffered: Vec::new(),
            is_complete_buffer: true,
            failure: None,
            moved_at: None,
            stall: None,
            reader: 0,
            waiting: None,
        };
        Arc::new(Self { announced_bytes, limits, progress: Mutex::new(progress) })
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self) -> EgressError {
        EgressError::Upload(self.lock().failure.unwrap_or(UploadFailure::Cut))
    }
}

impl Progress {
    fn poll_incoming(
        &mut self,
        cx: &mut Context<'_>,
        limits: &UploadLimits,
    ) -> Poll<Option<Result<Bytes, UploadFailure>>> {
        match self.incoming.poll_next_unpin(cx) {
            Poll::Pending => {
                let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(limits.idle)));
                if stall.as_mut().poll(cx).is_pending() {
                    self.waiting = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                self.fail(UploadFailure::Stalled { after: limits.idle })
            }
            Poll::Ready(None) => {
                self.has_ended = true;
                self.stall = None;
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(()))) => self.fail(UploadFailure::Cut),
            Poll::Ready(Some(Ok(chunk))) => {
                self.stall = None;
                self.read_bytes += chunk.len() as u64;
                if self.read_bytes > limits.max_bytes {
                    return self.fail(UploadFailure::TooLong { limit_bytes: limits.max_bytes });
                }
                if self.read_bytes > limits.max_buffered_bytes as u64 {
                    self.is_complete_buffer = false;
                    self.buffered = Vec::new();
                } else {
                    self.buffered.push(chunk.clone());
                }
                Poll::Ready(Some(Ok(chunk)))
            }
        }
    }

    fn fail(&mut self, failure: UploadFailure) -> Poll<Option<Result<Bytes, UploadFailure>>> {
        self.failure = Some(failure);
        self.stall = None;
        Poll::Ready(Some(Err(failure)))
    }
}

/// Reads an upload from its beginning, for one exchange.
struct Reading {
    upload: Arc<Upload>,
    number: u64,
    /// The number of buffered parts that were returned.
    next_part: usize,
}

impl Reading {
    fn begin(upload: &Arc<Upload>) -> Self {
        let mut progress = upload.lock();
        progress.reader += 1;
        // Wakes the previous exchange, so that it notices that a new exchange has replaced it.
        if let Some(waiting) = progress.waiting.take() {
            waiting.wake();
        }
        Self { upload: Arc::clone(upload), number: progress.reader, next_part: 0 }
    }
}

/// The error of an exchange whose body a later exchange has taken over.
#[derive(Debug)]
struct TakenOver;

impl fmt::Display for TakenOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a later attempt has taken over the body")
    }
}

impl std::error::Error for TakenOver {}

impl Stream for Reading {
    type Item = Result<Bytes, Box<dyn std::error::Error + Send + Sync>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let mut progress = this.upload.lock();
        if progress.reader != this.number {
            return Poll::Ready(Some(Err(TakenOver.into())));
        }
        if let Some(failure) = progress.failure {
            return Poll::Ready(Some(Err(failure.into())));
        }
        progress.moved_at = Some(Instant::now());
        if let Some(chunk) = progress.buffered.get(this.next_part) {
            this.next_part += 1;
            return Poll::Ready(Some(Ok(chunk.clone())));
        }
        if progress.has_ended {
            return Poll::Ready(None);
        }
        let polled = progress.poll_incoming(cx, &this.upload.limits);
        this.next_part = progress.buffered.len();
        polled.map(|next| next.map(|chunk| chunk.map_err(Into::into)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    const LIMITS: UploadLimits =
        UploadLimits { max_bytes: 10, max_buffered_bytes: 4, idle: Duration::from_millis(20) };

    fn payload(chunks: &[&'static str]) -> Payload {
        let chunks: Vec<_> = chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
        Payload::Upload(Upload::new(Box::pin(stream::iter(chunks)), None, LIMITS))
    }

    fn begin(payload: &Payload) -> Reading {
        let Payload::Upload(upload) = payload else { panic!("not an upload") };
        Reading::begin(upload)
    }

    async fn read(mut reading: Reading) -> Result<String, String> {
        let mut text = String::new();
        while let Some(chunk) = reading.next().await {
            text.push_str(std::str::from_utf8(&chunk.map_err(|error| error.to_string())?).unwrap());
        }
        Ok(text)
    }

    #[tokio::test]
    async fn a_short_body_can_be_read_again_from_the_beginning() {
        let payload = payload(&["ab", "c", "d"]);
        let mut first = begin(&payload);
        assert_eq!(first.next().await.unwrap().unwrap(), "ab");
        assert!(payload.can_be_sent_again());
        assert_eq!(read(begin(&payload)).await.unwrap(), "abcd");
        assert_eq!(read(begin(&payload)).await.unwrap(), "abcd");
        assert_eq!(read(first).await.unwrap_err(), TakenOver.to_string());
    }

    #[tokio::test]
    async fn a_long_body_is_forwarded_without_buffering() {
        let payload = payload(&["ab", "cd", "ef"]);
        assert_eq!(read(begin(&payload)).await.unwrap(), "abcdef");
        assert!(!payload.can_be_sent_again());
        assert_eq!(payload.sent_bytes(), 6);
    }

    #[tokio::test]
    async fn a_body_over_the_limit_fails() {
        let payload = payload(&["abcdef", "ghijkl"]);
        assert!(read(begin(&payload)).await.is_err());
        assert_eq!(payload.failure(), Some(UploadFailure::TooLong { limit_bytes: 10 }));
    }

    #[tokio::test]
    async fn a_client_that_stops_sending_times_out() {
        let silent = stream::iter([Ok(Bytes::from_static(b"ab"))]).chain(stream::pending());
        let payload = Payload::Upload(Upload::new(Box::pin(silent), None, LIMITS));
        assert!(read(begin(&payload)).await.is_err());
        assert_eq!(payload.failure(), Some(UploadFailure::Stalled { after: LIMITS.idle }));
    }

    #[tokio::test]
    async fn a_form_over_the_buffer_limit_is_not_signed() {
        assert_eq!(payload(&["ab", "cd"]).whole().await.unwrap().unwrap(), "abcd");
        assert_eq!(payload(&["ab", "cde"]).whole().await.unwrap_err().code().as_str(), "invalid-request");
    }
}
