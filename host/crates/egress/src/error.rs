//! Why a request got no answer.

use std::time::Duration;

/// Why a request got no answer. The texts are shown to guests: they name hosts, never a whole URL, a header's
/// value or a credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    #[error("{reason}")]
    InvalidRequest { reason: String },
    #[error("`{host}` is neither the provider's host nor in the integration's `allow_hosts`")]
    HostNotAllowed { host: String },
    #[error(
        "`{host}` is neither the provider's host nor in the integration's `allow_hosts`, so it is no base URL for it"
    )]
    OverrideNotAllowed { host: String },
    #[error("`{host}` must be reached by https; plain http is only for hosts in SYNCLINE_EGRESS_ALLOW")]
    PlainHttp { host: String },
    #[error("`{host}` is a private or local address, which only SYNCLINE_EGRESS_ALLOW can open")]
    AddressNotAllowed { host: String },
    #[error("the provider redirected more than {limit} times")]
    TooManyRedirects { limit: usize },
    #[error("the provider redirected, but {0}")]
    Redirected(Box<EgressError>),
    #[error("the body was too long to be kept, so that it cannot be sent again")]
    UploadNotKept,
    #[error("the request's body {0}")]
    Upload(UploadFailure),
    #[error("`{host}` did not answer within {} ms", after.as_millis())]
    Timeout { host: String, after: Duration },
    #[error("the exchange with `{host}` failed: {cause}")]
    Network { host: String, cause: String },
    #[error("the answer of `{host}` is longer than {limit_bytes} bytes")]
    ResponseTooLarge { host: String, limit_bytes: usize },
    #[error("`{host}` had too many requests and wants none for {} s", retry_after.as_secs_f64().ceil())]
    RateLimited { host: String, retry_after: Duration },
    #[error(transparent)]
    CredentialsUnavailable(#[from] CredentialsUnavailable),
}

impl EgressError {
    /// The code that a guest sees: one of those listed at `provider.send`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::InvalidRequest { .. } | Self::UploadNotKept => "invalid-request",
            Self::HostNotAllowed { .. } | Self::OverrideNotAllowed { .. } | Self::PlainHttp { .. } => {
                "host-not-allowed"
            }
            Self::Redirected(refused) => refused.code(),
            Self::AddressNotAllowed { .. } => "address-not-allowed",
            Self::TooManyRedirects { .. } => "too-many-redirects",
            Self::Timeout { .. } => "timeout",
            Self::Network { .. } | Self::Upload(_) => "network-error",
            Self::ResponseTooLarge { .. } => "response-too-large",
            Self::RateLimited { .. } => "rate-limited",
            Self::CredentialsUnavailable(_) => "credentials-unavailable",
        }
    }

    /// Whether the same request may succeed a little later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Network { .. })
    }

    /// The same, where a redirect led to what is refused: then it is not the caller's to correct.
    pub(super) fn of_redirect(self) -> Self {
        match self {
            Self::HostNotAllowed { .. }
            | Self::PlainHttp { .. }
            | Self::AddressNotAllowed { .. }
            | Self::UploadNotKept => Self::Redirected(Box::new(self)),
            other => other,
        }
    }

    pub(super) fn invalid(reason: impl Into<String>) -> Self {
        Self::InvalidRequest { reason: reason.into() }
    }
}

/// Why a connection has no usable credentials. The reason is shown to guests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct CredentialsUnavailable {
    pub reason: String,
}

/// Why a client's body did not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UploadFailure {
    #[error("did not arrive whole")]
    Cut,
    #[error("is longer than {limit_bytes} bytes")]
    TooLong { limit_bytes: u64 },
    #[error("did not go on for {} s", after.as_secs())]
    Stalled { after: Duration },
}
