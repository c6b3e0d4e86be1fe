//! Answers the requests of a replay from its recording.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use syncline_sandbox::{
    Failure, GuestError, Interrupt, ProviderClient, Request, Response, Sources, SteppedClock, Timeline,
};

use crate::exchange::{Exchange, RecordedRequest};
use crate::file::{InvalidRecording, Recording};

/// Longer texts are truncated in messages.
const MAX_SHOWN_CHARS: usize = 200;

/// Answers requests with the recorded responses. A request receives the first unused response to a request with the
/// same method, URL and body, whatever the order of the requests.
#[derive(Clone)]
pub struct Player(Arc<Shared>);

struct Shared {
    recorded: Vec<Exchange>,
    timeline: Timeline,
    state: Mutex<State>,
}

struct State {
    is_used: Vec<bool>,
    /// The index of the recorded exchange of each request, and the request as it was sent.
    sent: Vec<(usize, RecordedRequest)>,
    unmatched: Option<String>,
}

impl Player {
    pub fn new(recording: &Recording) -> Self {
        let clock = SteppedClock::new(recording.started_at);
        let state =
            State { is_used: vec![false; recording.exchanges.len()], sent: Vec::new(), unmatched: None };
        Self(Arc::new(Shared {
            recorded: recording.exchanges.clone(),
            timeline: Timeline::new(clock),
            state: Mutex::new(state),
        }))
    }

    /// The sources for the run.
    pub fn sources(&self, recording: &Recording) -> Result<Sources, InvalidRecording> {
        Ok(Sources::Replayed { timeline: self.0.timeline.clone(), seed: recording.seed()? })
    }

    pub fn client(&self) -> Arc<dyn ProviderClient> {
        Arc::new(self.clone())
    }

    /// Names the request that ended the run, because the recording has no response for it.
    pub fn unmatched(&self) -> Option<String> {
        self.state().unmatched.clone()
    }

    /// The exchanges of the replay, in the order of its requests.
    pub fn exchanges(&self) -> Vec<Exchange> {
        let state = self.state();
        let replayed = state.sent.iter().map(|(index, request)| {
            let recorded = &self.0.recorded[*index];
            Exchange { request: request.clone(), ..recorded.clone() }
        });
        replayed.collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, request: &Request) -> Result<Exchange, Interrupt> {
        let sent = RecordedRequest::new(request, &str::to_owned);
        let mut state = self.state();
        let unused = self.0.recorded.iter().enumerate().filter(|(index, _)| !state.is_used[*index]);
        let unused: Vec<(usize, &Exchange)> = unused.collect();
        let Some((index, found)) = unused.iter().find(|(_, exchange)| exchange.request.asks_the_same(&sent))
        else {
            let message = self.describe_unmatched(&sent, &unused);
            state.unmatched.get_or_insert_with(|| message.clone());
            return Err(Interrupt::Host(anyhow::Error::msg(message)));
        };
        let found = (*found).clone();
        let index = *index;
        state.is_used[index] = true;
        state.sent.push((index, sent));
        Ok(found)
    }

    fn describe_unmatched(&self, sent: &RecordedRequest, unused: &[(usize, &Exchange)]) -> String {
        let name = sent.name();
        if self.0.recorded.iter().any(|exchange| exchange.request.asks_the_same(sent)) {
            return format!("the function sent `{name}` more often than in the recording");
        }
        let start = format!("the recording has no response for `{}`", shown(&name));
        let nearest = unused.iter().map(|(_, exchange)| &exchange.request).max_by(|one, other| {
            let likeness = |request: &RecordedRequest| strsim::jaro_winkler(&request.name(), &name);
            likeness(one).total_cmp(&likeness(other))
        });
        match nearest {
            None if self.0.recorded.is_empty() => format!("{start}: it has no requests"),
            None => format!("{start}: all its requests were sent before"),
            Some(nearest) if nearest.name() == name => {
                let body = |request: &RecordedRequest| match (&request.body, &request.body_base64) {
                    (Some(body), _) | (None, Some(body)) => format!("`{}`", shown(body)),
                    (None, None) => "no body".to_owned(),
                };
                format!(
                    "{start} with this body: the recorded one has {}, and this one has {}",
                    body(nearest),
                    body(sent)
                )
            }
            Some(nearest) => format!("{start}; the nearest recorded request is `{}`", shown(&nearest.name())),
        }
    }

    async fn answer(&self, exchange: Exchange) -> Result<Response, GuestError> {
        let event = self.0.timeline.after(Duration::from_micros(exchange.took_us));
        // The timeline exists as long as the player.
        let _happened = event.await;
        match exchange {
            Exchange { rate_limited_ms: Some(ms), .. } => {
                Err(Interrupt::RateLimited { retry_after: Duration::from_millis(ms) }.into())
            }
            Exchange { failure: Some(failure), .. } => Err(failure.to_failure().into()),
            Exchange { response: Some(response), .. } => Ok(response.to_response()),
            // The recorded run ended before the response arrived.
            Exchange { .. } => std::future::pending().await,
        }
    }
}

fn shown(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[async_trait]
impl ProviderClient for Player {
    async fn send(&self, request: Request) -> Result<Response, GuestError> {
        let exchange = self.find(&request)?;
        self.answer(exchange).await
    }

    async fn send_all(&self, requests: Vec<Request>) -> Result<Vec<Result<Response, Failure>>, Interrupt> {
        let found: Vec<Exchange> =
            requests.iter().map(|request| self.find(request)).collect::<Result<_, _>>()?;
        let mut answers = Vec::with_capacity(found.len());
        for mut exchange in found {
            // The responses arrived together.
            exchange.took_us = if answers.is_empty() { exchange.took_us } else { 0 };
            match self.answer(exchange).await {
                Ok(response) => answers.push(Ok(response)),
                Err(GuestError::Failure(failure)) => answers.push(Err(failure)),
                Err(GuestError::Interrupt(interrupt)) => return Err(interrupt),
            }
        }
        Ok(answers)
    }
}
