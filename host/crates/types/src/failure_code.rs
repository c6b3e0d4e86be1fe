//! The codes of the failures that host functions return to guests.

use strum::{Display, EnumString, IntoStaticStr};

/// The code of a failure that a host function returns to a guest, as in the WIT files: `host-not-allowed`.
///
/// A guest may fail with any other code: a code that does not parse is the guest's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Display, EnumString, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum FailureCode {
    /// The method, URL or a header of a request is malformed.
    InvalidRequest,
    /// The host is neither the provider's nor in `allow_hosts`.
    HostNotAllowed,
    /// The host has a private or local address.
    AddressNotAllowed,
    TooManyRedirects,
    Timeout,
    NetworkError,
    ResponseTooLarge,
    /// The provider is rate limiting the connection.
    RateLimited,
    /// The connection's credentials could not be refreshed or read.
    CredentialsUnavailable,
    /// The provider answered with an error that the function did not handle. Functions return it, not the host.
    ProviderHttpError,
    /// `syncline.toml` does not grant the capability, or the function may not write to the variant.
    NotAllowed,
    InvalidMetadata,
    InvalidCheckpoint,
    /// The function does not declare the model.
    UnknownModel,
    /// Records do not match their model.
    InvalidRecords,
    /// Records cannot be updated because their payloads were pruned.
    PrunedRecords,
    BatchTooLarge,
}

impl FailureCode {
    /// The text on the wire.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether a run that failed with this code may succeed when it is repeated later.
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::ProviderHttpError | Self::Timeout | Self::NetworkError | Self::CredentialsUnavailable
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_converted_to_and_from_text() {
        assert_eq!(FailureCode::ProviderHttpError.as_str(), "provider-http-error");
        assert_eq!("batch-too-large".parse(), Ok(FailureCode::BatchTooLarge));
        assert!("sold-out".parse::<FailureCode>().is_err());
    }
}
