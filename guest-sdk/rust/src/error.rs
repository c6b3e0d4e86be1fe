//! The error type of functions: a code for programs, a message for people, and details.

use std::fmt;

use serde::Serialize;

use crate::bindings::syncline::integration::types::Failure;

/// The result type of functions and of the SDK.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// The reason why an operation failed. A function that returns an error ends its run with it. The caller of an
/// action sees the message and the details, so they must not contain secrets.
///
/// Every [`std::error::Error`] converts into it with the code `failed`, so `?` works on all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    code: String,
    message: String,
    details: Option<String>,
}

impl Error {
    /// Creates an error. `code` is a stable identifier in kebab-case, such as `customer-is-archived`; `message` is
    /// a sentence.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), details: None }
    }

    /// Creates an error for input of the caller that the function cannot work with.
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self::new("invalid-input", message)
    }

    /// Adds details for programs. Details that cannot be serialized as JSON are dropped.
    #[must_use]
    pub fn with_details(mut self, details: &impl Serialize) -> Self {
        self.details = serde_json::to_string(details).ok();
        self
    }

    /// Returns the code. The WIT files list the host's own codes. New codes can be added.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// Returns the message.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the details as JSON text.
    pub fn details(&self) -> Option<&str> {
        self.details.as_deref()
    }

    // Not `From`, because the generated type is a `std::error::Error`, for which the conversion below applies.
    pub(crate) fn from_failure(failure: Failure) -> Self {
        Self { code: failure.code, message: failure.message, details: failure.details }
    }

    pub(crate) fn into_failure(self) -> Failure {
        Failure { code: self.code, message: self.message, details: self.details }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: std::error::Error> From<E> for Error {
    /// Includes the messages of all sources.
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message.push_str(": ");
            message.push_str(&cause.to_string());
            source = cause.source();
        }
        Self::new("failed", message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Outer(std::num::ParseIntError);

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the amount is not a number")
        }
    }

    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_foreign_error_keeps_its_sources() {
        let error = Error::from(Outer("x".parse::<u8>().expect_err("not a number")));
        assert_eq!(error.code(), "failed");
        assert_eq!(error.message(), "the amount is not a number: invalid digit found in string");
    }
}
