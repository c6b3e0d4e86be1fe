//! Stores connections: those that clients import, and those that end users authenticate.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use sqlx::PgConnection;
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
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::connection_errors::{self, Failing};
use syncline_store::connections::{self, Connection, Created, NewConnection, Revalidation, Validation};
use syncline_store::events::Event;
use syncline_store::integrations::Integration;
use syncline_store::{Transaction, schedules};
use syncline_types::actor::Actor;
use syncline_types::audit_log::AuditAction;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionId, ConnectionPk, IntegrationKey};
use syncline_types::metadata::Metadata;

/// How many times storing is tried if other requests create and delete the same connection meanwhile.
const ATTEMPTS: usize = 10;
/// The error code of a connection that a function rejects.
const VALIDATION_FAILED: ErrorCode = ErrorCode::ConnectionValidationFailed;

/// A connection whose credentials a client already has.
#[derive(Debug)]
pub struct ImportedConnection {
    pub connection_id: ConnectionId,
    pub credentials: StoredCredentials,
    pub connection_config: Value,
    pub metadata: Metadata,
    pub tags: Value,
    pub end_user: Option<Value>,
    pub webhook_url_override: Option<String>,
}

/// Whether the response to an import contains the credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImportResponse {
    WithCredentials,
    WithoutCredentials,
}

/// The result of an end user's authentication.
#[derive(Debug)]
pub struct AuthenticatedConnection {
    /// The connection that the end user reconnected. `None` creates a new one.
    pub reconnects: Option<ConnectionPk>,
    pub credentials: StoredCredentials,
    pub connection_config: Map<String, Value>,
    /// Merged into the tags that a reconnected connection already has. A new end user replaces the tags that describe
    /// the previous one.
    pub tags: Map<String, Value>,
    /// Replaces the end user of a reconnected connection.
    pub end_user: Option<Value>,
    /// Replaces the URL of a reconnected connection.
    pub webhook_url_override: Option<String>,
}

/// The validation that a stored connection waits for: its first, or one after a reconnect.
#[derive(Debug, Clone, Copy)]
enum Awaited {
    Validation(Validation),
    Revalidation(Revalidation),
}

/// Why an authenticated or imported connection is not stored.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the connection to reconnect no longer exists; connect the account as a new connection")]
    TargetGone,
    #[error("integration `{0}` was deleted during this request")]
    IntegrationGone(IntegrationKey),
    /// A function of the integration rejects the connection; the text is the function's message. A new connection is
    /// removed. A reconnected one stays and gets an authentication error.
    #[error("{0}")]
    Refused(String),
    /// The latest request determines the state of the connection.
    #[error(
        "another request replaced or deleted the connection while a function was validating it; connect again if \
         necessary"
    )]
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
    /// Stores a connection, or replaces the one with this id, and creates the schedules of the integration's syncs. If
    /// the response contains the credentials, the audit log also gets an entry that the client has read them.
    pub async fn import(
        self: &Arc<Self>,
        environment: &Environment,
        integration: &Integration,
        imported: ImportedConnection,
        response: ImportResponse,
        actor: &Actor,
    ) -> Result<DescribedConnection, ConnectError> {
        self.load_latest_functions(environment).await?;
        for _ in 0..ATTEMPTS {
            let mut tx = self.store.begin().await?;
            // Look up by row number: the integration may have been renamed.
            let existing =
                connections::find_to_replace(&mut tx, integration.pk, &imported.connection_id).await?;
            // `None` means that another request created the connection first. The next attempt replaces it.
            if let Some(connection) =
                self.put_connection(tx, environment, integration, existing, &imported, actor).await?
            {
                self.proxy_routes.forget(connection.pk);
                if response == ImportResponse::WithCredentials {
                    self.record_read(&connection, actor).await?;
                }
                return Ok(self.describe(connection).await?);
            }
        }
        Err(ConnectError::Overtaken)
    }

    /// Stores the connection that an end user authenticated. A reconnected connection keeps its id and metadata.
    pub async fn connect(
        self: &Arc<Self>,
        environment: &Environment,
        integration: &Integration,
        authenticated: AuthenticatedConnection,
        actor: &Actor,
    ) -> Result<Connection, ConnectError> {
        self.load_latest_functions(environment).await?;
        let mut tx = self.store.begin().await?;
        let existing = match authenticated.reconnects {
            Some(pk) => {
                // Locked before it is read, so that no change of its metadata or tags is overwritten.
                connections::lock(&mut tx, pk).await?;
                let found = connections::get(&mut tx, pk).await?;
                let found = found.filter(|connection| connection.integration == integration.pk);
                Some(found.ok_or(ConnectError::TargetGone)?)
            }
            None => None,
        };
        let content = authenticated.merge_into(existing.as_ref());
        let stored = self.put_connection(tx, environment, integration, existing, &content, actor).await?;
        let connection = stored.ok_or(ConnectError::TargetGone)?;
        self.proxy_routes.forget(connection.pk);
        Ok(connection)
    }

    /// Loads the latest functions: another host may just have deployed one that validates connections.
    async fn load_latest_functions(&self, environment: &Environment) -> Result<(), ConnectError> {
        self.functions.catch_up(environment.pk).await.map_err(ConnectError::Validation)
    }

    /// Creates a connection or replaces `existing`, and validates it if the integration has a validation function.
    /// Returns `None` if a connection with this id was created meanwhile, or `existing` was deleted.
    async fn put_connection(
        self: &Arc<Self>,
        mut tx: Transaction,
        environment: &Environment,
        integration: &Integration,
        existing: Option<Connection>,
        content: &ImportedConnection,
        actor: &Actor,
    ) -> Result<Option<Connection>, ConnectError> {
        let Some((connection, operation)) =
            self.put_row(&mut tx, environment, integration, existing, content).await?
        else {
            return Ok(None);
        };
        // A new connection that a function validates first gets its entry when the function has accepted it.
        let is_validated = self.lifecycle.can_validate(&connection);
        if !is_validated || operation != AuthOperation::Creation {
            audit_log::write(&mut tx, actor, &entry_of(&connection, operation)).await?;
        }
        if !is_validated {
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
        // From here on, the validation finishes even if the client disconnects.
        let (this, actor) = (Arc::clone(self), actor.clone());
        let validated = self.running.spawn(async move {
            match awaited {
                Awaited::Validation(validation) => {
                    this.validate_new(&environment, connection, validation, &actor).await
                }
                Awaited::Revalidation(revalidation) => {
                    this.validate_replaced(&environment, connection, revalidation).await
                }
            }
        });
        validated.await.map_err(|error| ConnectError::Validation(error.into()))?.map(Some)
    }

    /// Validates a new connection, and removes it if the function rejects it. Clients do not see it until then.
    async fn validate_new(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: Connection,
        validation: Validation,
        actor: &Actor,
    ) -> Result<Connection, ConnectError> {
        if let Err(refusal) = self.lifecycle.validate(environment, &connection).await {
            self.remove_unvalidated_connection(connection.pk, validation).await?;
            return Err(refusal.into());
        }
        let mut tx = self.store.begin().await?;
        if !connections::end_validation(&mut tx, connection.pk, validation).await? {
            return Err(ConnectError::Overtaken);
        }
        let operation = AuthOperation::Creation;
        audit_log::write(&mut tx, actor, &entry_of(&connection, operation)).await?;
        self.settle_validated(tx, environment, connection.pk, operation).await
    }

    /// Validates a reconnected connection. The connection stays even if it is rejected. If the host fails, another host
    /// repeats the validation later.
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

    /// Repeats a validation that a lost host had started.
    pub(crate) async fn revalidate(
        self: &Arc<Self>,
        connection: ConnectionPk,
        revalidation: Revalidation,
    ) -> Result<(), ConnectError> {
        let found = connections::get(&mut *self.store.connect().await?, connection).await?;
        let Some(connection) = found else { return Ok(()) };
        let environment = self.environments.get(connection.environment).await;
        let environment = environment.map_err(|error| ConnectError::Validation(error.into()))?;
        self.load_latest_functions(&environment).await?;
        match self.validate_replaced(&environment, connection, revalidation).await {
            // Either the backend was notified, or a later request has changed the connection and notifies it.
            Ok(_) | Err(ConnectError::Refused(_) | ConnectError::Overtaken | ConnectError::TargetGone) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the connection again, because the function may have set metadata, and settles it.
    async fn settle_validated(
        &self,
        mut tx: Transaction,
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

    /// Writes everything that follows from an accepted connection, in one transaction: schedules, post-creation
    /// functions and the outbound webhook.
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

    /// Creates or replaces the row. Also returns the operation that the outbound webhook reports: replacing a
    /// connection that was never announced counts as a creation.
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
        let credentials =
            credentials::seal(environment, provider.as_deref(), id, &content.credentials, self.clock.now());
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
                let is_unannounced = connections::lock_unannounced(conn, connection.pk).await?;
                connections::replace(conn, connection.pk, &new).await?;
                (
                    connection.pk,
                    if is_unannounced { AuthOperation::Creation } else { AuthOperation::Override },
                )
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

    /// Writes the outbound webhook about an end user's failed attempt to connect.
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

/// The entry of the audit log about a connection that was created or replaced.
fn entry_of(connection: &Connection, operation: AuthOperation) -> NewEntry {
    let action = match operation {
        AuthOperation::Creation => AuditAction::ConnectionCreated,
        AuthOperation::Override | AuthOperation::Refresh => AuditAction::ConnectionReplaced,
    };
    let (integration, id) = (&connection.integration_key, &connection.connection_id);
    NewEntry::of_connection(connection.environment, action, integration, id)
        .with(json!({ "provider": connection.provider.as_str() }))
}

/// Whether a tag was derived from this end user, as connections store it.
fn describes(end_user: &Value, key: &str, value: &Value) -> bool {
    let derived = match key {
        "end_user_id" => &end_user["id"],
        "end_user_email" => &end_user["email"],
        "end_user_display_name" => &end_user["display_name"],
        "organization_id" => &end_user["organization"]["id"],
        "organization_display_name" => &end_user["organization"]["display_name"],
        _ => {
            let mut own = end_user["tags"].as_object().into_iter().flatten();
            return own.any(|(name, own)| name.to_lowercase() == key && own == value);
        }
    };
    derived == value
}

impl AuthenticatedConnection {
    /// Merges the new values into an existing connection.
    fn merge_into(self, existing: Option<&Connection>) -> ImportedConnection {
        let mut tags =
            existing.and_then(|connection| connection.tags.as_object()).cloned().unwrap_or_default();
        if self.end_user.is_some()
            && let Some(previous) = existing.and_then(|connection| connection.end_user.as_ref())
        {
            tags.retain(|key, value| !describes(previous, key, value));
        }
        tags.extend(self.tags);
        let connection_id = match existing {
            Some(connection) => connection.connection_id.clone(),
            None => ConnectionId::from_stored(Uuid::new_v4().to_string()),
        };
        ImportedConnection {
            connection_id,
            credentials: self.credentials,
            connection_config: Value::Object(self.connection_config),
            metadata: existing.and_then(|connection| connection.metadata.clone()).unwrap_or_default(),
            tags: Value::Object(tags),
            end_user: self.end_user.or_else(|| existing?.end_user.clone()),
            webhook_url_override: self
                .webhook_url_override
                .or_else(|| existing?.webhook_url_override.clone()),
        }
    }
}
