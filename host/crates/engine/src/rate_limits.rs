//! Rate limits that providers told one host of, kept by all of them: while a provider wants to be left alone by a
//! connection, or by an integration, no host sends it anything for that one.
//!
//! What holds is in memory, so a request that nothing holds back costs a look into a map that is nearly always empty.
//! Holds come from this host's own answers, by notification from others, and from the table every few seconds.

pub(crate) mod limiter;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;
use uuid::Uuid;

use crate::rate_limits::limiter::{Limiter, TELL_EVERY};
use syncline_egress::Pace;
use syncline_providers::{LimitScope, Provider, RateLimit};
use syncline_store::Store;
use syncline_store::events::{self, Event, Events};
use syncline_store::rate_limits::{self, Hold, Limited};
use syncline_types::ids::{ConnectionPk, IntegrationPk};

/// No provider is left alone for longer, whatever it says: one that errs must not end a sync for good.
const MAX_HOLD: Duration = Duration::from_secs(24 * 3600);
/// A hold that lasts no longer than this beyond a known one is nothing new.
const SAME: Duration = Duration::from_millis(500);
/// However quiet it is, the table is looked at after this long: a notification may have been lost.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// While the database is away, requests must not wait for it.
const TELL_WITHIN: Duration = Duration::from_secs(1);

/// Keeps the requests of all hosts below providers' limits.
pub struct RateLimits {
    store: Store,
    events: Arc<Events>,
    host_id: Uuid,
    backoffs: Backoffs,
    limiter: Limiter,
    /// Notifications of a new backoff, which are on their way to the database.
    publishing: TaskTracker,
}

/// Until when providers want no requests, as far as this host knows.
#[derive(Default)]
struct Backoffs(RwLock<HashMap<Limited, Instant>>);

impl Backoffs {
    /// How long requests of a connection are held back; `None` if they are not.
    fn held_for(&self, integration: IntegrationPk, connection: ConnectionPk) -> Option<Duration> {
        let held = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if held.is_empty() {
            return None;
        }
        let now = Instant::now();
        [None, Some(connection)]
            .into_iter()
            .filter_map(|connection| held.get(&Limited { integration, connection }))
            .filter_map(|until| until.checked_duration_since(now))
            .filter(|left| !left.is_zero())
            .max()
    }

    /// Remembers a hold. `false`: it is known.
    fn hold(&self, hold: Hold) -> bool {
        let now = Instant::now();
        let until = now + hold.left;
        let mut held = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if held.get(&hold.limited).is_some_and(|known| *known + SAME >= until) {
            return false;
        }
        held.retain(|_, until| *until > now);
        held.insert(hold.limited, until);
        true
    }
}

impl RateLimits {
    pub fn new(store: Store, events: Arc<Events>, host_id: Uuid) -> Arc<Self> {
        Arc::new(Self {
            store,
            events,
            host_id,
            backoffs: Backoffs::default(),
            limiter: Limiter::default(),
            publishing: TaskTracker::new(),
        })
    }

    /// How long requests of a connection are held back; `None` if they are not.
    pub(crate) fn held_for(&self, integration: IntegrationPk, connection: ConnectionPk) -> Option<Duration> {
        self.backoffs.held_for(integration, connection)
    }

    /// Follows the backoffs that other hosts were told, until `shutdown`.
    pub async fn follow_backoffs(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        loop {
            let read = async {
                let mut conn = self.store.connect().await?;
                let holds = rate_limits::list(&mut conn).await?;
                rate_limits::delete_over(&mut conn).await?;
                Ok::<_, sqlx::Error>(holds)
            };
            match read.await {
                Ok(holds) => holds.into_iter().for_each(|hold| _ = self.backoffs.hold(hold)),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "rate limits could not be read");
                }
            }
            let missed = async {
                loop {
                    match events.next().await {
                        Some(Event::Hold(hold)) => _ = self.backoffs.hold(hold),
                        Some(Event::Missed) => return,
                        Some(_) => {}
                        None => std::future::pending().await,
                    }
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = missed => {}
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    /// Tells other hosts how many requests this one sends, until `shutdown`.
    pub async fn publish_requests(self: Arc<Self>, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(self.limiter.has_untold()).await.is_some() {
            loop {
                tokio::time::sleep(TELL_EVERY).await;
                let Some(untold) = self.limiter.take_untold().filter(|_| !shutdown.is_cancelled()) else {
                    break;
                };
                if untold.is_empty() || self.events.live_hosts() < 2 {
                    continue;
                }
                let told = async {
                    events::publish_requests(&mut *self.store.connect().await?, self.host_id, &untold).await
                };
                // Who is not told in time learns it from the provider.
                if let Ok(Err(error)) = tokio::time::timeout(TELL_WITHIN, told).await {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "other hosts were not told how much was sent to providers");
                }
            }
        }
    }

    /// Counts what other hosts send, until `shutdown`.
    pub async fn receive_requests(self: Arc<Self>, shutdown: CancellationToken) {
        let mut received = self.events.subscribe_to_requests();
        while let Some(requests) = shutdown.run_until_cancelled(received.recv()).await {
            match requests {
                Ok((host, spent)) => self.limiter.note(host, &spent),
                // What was missed is not counted.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    }
}

/// The rate limiter of one connection's requests.
pub(crate) struct ConnectionRateLimiter {
    limits: Arc<RateLimits>,
    integration: IntegrationPk,
    connection: ConnectionPk,
    /// Whose requests are counted together.
    limited: Limited,
    /// The rate that the provider is known to allow.
    rate: Option<RateLimit>,
}

impl ConnectionRateLimiter {
    /// `base_url` is where the integration has its provider instead of the catalogue: nothing is known of rates there.
    pub(crate) fn new(
        limits: Arc<RateLimits>,
        provider: &Provider,
        base_url: Option<&Url>,
        integration: IntegrationPk,
        connection: ConnectionPk,
    ) -> Self {
        let limited = match provider.proxy.retry.scope {
            LimitScope::Connection => Limited { integration, connection: Some(connection) },
            LimitScope::Integration => Limited { integration, connection: None },
        };
        let rate = provider.proxy.rate_limit.filter(|_| base_url.is_none());
        Self { limits, integration, connection, limited, rate }
    }
}

impl Pace for ConnectionRateLimiter {
    fn held_for(&self) -> Option<Duration> {
        self.limits.held_for(self.integration, self.connection)
    }

    fn admit(&self, patience: Duration) -> Option<Duration> {
        self.limits.limiter.admit(self.limited, self.rate?, self.limits.events.live_hosts(), patience)
    }

    fn hold(&self, wait: Duration) {
        let hold = Hold { limited: self.limited, left: wait.min(MAX_HOLD) };
        if !self.limits.backoffs.hold(hold) {
            return;
        }
        let store = self.limits.store.clone();
        self.limits.publishing.spawn(async move {
            let told = async { rate_limits::hold(&mut *store.connect().await?, hold).await };
            if let Err(error) = told.await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "other hosts were not told of a provider's rate limit");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTEGRATION: IntegrationPk = IntegrationPk(1);

    fn hold(connection: Option<i64>, seconds: u64) -> Hold {
        let limited = Limited { integration: INTEGRATION, connection: connection.map(ConnectionPk) };
        Hold { limited, left: Duration::from_secs(seconds) }
    }

    #[test]
    fn a_hold_is_for_its_connection_or_for_all_of_its_integration() {
        let limits = Backoffs::default();
        let held = |integration, connection| limits.held_for(integration, ConnectionPk(connection)).is_some();
        assert!(!held(INTEGRATION, 1));
        assert!(limits.hold(hold(Some(1), 60)));
        assert!(held(INTEGRATION, 1) && !held(INTEGRATION, 2));
        assert!(limits.hold(hold(None, 60)));
        assert!(held(INTEGRATION, 2) && !held(IntegrationPk(2), 1));
    }

    #[test]
    fn only_a_longer_hold_is_news() {
        let limits = Backoffs::default();
        assert!(limits.hold(hold(Some(1), 60)));
        assert!(!limits.hold(hold(Some(1), 60)));
        assert!(!limits.hold(hold(Some(1), 5)));
        assert!(limits.held_for(INTEGRATION, ConnectionPk(1)).unwrap() > Duration::from_secs(50));
        assert!(limits.hold(hold(Some(1), 120)));
    }
}
