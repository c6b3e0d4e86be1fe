//! Connect sessions: creates them, and returns what the holder of a token may connect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::connections::route::ConnectionRoute;
use syncline_auth::{Environment, EnvironmentError, Environments, InvalidSessionToken, SessionToken};
use syncline_store::Store;
use syncline_store::connect_sessions::{self, NewSession, Reconnected};
use syncline_types::actor::Identity;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectSessionPk, ConnectionId, IntegrationKey};

const LIFETIME_SECONDS: i32 = 30 * 60;
const SWEEP_EVERY: Duration = Duration::from_secs(300);
/// How long a session is stored after its end. Authorizations are deleted with their session, and an end user may still
/// be at the provider when the session ends. So this is longer than an authorization may take.
const RETENTION_SECONDS: i32 = 2 * 60 * 60;

/// The rights of a session's token: to connect some integrations of one environment for one end user.
#[derive(Debug, Clone)]
pub struct ConnectSession {
    pub pk: ConnectSessionPk,
    id: Uuid,
    pub environment: Arc<Environment>,
    /// The end user whose account is connected: `{id, email, display_name, tags, organization}`, as connections store
    /// it. `None` keeps the end user of a reconnected connection.
    pub end_user: Option<Value>,
    /// Tags for the connection and its webhooks, merged into existing tags. Keys are in lower case.
    pub tags: Map<String, Value>,
    pub webhook_url_override: Option<String>,
    /// The connection to reconnect. `None` creates a new one.
    pub reconnects: Option<Reconnected>,
    pub expires_at: DateTime<Utc>,
    allowed_integrations: Option<Vec<IntegrationKey>>,
    defaults: BTreeMap<IntegrationKey, ConfigDefaults>,
    overrides: BTreeMap<IntegrationKey, UiOverrides>,
}

/// Values that a backend sets before its end user is asked.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ConfigDefaults {
    /// Scopes for the user, if the provider distinguishes them from those of the app.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_scopes: Option<String>,
    /// Additional parameters of the provider's authorization page.
    #[serde(default)]
    pub authorization_params: BTreeMap<String, String>,
    /// Answers to the provider's questions; `oauth_scopes_override` replaces the integration's scopes.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub connection_config: Map<String, Value>,
}

/// Changes to the Connect UI for one integration.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UiOverrides {
    /// The target of the link "How do I find this?", which replaces the provider's documentation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub docs_connect: Option<String>,
}

/// A session to create. Every integration that it names exists.
#[derive(Debug)]
pub struct NewConnectSession {
    pub end_user: Option<Value>,
    pub tags: Map<String, Value>,
    /// `None` allows all integrations of the environment.
    pub allowed_integrations: Option<Vec<IntegrationKey>>,
    pub defaults: BTreeMap<IntegrationKey, ConfigDefaults>,
    pub overrides: BTreeMap<IntegrationKey, UiOverrides>,
    pub webhook_url_override: Option<String>,
    pub reconnects: Option<Arc<ConnectionRoute>>,
}

/// A session's token, which is returned only this once, and the end of the session.
pub struct CreatedSession {
    pub token: SessionToken,
    pub expires_at: DateTime<Utc>,
}

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Malformed(#[from] InvalidSessionToken),
    #[error("the session does not exist or has ended; create a new one")]
    Unknown,
    #[error("the session does not allow integration `{0}`; create a session that allows it")]
    NotAllowed(IntegrationKey),
    #[error(
        "integration `{integration}` has no connection `{connection}`; check both names, or list the connections with \
         `GET /connections`"
    )]
    TargetGone { integration: IntegrationKey, connection: ConnectionId },
    #[error("sessions could not be read or written")]
    Store(#[from] sqlx::Error),
    #[error("the session's environment could not be loaded")]
    Environment(#[from] EnvironmentError),
    #[error("a stored session cannot be parsed")]
    Unreadable(#[from] serde_json::Error),
}

impl SessionError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Malformed(_) => ErrorCode::InvalidConnectSessionTokenFormat,
            Self::Unknown => ErrorCode::UnknownConnectSessionToken,
            Self::NotAllowed(_) => ErrorCode::IntegrationNotAllowed,
            Self::TargetGone { .. } => ErrorCode::UnknownConnection,
            Self::Store(_) | Self::Environment(_) | Self::Unreadable(_) => ErrorCode::InternalServerError,
        }
    }
}

/// Creates, finds and ends connect sessions.
pub struct ConnectSessions {
    store: Store,
    environments: Arc<Environments>,
}

impl ConnectSessions {
    pub fn new(store: Store, environments: Arc<Environments>) -> Arc<Self> {
        Arc::new(Self { store, environments })
    }

    /// Creates a session that lasts 30 minutes.
    pub async fn create(
        &self,
        environment: &Environment,
        new: NewConnectSession,
    ) -> Result<CreatedSession, SessionError> {
        let token = SessionToken::generate();
        let tags = Value::Object(new.tags);
        let stored = NewSession {
            id: Uuid::new_v4(),
            environment: environment.pk,
            token_hash: token.hash(),
            end_user: new.end_user.as_ref(),
            tags: &tags,
            allowed_integrations: new.allowed_integrations.as_deref(),
            integrations_config_defaults: &serde_json::to_value(&new.defaults)?,
            overrides: &serde_json::to_value(&new.overrides)?,
            webhook_url_override: new.webhook_url_override.as_deref(),
            reconnects: new.reconnects.as_ref().map(|route| route.pk),
            lifetime_seconds: LIFETIME_SECONDS,
        };
        let expires_at = connect_sessions::create(&mut *self.store.connect().await?, &stored).await?;
        match (expires_at, new.reconnects) {
            (Some(expires_at), _) => Ok(CreatedSession { token, expires_at }),
            (None, Some(route)) => Err(SessionError::TargetGone {
                integration: route.integration_key.clone(),
                connection: route.connection_id.clone(),
            }),
            (None, None) => Err(sqlx::Error::RowNotFound.into()),
        }
    }

    /// Ends a session. Its token is not valid any more.
    pub async fn delete(&self, session: &ConnectSession) -> Result<(), SessionError> {
        Ok(connect_sessions::delete(&mut *self.store.connect().await?, session.pk).await?)
    }

    /// Returns the session of a token.
    pub async fn find(&self, token: &str) -> Result<ConnectSession, SessionError> {
        self.open(&SessionToken::parse(token)?.hash()).await
    }

    /// Returns the session whose token has this hash.
    pub(crate) async fn open(&self, token_hash: &[u8]) -> Result<ConnectSession, SessionError> {
        let mut conn = self.store.connect().await?;
        let stored = connect_sessions::find(&mut conn, token_hash).await?.ok_or(SessionError::Unknown)?;
        drop(conn);
        Ok(ConnectSession {
            pk: stored.pk,
            id: stored.id,
            environment: self.environments.get(stored.environment).await?,
            end_user: stored.end_user,
            tags: serde_json::from_value(stored.tags)?,
            webhook_url_override: stored.webhook_url_override,
            reconnects: stored.reconnects,
            expires_at: stored.expires_at,
            allowed_integrations: stored.allowed_integrations,
            defaults: serde_json::from_value(stored.integrations_config_defaults)?,
            overrides: serde_json::from_value(stored.overrides)?,
        })
    }

    /// Removes sessions that ended longer ago than the retention, until `shutdown`.
    pub async fn sweep(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(SWEEP_EVERY);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            let swept = async {
                connect_sessions::delete_ended(&mut *self.store.connect().await?, RETENTION_SECONDS).await
            };
            match shutdown.run_until_cancelled(swept).await {
                None | Some(Ok(0)) => {}
                Some(Ok(deleted)) => {
                    tracing::debug!(sessions.deleted = deleted, "removed old connect sessions");
                }
                Some(Err(error)) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not remove old connect sessions; retrying"
                ),
            }
        }
    }
}

impl ConnectSession {
    /// The author of the changes that are made with the session's token.
    pub fn identity(&self) -> Identity {
        let end_user_id = self.connecting_user().and_then(|user| user["id"].as_str()).map(str::to_owned);
        Identity::ConnectSession { id: self.id, end_user_id }
    }

    /// The end user who connects the account.
    pub fn connecting_user(&self) -> Option<&Value> {
        let reconnected = || self.reconnects.as_ref()?.end_user.as_ref();
        self.end_user.as_ref().or_else(reconnected)
    }

    /// The index of an integration in the list of allowed ones, if the session has such a list.
    pub fn position(&self, integration: &IntegrationKey) -> Option<usize> {
        self.allowed_integrations.iter().flatten().position(|key| key == integration)
    }

    pub fn allows(&self, integration: &IntegrationKey) -> bool {
        match (&self.reconnects, &self.allowed_integrations) {
            (Some(reconnected), _) => reconnected.integration == *integration,
            (None, Some(allowed)) => allowed.contains(integration),
            (None, None) => true,
        }
    }

    pub fn require(&self, integration: &IntegrationKey) -> Result<(), SessionError> {
        if self.allows(integration) { Ok(()) } else { Err(SessionError::NotAllowed(integration.clone())) }
    }

    /// The backend's values for one integration.
    pub fn defaults(&self, integration: &IntegrationKey) -> Option<&ConfigDefaults> {
        self.defaults.get(integration)
    }

    /// The backend's values for all integrations.
    pub fn all_defaults(&self) -> &BTreeMap<IntegrationKey, ConfigDefaults> {
        &self.defaults
    }

    pub fn overrides(&self) -> &BTreeMap<IntegrationKey, UiOverrides> {
        &self.overrides
    }

    /// Builds the configuration of a connection. The backend's values take precedence over the end user's answers.
    pub fn connection_config(
        &self,
        integration: &IntegrationKey,
        mut answers: Map<String, Value>,
    ) -> Map<String, Value> {
        // Only the backend may set the webhook URL, never a browser.
        answers.remove("webhook_url");
        if let Some(defaults) = self.defaults(integration) {
            answers.extend(defaults.connection_config.clone());
        }
        answers
    }
}
