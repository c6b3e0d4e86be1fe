//! Why an end user did not get to a provider, or came back without a connection.

use crate::TypedConnectionError;
use crate::connect_sessions::SessionError;
use crate::connections::ConnectError;
use syncline_auth::flows::FlowError;
use syncline_auth::{AppCredentialsError, EnvironmentError};
use syncline_crypto::CryptoError;
use syncline_providers::{AuthMode, UnusableConfig};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{IntegrationKey, ProviderSlug};

/// Why an end user did not get to a provider, or came back without a connection. The texts are for end users and
/// may hold what a provider said, as text that nobody has checked.
#[derive(Debug, thiserror::Error)]
pub enum AuthorizationError {
    #[error("there is no integration `{0}` in this environment")]
    UnknownIntegration(IntegrationKey),
    #[error("the provider `{0}` is not in this host's catalogue")]
    UnknownProvider(ProviderSlug),
    #[error("integration `{integration}` is of auth mode {mode}, whose end users are not sent anywhere")]
    OtherMode { integration: IntegrationKey, mode: AuthMode },
    #[error("integration `{0}` has no app credentials; set them with `PATCH /integrations/{0}`")]
    NoApp(IntegrationKey),
    #[error(transparent)]
    Config(#[from] UnusableConfig),
    #[error("the answer to `{0}` has a NUL character in it")]
    Nul(String),
    #[error("the address has no `state`: this page is only for those whom a provider sends back")]
    NoState,
    #[error(
        "this way back leads nowhere: it was used already, or its hour or its session is over; begin again"
    )]
    UnknownState,
    #[error(
        "this browser is not the one that left for the provider; begin again in this one, with cookies allowed"
    )]
    OtherBrowser,
    #[error("the session ended while you were away; open a new one and begin again")]
    SessionEnded,
    #[error("the session does not allow integration `{0}`")]
    NotAllowed(IntegrationKey),
    #[error("access was not granted{}", told(.0))]
    Denied(String),
    #[error("the provider sent you back with an error{}", told(.0))]
    Provider(String),
    #[error("the answer comes from `{given}`, which is not the provider that was asked")]
    Issuer { given: String },
    #[error("the provider sent you back without `{0}`")]
    Missing(&'static str),
    #[error("the installation was requested, and its owner has yet to approve it; connect again after that")]
    InstallationRequested,
    #[error("the account that gave its consent may not use the installation that was chosen")]
    OthersInstallation,
    #[error(transparent)]
    Flow(FlowError),
    #[error("the provider refuses the credentials that it has just given")]
    Rejected,
    #[error("the credentials that the provider has given cannot be used: {0}")]
    Unusable(String),
    /// A function of the integration refuses the connection, in its own words.
    #[error("{0}")]
    Refused(String),
    #[error("the connection that was to be connected anew is gone")]
    TargetGone,
    #[error("another request has replaced the connection, or deleted it, while a function validated it")]
    Overtaken,
    #[error("something went wrong on our side; try again")]
    Internal(#[source] anyhow::Error),
}

impl AuthorizationError {
    /// The code, which the WebSocket sends as the type of the error.
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

macro_rules! our_own_fault {
    ($($error:ty),+) => {$(
        impl From<$error> for AuthorizationError {
            fn from(error: $error) -> Self {
                Self::internal(error)
            }
        }
    )+};
}

our_own_fault!(sqlx::Error, AppCredentialsError, EnvironmentError, CryptoError, serde_json::Error);

fn told(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!("; the provider says: {said}") }
}
