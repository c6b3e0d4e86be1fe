//! Connections: finding them quickly, taking new ones in, and opening their credentials.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::sync::broadcast::error::RecvError;
use uuid::Uuid;

use super::Engine;
use super::webhooks::{self, AuthEvent, AuthOperation};
use crate::auth::Environment;
use crate::auth::{CredentialsError, StoredCredentials};
use crate::crypto::{CryptoError, Place};
use crate::egress::{CredentialSource, Credentials, CredentialsUnavailable};
use crate::ids::{ConnectionId, ConnectionPk, EnvironmentPk, IntegrationKey, IntegrationPk, ProviderSlug};
use crate::store::connections::{self, Connection, NewConnection};
use crate::store::integrations::Integration;
use crate::store::notices::{Notice, Notices};
use crate::store::{Store, schedules};

const REMEMBERED: u64 = 100_000;

/// What of a connection never changes while it exists.
#[derive(Debug)]
pub struct ConnectionRoute {
    pub pk: ConnectionPk,
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub integration_key: IntegrationKey,
    pub provider: ProviderSlug,
    pub connection_id: ConnectionId,
}

type Name = (EnvironmentPk, IntegrationKey, ConnectionId);

/// Finds connections by the names that clients use. What was found is remembered while this host hears of changes.
pub struct Connections {
    store: Store,
    notices: Arc<Notices>,
    by_name: moka::sync::Cache<Name, ConnectionPk>,
    by_pk: moka::sync::Cache<ConnectionPk, Arc<ConnectionRoute>>,
    changes_heard: AtomicU64,
}

impl Connections {
    pub(super) fn new(store: Store, notices: Arc<Notices>) -> Arc<Self> {
        let this = Arc::new(Self {
            store,
            notices,
            by_name: moka::sync::Cache::new(REMEMBERED),
            by_pk: moka::sync::Cache::new(REMEMBERED),
            changes_heard: AtomicU64::new(0),
        });
        tokio::spawn(forget_on_notice(Arc::clone(&this)));
        this
    }

    pub async fn find(
        &self,
        environment: EnvironmentPk,
        integration: &IntegrationKey,
        connection: &ConnectionId,
    ) -> sqlx::Result<Option<Arc<ConnectionRoute>>> {
        let name = (environment, integration.clone(), connection.clone());
        if self.notices.is_hearing()
            && let Some(route) = self.by_name.get(&name).and_then(|pk| self.by_pk.get(&pk))
        {
            return Ok(Some(route));
        }
        let heard_before = self.changes_heard.load(Ordering::SeqCst);
        let mut conn = self.store.connect().await?;
        let Some(found) = connections::find(&mut conn, environment, integration, connection).await? else {
            return Ok(None);
        };
        let route = Arc::new(ConnectionRoute::from(&found));
        // One that was deleted while it was being looked up must not be remembered.
        if self.changes_heard.load(Ordering::SeqCst) == heard_before {
            self.by_name.insert(name, found.pk);
            self.by_pk.insert(found.pk, Arc::clone(&route));
        }
        Ok(Some(route))
    }
}

impl From<&Connection> for ConnectionRoute {
    fn from(connection: &Connection) -> Self {
        Self {
            pk: connection.pk,
            environment: connection.environment,
            integration: connection.integration,
            integration_key: connection.integration_key.clone(),
            provider: connection.provider.clone(),
            connection_id: connection.connection_id.clone(),
        }
    }
}

async fn forget_on_notice(connections: Arc<Connections>) {
    let mut notices = connections.notices.subscribe();
    loop {
        match notices.recv().await {
            Ok(Notice::Connection(pk)) => {
                connections.changes_heard.fetch_add(1, Ordering::SeqCst);
                connections.by_pk.invalidate(&pk);
            }
            Ok(Notice::Missed) | Err(RecvError::Lagged(_)) => {
                connections.changes_heard.fetch_add(1, Ordering::SeqCst);
                connections.by_pk.invalidate_all();
            }
            Ok(_) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// A connection whose credentials a client already has.
#[derive(Debug)]
pub struct ImportedConnection {
    pub connection_id: ConnectionId,
    pub credentials: StoredCredentials,
    pub connection_config: Value,
    pub metadata: Value,
    pub tags: Value,
    pub end_user: Option<Value>,
    pub webhook_url_override: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenCredentialsError {
    #[error("the connection's credentials cannot be opened")]
    Sealed(#[from] CryptoError),
    #[error("the connection's credentials cannot be read")]
    Unreadable(#[from] CredentialsError),
}

impl Engine {
    /// Stores a connection, or replaces the one of that id, with the schedules of its integration's syncs.
    pub async fn import_connection(
        &self,
        environment: &Environment,
        integration: &Integration,
        imported: ImportedConnection,
    ) -> sqlx::Result<Connection> {
        let auth_mode = self.catalogue.find(&integration.provider).map(|provider| provider.auth_mode);
        loop {
            let mut tx = self.store.begin().await?;
            let existing =
                connections::find(&mut tx, environment.pk, &integration.unique_key, &imported.connection_id)
                    .await?;
            let id = existing.as_ref().map_or_else(Uuid::new_v4, |connection| connection.id);
            let sealed = environment.data_key.seal(place(&id.to_string()), &imported.credentials.to_bytes());
            let new = NewConnection {
                id,
                environment: environment.pk,
                integration: integration.pk,
                connection_id: &imported.connection_id,
                sealed_credentials: &sealed,
                connection_config: &imported.connection_config,
                metadata: &imported.metadata,
                tags: &imported.tags,
                end_user: imported.end_user.as_ref(),
                webhook_url_override: imported.webhook_url_override.as_deref(),
            };
            let operation =
                if existing.is_some() { AuthOperation::Override } else { AuthOperation::Creation };
            let pk = match existing {
                Some(connection) => {
                    connections::replace(&mut tx, connection.pk, &new).await?;
                    connection.pk
                }
                None => match connections::create(&mut tx, &new).await? {
                    Some(pk) => pk,
                    // Somebody else was first: now there is one to replace.
                    None => continue,
                },
            };
            for sync in self.functions.syncs_of(integration.pk) {
                let auto_start = sync.auto_starts();
                schedules::create_missing(&mut tx, integration.pk, Some(pk), &sync.name, auto_start).await?;
            }
            schedules::notify_due(&mut tx).await?;
            let connection = connections::get(&mut tx, pk).await?.ok_or(sqlx::Error::RowNotFound)?;
            let event = AuthEvent::of(&connection, auth_mode, operation);
            webhooks::note_auth(&mut tx, environment, &event).await?;
            tx.commit().await?;
            self.notices.tell(Notice::Due);
            return Ok(connection);
        }
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

fn place(id: &str) -> Place<'_> {
    Place { column: "connections.sealed_credentials", row: id }
}

/// The live credentials of one connection, for the gate.
pub(super) struct ConnectionCredentials {
    engine: Arc<Engine>,
    environment: Arc<Environment>,
    connection: ConnectionPk,
    last: Mutex<Option<(Instant, Arc<Credentials>)>>,
}

impl ConnectionCredentials {
    /// After this long they are read again: they may have been replaced.
    const FRESH_FOR: Duration = Duration::from_secs(60);

    pub(super) fn new(engine: Arc<Engine>, environment: Arc<Environment>, connection: ConnectionPk) -> Self {
        Self { engine, environment, connection, last: Mutex::new(None) }
    }

    async fn read(&self) -> Result<Arc<Credentials>, CredentialsUnavailable> {
        let unavailable = |reason: &str| CredentialsUnavailable { reason: reason.to_owned() };
        let found =
            async { connections::get(&mut *self.engine.store.connect().await?, self.connection).await };
        let connection = found
            .await
            .map_err(|error| {
                tracing::error!(error = &error as &dyn std::error::Error, "credentials could not be read");
                unavailable("the connection's credentials could not be read")
            })?
            .ok_or_else(|| unavailable("the connection was deleted"))?;
        let opened = self.engine.open_credentials(&self.environment, &connection).map_err(|error| {
            tracing::error!(error = &error as &dyn std::error::Error, "credentials could not be opened");
            unavailable("the connection's credentials could not be opened")
        })?;
        Ok(Arc::new(opened.for_requests()))
    }
}

#[async_trait]
impl CredentialSource for ConnectionCredentials {
    async fn current(&self) -> Result<Arc<Credentials>, CredentialsUnavailable> {
        let mut last = self.last.lock().await;
        if let Some((read_at, credentials)) = &*last
            && read_at.elapsed() < Self::FRESH_FOR
        {
            return Ok(Arc::clone(credentials));
        }
        let credentials = self.read().await?;
        *last = Some((Instant::now(), Arc::clone(&credentials)));
        Ok(credentials)
    }

    async fn refresh_after_rejection(
        &self,
        _rejected: &Arc<Credentials>,
    ) -> Result<Option<Arc<Credentials>>, CredentialsUnavailable> {
        // Keys and passwords have nothing to be refreshed with.
        Ok(None)
    }
}
