//! Provides the egress gateway with the live credentials of a connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use http::StatusCode;
use tokio::sync::Mutex;
use uuid::Uuid;

use crate::credentials::rejection::Rejection;
use crate::credentials::{Credentials, Freshness, RefreshError};
use crate::invoker::live_runs::RunMeter;
use syncline_auth::{AppCredentials, Environment};
use syncline_egress::{self as egress, CredentialSource, CredentialsUnavailable, FinalAnswer};
use syncline_telemetry::clock::Clock;
use syncline_types::ids::ConnectionPk;

/// Credentials are read again after this time, because they may have been replaced or may expire soon.
const FRESH_FOR: Duration = Duration::from_secs(20);

/// The live credentials of one connection, for the egress gateway.
pub(crate) struct ConnectionCredentials {
    service: Arc<Credentials>,
    environment: Arc<Environment>,
    connection: ConnectionPk,
    /// Notes rejections for the end of the run. `None` for requests of clients.
    meter: Option<Arc<RunMeter>>,
    last: Mutex<Option<CachedCredentials>>,
}

struct CachedCredentials {
    read_at: Instant,
    version: i64,
    credentials: Arc<egress::Credentials>,
    /// The error of an earlier rejection that the connection had when its credentials were read.
    rejected_log: Option<Uuid>,
}

impl CachedCredentials {
    fn is_fresh(&self, clock: &Clock) -> bool {
        clock.instant().duration_since(self.read_at) < FRESH_FOR
    }
}

impl ConnectionCredentials {
    pub(crate) fn new(
        service: Arc<Credentials>,
        environment: Arc<Environment>,
        connection: ConnectionPk,
        meter: Option<Arc<RunMeter>>,
    ) -> Self {
        Self { service, environment, connection, meter, last: Mutex::new(None) }
    }

    async fn read(&self, freshness: Freshness) -> Result<CachedCredentials, CredentialsUnavailable> {
        let to_unavailable = |error| CredentialsUnavailable { reason: unavailable(&error) };
        let live = self.service.live(&self.environment, self.connection, freshness).await;
        let live = live.map_err(to_unavailable)?;
        let provider = self.service.catalogue.find(&live.connection.provider);
        let needs_app = live.credentials.are_used_with_app()
            || provider.is_some_and(|provider| provider.proxy.wants_client_id());
        let app = if needs_app {
            self.service.app_of(&self.environment, &live.connection).await.map_err(to_unavailable)?
        } else {
            None
        };
        let credentials = live.credentials.for_requests(app.as_ref().and_then(AppCredentials::oauth))?;
        Ok(CachedCredentials {
            read_at: self.service.clock.instant(),
            version: live.version(),
            credentials: Arc::new(credentials),
            rejected_log: live.connection.rejected_log,
        })
    }
}

/// The message that a function receives if there are no usable credentials.
pub(crate) fn unavailable(error: &RefreshError) -> String {
    if error.is_internal() {
        tracing::error!(
            error = error as &dyn std::error::Error,
            "could not read the credentials of a connection"
        );
        return "the connection's credentials could not be read; the host's log states the cause".to_owned();
    }
    error.to_string()
}

#[async_trait]
impl CredentialSource for ConnectionCredentials {
    async fn current(&self) -> Result<Arc<egress::Credentials>, CredentialsUnavailable> {
        let mut last = self.last.lock().await;
        if let Some(cached) = &*last
            && cached.is_fresh(&self.service.clock)
        {
            return Ok(Arc::clone(&cached.credentials));
        }
        // Boxed, so that the future of the cached case stays small.
        let read = Box::pin(self.read(Freshness::AsNeeded)).await?;
        Ok(Arc::clone(&last.insert(read).credentials))
    }

    async fn refresh_after_rejection(
        &self,
        rejected: &Arc<egress::Credentials>,
    ) -> Result<Option<Arc<egress::Credentials>>, CredentialsUnavailable> {
        let mut last = self.last.lock().await;
        let rejected_version = match &*last {
            // Another request of this run was rejected too, and has refreshed the credentials.
            Some(cached) if !Arc::ptr_eq(&cached.credentials, rejected) => {
                return Ok(Some(Arc::clone(&cached.credentials)));
            }
            Some(cached) => cached.version,
            None => return Ok(None),
        };
        let Ok(read) = Box::pin(self.read(Freshness::After { rejected_version })).await else {
            // The function receives the provider's rejection.
            return Ok(None);
        };
        if read.version <= rejected_version {
            // The rejected credentials stay the current ones, so that the rejection counts.
            *last = Some(CachedCredentials { credentials: Arc::clone(rejected), ..read });
            return Ok(None);
        }
        Ok(Some(Arc::clone(&last.insert(read).credentials)))
    }

    async fn answered(&self, used: &Arc<egress::Credentials>, answer: &FinalAnswer<'_>) {
        if matches!(**used, egress::Credentials::None) {
            return;
        }
        let mut last = self.last.lock().await;
        // An answer to older credentials says nothing about the current ones.
        let Some(cached) = last.as_mut().filter(|cached| Arc::ptr_eq(&cached.credentials, used)) else {
            return;
        };
        match answer.status {
            status if status.is_success() => {
                if let Some(meter) = &self.meter {
                    meter.note_rejection(None);
                }
                if let Some(log_id) = cached.rejected_log.take() {
                    self.service.clear_rejected(self.connection, log_id).await;
                }
            }
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) if !answer.is_rate_limit => {
                if let Some(meter) = &self.meter {
                    let (version, host) = (cached.version, answer.host.to_owned());
                    meter.note_rejection(Some(Rejection { version, status, host }));
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    #[test]
    fn credentials_are_read_again_after_a_while() {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let clock = time.clock();
        let cached = CachedCredentials {
            read_at: clock.instant(),
            version: 1,
            credentials: Arc::new(egress::Credentials::None),
            rejected_log: None,
        };
        time.advance(FRESH_FOR / 2);
        assert!(cached.is_fresh(&clock));
        time.advance(FRESH_FOR / 2);
        assert!(!cached.is_fresh(&clock));
    }
}
