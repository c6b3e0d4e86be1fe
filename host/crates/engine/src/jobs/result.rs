//! The stored result of an action.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::invoker::error::ActionError;
use syncline_auth::Environment;
use syncline_crypto::{AssociatedData, CryptoError};
use syncline_model::Problem;
use syncline_types::error_code::ErrorCode;

/// The result that a waiting client receives.
#[derive(Debug, Clone, PartialEq)]
pub enum ActionResult {
    /// JSON text, or nothing.
    Output(Option<String>),
    Failure(Box<ActionFailure>),
}

/// A failure as the API returns it. It contains no internals of the host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ActionFailure {
    pub code: ErrorCode,
    pub message: String,
    pub problems: Vec<Problem>,
    pub payload: Option<Value>,
    pub upstream: Option<Value>,
    /// When the same call may succeed, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<DateTime<Utc>>,
}

impl ActionFailure {
    pub(crate) fn new(error: &ActionError, now: DateTime<Utc>) -> Self {
        Self {
            code: error.code(),
            message: error.to_string(),
            problems: error.problems().to_vec(),
            payload: error.payload(),
            upstream: error.upstream(),
            retry_at: error.retry_after().map(|wait| now + wait),
        }
    }

    /// Returns the time until the same call may succeed. At least one second, to limit the rate of repeated requests.
    pub fn retry_after(&self, now: DateTime<Utc>) -> Option<Duration> {
        let left = (self.retry_at? - now).to_std().unwrap_or_default();
        Some(left.max(Duration::from_secs(1)))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ResultError {
    #[error("a stored result cannot be decrypted")]
    Sealed(#[from] CryptoError),
    #[error("a stored result cannot be parsed")]
    Unreadable,
}

const NOTHING: u8 = 0;
const OUTPUT: u8 = 1;
const FAILURE: u8 = 2;

impl ActionResult {
    pub(crate) fn new(result: &Result<Option<String>, ActionError>, now: DateTime<Utc>) -> Self {
        match result {
            Ok(output) => Self::Output(output.clone()),
            Err(error) => Self::Failure(Box::new(ActionFailure::new(error, now))),
        }
    }

    pub(crate) fn seal(&self, environment: &Environment, job: Uuid) -> Vec<u8> {
        environment.data_key.seal(associated_data(&job.to_string()), &self.to_bytes())
    }

    pub(crate) fn open(environment: &Environment, job: Uuid, sealed: &[u8]) -> Result<Self, ResultError> {
        let bytes = environment.data_key.open(associated_data(&job.to_string()), sealed)?;
        Self::from_bytes(&bytes).ok_or(ResultError::Unreadable)
    }

    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Output(None) => vec![NOTHING],
            Self::Output(Some(json)) => [&[OUTPUT], json.as_bytes()].concat(),
            Self::Failure(failure) => {
                let json = serde_json::to_vec(failure).expect("a failure is plain data");
                [&[FAILURE], json.as_slice()].concat()
            }
        }
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(match bytes {
            [NOTHING] => Self::Output(None),
            [OUTPUT, json @ ..] => Self::Output(Some(String::from_utf8(json.to_vec()).ok()?)),
            [FAILURE, json @ ..] => Self::Failure(serde_json::from_slice(json).ok()?),
            _ => return None,
        })
    }
}

fn associated_data(job: &str) -> AssociatedData<'_> {
    AssociatedData { column: "function_jobs.sealed_result", row: job }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn failure() -> ActionFailure {
        ActionFailure {
            code: ErrorCode::ScriptHttpError,
            message: "the provider answered 500".to_owned(),
            problems: vec![Problem { path: "/a/0".to_owned(), problem: "expected string".to_owned() }],
            payload: Some(json!({ "n": 12345678901234567890_u64 })),
            upstream: None,
            retry_at: Some(DateTime::from_timestamp_millis(1_800_000_000_123).expect("it is a time")),
        }
    }

    #[test]
    fn a_client_waits_until_the_stored_time_and_at_least_a_second() {
        let failure = failure();
        let retry_at = failure.retry_at.expect("it has a time");
        let wait = |before: i64| failure.retry_after(retry_at - chrono::Duration::milliseconds(before));
        assert_eq!(wait(2_500), Some(Duration::from_millis(2_500)));
        assert_eq!(wait(300), Some(Duration::from_secs(1)));
        assert_eq!(wait(-60_000), Some(Duration::from_secs(1)));
        assert_eq!(ActionFailure { retry_at: None, ..failure }.retry_after(retry_at), None);
    }

    #[test]
    fn stored_results_are_read_unchanged() {
        for result in [
            ActionResult::Output(None),
            ActionResult::Output(Some("null".to_owned())),
            ActionResult::Output(Some("{\"a\": 1.0}".to_owned())),
            ActionResult::Failure(Box::new(failure())),
        ] {
            assert_eq!(ActionResult::from_bytes(&result.to_bytes()), Some(result));
        }
        assert_eq!(ActionResult::from_bytes(&[]), None);
    }
}
