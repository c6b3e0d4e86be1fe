//! Gives the egress gateway the live credentials of a connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::Mutex;

use crate::credentials::{Credentials, Freshness, RefreshError};
use syncline_auth::{AppCredentials, Environment};
use syncline_egress::{self as egress, CredentialSource, CredentialsUnavailable};
use syncline_types::ids::ConnectionPk;

/// The live credentials of one connection, for the egress gateway.
pub(crate) struct ConnectionCredentials {
    service: Arc<Credentials>,
    environment: Arc<Environment>,
    connection: ConnectionPk,
    last: Mutex<Option<Remembered>>,
}

struct Remembered {
    read_at: Instant,
    version: i64,
    credentials: Arc<egress::Credentials>,
}

impl ConnectionCredentials {
    /// After this long they are read again: they may have been replaced, or end soon.
    const FRESH_FOR: Duration = Duration::from_secs(20);

    pub(crate) fn new(
        service: Arc<Credentials>,
        environment: Arc<Environment>,
        connection: ConnectionPk,
    ) -> Self {
        Self { service, environment, connection, last: Mutex::new(None) }
    }

    async fn read(&self, freshness: Freshness) -> Result<Remembered, CredentialsUnavailable> {
        let told = |error| CredentialsUnavailable { reason: unavailable(&error) };
        let live = self.service.live(&self.environment, self.connection, freshness).await;
        let live = live.map_err(told)?;
        let provider = self.service.catalogue.find(&live.connection.provider);
        let needs_app = live.credentials.are_used_with_app()
            || provider.is_some_and(|provider| provider.proxy.wants_client_id());
        let app = if needs_app {
            self.service.app_of(&self.environment, &live.connection).await.map_err(told)?
        } else {
            None
        };
        let credentials = live.credentials.for_requests(app.as_ref().and_then(AppCredentials::oauth))?;
        Ok(Remembered {
            read_at: Instant::now(),
            version: live.version(),
            credentials: Arc::new(credentials),
        })
    }
}

/// What a function is told where there are no credentials.
pub(crate) fn unavailable(error: &RefreshError) -> String {
    if error.is_internal() {
        tracing::error!(error = error as &dyn std::error::Error, "credentials are not available");
        return "the connection's credentials could not be read".to_owned();
    }
    error.to_string()
}

#[async_trait]
impl CredentialSource for ConnectionCredentials {
    async fn current(&self) -> Result<Arc<egress::Credentials>, CredentialsUnavailable> {
        let mut last = self.last.lock().await;
        if let Some(remembered) = &*last
            && remembered.read_at.elapsed() < Self::FRESH_FOR
        {
            return Ok(Arc::clone(&remembered.credentials));
        }
        // Apart, so that those which are remembered cost no room for all that reading may need.
        let read = Box::pin(self.read(Freshness::AsNeeded)).await?;
        Ok(Arc::clone(&last.insert(read).credentials))
    }

    async fn refresh_after_rejection(
        &self,
        rejected: &Arc<egress::Credentials>,
    ) -> Result<Option<Arc<egress::Credentials>>, CredentialsUnavailable> {
        let mut last = self.last.lock().await;
        let rejected_version = match &*last {
            // Another request of this run was refused too, and has brought better ones by now.
            Some(remembered) if !Arc::ptr_eq(&remembered.credentials, rejected) => {
                return Ok(Some(Arc::clone(&remembered.credentials)));
            }
            Some(remembered) => remembered.version,
            None => return Ok(None),
        };
        let Ok(read) = Box::pin(self.read(Freshness::After { rejected_version })).await else {
            // Then the provider's refusal is the answer.
            return Ok(None);
        };
        let is_better = read.version > rejected_version;
        let read = last.insert(read);
        Ok(is_better.then(|| Arc::clone(&read.credentials)))
    }
}
