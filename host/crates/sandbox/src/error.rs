//! Errors of guest calls: failures of host functions, and failures of runs.

use std::time::Duration;

use serde_json::Value;
use syncline_types::error_code::ErrorCode;
use syncline_types::failure_code::FailureCode;
use syncline_types::functions::FunctionKind;
use syncline_types::json;

use super::{Failure, Limit, RunLog};

/// Why the host ends a run before its function returns.
#[derive(Debug, thiserror::Error)]
pub enum Interrupt {
    /// The run exceeded one of its limits.
    #[error("{0}")]
    Limit(Limit),
    /// The provider asked for a longer pause than the run can wait.
    #[error(
        "the provider is rate limiting this connection; the next request is possible in {} s, which is longer than \
         the run can wait",
        retry_after.as_secs_f64().ceil()
    )]
    RateLimited { retry_after: Duration },
    /// The run may write nothing more.
    #[error("a later attempt has taken over, or the connection was deleted")]
    Superseded,
    #[error("an internal error occurred in the host; see the host's log")]
    Host(#[source] anyhow::Error),
}

/// Why a host function returns no value to the guest.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The guest receives the failure and can handle it.
    #[error("{}", .0.message)]
    Failure(Failure),
    /// The run ends: the guest does not continue.
    #[error(transparent)]
    Interrupt(#[from] Interrupt),
}

impl From<Failure> for GuestError {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Why a run of a function failed.
///
/// Its texts contain no credentials of the connection: a provider may repeat the credentials that it was sent, and
/// the function may repeat what the provider said. [`FunctionError::failed`] and [`FunctionError::crashed`] mask them.
#[derive(Debug, thiserror::Error)]
pub enum FunctionError {
    /// The function returned a failure.
    #[error("{message}")]
    Failed { code: String, message: String, details: Option<Value> },
    /// The provider answered with an error that the function did not handle.
    #[error("{message}")]
    Provider { message: String, upstream: Value },
    /// The guest panicked, or did what WebAssembly forbids. The backtrace is in the run's log.
    #[error("the function crashed: {0}; see the backtrace in the run's log")]
    Crashed(String),
    /// The host ended the run.
    #[error(transparent)]
    Interrupted(#[from] Interrupt),
}

impl FunctionError {
    /// A failure that the function returned. Cuts texts that are longer than `max_bytes`, and drops such details.
    pub(super) fn failed(failure: Failure, log: &RunLog, max_bytes: usize) -> Self {
        let Failure { code, message, details } = failure;
        let mask = log.credentials_mask();
        let code = cut(mask.text(&code).into_owned(), max_bytes);
        let message = cut(mask.text(&message).into_owned(), max_bytes);
        let details = details.filter(|details| details.len() <= max_bytes);
        let details = details.and_then(|text| json::parse(&text).ok());
        match (code.parse(), details.map(|details| mask.json(details))) {
            (Ok(FailureCode::ProviderHttpError), Some(upstream)) => Self::Provider { message, upstream },
            (_, details) => Self::Failed { code, message, details },
        }
    }

    /// A crash of the guest. Cuts a message that is longer than `max_bytes`.
    pub(super) fn crashed(message: &str, log: &RunLog, max_bytes: usize) -> Self {
        Self::Crashed(cut(log.credentials_mask().text(message).into_owned(), max_bytes))
    }

    /// What is wrong, without what to do next. A call of `describe` has fixed limits, and no run with a log.
    pub(super) fn problem(&self) -> String {
        match self {
            Self::Crashed(message) => format!("the function crashed: {message}"),
            Self::Interrupted(Interrupt::Limit(limit)) => limit.problem(),
            other => other.to_string(),
        }
    }

    /// The stable code, as in `docs/errors.md`, if the function is of this kind.
    pub fn code(&self, kind: FunctionKind) -> ErrorCode {
        match self {
            Self::Failed { .. } => match kind {
                FunctionKind::Action => ErrorCode::ActionScriptRuntimeError,
                FunctionKind::Sync => ErrorCode::SyncScriptFailure,
                FunctionKind::Webhook => ErrorCode::WebhookScriptFailure,
                FunctionKind::Lifecycle => ErrorCode::LifecycleScriptFailure,
            },
            Self::Provider { .. } => ErrorCode::ScriptHttpError,
            Self::Crashed(_) => ErrorCode::ScriptInternalError,
            Self::Interrupted(Interrupt::Limit(Limit::Wall(_))) => ErrorCode::ExecutionTimeout,
            Self::Interrupted(Interrupt::Limit(_)) => ErrorCode::LimitExceeded,
            Self::Interrupted(Interrupt::RateLimited { .. }) => ErrorCode::RateLimited,
            Self::Interrupted(Interrupt::Superseded) => ErrorCode::ScriptAborted,
            Self::Interrupted(Interrupt::Host(_)) => ErrorCode::InternalServerError,
        }
    }

    /// Whether the same run may succeed when it is repeated later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Failed { code, .. } => code.parse().is_ok_and(FailureCode::is_retryable),
            Self::Provider { .. } => true,
            Self::Crashed(_) => false,
            Self::Interrupted(Interrupt::RateLimited { .. } | Interrupt::Host(_)) => true,
            Self::Interrupted(Interrupt::Limit(_) | Interrupt::Superseded) => false,
        }
    }
}

impl Failure {
    /// A failure without details.
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self { code: code.to_string(), message: message.into(), details: None }
    }

    pub fn with_details(self, details: &Value) -> Self {
        Self { details: Some(details.to_string()), ..self }
    }

    pub fn has_code(&self, code: FailureCode) -> bool {
        self.code.parse() == Ok(code)
    }
}

fn cut(mut text: String, max_bytes: usize) -> String {
    text.truncate(text.floor_char_boundary(max_bytes));
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn log() -> RunLog {
        let log = RunLog::new(1 << 20);
        log.hide_credentials(["tok_0123456789"]);
        log
    }

    fn failure(code: &str, details: Option<Value>) -> Failure {
        Failure {
            code: code.to_owned(),
            message: "sent tok_0123456789".to_owned(),
            details: details.map(|details| details.to_string()),
        }
    }

    #[test]
    fn credentials_are_masked_in_failures_and_crashes() {
        let details = json!({ "authorization": "Bearer tok_0123456789" });
        match FunctionError::failed(failure("tok_0123456789", Some(details)), &log(), 1 << 10) {
            FunctionError::Failed { code, message, details } => {
                assert_eq!((&*code, &*message), ("***", "sent ***"));
                assert_eq!(details, Some(json!({ "authorization": "Bearer ***" })));
            }
            other => panic!("{other:?}"),
        }
        let crashed = FunctionError::crashed("panicked at tok_0123456789", &log(), 1 << 10);
        assert_eq!(
            crashed.to_string(),
            "the function crashed: panicked at ***; see the backtrace in the run's log"
        );
        assert_eq!(crashed.problem(), "the function crashed: panicked at ***");
    }

    #[test]
    fn a_truncated_credential_is_masked_completely() {
        let crashed = FunctionError::crashed("sent tok_0123456789", &log(), 12);
        assert_eq!(crashed.problem(), "the function crashed: sent ***");
    }

    #[test]
    fn an_unhandled_provider_error_needs_its_details() {
        let upstream = json!({ "status": 500, "body": "out of order" });
        let error =
            FunctionError::failed(failure("provider-http-error", Some(upstream.clone())), &log(), 1 << 10);
        assert!(matches!(error, FunctionError::Provider { upstream: parsed, .. } if parsed == upstream));
        let error = FunctionError::failed(failure("provider-http-error", Some(upstream)), &log(), 20);
        assert_eq!(error.code(FunctionKind::Action), ErrorCode::ActionScriptRuntimeError);
        assert_eq!(error.code(FunctionKind::Sync), ErrorCode::SyncScriptFailure);
        assert!(error.is_retryable());
        let guest_code = FunctionError::failed(failure("sold-out", None), &log(), 1 << 10);
        assert!(!guest_code.is_retryable());
    }
}
