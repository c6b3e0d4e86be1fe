//! Opens what connections and apps have sealed, and gives the gate the live credentials of a connection.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::Mutex;

use crate::{Engine, Freshness, RefreshError, credentials};
use syncline_auth::{AppCredentials, AppCredentialsError, CredentialsError, Environment, StoredCredentials};
use syncline_crypto::{CryptoError, Place};
use syncline_egress::{CredentialSource, Credentials, CredentialsUnavailable};
use syncline_store::connections::Connection;
use syncline_store::integrations::Integration;
use syncline_types::ids::ConnectionPk;

#[derive(Debug, thiserror::Error)]
pub enum OpenCredentialsError {
    #[error("the connection's credentials cannot be opened")]
    Sealed(#[from] CryptoError),
    #[error("the connection's credentials cannot be read")]
    Unreadable(#[from] CredentialsError),
}

impl Engine {
    /// The credentials of an integration's app, if it has one.
    pub fn open_app_credentials(
        &self,
        environment: &Environment,
        integration: &Integration,
    ) -> Result<Option<AppCredentials>, AppCredentialsError> {
        let sealed = integration.sealed_credentials.as_deref();
        sealed.map(|sealed| AppCredentials::open(&environment.data_key, integration.id, sealed)).transpose()
    }

    pub fn open_credentials(
        &self,
        environment: &Environment,
        connection: &Connection,
    ) -> Result<StoredCredentials, OpenCredentialsError> {
        let opened =
            environment.data_key.open(place(&connection.id.to_string()), &connection.sealed_credentials)?;
        Ok(StoredCredentials::from_bytes(&opened)?)
    }
}

pub(crate) fn place(id: &str) -> Place<'_> {
    Place { column: "connections.sealed_credentials", row: id }
}

/// The live credentials of one connection, for the gate.
pub(crate) struct ConnectionCredentials {
    /// Not held: the engine remembers some of these itself.
    engine: Weak<Engine>,
    environment: Arc<Environment>,
    connection: ConnectionPk,
    last: Mutex<Option<Remembered>>,
}

struct Remembered {
    read_at: Instant,
    version: i64,
    credentials: Arc<Credentials>,
}

impl ConnectionCredentials {
    /// After this long they are read again: they may have been replaced, or end soon.
    const FRESH_FOR: Duration = Duration::from_secs(20);

    pub(crate) fn new(engine: Weak<Engine>, environment: Arc<Environment>, connection: ConnectionPk) -> Self {
        Self { engine, environment, connection, last: Mutex::new(None) }
    }

    async fn read(&self, freshness: Freshness) -> Result<Remembered, CredentialsUnavailable> {
        let told = |error| CredentialsUnavailable { reason: unavailable(&error) };
        let engine = self.engine.upgrade();
        let engine =
            engine.ok_or_else(|| CredentialsUnavailable { reason: "the host is stopping".to_owned() })?;
        let live = engine.live_credentials(&self.environment, self.connection, freshness).await;
        let live = live.map_err(told)?;
        let provider = engine.catalogue.find(&live.connection.provider);
        let needs_app = live.credentials.are_used_with_app()
            || provider.is_some_and(|provider| provider.proxy.wants_client_id());
        let app = if needs_app {
            credentials::app_of(&engine, &self.environment, &live.connection).await.map_err(told)?
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
    async fn current(&self) -> Result<Arc<Credentials>, CredentialsUnavailable> {
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
        rejected: &Arc<Credentials>,
    ) -> Result<Option<Arc<Credentials>>, CredentialsUnavailable> {
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
