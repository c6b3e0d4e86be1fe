//! Webhooks to clients: takes what the outbox holds, signs it, and sends it until it is taken or given up.
//!
//! The engine writes the outbox ([`syncline_engine::outbound_webhooks`]); every host sends from it. They meet in Postgres only:
//! a delivery is held under a lease, and a host that dies leaves what it held to the others. So each delivery is
//! sent at least once, always under the same id.

mod endpoints;
mod log;
mod request;
mod retry;
mod upkeep;

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use self::endpoints::Endpoints;
pub use self::log::{
    Delivery, DeliveryDetail, DeliveryError, DeliveryFilter, DeliveryLog, DeliveryState, LoggedAttempt,
};
pub use self::retry::{Delays, InvalidDelays};
use syncline_auth::Environments;
use syncline_egress::EgressGateway;
use syncline_store::Store;
use syncline_store::events::{Event, Events};
use syncline_store::outbound_webhooks::sending::{self, Attempt, Claimed, Verdict};
use syncline_telemetry::clock::Clock;
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
    /// How long a shutdown waits for what is being sent.
    pub grace: Duration,
}

/// Sends what the outbox holds.
pub struct Sender {
    clock: Clock,
    store: Store,
    events: Arc<Events>,
    environments: Arc<Environments>,
    gateway: Arc<EgressGateway>,
    host_id: Uuid,
    settings: SenderSettings,
    endpoints: Mutex<Endpoints>,
    attempts: TaskTracker,
    has_ended: Notify,
}

impl Sender {
    pub fn new(
        clock: Clock,
        store: Store,
        events: Arc<Events>,
        environments: Arc<Environments>,
        gateway: Arc<EgressGateway>,
        host_id: Uuid,
        settings: SenderSettings,
    ) -> Arc<Self> {
        Arc::new(Self {
            endpoints: Mutex::new(Endpoints::new(clock.clone())),
            clock,
            store,
            events,
            environments,
            gateway,
            host_id,
            settings,
            attempts: TaskTracker::new(),
            has_ended: Notify::new(),
        })
    }

    /// Sends until `shutdown`, and then lets what is being sent end. What does not is sent again by another host, or by the
    /// next.
    pub async fn send(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        while !shutdown.is_cancelled() {
            let claimed = match self.claim().await {
                Ok(claimed) => claimed,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "due webhooks could not be claimed"
                    );
                    tokio::time::sleep(AFTER_ERROR).await;
                    continue;
                }
            };
            let is_idle = claimed.is_empty();
            if !is_idle {
                failpoints::reach(Step::WebhookClaimed);
            }
            for delivery in claimed {
                let held = ReceiverPermit::new(&self, &delivery);
                let sender = Arc::clone(&self);
                self.attempts.spawn(async move {
                    let attempt = AssertUnwindSafe(attempt(&sender, delivery, held));
                    if attempt.catch_unwind().await.is_err() {
                        tracing::error!("sending a webhook panicked; it is sent again after its lease");
                    }
                    sender.has_ended.notify_one();
                });
            }
            if !is_idle {
                continue;
            }
            let wait = self.time_to_next().await;
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = events.wait_within(wait, Event::Webhooks) => {}
                () = self.has_ended.notified() => {}
            }
        }
        self.attempts.close();
        if tokio::time::timeout(self.settings.grace, self.attempts.wait()).await.is_err() {
            tracing::warn!("some webhooks were not sent in time; they are sent again");
        }
    }

    fn endpoints(&self) -> MutexGuard<'_, Endpoints> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn claim(&self) -> sqlx::Result<Vec<Claimed>> {
        if self.endpoints().free() == 0 {
            return Ok(Vec::new());
        }
        let mut conn = self.store.connect().await?;
        let due = sending::list_due(&mut conn).await?;
        let wanted = self.endpoints().pick(due, &mut rand::rng());
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let lease = self.settings.timeout + LEASE_MARGIN;
        sending::claim(&mut conn, self.host_id, lease, &wanted).await
    }

    /// How long to sleep if nobody wakes us: until something is due, or a receiver has rested.
    async fn time_to_next(&self) -> Duration {
        let next = async { sending::time_to_next(&mut *self.store.connect().await?).await };
        match next.await {
            // It is due, but its receiver is busy or rests: the end of an attempt wakes us too.
            Ok(Some(Duration::ZERO) | None) => LOOK_EVERY,
            Ok(Some(time)) => time.min(LOOK_EVERY),
            Err(_) => AFTER_ERROR,
        }
    }
}

/// A permit of a receiver that is held until this is dropped, also by a panic.
struct ReceiverPermit {
    sender: Arc<Sender>,
    endpoint: Uuid,
}

impl ReceiverPermit {
    fn new(sender: &Arc<Sender>, delivery: &Claimed) -> Self {
        sender.endpoints().begin(delivery.endpoint, delivery.environment);
        Self { sender: Arc::clone(sender), endpoint: delivery.endpoint }
    }
}

impl Drop for ReceiverPermit {
    fn drop(&mut self) {
        self.sender.endpoints().end(self.endpoint);
    }
}

async fn attempt(sender: &Sender, delivery: Claimed, _held: ReceiverPermit) {
    let began = sender.clock.instant();
    let outcome = request::send(sender, &delivery).await;
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            // Ours to mend: the lease runs out, and it is sent then.
            tracing::error!(webhook.id = %delivery.id, error = format!("{error:#}"), "a webhook could not be signed");
            return;
        }
    };
    failpoints::reach(Step::WebhookSent);
    let duration = sender.clock.instant() - began;
    sender.endpoints().note(delivery.endpoint, &outcome);
    let left = delivery.left.saturating_sub(duration);
    let number = delivery.attempt_of_round;
    let verdict = retry::decide(&outcome, number, left, &sender.settings.delays, rand::random());
    metrics().count_webhook(match verdict {
        Verdict::Delivered => "delivered",
        Verdict::Retry(_) => "retried",
        Verdict::Failed => "failed",
    });
    report(&delivery, &outcome, verdict);
    let attempt = Attempt { status: outcome.status(), error: outcome.error(), duration };
    note(sender, &delivery, &attempt, verdict, outcome.is_gone()).await;
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
async fn note(sender: &Sender, delivery: &Claimed, attempt: &Attempt, verdict: Verdict, is_gone: bool) {
    for number in 1..=NOTE_TRIES {
        match try_note(sender, delivery, attempt, verdict, is_gone).await {
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
    sender: &Sender,
    delivery: &Claimed,
    attempt: &Attempt,
    verdict: Verdict,
    is_gone: bool,
) -> sqlx::Result<()> {
    let mut tx = sender.store.begin().await?;
    sending::finish(&mut tx, sender.host_id, delivery, attempt, verdict).await?;
    if is_gone {
        sending::note_gone(&mut tx, delivery.environment, &delivery.url).await?;
    }
    tx.commit().await?;
    if is_gone {
        upkeep::cancel_gone(sender).await?;
    }
    Ok(())
}
