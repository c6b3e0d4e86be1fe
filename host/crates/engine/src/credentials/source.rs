//! Provides the egress gateway with the live credentials of a connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::Mutex;

use crate::credentials::{Credentials, Freshness, RefreshError};
use syncline_auth::{AppCredentials, Environment};
use syncline_egress::{self as egress, CredentialSource, CredentialsUnavailable};
use syncline_telemetry::clock::Clock;
use syncline_types::ids::ConnectionPk;

/// Credentials are read again after this time, because they may have been replaced or may expire soon.
const FRESH_FOR: Duration = Duration::from_secs(20);

/// The live credentials of one connection, for the egress gateway.
pub(crate) struct ConnectionCredentials {
    service: Arc<Credentials>,
    environment: Arc<Environment>,
    connection: ConnectionPk,
    last: Mutex<Option<CachedCredentials>>,
}

struct CachedCredentials {
    read_at: Instant,
    version: i64,
    credentials: Arc<egress::Credentials>,
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
    ) -> Self {
        Self { service, environment, connection, last: Mutex::new(None) }
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
        return "the connection's credentials could not be read".to_owned();
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
        let is_better = read.version > rejected_version;
        let read = last.insert(read);
        Ok(is_better.then(|| Arc::clone(&read.credentials)))
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
        };
        time.advance(FRESH_FOR / 2);
        assert!(cached.is_fresh(&clock));
        time.advance(FRESH_FOR / 2);
        assert!(!cached.is_fresh(&clock));
    }
}
