//! Applies the rate limits that providers report. If a provider rate limits a connection or an integration, no host
//! sends requests for it until the backoff ends.
//!
//! The backoffs are in memory, so a request without one costs a lookup in a map that is nearly always empty. Backoffs
//! come from the responses to this host's requests, from events of other hosts, and from the table every few seconds.

pub(crate) mod limiter;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use url::Url;
use uuid::Uuid;

use crate::invoker::live_runs::RunMeter;
use crate::rate_limits::limiter::{Limiter, PUBLISH_INTERVAL};
use syncline_egress::RateLimiter;
use syncline_providers::{LimitScope, Provider, RateLimit};
use syncline_store::Store;
use syncline_store::events::{self, Event, Events};
use syncline_store::rate_limits::{self, Backoff, RateLimitScope};
use syncline_telemetry::clock::Clock;
use syncline_types::ids::{ConnectionPk, IntegrationPk};

/// The longest backoff, whatever the provider says: a wrong response must not stop a sync forever.
const MAX_BACKOFF: Duration = Duration::from_secs(24 * 3600);
/// A backoff that ends at most this much later than a known one is not new.
const TOLERANCE: Duration = Duration::from_millis(500);
/// The interval between reads of the table, in case an event was lost.
const READ_INTERVAL: Duration = Duration::from_secs(5);

/// Publishing gives up after this long, so that an unavailable database delays nothing else.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(1);

/// Keeps the requests of all hosts below the providers' limits.
pub struct RateLimits {
    store: Store,
    events: Arc<Events>,
    host_id: Uuid,
    backoffs: Backoffs,
    limiter: Limiter,
    /// Tasks that publish a new backoff.
    publishing: TaskTracker,
}

/// The times until which providers accept no requests, as far as this host knows.
struct Backoffs {
    clock: Clock,
    until: RwLock<HashMap<RateLimitScope, Instant>>,
}

impl Backoffs {
    fn new(clock: Clock) -> Self {
        Self { clock, until: RwLock::default() }
    }

    /// Returns how long requests of a connection must wait, or `None` if they may be sent now.
    fn backoff_left(&self, integration: IntegrationPk, connection: ConnectionPk) -> Option<Duration> {
        let backoffs = self.until.read().unwrap_or_else(PoisonError::into_inner);
        if backoffs.is_empty() {
            return None;
        }
        let now = self.clock.instant();
        [None, Some(connection)]
            .into_iter()
            .filter_map(|connection| backoffs.get(&RateLimitScope { integration, connection }))
            .filter_map(|until| until.checked_duration_since(now))
            .filter(|left| !left.is_zero())
            .max()
    }

    /// Records a backoff. Returns `false` if it is already known.
    fn back_off(&self, back_off: Backoff) -> bool {
        let now = self.clock.instant();
        let until = now + back_off.left;
        let mut backoffs = self.until.write().unwrap_or_else(PoisonError::into_inner);
        if backoffs.get(&back_off.limited).is_some_and(|known| *known + TOLERANCE >= until) {
            return false;
        }
        backoffs.retain(|_, until| *until > now);
        backoffs.insert(back_off.limited, until);
        true
    }
}

impl RateLimits {
    pub fn new(store: Store, events: Arc<Events>, host_id: Uuid, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            store,
            events,
            host_id,
            backoffs: Backoffs::new(clock.clone()),
            limiter: Limiter::new(clock),
            publishing: TaskTracker::new(),
        })
    }

    /// Returns how long requests of a connection must wait, or `None` if they may be sent now.
    pub(crate) fn backoff_left(
        &self,
        integration: IntegrationPk,
        connection: ConnectionPk,
    ) -> Option<Duration> {
        self.backoffs.backoff_left(integration, connection)
    }

    /// Applies the backoffs of other hosts, until `shutdown`.
    pub async fn follow_backoffs(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        loop {
            let read = async {
                let mut conn = self.store.connect().await?;
                let stored = rate_limits::list(&mut conn).await?;
                rate_limits::delete_over(&mut conn).await?;
                Ok::<_, sqlx::Error>(stored)
            };
            match read.await {
                Ok(stored) => stored.into_iter().for_each(|back_off| _ = self.backoffs.back_off(back_off)),
                Err(error) => {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "could not read rate limits");
                }
            }
            let missed = async {
                loop {
                    match events.next().await {
                        Some(Event::Backoff(back_off)) => _ = self.backoffs.back_off(back_off),
                        Some(Event::Missed) => return,
                        Some(_) => {}
                        None => std::future::pending().await,
                    }
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = missed => {}
                () = tokio::time::sleep(READ_INTERVAL) => {}
            }
        }
    }

    /// Publishes how many requests this host sends, until `shutdown`.
    pub async fn publish_requests(self: Arc<Self>, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(self.limiter.has_unpublished()).await.is_some() {
            loop {
                tokio::time::sleep(PUBLISH_INTERVAL).await;
                let Some(unpublished) = self.limiter.take_unpublished().filter(|_| !shutdown.is_cancelled())
                else {
                    break;
                };
                if unpublished.is_empty() || self.events.live_hosts() < 2 {
                    continue;
                }
                let published = async {
                    events::publish_requests(&mut *self.store.connect().await?, self.host_id, &unpublished)
                        .await
                };
                // If another host misses this event, the provider itself rate limits it.
                if let Ok(Err(error)) = tokio::time::timeout(PUBLISH_TIMEOUT, published).await {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "could not publish the number of requests to providers");
                }
            }
        }
    }

    /// Counts the requests of other hosts, until `shutdown`.
    pub async fn receive_requests(self: Arc<Self>, shutdown: CancellationToken) {
        let mut received = self.events.subscribe_to_requests();
        while let Some(requests) = shutdown.run_until_cancelled(received.recv()).await {
            match requests {
                Ok((host, spent)) => self.limiter.note(host, &spent),
                // Missed events are not counted.
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
    /// The connection or integration whose requests are counted together.
    limited: RateLimitScope,
    /// The rate that the provider allows, if it is known.
    rate: Option<RateLimit>,
    /// The meter of the run that sends the requests. `None` if a client sends them.
    meter: Option<Arc<RunMeter>>,
}

impl ConnectionRateLimiter {
    /// `base_url` overrides the provider's address. The rates of that server are not known.
    pub(crate) fn new(
        limits: Arc<RateLimits>,
        provider: &Provider,
        base_url: Option<&Url>,
        integration: IntegrationPk,
        connection: ConnectionPk,
        meter: Option<Arc<RunMeter>>,
    ) -> Self {
        let limited = match provider.proxy.retry.scope {
            LimitScope::Connection => RateLimitScope { integration, connection: Some(connection) },
            LimitScope::Integration => RateLimitScope { integration, connection: None },
        };
        let rate = provider.proxy.rate_limit.filter(|_| base_url.is_none());
        Self { limits, integration, connection, limited, rate, meter }
    }
}

impl RateLimiter for ConnectionRateLimiter {
    fn backoff_left(&self) -> Option<Duration> {
        self.limits.backoff_left(self.integration, self.connection)
    }

    fn admit(&self, patience: Duration) -> Option<Duration> {
        self.limits.limiter.admit(self.limited, self.rate?, self.limits.events.live_hosts(), patience)
    }

    fn note_wait(&self, waited: Duration) {
        if let Some(meter) = &self.meter {
            meter.count_backoff(waited);
        }
    }

    fn back_off(&self, wait: Duration) {
        let back_off = Backoff { limited: self.limited, left: wait.min(MAX_BACKOFF) };
        if !self.limits.backoffs.back_off(back_off) {
            return;
        }
        let store = self.limits.store.clone();
        self.limits.publishing.spawn(async move {
            let published = async { rate_limits::back_off(&mut *store.connect().await?, back_off).await };
            if let Err(error) = published.await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "could not publish the rate limit of a provider");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    const INTEGRATION: IntegrationPk = IntegrationPk(1);

    fn back_off(connection: Option<i64>, seconds: u64) -> Backoff {
        let limited = RateLimitScope { integration: INTEGRATION, connection: connection.map(ConnectionPk) };
        Backoff { limited, left: Duration::from_secs(seconds) }
    }

    #[test]
    fn a_backoff_covers_its_connection_or_its_whole_integration() {
        let backoffs = Backoffs::new(Clock::manual(DateTime::UNIX_EPOCH).clock());
        let is_limited =
            |integration, connection| backoffs.backoff_left(integration, ConnectionPk(connection)).is_some();
        assert!(!is_limited(INTEGRATION, 1));
        assert!(backoffs.back_off(back_off(Some(1), 60)));
        assert!(is_limited(INTEGRATION, 1) && !is_limited(INTEGRATION, 2));
        assert!(backoffs.back_off(back_off(None, 60)));
        assert!(is_limited(INTEGRATION, 2) && !is_limited(IntegrationPk(2), 1));
    }

    #[test]
    fn only_a_longer_backoff_is_new() {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let backoffs = Backoffs::new(time.clock());
        assert!(backoffs.back_off(back_off(Some(1), 60)));
        assert!(!backoffs.back_off(back_off(Some(1), 60)));
        assert!(!backoffs.back_off(back_off(Some(1), 5)));
        time.advance(Duration::from_secs(50));
        assert!(!backoffs.back_off(back_off(Some(1), 10)));
        assert!(backoffs.back_off(back_off(Some(1), 120)));
    }

    #[test]
    fn a_backoff_ends_at_its_time() {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let backoffs = Backoffs::new(time.clock());
        backoffs.back_off(back_off(Some(1), 60));
        backoffs.back_off(back_off(None, 20));
        let left = || backoffs.backoff_left(INTEGRATION, ConnectionPk(1));
        assert_eq!(left(), Some(Duration::from_secs(60)), "the longer of both");
        time.advance(Duration::from_secs(59));
        assert_eq!(left(), Some(Duration::from_secs(1)));
        time.advance(Duration::from_secs(1));
        assert_eq!(left(), None);
        assert!(backoffs.back_off(back_off(Some(2), 5)));
        assert_eq!(backoffs.until.read().unwrap().len(), 1, "expired backoffs are removed");
    }
}
