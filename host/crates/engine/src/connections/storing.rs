//! Takes connections in: those that clients import, and those that end users have authenticated.

use std::sync::Arc;

use serde_json::{Map, Value};
use sqlx::{PgConnection, Postgres, Transaction};
use uuid::Uuid;

use crate::connect_sessions::ConnectSession;
use crate::connections::Connections;
use crate::connections::reading::DescribedConnection;
use crate::credentials;
use crate::functions::hold_post_creation;
use crate::lifecycle::{self, ValidationError};
use crate::outbound_webhooks::{self, AuthEvent, AuthOperation};
use syncline_auth::{Environment, StoredCredentials};
use syncline_config::LifecycleEvent;
use syncline_store::connection_errors::{self, Failing};
use syncline_store::connections::{self, Connection, Created, NewConnection, Revalidation, Validation};
use syncline_store::events::Event;
use syncline_store::integrations::Integration;
use syncline_store::schedules;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionId, ConnectionPk, IntegrationKey};

/// How often others may make and delete the same connection while it is stored.
const ATTEMPTS: usize = 10;
/// The code of a connection that a function refuses.
const VALIDATION_FAILED: ErrorCode = ErrorCode::ConnectionValidationFailed;

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

/// What a stored connection waits for: to be there at all, or to be found good.
#[derive(Debug, Clone, Copy)]
enum Awaited {
    Validation(Validation),
    Revalidation(Revalidation),
}

/// Why what was authenticated is not stored.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the connection that was to be connected anew is gone")]
    TargetGone,
    #[error("integration `{0}` was deleted meanwhile")]
    IntegrationGone(IntegrationKey),
    /// A function of the integration refuses the connection, in its own words. Nothing is left of a new one; one that
    /// was connected anew has an authentication error now.
    #[error("{0}")]
    Refused(String),
    /// Then what came last decides what becomes of it.
    #[error("another request has replaced the connection, or deleted it, while a function validated it")]
    Overtaken,
    #[error("the connection could not be validated")]
    Validation(#[source] anyhow::Error),
    #[error("the connection could not be stored")]
    Store(#[from] sqlx::Error),
}

impl ConnectError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::TargetGone => ErrorCode::InvalidConnection,
            Self::IntegrationGone(_) => ErrorCode::UnknownIntegration,
            Self::Refused(_) => ErrorCode::ConnectionValidationFailed,
            Self::Overtaken => ErrorCode::ConnectionReplaced,
            Self::Validation(_) | Self::Store(_) => ErrorCode::InternalServerError,
        }
    }
}

impl From<ValidationError> for ConnectError {
    fn from(error: ValidationError) -> Self {
        match error {
            ValidationError::Refused(message) => Self::Refused(message),
            ValidationError::Superseded => Self::Overtaken,
            ValidationError::Host(error) => Self::Validation(error),
        }
    }
}

impl Connections {
    /// Stores a connection, or replaces the one of that id, with the schedules of its integration's syncs.
    pub async fn import(
        self: &Arc<Self>,
        environment: &Environment,
        integration: &Integration,
        imported: ImportedConnection,
    ) -> Result<DescribedConnection, ConnectError> {
        self.learn_validation(environment).await?;
        for _ in 0..ATTEMPTS {
            let mut tx = self.store.begin().await?;
            // Not by the integration's name, which may be another by now.
            let existing =
                connections::find_to_replace(&mut tx, integration.pk, &imported.connection_id).await?;
            // Nothing was stored if somebody else was first: now there is one to replace.
            if let Some(connection) =
                self.put_connection(tx, environment, integration, existing, &imported).await?
            {
                self.proxy_routes.forget(connection.pk);
                return Ok(self.describe(connection).await?);
            }
        }
        Err(ConnectError::Overtaken)
    }

    /// Stores what an end user authenticated: as a new connection, or in the one that was connected anew, which
    /// keeps its id and metadata.
    pub async fn connect(
        self: &Arc<Self>,
        environment: &Environment,
        integration: &Integration,
        authenticated: AuthenticatedConnection,
    ) -> Result<Connection, ConnectError> {
        self.learn_validation(environment).await?;
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

    /// Another host may have been given a function that validates, a moment ago.
    async fn learn_validation(&self, environment: &Environment) -> Result<(), ConnectError> {
        self.functions.catch_up(environment.pk).await.map_err(ConnectError::Validation)
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
        let Some((connection, operation)) =
            self.put_row(&mut tx, environment, integration, existing, content).await?
        else {
            return Ok(None);
        };
        if !self.lifecycle.can_validate(&connection) {
            self.settle(&mut tx, environment, &connection, operation).await?;
            tx.commit().await?;
            self.events.publish(Event::Due);
            return Ok(Some(connection));
        }
        let awaited = match operation {
            AuthOperation::Creation => {
                connections::begin_validation(&mut tx, connection.pk).await?.map(Awaited::Validation)
            }
            _ => connections::begin_revalidation(&mut tx, connection.pk, self.host_id)
                .await?
                .map(Awaited::Revalidation),
        };
        let Some(awaited) = awaited else { return Ok(None) };
        tx.commit().await?;
        let environment = self.environments.get(environment.pk).await;
        let environment = environment.map_err(|error| ConnectError::Validation(error.into()))?;
        // From here on it goes to its end even if whoever asked has gone away.
        let this = Arc::clone(self);
        let validated = self.running.spawn(async move {
            match awaited {
                Awaited::Validation(validation) => {
                    this.validate_new(&environment, connection, validation).await
                }
                Awaited::Revalidation(revalidation) => {
                    this.validate_replaced(&environment, connection, revalidation).await
                }
            }
        });
        validated.await.map_err(|error| ConnectError::Validation(error.into()))?.map(Some)
    }

    /// Has a connection validated that nobody was told of. Takes it back if it is refused.
    async fn validate_new(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: Connection,
        validation: Validation,
    ) -> Result<Connection, ConnectError> {
        if let Err(refusal) = self.lifecycle.validate(environment, &connection).await {
            self.remove_connection(connection.pk, Some(validation)).await?;
            return Err(refusal.into());
        }
        let mut tx = self.store.begin().await?;
        if !connections::end_validation(&mut tx, connection.pk, validation).await? {
            return Err(ConnectError::Overtaken);
        }
        self.settle_validated(tx, environment, connection.pk, AuthOperation::Creation).await
    }

    /// Has a connection validated that was connected anew. It stays in any case; where the host fails at that, it is
    /// judged again later.
    async fn validate_replaced(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: Connection,
        revalidation: Revalidation,
    ) -> Result<Connection, ConnectError> {
        let operation = AuthOperation::Override;
        let refusal = match self.lifecycle.validate(environment, &connection).await {
            Ok(()) => None,
            Err(ValidationError::Refused(message)) => Some(message),
            Err(failure) => return Err(failure.into()),
        };
        let mut tx = self.store.begin().await?;
        if !connections::end_revalidation(&mut tx, connection.pk, revalidation).await? {
            return Err(ConnectError::Overtaken);
        }
        let Some(message) = refusal else {
            return self.settle_validated(tx, environment, connection.pk, operation).await;
        };
        let log_id = Uuid::new_v4();
        connection_errors::set(&mut tx, connection.pk, Failing::Auth, log_id, VALIDATION_FAILED, &message)
            .await?;
        let auth_mode = self.catalogue.find(&connection.provider).map(|provider| provider.auth_mode);
        let event = AuthEvent::of(&connection, auth_mode, operation);
        outbound_webhooks::note_auth(&mut tx, environment, &event.failed(VALIDATION_FAILED, &message))
            .await?;
        tx.commit().await?;
        Err(ConnectError::Refused(message))
    }

    /// Validates a connection that a lost host was validating.
    pub(crate) async fn revalidate(
        self: &Arc<Self>,
        connection: ConnectionPk,
        revalidation: Revalidation,
    ) -> Result<(), ConnectError> {
        let found = connections::get(&mut *self.store.connect().await?, connection).await?;
        let Some(connection) = found else { return Ok(()) };
        let environment = self.environments.get(connection.environment).await;
        let environment = environment.map_err(|error| ConnectError::Validation(error.into()))?;
        self.learn_validation(&environment).await?;
        match self.validate_replaced(&environment, connection, revalidation).await {
            // It has been told, or is told by whoever came in between.
            Ok(_) | Err(ConnectError::Refused(_) | ConnectError::Overtaken | ConnectError::TargetGone) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// As the function has left it: it may have set metadata.
    async fn settle_validated(
        &self,
        mut tx: Transaction<'static, Postgres>,
        environment: &Environment,
        connection: ConnectionPk,
        operation: AuthOperation,
    ) -> Result<Connection, ConnectError> {
        let found = connections::get(&mut tx, connection).await?;
        let connection = found.ok_or(ConnectError::TargetGone)?;
        self.settle(&mut tx, environment, &connection, operation).await?;
        tx.commit().await?;
        self.events.publish(Event::Due);
        Ok(connection)
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
        let integration = connection.integration;
        let functions = hold_post_creation(conn, environment.pk, integration).await?;
        for sync in &functions.syncs {
            schedules::create_missing_of_connection(conn, connection.pk, &sync.name, sync.auto_start).await?;
        }
        schedules::notify_due(conn).await?;
        if let Some(url) = &connection.webhook_url_override {
            outbound_webhooks::use_again(conn, environment.pk, url).await?;
        }
        let after_creation = LifecycleEvent::ConnectionCreated;
        for function in functions.lifecycle.iter().filter(|function| function.event == after_creation) {
            lifecycle::queue(conn, connection, &function.name).await?;
        }
        let auth_mode = self.catalogue.find(&connection.provider).map(|provider| provider.auth_mode);
        outbound_webhooks::note_auth(conn, environment, &AuthEvent::of(connection, auth_mode, operation))
            .await
    }

    /// Also says what that is to clients: one of which they were not told is new to them.
    async fn put_row(
        &self,
        conn: &mut PgConnection,
        environment: &Environment,
        integration: &Integration,
        existing: Option<Connection>,
        content: &ImportedConnection,
    ) -> Result<Option<(Connection, AuthOperation)>, ConnectError> {
        let id = existing.as_ref().map_or_else(Uuid::new_v4, |connection| connection.id);
        let provider = self.catalogue.find(&integration.provider);
        let credentials = credentials::seal(
            environment,
            provider.map(AsRef::as_ref),
            id,
            &content.credentials,
            self.clock.now(),
        );
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
        let (pk, operation) = match existing {
            Some(connection) => {
                let is_untold = connections::lock_unannounced(conn, connection.pk).await?;
                connections::replace(conn, connection.pk, &new).await?;
                (connection.pk, if is_untold { AuthOperation::Creation } else { AuthOperation::Override })
            }
            None => match connections::create(conn, &new).await? {
                Created::Now(pk) => (pk, AuthOperation::Creation),
                Created::Before => return Ok(None),
                Created::IntegrationGone => {
                    return Err(ConnectError::IntegrationGone(integration.unique_key.clone()));
                }
            },
        };
        Ok(connections::get(conn, pk).await?.map(|connection| (connection, operation)))
    }

    /// Writes the webhook that tells a backend that its end user did not get through.
    pub(crate) async fn note_failed(
        &self,
        session: &ConnectSession,
        integration: &Integration,
        code: ErrorCode,
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
        outbound_webhooks::note_auth(&mut tx, &session.environment, &event.failed(code, description)).await?;
        tx.commit().await
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
