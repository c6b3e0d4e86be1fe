//! Converts errors of the HTTP client to this crate's errors.

use std::error::Error;
use std::io;
use std::time::Duration;

use super::error::EgressError;
use super::resolver::NoPublicAddress;

/// The error for a body that ended too early: the connection failed, or the body could not be decompressed.
pub(super) fn cut(host: &str, error: &io::Error, connect_timeout: Duration) -> EgressError {
    match error.get_ref().and_then(|cause| cause.downcast_ref()) {
        Some(error) => failure(host, error, connect_timeout),
        None => EgressError::Network {
            host: host.to_owned(),
            cause: format!("the answer cannot be decompressed: {error}"),
        },
    }
}

/// The error for a failed exchange. It contains only the innermost cause, because the client's own errors contain the
/// full URL.
pub(super) fn failure(host: &str, error: &reqwest::Error, connect_timeout: Duration) -> EgressError {
    let host = host.to_owned();
    let causes = || std::iter::successors(error.source(), |cause| (*cause).source());
    if causes().any(<dyn Error>::is::<NoPublicAddress>) {
        return EgressError::AddressNotAllowed { host };
    }
    if error.is_timeout() {
        return EgressError::Timeout { host, after: connect_timeout };
    }
    let cause = causes().last().map_or_else(|| "unknown cause".to_owned(), ToString::to_string);
    EgressError::Network { host, cause }
}
