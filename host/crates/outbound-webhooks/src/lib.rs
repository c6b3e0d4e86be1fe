//! Delivers outbound webhooks: reads them from the outbox, signs them, and sends them until the receiver accepts them
//! or the attempts are exhausted.
//!
//! The engine writes the outbox ([`syncline_engine::outbound_webhooks`]), and every host sends from it. The two share
//! only Postgres. Each delivery is sent under a lease; if its host dies, another host continues after the lease has
//! expired. So each delivery is sent at least once, always with the same id.

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
    url_without_secrets,
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

/// Longest wait between two checks for deliveries, because a notification can be lost.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(2);
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// How much longer the lease of a delivery is than its attempt may take.
const LEASE_MARGIN: Duration = Duration::from_secs(10);
const NOTE_TRIES: u32 = 5;

/// Settings for deliveries that an operator can change.
#[derive(Debug, Clone)]
pub struct SenderSettings {
    /// The delays between attempts.
    pub delays: Delays,
    /// Timeout of one attempt.
    pub timeout: Duration,
    /// How long deliveries stay in the log after their end.
    pub retention: Duration,
    /// How long a shutdown waits for attempts in progress.
    pub grace: Duration,
}

/// Sends the deliveries in the outbox.
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

    /// Sends deliveries until `shutdown`, and then waits for attempts in progress. Interrupted attempts are repeated by
    /// another host, or after the next start.
    pub async fn send(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        while !shutdown.is_cancelled() {
            let claimed = match self.claim().await {
                Ok(claimed) => claimed,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "could not claim due deliveries; retrying"
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
                let permit = ReceiverPermit::new(&self, &delivery);
                let sender = Arc::clone(&self);
                self.attempts.spawn(async move {
                    let attempt = AssertUnwindSafe(attempt(&sender, delivery, permit));
                    if attempt.catch_unwind().await.is_err() {
                        tracing::error!(
                            "sending a webhook panicked; it is sent again when its lease expires"
                        );
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
            tracing::warn!("the shutdown interrupted webhook deliveries; they are sent again");
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

    /// Returns how long to wait without an event: until a delivery is due, or the pause of a receiver ends.
    async fn time_to_next(&self) -> Duration {
        let next = async { sending::time_to_next(&mut *self.store.connect().await?).await };
        match next.await {
            // A delivery is due, but its receiver is busy or pauses. The end of an attempt also ends the wait.
            Ok(Some(Duration::ZERO) | None) => MAX_CHECK_INTERVAL,
            Ok(Some(time)) => time.min(MAX_CHECK_INTERVAL),
            Err(_) => AFTER_ERROR,
        }
    }
}

/// A permit of a receiver, which is released when this is dropped, even by a panic.
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

async fn attempt(sender: &Sender, delivery: Claimed, _permit: ReceiverPermit) {
    let started_at = sender.clock.instant();
    let outcome = request::send(sender, &delivery).await;
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => {
            // An internal error. The delivery is sent again when its lease expires.
            tracing::error!(
                webhook.id = %delivery.id,
                error = format!("{error:#}"),
                "could not sign a webhook; it is sent again when its lease expires",
            );
            return;
        }
    };
    failpoints::reach(Step::WebhookSent);
    let duration = sender.clock.instant() - started_at;
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

/// Logs a failed attempt: as a warning if the delivery is given up, otherwise at the level debug.
fn report(delivery: &Claimed, outcome: &retry::Outcome, verdict: Verdict) {
    let reason = outcome.error().unwrap_or_default();
    match verdict {
        Verdict::Failed => tracing::warn!(
            webhook.id = %delivery.id,
            attempt = delivery.attempt,
            "gave up a webhook delivery: {reason}",
        ),
        Verdict::Retry(after) => tracing::debug!(
            webhook.id = %delivery.id,
            attempt = delivery.attempt,
            retry.after_s = after.as_secs(),
            "a webhook attempt failed and is retried: {reason}",
        ),
        Verdict::Delivered => {}
    }
}

/// Stores the result of an attempt. Waits if the database is briefly not available. If it stays unavailable, the lease
/// expires and the delivery is sent again.
async fn note(sender: &Sender, delivery: &Claimed, attempt: &Attempt, verdict: Verdict, is_gone: bool) {
    for number in 1..=NOTE_TRIES {
        match try_note(sender, delivery, attempt, verdict, is_gone).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(
                    webhook.id = %delivery.id,
                    error = &error as &dyn std::error::Error,
                    "could not store the result of a webhook attempt (try {number} of {NOTE_TRIES})",
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
