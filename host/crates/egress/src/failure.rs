//! Why an exchange failed, in the words of this crate.

use std::error::Error;
use std::io;
use std::time::Duration;

use super::error::EgressError;
use super::resolver::NoPublicAddress;

/// Why a body ended too early: its connection failed, or it is not what its encoding says.
pub(super) fn cut(host: &str, error: &io::Error, connect_timeout: Duration) -> EgressError {
    match error.get_ref().and_then(|cause| cause.downcast_ref()) {
        Some(error) => failure(host, error, connect_timeout),
        None => EgressError::Network {
            host: host.to_owned(),
            cause: format!("it cannot be decompressed: {error}"),
        },
    }
}

/// Only the innermost cause is told: the client's own errors name the whole URL.
pub(super) fn failure(host: &str, error: &reqwest::Error, connect_timeout: Duration) -> EgressError {
    let host = host.to_owned();
    let causes = || std::iter::successors(error.source(), |cause| (*cause).source());
    if causes().any(<dyn Error>::is::<NoPublicAddress>) {
        return EgressError::AddressNotAllowed { host };
    }
    if error.is_timeout() {
        return EgressError::Timeout { host, after: connect_timeout };
    }
    let cause = causes().last().map_or_else(|| "no details".to_owned(), ToString::to_string);
    EgressError::Network { host, cause }
}
