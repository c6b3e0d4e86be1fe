//! Why a provider gave no token.

use http::StatusCode;

use crate::JwtError;
use syncline_egress::EgressError;
use syncline_providers::UnusableConfig;

/// Why a provider gave no token. The texts are shown to clients and end users: they hold what the provider said
/// of it, shortened, and never a credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FlowError {
    /// RFC 6749's error response, or a provider's own like of it.
    #[error("the provider refused: {}", describe(code, description))]
    Refused { code: String, description: String },
    #[error("the provider answered {status} with {what} where a token was expected")]
    NotUnderstood { status: StatusCode, what: String },
    #[error("the provider answered {status}; it may work again later")]
    Unavailable { status: StatusCode },
    #[error("the provider could not be reached: {0}")]
    Unreachable(EgressError),
    #[error("the request is not one that may be sent: {0}")]
    NotSent(EgressError),
    #[error(transparent)]
    Config(#[from] UnusableConfig),
    #[error("the provider's entry has no `{0}`")]
    IncompleteProvider(&'static str),
    #[error("the integration has no app credentials to ask the provider with")]
    NoClient,
    #[error("these credentials hold nothing that new ones could be obtained with")]
    NothingToRenewWith,
    #[error("the credentials have no `{0}`")]
    MissingCredential(String),
    #[error("the header `{header}` cannot hold what these credentials put in it")]
    Unsendable { header: String },
    #[error(transparent)]
    Jwt(#[from] JwtError),
    #[error("the key must be written in {0}")]
    KeyEncoding(&'static str),
}

impl FlowError {
    /// Whether the same request may succeed later, with nobody doing anything.
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
        ("", "") => "without a reason".to_owned(),
        (code, "") => code.to_owned(),
        ("", description) => description.to_owned(),
        (code, description) => format!("{code} ({description})"),
    }
}
