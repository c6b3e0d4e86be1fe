//! Connections: finding them quickly, taking new ones in, and opening their credentials.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Map, Value};
use sqlx::{PgConnection, Postgres, Transaction};
use tokio::sync::Mutex;
use uuid::Uuid;

use super::webhooks::{self, AuthEvent, AuthOperation};
use super::{ConnectSession, Engine, Freshness, RecordChanges, RefreshError, refresh};
use crate::auth::Environment;
use crate::auth::{AppCredentials, AppCredentialsError, CredentialsError, StoredCredentials};
use crate::crypto::{CryptoError, Place};
use crate::egress::{CredentialSource, Credentials, CredentialsUnavailable};
use crate::ids::{ConnectionId, ConnectionPk, EnvironmentPk, IntegrationKey, IntegrationPk, ProviderSlug};
use crate::store::connection_errors::{self, Failing};
use crate::store::connections::{self, Connection, NewConnection};
use crate::store::integrations::Integration;
use crate::store::notices::{Notice, Notices};
use crate::store::{Store, schedules};

const REMEMBERED: u64 = 100_000;
/// The code of a connection that a function refuses.
const VALIDATION_FAILED: &str = "connection_validation_failed";

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
    record_changes: Arc<RecordChanges>,
    by_name: moka::sync::Cache<Name, ConnectionPk>,
    by_pk: moka::sync::Cache<ConnectionPk, Arc<ConnectionRoute>>,
    changes_heard: AtomicU64,
}

impl Connections {
    pub(super) fn new(store: Store, notices: Arc<Notices>, record_changes: Arc<RecordChanges>) -> Arc<Self> {
        let this = Arc::new(Self {
            store,
            notices,
            record_changes,
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

    /// Reads a connection anew when it is next asked for, as whoever follows its records does now.
    pub(super) fn forget(&self, connection: ConnectionPk) {
        self.changes_heard.fetch_add(1, Ordering::SeqCst);
        self.by_pk.invalidate(&connection);
        self.record_changes.wake(connection);
    }

    /// Likewise every connection: the names of many have changed.
    pub fn forget_all(&self) {
        self.changes_heard.fetch_add(1, Ordering::SeqCst);
        self.by_name.invalidate_all();
        self.by_pk.invalidate_all();
        self.record_changes.wake_all();
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
    while let Some(notice) = notices.next().await {
        match notice {
            Notice::Connection(pk) => connections.forget(pk),
            Notice::Integrations | Notice::Missed => connections.forget_all(),
            _ => {}
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

/// What came of an end user's authentication, and whose it is.
#[derive(Debug)]
pub struct AuthenticatedConnection {
    /// The connection that was authenticated anew; `None` makes a new one.
    pub reconnects: Option<ConnectionPk>,
    pub credentials: StoredCredentials,
    pub connection_config: Map<String, Value>,
    /// Above those that a connection has already.
    pub tags: Map<String, Value>,
    /// In place of the one that a connection has already.
    pub end_user: Option<Value>,
    /// Likewise.
    pub webhook_url_override: Option<String>,
}

/// Why what was authenticated is not stored.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the connection that was to be connected anew is gone")]
    TargetGone,
    /// A function of the integration refuses the connection, in its own words. Nothing is left of a new one; one that
    /// was connected anew has an authentication error now.
    #[error("{0}")]
    Refused(String),
    #[error("the connection could not be validated")]
    Validation(#[source] anyhow::Error),
    #[error("the connection could not be stored")]
    Store(#[from] sqlx::Error),
}

impl Engine {
    /// Stores a connection, or replaces the one of that id, with the schedules of its integration's syncs.
    pub async fn import_connection(
        self: &Arc<Self>,
        environment: &Environment,
        integration: &Integration,
        imported: ImportedConnection,
    ) -> Result<Connection, ConnectError> {
        loop {
            let mut tx = self.store.begin().await?;
            let existing =
                connections::find(&mut tx, environment.pk, &integration.unique_key, &imported.connection_id)
                    .await?;
            // Nothing was stored if somebody else was first: now there is one to replace.
            if let Some(connection) =
                self.put_connection(tx, environment, integration, existing, &imported).await?
            {
                self.proxy_routes.forget(connection.pk);
                return Ok(connection);
            }
        }
    }

    /// Stores what an end user authenticated: as a new connection, or in the one that was connected anew, which
    /// keeps its id and metadata.
    pub async fn connect(
        self: &Arc<Self>,
        environment: &Environment,
        integration: &Integration,
        authenticated: AuthenticatedConnection,
    ) -> Result<Connection, ConnectError> {
        let mut tx = self.store.begin().await?;
        let existing = match authenticated.reconnects {
            Some(pk) => {
                let found = connections::get(&mut tx, pk).await?;
                let found = found.filter(|connection| connection.integration == integration.pk);
                Some(found.ok_or(ConnectError::TargetGone)?)
            }
            None => None,
        };
        let content = authenticated.onto(existing.as_ref());
        let stored = self.put_connection(tx, environment, integration, existing, &content).await?;
        let connection = stored.ok_or(ConnectError::TargetGone)?;
        self.proxy_routes.forget(connection.pk);
        Ok(connection)
    }

    /// Creates a connection, or replaces `existing`, and has it validated where the integration can. `None`: there is
    /// one of that id by now, or `existing` is gone.
    async fn put_connection(
        self: &Arc<Self>,
        mut tx: Transaction<'static, Postgres>,
        environment: &Environment,
        integration: &Integration,
        existing: Option<Connection>,
        content: &ImportedConnection,
    ) -> Result<Option<Connection>, ConnectError> {
        let is_new = existing.is_none();
        let operation = if is_new { AuthOperation::Creation } else { AuthOperation::Override };
        let Some(connection) = self.put_row(&mut tx, environment, integration, existing, content).await?
        else {
            return Ok(None);
        };
        if !self.can_validate(&connection) {
            self.settle(&mut tx, environment, &connection, operation).await?;
            tx.commit().await?;
            self.notices.tell(Notice::Due);
            return Ok(Some(connection));
        }
        if is_new {
            connections::begin_validation(&mut tx, connection.pk).await?;
        }
        tx.commit().await?;
        let environment = self.environments.get(environment.pk).await;
        let environment = environment.map_err(|error| ConnectError::Validation(error.into()))?;
        // From here on it goes to its end even if whoever asked has gone away.
        let engine = Arc::clone(self);
        let judged = self
            .jobs
            .waited_for
            .spawn(async move { engine.judge(&environment, connection, operation).await });
        judged.await.map_err(|error| ConnectError::Validation(error.into()))?.map(Some)
    }

    /// Has a stored connection validated. Takes back a new one that is refused.
    async fn judge(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: Connection,
        operation: AuthOperation,
    ) -> Result<Connection, ConnectError> {
        let judgement = self.validate(environment, &connection).await;
        let is_new = operation == AuthOperation::Creation;
        match judgement {
            Ok(()) => {
                let mut tx = self.store.begin().await?;
                connections::end_validation(&mut tx, connection.pk).await?;
                let found = connections::get(&mut tx, connection.pk).await?;
                let connection = found.ok_or(ConnectError::TargetGone)?;
                self.settle(&mut tx, environment, &connection, operation).await?;
                tx.commit().await?;
                self.notices.tell(Notice::Due);
                Ok(connection)
            }
            Err(refusal) if is_new => {
                let (integration, id) = (&connection.integration_key, &connection.connection_id);
                self.remove_connection(environment.pk, integration, id).await?;
                Err(refusal)
            }
            Err(ConnectError::Refused(message)) => {
                let mut tx = self.store.begin().await?;
                let log_id = Uuid::new_v4();
                connection_errors::set(
                    &mut tx,
                    connection.pk,
                    Failing::Auth,
                    log_id,
                    VALIDATION_FAILED,
                    &message,
                )
                .await?;
                let provider = self.catalogue.find(&connection.provider);
                let auth_mode = provider.map(|provider| provider.auth_mode);
                let event = AuthEvent::of(&connection, auth_mode, operation);
                webhooks::note_auth(&mut tx, environment, &event.failed(VALIDATION_FAILED, &message)).await?;
                tx.commit().await?;
                Err(ConnectError::Refused(message))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Writes what follows from a connection that is there to stay, in one transaction: schedules, what runs after its
    /// creation, and what clients are told.
    async fn settle(
        &self,
        conn: &mut PgConnection,
        environment: &Environment,
        connection: &Connection,
        operation: AuthOperation,
    ) -> sqlx::Result<()> {
        for sync in self.functions.syncs_of(connection.integration) {
            let auto_start = sync.auto_starts();
            let (integration, pk) = (connection.integration, Some(connection.pk));
            schedules::create_missing(conn, integration, pk, &sync.name, auto_start).await?;
        }
        schedules::notify_due(conn).await?;
        if let Some(url) = &connection.webhook_url_override {
            webhooks::use_again(conn, environment.pk, url).await?;
        }
        self.queue_after_creation(conn, connection).await?;
        let auth_mode = self.catalogue.find(&connection.provider).map(|provider| provider.auth_mode);
        webhooks::note_auth(conn, environment, &AuthEvent::of(connection, auth_mode, operation)).await
    }

    async fn put_row(
        &self,
        conn: &mut PgConnection,
        environment: &Environment,
        integration: &Integration,
        existing: Option<Connection>,
        content: &ImportedConnection,
    ) -> sqlx::Result<Option<Connection>> {
        let id = existing.as_ref().map_or_else(Uuid::new_v4, |connection| connection.id);
        let provider = self.catalogue.find(&integration.provider);
        let credentials = refresh::seal(environment, provider.map(AsRef::as_ref), id, &content.credentials);
        let new = NewConnection {
            id,
            environment: environment.pk,
            integration: integration.pk,
            connection_id: &content.connection_id,
            credentials: &credentials,
            connection_config: &content.connection_config,
            metadata: &content.metadata,
            tags: &content.tags,
            end_user: content.end_user.as_ref(),
            webhook_url_override: content.webhook_url_override.as_deref(),
        };
        let pk = match existing {
            Some(connection) => {
                connections::replace(conn, connection.pk, &new).await?;
                connection.pk
            }
            None => match connections::create(conn, &new).await? {
                Some(pk) => pk,
                None => return Ok(None),
            },
        };
        connections::get(conn, pk).await
    }

    /// The credentials of an integration's app, if it has one.
    pub fn open_app_credentials(
        &self,
        environment: &Environment,
        integration: &Integration,
    ) -> Result<Option<AppCredentials>, AppCredentialsError> {
        let sealed = integration.sealed_credentials.as_deref();
        sealed.map(|sealed| AppCredentials::open(&environment.data_key, integration.id, sealed)).transpose()
    }

    /// Writes the webhook that tells a backend that its end user did not get through.
    pub(super) async fn note_failed_connection(
        &self,
        session: &ConnectSession,
        integration: &Integration,
        code: &str,
        description: &str,
    ) -> sqlx::Result<()> {
        let mut tx = self.store.begin().await?;
        let target = match &session.reconnects {
            Some(target) => connections::get(&mut tx, target.pk).await?,
            None => None,
        };
        let mode = self.catalogue.find(&integration.provider).map(|provider| provider.auth_mode);
        let (connection_id, tags) =
            (ConnectionId::from_stored(Uuid::new_v4().to_string()), Value::Object(session.tags.clone()));
        let event = match &target {
            Some(target) => AuthEvent::of(target, mode, AuthOperation::Override),
            None => AuthEvent {
                operation: AuthOperation::Creation,
                connection: None,
                connection_id: &connection_id,
                integration: &integration.unique_key,
                provider: integration.provider.as_str(),
                auth_mode: mode,
                tags: &tags,
                end_user: session.end_user.as_ref(),
                webhook_url_override: session.webhook_url_override.as_deref(),
                failure: None,
            },
        };
        webhooks::note_auth(&mut tx, &session.environment, &event.failed(code, description)).await?;
        tx.commit().await
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

impl AuthenticatedConnection {
    /// All of the connection as it is to be stored.
    fn onto(self, existing: Option<&Connection>) -> ImportedConnection {
        let before = existing.and_then(|connection| connection.tags.as_object()).cloned();
        let tags: Map<String, Value> = before.into_iter().flatten().chain(self.tags).collect();
        let connection_id = match existing {
            Some(connection) => connection.connection_id.clone(),
            None => ConnectionId::from_stored(Uuid::new_v4().to_string()),
        };
        let metadata = existing.and_then(|connection| connection.metadata.clone());
        ImportedConnection {
            connection_id,
            credentials: self.credentials,
            connection_config: Value::Object(self.connection_config),
            metadata: metadata.unwrap_or_else(|| Value::Object(Map::new())),
            tags: Value::Object(tags),
            end_user: self.end_user.or_else(|| existing?.end_user.clone()),
            webhook_url_override: self
                .webhook_url_override
                .or_else(|| existing?.webhook_url_override.clone()),
        }
    }
}

pub(super) fn place(id: &str) -> Place<'_> {
    Place { column: "connections.sealed_credentials", row: id }
}

/// The live credentials of one connection, for the gate.
pub(super) struct ConnectionCredentials {
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

    pub(super) fn new(engine: Weak<Engine>, environment: Arc<Environment>, connection: ConnectionPk) -> Self {
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
            refresh::app_of(&engine, &self.environment, &live.connection).await.map_err(told)?
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

fn unavailable(error: &RefreshError) -> String {
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
        let read = self.read(Freshness::AsNeeded).await?;
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
        let Ok(read) = self.read(Freshness::After { rejected_version }).await else {
            // Then the provider's refusal is the answer.
            return Ok(None);
        };
        let is_better = read.version > rejected_version;
        let read = last.insert(read);
        Ok(is_better.then(|| Arc::clone(&read.credentials)))
    }
}
