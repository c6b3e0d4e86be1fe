//! Errors of obtaining tokens from providers.

use http::StatusCode;

use crate::JwtError;
use syncline_egress::EgressError;
use syncline_providers::UnusableConfig;

/// Why a provider returned no token. Clients and end users see the messages. They contain the provider's own error,
/// shortened, but never a credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// An error response of RFC 6749, or a provider's own equivalent.
    #[error("the provider rejected the request: {}", describe(code, description))]
    Refused { code: String, description: String },
    #[error("the provider answered {status} with {what} instead of a token")]
    NotUnderstood { status: StatusCode, what: String },
    #[error("the provider answered {status}; try again later")]
    Unavailable { status: StatusCode },
    #[error("could not reach the provider: {0}")]
    Unreachable(EgressError),
    #[error("the request could not be sent: {0}")]
    NotSent(EgressError),
    #[error(transparent)]
    Config(#[from] UnusableConfig),
    #[error("the provider file has no valid `{0}`")]
    IncompleteProvider(&'static str),
    #[error("the integration has no app credentials: set its `credentials`")]
    NoClient,
    #[error(
        "these credentials cannot be refreshed, because they contain no refresh token; the end user must reconnect"
    )]
    NothingToRenewWith,
    #[error("the credentials have no `{0}`")]
    MissingCredential(String),
    #[error("the credentials contain characters that are not allowed in the header `{header}`")]
    Unsendable { header: String },
    #[error(transparent)]
    Jwt(#[from] JwtError),
    #[error("the key must be encoded as {0}")]
    KeyEncoding(&'static str),
}

impl FlowError {
    /// Whether the same request may succeed later without a change.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Unreachable(_) => true,
            Self::Refused { code, .. } => {
                matches!(code.as_str(), "temporarily_unavailable" | "server_error" | "slow_down")
            }
            Self::NotUnderstood { .. }
            | Self::NotSent(_)
            | Self::Config(_)
            | Self::IncompleteProvider(_)
            | Self::NoClient
            | Self::NothingToRenewWith
            | Self::MissingCredential(_)
            | Self::Unsendable { .. }
            | Self::Jwt(_)
            | Self::KeyEncoding(_) => false,
        }
    }
}

impl From<EgressError> for FlowError {
    fn from(error: EgressError) -> Self {
        if error.is_retryable() { Self::Unreachable(error) } else { Self::NotSent(error) }
    }
}

fn describe(code: &str, description: &str) -> String {
    match (code, description) {
        ("", "") => "no reason given".to_owned(),
        (code, "") => code.to_owned(),
        ("", description) => description.to_owned(),
        (code, description) => format!("{code} ({description})"),
    }
}
