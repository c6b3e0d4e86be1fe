//! The one error type of functions: a word for programs, a sentence for people, and details.

use std::fmt;

use serde::Serialize;

use crate::bindings::syncline::integration::types::Failure;

/// What functions and the SDK return.
pub type Result<T = (), E = Error> = std::result::Result<T, E>;

/// Why something did not work. A function that returns one ends its run with it, and the caller of an action
/// sees its message and details: put no secret there.
///
/// Every [`std::error::Error`] converts into it with the code `failed`, so `?` works on all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    code: String,
    message: String,
    details: Option<String>,
}

impl Error {
    /// `code` is a stable word in kebab-case, such as `customer-is-archived`; `message` a sentence.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), details: None }
    }

    /// What the caller sent makes no sense to the function.
    pub fn invalid_input(message: impl Into<String>) -> Self {
        Self::new("invalid-input", message)
    }

    /// Adds more for programs. Details that cannot be written as JSON are left out.
    #[must_use]
    pub fn with_details(mut self, details: &impl Serialize) -> Self {
        self.details = serde_json::to_string(details).ok();
        self
    }

    /// The word for programs. The host's own are listed in the WIT files; the set is open.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// The sentence for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The details as JSON text.
    pub fn details(&self) -> Option<&str> {
        self.details.as_deref()
    }

    // Not `From`: the generated type is a `std::error::Error` and would meet the blanket conversion below.
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
    /// Keeps the messages of the whole chain of sources.
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
            f.write_str("the amount is no number")
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
        assert_eq!(error.message(), "the amount is no number: invalid digit found in string");
    }
}
