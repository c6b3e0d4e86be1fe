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
use super::forward::ForwardedBody;

/// A body that is forwarded while it arrives, as a stream from the server that receives it.
pub type Incoming = Pin<Box<dyn Stream<Item = Result<Bytes, ()>> + Send>>;

/// Takes memory for so many more bytes of the beginning of a body. Returns `false` if there is not enough. The memory is
/// released when this function is dropped.
pub type TakeMemory = Box<dyn FnMut(usize) -> bool + Send>;

/// Limits for the size, the memory and the idle time of an upload.
#[derive(Debug, Clone, Copy)]
pub(super) struct UploadLimits {
    pub max_bytes: u64,
    /// Up to this many bytes are buffered, so that the body can be sent again.
    pub max_buffered_bytes: usize,
    pub idle: Duration,
    /// How long all pauses of the client may take together, besides the time at the minimum rate.
    pub max_pauses: Duration,
    /// The rate at which the client must send on average.
    pub min_bytes_per_second: u64,
}

impl UploadLimits {
    /// How long all waiting for the client may take together, if so many bytes have arrived.
    fn max_wait(&self, read_bytes: u64) -> Duration {
        self.max_pauses + Duration::from_secs(read_bytes / self.min_bytes_per_second)
    }
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
                    if whole.len() <= limit_bytes && !self.can_be_sent_again() {
                        return Err(EgressError::Upload(UploadFailure::NoMemory));
                    }
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
    /// Counts the memory of `buffered`. `None` if it is not counted, or nothing is buffered any more.
    buffer: Option<TakeMemory>,
    has_ended: bool,
    read_bytes: u64,
    buffered: Vec<Bytes>,
    /// Whether `buffered` contains everything that was read.
    is_complete_buffer: bool,
    failure: Option<UploadFailure>,
    moved_at: Option<Instant>,
    /// Runs while the client's next part is awaited.
    stall: Option<Stall>,
    /// How long the parts that have arrived were awaited together.
    waited: Duration,
    /// The number of the exchange that may read: the last one that began.
    reader: u64,
    waiting: Option<Waker>,
}

struct Stall {
    began: Instant,
    timer: Pin<Box<Sleep>>,
    /// The reason if the timer ends first.
    failure: UploadFailure,
}

impl Upload {
    pub fn new(body: ForwardedBody, limits: UploadLimits) -> Arc<Self> {
        let ForwardedBody { incoming, announced_bytes, buffer } = body;
        let progress = Progress {
            incoming,
            buffer,
            has_ended: false,
            read_bytes: 0,
            buffered: Vec::new(),
            is_complete_buffer: true,
            failure: None,
            moved_at: None,
            stall: None,
            waited: Duration::ZERO,
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
                let wait_left = limits.max_wait(self.read_bytes).saturating_sub(self.waited);
                let stall = self.stall.get_or_insert_with(|| Stall::begin(wait_left, limits));
                if stall.timer.as_mut().poll(cx).is_pending() {
                    self.waiting = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                let failure = stall.failure;
                self.fail(failure)
            }
            Poll::Ready(None) => {
                self.has_ended = true;
                self.stall = None;
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(()))) => self.fail(UploadFailure::Cut),
            Poll::Ready(Some(Ok(chunk))) => {
                if let Some(stall) = self.stall.take() {
                    self.waited += stall.began.elapsed();
                }
                self.read_bytes += chunk.len() as u64;
                if self.read_bytes > limits.max_bytes {
                    return self.fail(UploadFailure::TooLong { limit_bytes: limits.max_bytes });
                }
                self.keep(&chunk, limits.max_buffered_bytes);
                Poll::Ready(Some(Ok(chunk)))
            }
        }
    }

    /// Keeps a part while everything so far can be kept.
    fn keep(&mut self, chunk: &Bytes, max_bytes: usize) {
        if self.is_complete_buffer
            && self.read_bytes <= max_bytes as u64
            && self.buffer.as_mut().is_none_or(|take| take(chunk.len()))
        {
            self.buffered.push(chunk.clone());
            return;
        }
        self.is_complete_buffer = false;
        self.buffered = Vec::new();
        self.buffer = None;
    }

    fn fail(&mut self, failure: UploadFailure) -> Poll<Option<Result<Bytes, UploadFailure>>> {
        self.failure = Some(failure);
        self.stall = None;
        Poll::Ready(Some(Err(failure)))
    }
}

impl Stall {
    fn begin(wait_left: Duration, limits: &UploadLimits) -> Self {
        let failure = if wait_left < limits.idle {
            UploadFailure::Slow { bytes_per_second: limits.min_bytes_per_second }
        } else {
            UploadFailure::Stalled { after: limits.idle }
        };
        Self { began: Instant::now(), timer: Box::pin(sleep(wait_left.min(limits.idle))), failure }
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

    const LIMITS: UploadLimits = UploadLimits {
        max_bytes: 10,
        max_buffered_bytes: 4,
        idle: Duration::from_millis(20),
        max_pauses: Duration::from_millis(100),
        min_bytes_per_second: 100,
    };

    fn payload(chunks: &[&'static str]) -> Payload {
        payload_with(chunks, None)
    }

    fn payload_with(chunks: &[&'static str], buffer: Option<TakeMemory>) -> Payload {
        let chunks: Vec<_> = chunks.iter().map(|chunk| Ok(Bytes::from_static(chunk.as_bytes()))).collect();
        upload(Box::pin(stream::iter(chunks)), LIMITS, buffer)
    }

    fn upload(incoming: Incoming, limits: UploadLimits, buffer: Option<TakeMemory>) -> Payload {
        Payload::Upload(Upload::new(ForwardedBody { incoming, announced_bytes: None, buffer }, limits))
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
        let payload = upload(Box::pin(silent), LIMITS, None);
        assert!(read(begin(&payload)).await.is_err());
        assert_eq!(payload.failure(), Some(UploadFailure::Stalled { after: LIMITS.idle }));
    }

    #[tokio::test]
    async fn a_client_must_send_at_a_minimum_rate() {
        let sent_with = |bytes_per_second| {
            let incoming = stream::iter(0..10).then(|_| async {
                sleep(Duration::from_millis(20)).await;
                Ok(Bytes::from_static(b"a"))
            });
            let (idle, min_bytes_per_second) = (Duration::from_millis(100), bytes_per_second);
            let limits = UploadLimits { idle, min_bytes_per_second, ..LIMITS };
            upload(Box::pin(incoming), limits, None)
        };
        let fast_enough = sent_with(1);
        assert_eq!(read(begin(&fast_enough)).await.unwrap(), "aaaaaaaaaa");
        let slow = sent_with(1_000);
        assert!(read(begin(&slow)).await.is_err());
        assert_eq!(slow.failure(), Some(UploadFailure::Slow { bytes_per_second: 1_000 }));
    }

    #[tokio::test]
    async fn a_body_is_forwarded_but_not_kept_without_memory() {
        let mut left = 3;
        let take: TakeMemory = Box::new(move |bytes| {
            left -= i32::try_from(bytes).unwrap();
            left >= 0
        });
        let payload = payload_with(&["ab", "cd"], Some(take));
        assert_eq!(read(begin(&payload)).await.unwrap(), "abcd");
        assert!(!payload.can_be_sent_again());
        let full = payload_with(&["ab"], Some(Box::new(|_| false)));
        let refused = full.whole().await.unwrap_err();
        assert_eq!(refused, EgressError::Upload(UploadFailure::NoMemory));
    }

    #[tokio::test]
    async fn a_form_over_the_buffer_limit_is_not_signed() {
        assert_eq!(payload(&["ab", "cd"]).whole().await.unwrap().unwrap(), "abcd");
        assert_eq!(payload(&["ab", "cde"]).whole().await.unwrap_err().code().as_str(), "invalid-request");
    }
}
