//! Records the requests of a run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{SubsecRound, Utc};
use syncline_sandbox::{
    Failure, GuestError, Interrupt, ProviderClient, RandomSeed, Request, Response, RunLog, Sources,
    SteppedClock,
};

use crate::exchange::{Exchange, RecordedFailure, RecordedRequest, RecordedResponse, is_secret_header};
use crate::masking::Masking;

/// The sources of a run that is recorded, and its requests so far.
#[derive(Clone)]
pub struct Recorder {
    clock: SteppedClock,
    seed: RandomSeed,
    exchanges: Arc<Mutex<Exchanges>>,
}

/// The exchanges so far. There are none if they are longer than the limit.
struct Exchanges {
    list: Vec<Unmasked>,
    bytes: usize,
    max_bytes: usize,
}

/// An exchange whose secrets are not masked yet. The run may learn further secrets until it ends.
struct Unmasked {
    request: Request,
    took: Duration,
    /// `None` if the run ended before.
    answer: Option<Answer>,
}

enum Answer {
    Response(Response),
    Failure(Failure),
    RateLimited(Duration),
}

impl Recorder {
    /// Starts a recording whose exchanges and noted texts have at most `max_bytes` together.
    pub fn start(max_bytes: usize) -> Self {
        let clock = SteppedClock::new(Utc::now().trunc_subsecs(6));
        let exchanges = Exchanges { list: Vec::new(), bytes: 0, max_bytes };
        Self { clock, seed: RandomSeed(rand::random()), exchanges: Arc::new(Mutex::new(exchanges)) }
    }

    /// Counts further text of the recording towards its limit.
    pub fn count(&self, bytes: usize) {
        self.lock().count(bytes);
    }

    /// Whether the recording has exceeded its limit.
    pub fn is_too_long(&self) -> bool {
        let exchanges = self.lock();
        exchanges.bytes > exchanges.max_bytes
    }

    /// The sources for the run.
    pub fn sources(&self) -> Sources {
        Sources::Recorded { clock: self.clock.clone(), seed: self.seed }
    }

    pub fn clock(&self) -> &SteppedClock {
        &self.clock
    }

    pub fn seed(&self) -> RandomSeed {
        self.seed
    }

    /// Returns a client that records the requests that it passes on. It masks the values of their secret headers in
    /// the log, and therefore in the recording.
    pub fn client(&self, inner: Arc<dyn ProviderClient>, log: &RunLog) -> Arc<dyn ProviderClient> {
        Arc::new(RecordingClient { recorder: self.clone(), inner, log: log.clone() })
    }

    /// The exchanges of the run, in the order of their requests.
    pub fn exchanges(&self, log: &RunLog) -> Vec<Exchange> {
        let masking = Masking(log);
        let mask = |text: &str| masking.text(text);
        let exchanges = self.lock();
        let masked = exchanges.list.iter().map(|Unmasked { request, took, answer }| {
            let mut exchange = Exchange {
                request: RecordedRequest::new(request, &mask),
                took_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
                response: None,
                failure: None,
                rate_limited_ms: None,
            };
            match answer {
                None => {}
                Some(Answer::Response(response)) => {
                    exchange.response = Some(RecordedResponse::new(response, &mask));
                }
                Some(Answer::Failure(failure)) => {
                    exchange.failure = Some(RecordedFailure::new(failure, &mask));
                }
                Some(Answer::RateLimited(wait)) => {
                    exchange.rate_limited_ms = Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
                }
            }
            exchange
        });
        masked.collect()
    }

    /// Notes requests that are being sent, and returns the index of the first one.
    fn begin(&self, requests: &[Request]) -> usize {
        let mut exchanges = self.lock();
        let first = exchanges.list.len();
        for request in requests {
            if exchanges.count(request.url.len() + request.body.as_ref().map_or(0, Vec::len)) {
                let request = request.clone();
                exchanges.list.push(Unmasked { request, took: Duration::ZERO, answer: None });
            }
        }
        first
    }

    fn end(&self, index: usize, sent_at: Duration, answer: Answer) {
        let took = self.clock.elapsed().saturating_sub(sent_at);
        let mut exchanges = self.lock();
        let bytes = match &answer {
            Answer::Response(response) => response.body.len(),
            Answer::Failure(_) | Answer::RateLimited(_) => 0,
        };
        exchanges.count(bytes);
        if let Some(exchange) = exchanges.list.get_mut(index) {
            (exchange.took, exchange.answer) = (took, Some(answer));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Exchanges> {
        self.exchanges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Exchanges {
    /// Returns `false`, and drops all exchanges, if the recording exceeds its limit.
    fn count(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        let is_within = self.bytes <= self.max_bytes;
        if !is_within {
            self.list = Vec::new();
        }
        is_within
    }
}

struct RecordingClient {
    recorder: Recorder,
    inner: Arc<dyn ProviderClient>,
    log: RunLog,
}

impl RecordingClient {
    fn begin(&self, requests: &[Request]) -> usize {
        for (name, value) in requests.iter().flat_map(|request| &request.headers) {
            if is_secret_header(name) {
                self.log.hide(value);
            }
        }
        self.recorder.begin(requests)
    }
}

#[async_trait]
impl ProviderClient for RecordingClient {
    async fn send(&self, request: Request) -> Result<Response, GuestError> {
        let recorder = &self.recorder;
        let (index, sent_at) = (self.begin(std::slice::from_ref(&request)), recorder.clock.elapsed());
        let answer = self.inner.send(request).await;
        recorder.clock.step();
        let recorded = match &answer {
            Ok(response) => Answer::Response(response.clone()),
            Err(GuestError::Failure(failure)) => Answer::Failure(failure.clone()),
            Err(GuestError::Interrupt(Interrupt::RateLimited { retry_after })) => {
                Answer::RateLimited(*retry_after)
            }
            Err(GuestError::Interrupt(_)) => return answer,
        };
        recorder.end(index, sent_at, recorded);
        answer
    }

    async fn send_all(&self, requests: Vec<Request>) -> Result<Vec<Result<Response, Failure>>, Interrupt> {
        let recorder = &self.recorder;
        let (first, count) = (self.begin(&requests), requests.len());
        let sent_at = recorder.clock.elapsed();
        let answers = self.inner.send_all(requests).await;
        recorder.clock.step();
        match &answers {
            Ok(answers) => {
                for (index, answer) in (first..).zip(answers) {
                    let recorded = match answer {
                        Ok(response) => Answer::Response(response.clone()),
                        Err(failure) => Answer::Failure(failure.clone()),
                    };
                    recorder.end(index, sent_at, recorded);
                }
            }
            Err(Interrupt::RateLimited { retry_after }) => {
                for index in first..first + count {
                    recorder.end(index, sent_at, Answer::RateLimited(*retry_after));
                }
            }
            Err(_) => {}
        }
        answers
    }
}
