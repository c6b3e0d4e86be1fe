//! Errors of outgoing requests.

use std::time::Duration;

use syncline_types::failure_code::FailureCode;
use syncline_types::units::Bytes;

/// Why a request got no answer. Guests see the messages. They contain hosts, but never a full URL, a header's value or
/// a credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    #[error("{reason}")]
    InvalidRequest { reason: String },
    #[error(
        "`{host}` is neither the provider's host nor in the integration's `allow_hosts`; add it to `allow_hosts`"
    )]
    HostNotAllowed { host: String },
    #[error(
        "the base URL's host `{host}` is neither the provider's host nor in the integration's `allow_hosts`; add it to `allow_hosts`"
    )]
    OverrideNotAllowed { host: String },
    #[error("requests to `{host}` must use https; http is only allowed for hosts in SYNCLINE_EGRESS_ALLOW")]
    PlainHttp { host: String },
    #[error("`{host}` has a private or local address; the operator can allow it with SYNCLINE_EGRESS_ALLOW")]
    AddressNotAllowed { host: String },
    #[error("the provider redirected more than {limit} times; send the request to the final address")]
    TooManyRedirects { limit: usize },
    #[error("the provider redirected, but {0}")]
    Redirected(Box<EgressError>),
    #[error("the request's body was too long to be sent again")]
    UploadNotKept,
    #[error("the request's body {0}")]
    Upload(UploadFailure),
    #[error("`{host}` did not answer within {} s", after.as_secs_f64())]
    Timeout { host: String, after: Duration },
    #[error("the request to `{host}` failed: {cause}")]
    Network { host: String, cause: String },
    #[error("the answer of `{host}` is longer than {}", Bytes(*limit_bytes as u64))]
    ResponseTooLarge { host: String, limit_bytes: usize },
    #[error("`{host}` is rate limiting this connection; the next request is possible in {} s", retry_after.as_secs_f64().ceil())]
    RateLimited { host: String, retry_after: Duration },
    #[error(transparent)]
    CredentialsUnavailable(#[from] CredentialsUnavailable),
}

impl EgressError {
    /// The code that a guest receives. The WIT file lists them at `provider.send`.
    pub fn code(&self) -> FailureCode {
        match self {
            Self::InvalidRequest { .. } | Self::UploadNotKept => FailureCode::InvalidRequest,
            Self::HostNotAllowed { .. } | Self::OverrideNotAllowed { .. } | Self::PlainHttp { .. } => {
                FailureCode::HostNotAllowed
            }
            Self::Redirected(refused) => refused.code(),
            Self::AddressNotAllowed { .. } => FailureCode::AddressNotAllowed,
            Self::TooManyRedirects { .. } => FailureCode::TooManyRedirects,
            Self::Timeout { .. } => FailureCode::Timeout,
            Self::Network { .. } | Self::Upload(_) => FailureCode::NetworkError,
            Self::ResponseTooLarge { .. } => FailureCode::ResponseTooLarge,
            Self::RateLimited { .. } => FailureCode::RateLimited,
            Self::CredentialsUnavailable(_) => FailureCode::CredentialsUnavailable,
        }
    }

    /// Whether the same request may succeed when it is repeated later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Network { .. })
    }

    /// The message with what the author of the request can do next, for functions and for clients of `/proxy`.
    /// Requests of the host itself use the message alone.
    pub fn with_advice(&self) -> String {
        match self {
            Self::Timeout { .. } | Self::Network { .. } => format!("{self}; try again, or configure retries"),
            Self::ResponseTooLarge { .. } => format!("{self}; request smaller pages"),
            _ => self.to_string(),
        }
    }

    /// The error of a redirect to a refused destination, which the caller cannot correct.
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

/// Why a connection has no usable credentials. Guests see the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct CredentialsUnavailable {
    pub reason: String,
}

/// Why the body of a client's request did not arrive completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UploadFailure {
    #[error("did not arrive completely")]
    Cut,
    #[error("is longer than {}", Bytes(*limit_bytes))]
    TooLong { limit_bytes: u64 },
    #[error("stopped arriving for {} s", after.as_secs())]
    Stalled { after: Duration },
    #[error("arrives too slowly; it must arrive at {} a second on average", Bytes(*bytes_per_second))]
    Slow { bytes_per_second: u64 },
    #[error(
        "must be read as a whole to be signed, but the memory for request bodies is full; retry after the seconds in Retry-After"
    )]
    NoMemory,
}
