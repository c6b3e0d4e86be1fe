//! Rate limits that providers told one host of, kept by all of them: while a provider wants to be left alone by a
//! connection, or by an integration, no host sends it anything for that one.
//!
//! What holds is in memory, so a request that nothing holds back costs a look into a map that is nearly always empty.
//! Holds come from this host's own answers, by notification from others, and from the table every few seconds.

pub(crate) mod limiter;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use url::Url;

use crate::Engine;
use syncline_egress::Pace;
use syncline_providers::{LimitScope, Provider, RateLimit};
use syncline_store::notices::Notice;
use syncline_store::rate_limits::{self, Hold, Limited};
use syncline_types::ids::{ConnectionPk, IntegrationPk};

/// No provider is left alone for longer, whatever it says: one that errs must not end a sync for good.
const MAX_HOLD: Duration = Duration::from_secs(24 * 3600);
/// A hold that lasts no longer than this beyond a known one is nothing new.
const SAME: Duration = Duration::from_millis(500);
/// However quiet it is, the table is looked at after this long: a notification may have been lost.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What this host knows of holds.
#[derive(Default)]
pub(crate) struct RateLimits(RwLock<HashMap<Limited, Instant>>);

impl RateLimits {
    /// How long requests of a connection are held back; `None` if they are not.
    pub(crate) fn held_for(&self, integration: IntegrationPk, connection: ConnectionPk) -> Option<Duration> {
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

/// How one connection's requests keep to the limits.
pub(crate) struct ConnectionPace {
    /// Weak, since the engine remembers routes, which hold this.
    engine: Weak<Engine>,
    integration: IntegrationPk,
    connection: ConnectionPk,
    /// Whose requests are counted together.
    limited: Limited,
    /// The rate that the provider is known to allow.
    rate: Option<RateLimit>,
}

impl ConnectionPace {
    /// `base_url` is where the integration has its provider instead of the catalogue: nothing is known of rates there.
    pub(crate) fn new(
        engine: Weak<Engine>,
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
        Self { engine, integration, connection, limited, rate }
    }
}

impl Pace for ConnectionPace {
    fn held_for(&self) -> Option<Duration> {
        self.engine.upgrade()?.rate_limits.held_for(self.integration, self.connection)
    }

    fn admit(&self, patience: Duration) -> Option<Duration> {
        let rate = self.rate?;
        let engine = self.engine.upgrade()?;
        engine.paces.admit(self.limited, rate, engine.notices.live_hosts(), patience)
    }

    fn hold(&self, wait: Duration) {
        let Some(engine) = self.engine.upgrade() else { return };
        let hold = Hold { limited: self.limited, left: wait.min(MAX_HOLD) };
        if !engine.rate_limits.hold(hold) {
            return;
        }
        tokio::spawn(async move {
            if let Err(error) = tell(&engine, hold).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "other hosts were not told of a provider's rate limit");
            }
        });
    }
}

async fn tell(engine: &Engine, hold: Hold) -> sqlx::Result<()> {
    rate_limits::hold(&mut *engine.store.connect().await?, hold).await
}

/// Learns of what other hosts were told.
pub(crate) async fn follow(engine: Arc<Engine>, shutdown: CancellationToken) {
    let mut notices = engine.notices.subscribe();
    loop {
        let read = async {
            let mut conn = engine.store.connect().await?;
            let holds = rate_limits::list(&mut conn).await?;
            rate_limits::delete_over(&mut conn).await?;
            Ok::<_, sqlx::Error>(holds)
        };
        match read.await {
            Ok(holds) => holds.into_iter().for_each(|hold| _ = engine.rate_limits.hold(hold)),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "rate limits could not be read");
            }
        }
        let missed = async {
            loop {
                match notices.next().await {
                    Some(Notice::Hold(hold)) => _ = engine.rate_limits.hold(hold),
                    Some(Notice::Missed) => return,
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
        let limits = RateLimits::default();
        let held = |integration, connection| limits.held_for(integration, ConnectionPk(connection)).is_some();
        assert!(!held(INTEGRATION, 1));
        assert!(limits.hold(hold(Some(1), 60)));
        assert!(held(INTEGRATION, 1) && !held(INTEGRATION, 2));
        assert!(limits.hold(hold(None, 60)));
        assert!(held(INTEGRATION, 2) && !held(IntegrationPk(2), 1));
    }

    #[test]
    fn only_a_longer_hold_is_news() {
        let limits = RateLimits::default();
        assert!(limits.hold(hold(Some(1), 60)));
        assert!(!limits.hold(hold(Some(1), 60)));
        assert!(!limits.hold(hold(Some(1), 5)));
        assert!(limits.held_for(INTEGRATION, ConnectionPk(1)).unwrap() > Duration::from_secs(50));
        assert!(limits.hold(hold(Some(1), 120)));
    }
}
