//! Webhooks to clients: takes what the outbox holds, signs it, and sends it until it is taken or given up.
//!
//! The engine writes the outbox ([`syncline_engine::webhooks`]); every host sends from it. They meet in Postgres only:
//! a delivery is held under a lease, and a host that dies leaves what it held to the others. So each delivery is
//! sent at least once, always under the same id.

mod endpoints;
mod request;
mod retry;
mod upkeep;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::endpoints::Endpoints;
pub use self::retry::{Delays, InvalidDelays};
use syncline_engine::Engine;
use syncline_store::notices::Notice;
use syncline_store::webhooks::sending::{self, Attempt, Claimed, Verdict};
use syncline_telemetry::failpoints::{self, Step};
use syncline_telemetry::metrics::metrics;

/// However quiet it is, the sender looks again after this long: a notification may have been lost.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// A delivery is held for this much longer than an attempt may take.
const LEASE_MARGIN: Duration = Duration::from_secs(10);
const NOTE_TRIES: u32 = 5;

/// What an operator can set.
#[derive(Debug, Clone)]
pub struct SenderSettings {
    /// The waits between attempts.
    pub delays: Delays,
    /// Time for one attempt.
    pub timeout: Duration,
    /// How long what has ended stays in the log.
    pub retention: Duration,
}

/// The part of a host that sends.
pub struct Sender {
    work: JoinHandle<()>,
    upkeep: JoinHandle<()>,
    shutdown: CancellationToken,
}

struct Context {
    engine: Arc<Engine>,
    settings: SenderSettings,
    endpoints: Mutex<Endpoints>,
}

impl Sender {
    pub fn start(engine: Arc<Engine>, settings: SenderSettings) -> Self {
        let shutdown = CancellationToken::new();
        let context = Arc::new(Context { engine, settings, endpoints: Mutex::default() });
        let upkeep = tokio::spawn(upkeep::run(Arc::clone(&context), shutdown.clone()));
        let work = tokio::spawn(run(context, shutdown.clone()));
        Self { work, upkeep, shutdown }
    }

    /// Takes nothing more, and lets what is being sent end for a while. What does not is sent again by another host,
    /// or by the next.
    pub async fn stop(mut self, grace: Duration) {
        self.shutdown.cancel();
        let all = async { tokio::join!(&mut self.work, &mut self.upkeep) };
        if tokio::time::timeout(grace, all).await.is_err() {
            self.work.abort();
        }
    }
}

impl Context {
    fn endpoints(&self) -> MutexGuard<'_, Endpoints> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn claim(&self) -> sqlx::Result<Vec<Claimed>> {
        if self.endpoints().free() == 0 {
            return Ok(Vec::new());
        }
        let mut conn = self.engine.store.connect().await?;
        let due = sending::list_due(&mut conn).await?;
        let wanted = self.endpoints().pick(due, Instant::now(), &mut rand::rng());
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let lease = self.settings.timeout + LEASE_MARGIN;
        sending::claim(&mut conn, self.engine.host_id(), lease, &wanted).await
    }

    /// How long to sleep if nobody wakes us: until something is due, or a receiver has rested.
    async fn time_to_next(&self) -> Duration {
        let next = async { sending::time_to_next(&mut *self.engine.store.connect().await?).await };
        match next.await {
            // It is due, but its receiver is busy or rests: the end of an attempt wakes us too.
            Ok(Some(Duration::ZERO) | None) => LOOK_EVERY,
            Ok(Some(time)) => time.min(LOOK_EVERY),
            Err(_) => AFTER_ERROR,
        }
    }
}

async fn run(context: Arc<Context>, shutdown: CancellationToken) {
    let mut notices = context.engine.notices.subscribe();
    let mut attempts = JoinSet::new();
    while !shutdown.is_cancelled() {
        let claimed = match context.claim().await {
            Ok(claimed) => claimed,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "due webhooks could not be claimed");
                tokio::time::sleep(AFTER_ERROR).await;
                continue;
            }
        };
        while let Some(ended) = attempts.try_join_next() {
            report_panic(ended);
        }
        let is_idle = claimed.is_empty();
        if !is_idle {
            failpoints::reach(Step::WebhookClaimed);
        }
        for delivery in claimed {
            let held = Held::new(&context, &delivery);
            attempts.spawn(attempt(Arc::clone(&context), delivery, held));
        }
        if !is_idle {
            continue;
        }
        let wait = context.time_to_next().await;
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = notices.hear_within(wait, Notice::Webhooks) => {}
            Some(ended) = attempts.join_next() => report_panic(ended),
        }
    }
    while let Some(ended) = attempts.join_next().await {
        report_panic(ended);
    }
}

fn report_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(error = &error as &dyn std::error::Error, "sending a webhook panicked");
    }
}

/// A place of a receiver that is taken until this is dropped, also by a panic.
struct Held {
    context: Arc<Context>,
    endpoint: Uuid,
}

impl Held {
    fn new(context: &Arc<Context>, delivery: &Claimed) -> Self {
        context.endpoints().begin(delivery.endpoint, delivery.environment);
        Self { context: Arc::clone(context), endpoint: delivery.endpoint }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.context.endpoints().end(self.endpoint);
    }
}

async fn attempt(context: Arc<Context>, delivery: Claimed, _held: Held) {
    let began = Instant::now();
    let outcome = request::send(&context.engine, &delivery, context.settings.timeout).await;
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            // Ours to mend: the lease runs out, and it is sent then.
            tracing::error!(webhook.id = %delivery.id, error = format!("{error:#}"), "a webhook could not be signed");
            return;
        }
    };
    failpoints::reach(Step::WebhookSent);
    let now = Instant::now();
    let duration = now - began;
    context.endpoints().note(delivery.endpoint, &outcome, now);
    let left = delivery.left.saturating_sub(duration);
    let number = delivery.attempt_of_round;
    let verdict = retry::judge(&outcome, number, left, &context.settings.delays, rand::random());
    metrics().count_webhook(match verdict {
        Verdict::Delivered => "delivered",
        Verdict::Retry(_) => "retried",
        Verdict::Failed => "failed",
    });
    report(&delivery, &outcome, verdict);
    let attempt = Attempt { status: outcome.status(), error: outcome.error(), duration };
    note(&context, &delivery, &attempt, verdict, outcome.is_gone()).await;
}

/// Tells the operator of what will not be sent again. A retry is in the log of deliveries.
fn report(delivery: &Claimed, outcome: &retry::Outcome, verdict: Verdict) {
    let reason = outcome.error().unwrap_or_default();
    match verdict {
        Verdict::Failed => tracing::warn!(
            webhook.id = %delivery.id,
            attempt = delivery.attempt,
            "a webhook was given up: {reason}",
        ),
        Verdict::Retry(after) => tracing::debug!(
            webhook.id = %delivery.id,
            attempt = delivery.attempt,
            retry.after_s = after.as_secs(),
            "a webhook was not taken: {reason}",
        ),
        Verdict::Delivered => {}
    }
}

/// Writes what came of an attempt. A database that is away for a moment is waited for; if it stays away, the lease
/// runs out and the delivery is sent again.
async fn note(context: &Context, delivery: &Claimed, attempt: &Attempt, verdict: Verdict, is_gone: bool) {
    for number in 1..=NOTE_TRIES {
        match try_note(context, delivery, attempt, verdict, is_gone).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(
                    webhook.id = %delivery.id,
                    error = &error as &dyn std::error::Error,
                    "an attempt at a webhook was not noted (try {number} of {NOTE_TRIES})",
                );
                tokio::time::sleep(Duration::from_millis(200) * 2_u32.pow(number)).await;
            }
        }
    }
}

async fn try_note(
    context: &Context,
    delivery: &Claimed,
    attempt: &Attempt,
    verdict: Verdict,
    is_gone: bool,
) -> sqlx::Result<()> {
    let mut tx = context.engine.store.begin().await?;
    sending::finish(&mut tx, context.engine.host_id(), delivery, attempt, verdict).await?;
    if is_gone {
        sending::note_gone(&mut tx, delivery.environment, &delivery.url).await?;
    }
    tx.commit().await?;
    if is_gone {
        upkeep::cancel_gone(context).await?;
    }
    Ok(())
}
