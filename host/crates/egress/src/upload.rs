//! A request's body: nothing, bytes that are at hand, or what a client is still sending.

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

/// A body that arrives while it is sent on, as the server that receives it gives it.
pub type Incoming = Pin<Box<dyn Stream<Item = Result<Bytes, ()>> + Send>>;

/// How much of a body is taken and kept, and how long it is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct UploadLimits {
    pub most_bytes: u64,
    /// As much is kept, to send it again.
    pub kept_bytes: usize,
    pub idle: Duration,
}

/// What an exchange sends.
#[derive(Clone)]
pub(super) enum Payload {
    Empty,
    Whole(Bytes),
    Upload(Arc<Upload>),
}

impl Payload {
    /// For one exchange. An exchange before it that still reads from the same upload is cut off.
    pub fn to_body(&self) -> Option<reqwest::Body> {
        match self {
            Self::Empty => None,
            Self::Whole(bytes) => Some(bytes.clone().into()),
            Self::Upload(upload) => Some(reqwest::Body::wrap_stream(Reading::begin(upload))),
        }
    }

    /// How long it is, where the HTTP library does not say so itself: if only the client has said it, or if there is
    /// nothing where the method lets the server expect something. Some answer 411 otherwise (RFC 9110, 8.6).
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
            Self::Upload(upload) => upload.lock().is_kept,
        }
    }

    /// All of it at once, as signing a form needs it.
    pub async fn whole(&self) -> Result<Option<Bytes>, EgressError> {
        match self {
            Self::Empty => Ok(None),
            Self::Whole(bytes) => Ok(Some(bytes.clone())),
            Self::Upload(upload) => {
                let limit_bytes = upload.limits.kept_bytes;
                let mut whole = BytesMut::new();
                let mut reading = Reading::begin(upload);
                while let Some(chunk) = reading.next().await {
                    whole.extend_from_slice(&chunk.map_err(|_| upload.failed())?);
                    if whole.len() > limit_bytes {
                        return Err(EgressError::invalid(format!(
                            "a form that is signed must have at most {limit_bytes} bytes"
                        )));
                    }
                }
                Ok(Some(whole.freeze()))
            }
        }
    }

    /// What has been sent of it.
    pub fn sent_bytes(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Whole(bytes) => bytes.len(),
            Self::Upload(upload) => usize::try_from(upload.lock().read_bytes).unwrap_or(usize::MAX),
        }
    }

    /// When a part of it was last asked for or sent; `None` if that is not known.
    pub fn last_moved(&self) -> Option<Instant> {
        match self {
            Self::Empty | Self::Whole(_) => None,
            Self::Upload(upload) => {
                let progress = upload.lock();
                // The upload has its own clock while the client is waited for.
                if progress.stall.is_some() { Some(Instant::now()) } else { progress.moved_at }
            }
        }
    }

    /// Why the client's part of an exchange failed, if it did.
    pub fn failure(&self) -> Option<UploadFailure> {
        match self {
            Self::Empty | Self::Whole(_) => None,
            Self::Upload(upload) => upload.lock().failure,
        }
    }
}

/// A body on its way. Its beginning is kept so that it can be sent again, as long as it is short.
pub(super) struct Upload {
    announced_bytes: Option<u64>,
    limits: UploadLimits,
    progress: Mutex<Progress>,
}

struct Progress {
    incoming: Incoming,
    has_ended: bool,
    read_bytes: u64,
    kept: Vec<Bytes>,
    /// Whether `kept` is all that was read.
    is_kept: bool,
    failure: Option<UploadFailure>,
    moved_at: Option<Instant>,
    /// Runs while the client is waited for.
    stall: Option<Pin<Box<Sleep>>>,
    /// Which exchange may read: the last that began.
    reader: u64,
    waiting: Option<Waker>,
}

impl Upload {
    pub fn new(incoming: Incoming, announced_bytes: Option<u64>, limits: UploadLimits) -> Arc<Self> {
        let progress = Progress {
            incoming,
            has_ended: false,
            read_bytes: 0,
            kept: Vec::new(),
            is_kept: true,
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
                if self.read_bytes > limits.most_bytes {
                    return self.fail(UploadFailure::TooLong { limit_bytes: limits.most_bytes });
                }
                if self.read_bytes > limits.kept_bytes as u64 {
                    self.is_kept = false;
                    self.kept = Vec::new();
                } else {
                    self.kept.push(chunk.clone());
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

/// One exchange's look at an upload, from its beginning.
struct Reading {
    upload: Arc<Upload>,
    number: u64,
    /// How many of the kept parts it has given.
    given: usize,
}

impl Reading {
    fn begin(upload: &Arc<Upload>) -> Self {
        let mut progress = upload.lock();
        progress.reader += 1;
        // The exchange before, which would wait for ever now, hears that it is over.
        if let Some(waiting) = progress.waiting.take() {
            waiting.wake();
        }
        Self { upload: Arc::clone(upload), number: progress.reader, given: 0 }
    }
}

/// An exchange goes on with a body that another has taken over.
#[derive(Debug)]
struct TakenOver;

impl fmt::Display for TakenOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body is sent again by a later attempt")
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
        if let Some(chunk) = progress.kept.get(this.given) {
            this.given += 1;
            return Poll::Ready(Some(Ok(chunk.clone())));
        }
        if progress.has_ended {
            return Poll::Ready(None);
        }
        let polled = progress.poll_incoming(cx, &this.upload.limits);
        this.given = progress.kept.len();
        polled.map(|next| next.map(|chunk| chunk.map_err(Into::into)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    const LIMITS: UploadLimits =
        UploadLimits { most_bytes: 10, kept_bytes: 4, idle: Duration::from_millis(20) };

    fn payload(chunks: &[&'static str]) -> Payload {
        let chunks: Vec<_> = chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
        Payload::Upload(Upload::new(Box::pin(stream::iter(chunks)), None, LIMITS))
    }

    fn begin(payload: &Payload) -> Reading {
        let Payload::Upload(upload) = payload else { panic!("it is an upload") };
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
    async fn a_short_body_can_be_read_again_from_wherever_it_was_left() {
        let payload = payload(&["ab", "c", "d"]);
        let mut first = begin(&payload);
        assert_eq!(first.next().await.unwrap().unwrap(), "ab");
        assert!(payload.can_be_sent_again());
        assert_eq!(read(begin(&payload)).await.unwrap(), "abcd");
        assert_eq!(read(begin(&payload)).await.unwrap(), "abcd");
        assert_eq!(read(first).await.unwrap_err(), TakenOver.to_string());
    }

    #[tokio::test]
    async fn a_longer_one_is_passed_on_and_not_kept() {
        let payload = payload(&["ab", "cd", "ef"]);
        assert_eq!(read(begin(&payload)).await.unwrap(), "abcdef");
        assert!(!payload.can_be_sent_again());
        assert_eq!(payload.sent_bytes(), 6);
    }

    #[tokio::test]
    async fn one_past_the_limit_fails_and_says_so() {
        let payload = payload(&["abcdef", "ghijkl"]);
        assert!(read(begin(&payload)).await.is_err());
        assert_eq!(payload.failure(), Some(UploadFailure::TooLong { limit_bytes: 10 }));
    }

    #[tokio::test]
    async fn a_client_that_stops_sending_is_not_waited_for() {
        let silent = stream::iter([Ok(Bytes::from_static(b"ab"))]).chain(stream::pending());
        let payload = Payload::Upload(Upload::new(Box::pin(silent), None, LIMITS));
        assert!(read(begin(&payload)).await.is_err());
        assert_eq!(payload.failure(), Some(UploadFailure::Stalled { after: LIMITS.idle }));
    }

    #[tokio::test]
    async fn a_form_is_signed_whole_or_not_at_all() {
        assert_eq!(payload(&["ab", "cd"]).whole().await.unwrap().unwrap(), "abcd");
        assert_eq!(payload(&["ab", "cde"]).whole().await.unwrap_err().code().as_str(), "invalid-request");
    }
}
