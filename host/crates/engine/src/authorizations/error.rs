//! Errors of authorizations: why one could not start, or did not create a connection.

use crate::TypedConnectionError;
use crate::connect_sessions::SessionError;
use crate::connections::ConnectError;
use syncline_auth::flows::FlowError;
use syncline_auth::{AppCredentialsError, EnvironmentError};
use syncline_crypto::CryptoError;
use syncline_providers::{AuthMode, UnusableConfig};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{IntegrationKey, ProviderSlug};

/// Why an authorization could not start, or did not create a connection. The messages are for end users, and may quote
/// unverified text of a provider.
#[derive(Debug, thiserror::Error)]
pub enum AuthorizationError {
    #[error("there is no integration `{0}` in this environment; `GET /integrations` lists them")]
    UnknownIntegration(IntegrationKey),
    #[error(
        "the provider `{0}` is not in this host's catalogue; add its file to SYNCLINE_PROVIDERS_DIR on every host"
    )]
    UnknownProvider(ProviderSlug),
    #[error("integration `{integration}` uses auth mode {mode}, which has no authorization page")]
    OtherMode { integration: IntegrationKey, mode: AuthMode },
    #[error("integration `{0}` has no app credentials; set them with `PATCH /integrations/{0}`")]
    NoApp(IntegrationKey),
    #[error(transparent)]
    Config(#[from] UnusableConfig),
    #[error("the answer to `{0}` must not contain a NUL character")]
    Nul(String),
    #[error("the address has no `state`: open this page only through a provider's redirect")]
    NoState,
    #[error("this authorization was already used or has expired; start again")]
    UnknownState,
    #[error("this browser did not start the authorization; start again in this browser and allow cookies")]
    OtherBrowser,
    #[error("the session has ended; go back to the app and start again")]
    SessionEnded,
    #[error("the session does not allow integration `{0}`; create a session that allows it")]
    NotAllowed(IntegrationKey),
    #[error("access was not granted{}", provider_message(.0))]
    Denied(String),
    #[error("the provider returned an error{}", provider_message(.0))]
    Provider(String),
    #[error("the callback comes from `{given}`, which is not the provider of this integration")]
    Issuer { given: String },
    #[error("the provider's redirect has no `{0}`")]
    Missing(&'static str),
    #[error(
        "the installation was requested, but its owner has not approved it yet; connect again after the approval"
    )]
    InstallationRequested,
    #[error(
        "the account that gave consent has no access to the chosen installation; use an account that has access"
    )]
    OthersInstallation,
    #[error(transparent)]
    Flow(FlowError),
    #[error("the provider rejected the credentials that it has just issued; try again")]
    Rejected,
    #[error("the credentials that the provider issued cannot be used: {0}")]
    Unusable(String),
    /// A function of the integration rejects the connection; the text is the function's message.
    #[error("{0}")]
    Refused(String),
    #[error("the connection to reconnect no longer exists; connect the account as a new connection")]
    TargetGone,
    #[error(
        "another request replaced or deleted the connection while a function was validating it; connect again if \
         necessary"
    )]
    Overtaken,
    #[error("an internal error occurred; try again")]
    Internal(#[source] anyhow::Error),
}

impl AuthorizationError {
    /// The stable code. The WebSocket sends it as the type of the error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownIntegration(_) => ErrorCode::UnknownIntegration,
            Self::UnknownProvider(_) => ErrorCode::UnknownProvider,
            Self::OtherMode { .. } => ErrorCode::InvalidAuthMode,
            Self::NoApp(_) => ErrorCode::ProviderConfigErr,
            Self::Config(_) | Self::Nul(_) => ErrorCode::InvalidConnectionConfig,
            Self::NoState | Self::UnknownState => ErrorCode::StateErr,
            Self::OtherBrowser => ErrorCode::StateCookieErr,
            Self::SessionEnded => ErrorCode::UnknownConnectSessionToken,
            Self::NotAllowed(_) => ErrorCode::IntegrationNotAllowed,
            Self::Denied(_) => ErrorCode::AccessDenied,
            Self::Provider(_) | Self::Issuer { .. } | Self::Missing(_) | Self::InstallationRequested => {
                ErrorCode::CallbackErr
            }
            Self::Flow(_) => ErrorCode::TokenErr,
            Self::Rejected | Self::Unusable(_) | Self::Refused(_) | Self::OthersInstallation => {
                ErrorCode::ConnectionValidationFailed
            }
            Self::TargetGone => ErrorCode::ConnectionNotFound,
            Self::Overtaken => ErrorCode::ConnectionReplaced,
            Self::Internal(_) => ErrorCode::InternalServerError,
        }
    }

    pub(super) fn internal(error: impl Into<anyhow::Error>) -> Self {
        Self::Internal(error.into())
    }
}

impl From<FlowError> for AuthorizationError {
    fn from(error: FlowError) -> Self {
        match error {
            FlowError::Config(unusable) => Self::Config(unusable),
            error => Self::Flow(error),
        }
    }
}

impl From<SessionError> for AuthorizationError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Unknown | SessionError::Malformed(_) => Self::SessionEnded,
            SessionError::NotAllowed(integration) => Self::NotAllowed(integration),
            error => Self::internal(error),
        }
    }
}

impl From<ConnectError> for AuthorizationError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::TargetGone => Self::TargetGone,
            ConnectError::Overtaken => Self::Overtaken,
            ConnectError::IntegrationGone(integration) => Self::UnknownIntegration(integration),
            ConnectError::Refused(message) => Self::Refused(message),
            error @ (ConnectError::Store(_) | ConnectError::Validation(_)) => Self::internal(error),
        }
    }
}

impl From<TypedConnectionError> for AuthorizationError {
    fn from(error: TypedConnectionError) -> Self {
        match error {
            TypedConnectionError::Rejected { .. } => Self::Rejected,
            TypedConnectionError::Connect(error) => error.into(),
            error => Self::Unusable(error.to_string()),
        }
    }
}

macro_rules! internal_errors {
    ($($error:ty),+) => {$(
        impl From<$error> for AuthorizationError {
            fn from(error: $error) -> Self {
                Self::internal(error)
            }
        }
    )+};
}

internal_errors!(sqlx::Error, AppCredentialsError, EnvironmentError, CryptoError, serde_json::Error);

fn provider_message(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("; the provider says: {text}") }
}
