//! Connect sessions: making them, and telling from a token what its holder may connect.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connections::route::ConnectionRoute;
use syncline_auth::{Environment, EnvironmentError, Environments, InvalidSessionToken, SessionToken};
use syncline_store::Store;
use syncline_store::connect_sessions::{self, NewSession, Reconnected};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectSessionPk, ConnectionId, IntegrationKey};

const LIFETIME_SECONDS: i32 = 30 * 60;
const SWEEP_EVERY: Duration = Duration::from_secs(300);
/// An end user may still be on the way back from a provider when the session ends. What was begun goes with its
/// session, so the session stays for longer than an authorization may take.
const KEPT_AFTER_END_SECONDS: i32 = 2 * 60 * 60;

/// What the holder of a session's token may do: connect some integrations of one environment for one end user.
#[derive(Debug, Clone)]
pub struct ConnectSession {
    pub pk: ConnectSessionPk,
    pub environment: Arc<Environment>,
    /// Whose account it will be: `{id, email, display_name, tags, organization}`, as connections keep it.
    pub end_user: Option<Value>,
    /// What the connection and its webhooks are tagged with, above the tags that it has; keys are in lower case.
    pub tags: Map<String, Value>,
    pub webhook_url_override: Option<String>,
    /// The connection that is connected anew; `None` for a new one.
    pub reconnects: Option<Reconnected>,
    pub expires_at: DateTime<Utc>,
    allowed_integrations: Option<Vec<IntegrationKey>>,
    defaults: BTreeMap<IntegrationKey, ConfigDefaults>,
    overrides: BTreeMap<IntegrationKey, UiOverrides>,
}

/// What a backend has settled before its end user is asked.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigDefaults {
    /// Scopes of the user's own, where a provider tells them from the app's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_scopes: Option<String>,
    /// Further parameters of the provider's authorization page.
    #[serde(default)]
    pub authorization_params: BTreeMap<String, String>,
    /// Answers to the provider's questions; `oauth_scopes_override` replaces the integration's scopes.
    #[serde(default)]
    pub connection_config: Map<String, Value>,
}

/// What the Connect UI shows otherwise for an integration.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UiOverrides {
    /// Where "How do I find this?" leads, in place of the provider's own manual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub docs_connect: Option<String>,
}

/// A session to make. Every integration that it names exists.
#[derive(Debug)]
pub struct NewConnectSession {
    pub end_user: Option<Value>,
    pub tags: Map<String, Value>,
    /// `None`: all of the environment's.
    pub allowed_integrations: Option<Vec<IntegrationKey>>,
    pub defaults: BTreeMap<IntegrationKey, ConfigDefaults>,
    pub overrides: BTreeMap<IntegrationKey, UiOverrides>,
    pub webhook_url_override: Option<String>,
    pub reconnects: Option<Arc<ConnectionRoute>>,
}

/// A session's token, which is shown this once, and its end.
pub struct CreatedSession {
    pub token: SessionToken,
    pub expires_at: DateTime<Utc>,
}

#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Malformed(#[from] InvalidSessionToken),
    #[error("the session is not known or has ended; open a new one")]
    Unknown,
    #[error("the session does not allow integration `{0}`")]
    NotAllowed(IntegrationKey),
    #[error("integration `{integration}` has no connection `{connection}`")]
    TargetGone { integration: IntegrationKey, connection: ConnectionId },
    #[error("sessions could not be read or written")]
    Store(#[from] sqlx::Error),
    #[error("the session's environment could not be opened")]
    Environment(#[from] EnvironmentError),
    #[error("a stored session cannot be understood")]
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

/// Opens, finds and ends connect sessions.
pub struct ConnectSessions {
    store: Store,
    environments: Arc<Environments>,
}

impl ConnectSessions {
    pub fn new(store: Store, environments: Arc<Environments>) -> Arc<Self> {
        Arc::new(Self { store, environments })
    }

    /// Makes a session of 30 minutes.
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

    /// Ends a session: its token opens nothing from here on.
    pub async fn delete(&self, session: &ConnectSession) -> Result<(), SessionError> {
        Ok(connect_sessions::delete(&mut *self.store.connect().await?, session.pk).await?)
    }

    /// The session that a token opens.
    pub async fn find(&self, token: &str) -> Result<ConnectSession, SessionError> {
        self.open(&SessionToken::parse(token)?.hash()).await
    }

    /// The session whose token has this hash.
    pub(crate) async fn open(&self, token_hash: &[u8]) -> Result<ConnectSession, SessionError> {
        let mut conn = self.store.connect().await?;
        let stored = connect_sessions::find(&mut conn, token_hash).await?.ok_or(SessionError::Unknown)?;
        drop(conn);
        Ok(ConnectSession {
            pk: stored.pk,
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

    /// Removes sessions that ended long ago, until `shutdown`.
    pub async fn sweep(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(SWEEP_EVERY);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            let swept = async {
                connect_sessions::delete_ended(&mut *self.store.connect().await?, KEPT_AFTER_END_SECONDS)
                    .await
            };
            match shutdown.run_until_cancelled(swept).await {
                None | Some(Ok(0)) => {}
                Some(Ok(deleted)) => {
                    tracing::debug!(sessions.deleted = deleted, "old connect sessions were removed");
                }
                Some(Err(error)) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "old connect sessions could not be removed"
                ),
            }
        }
    }
}

impl ConnectSession {
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

    /// What was settled for that integration beforehand.
    pub fn defaults(&self, integration: &IntegrationKey) -> Option<&ConfigDefaults> {
        self.defaults.get(integration)
    }

    /// All that was settled beforehand.
    pub fn all_defaults(&self) -> &BTreeMap<IntegrationKey, ConfigDefaults> {
        &self.defaults
    }

    pub fn overrides(&self) -> &BTreeMap<IntegrationKey, UiOverrides> {
        &self.overrides
    }

    /// The configuration of a connection: what the end user answered, under what was settled beforehand.
    pub fn connection_config(
        &self,
        integration: &IntegrationKey,
        mut answers: Map<String, Value>,
    ) -> Map<String, Value> {
        // Where webhooks go is for the backend to say, never for a browser.
        answers.remove("webhook_url");
        if let Some(defaults) = self.defaults(integration) {
            answers.extend(defaults.connection_config.clone());
        }
        answers
    }
}
