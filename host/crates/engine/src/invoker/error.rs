//! Why a run of a function failed, in words that the API, the run's row and the scheduler share.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::actions::idempotency_key::IdempotencyKey;
use syncline_model::Problem;
use syncline_sandbox::{Failure, InvokeError, Limit, RunLog};
use syncline_store::runs::RunError;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionId, FunctionName, IntegrationKey};
use syncline_types::nul::{json_without_nul, without_nul};

/// The code by which a function says that the provider answered with an error that it did not handle.
const PROVIDER_HTTP_ERROR: &str = "provider-http-error";
/// Codes of `provider.send` after which the same run may succeed a little later.
const PASSING: [&str; 4] = [PROVIDER_HTTP_ERROR, "timeout", "network-error", "credentials-unavailable"];

#[derive(Debug, thiserror::Error)]
pub enum FunctionError {
    /// The function says so.
    #[error("{message}")]
    Failed { code: String, message: String, details: Option<Value> },
    /// The provider answered with an error that the function did not handle.
    #[error("{message}")]
    Provider { message: String, upstream: Value },
    #[error("the function crashed: {0}")]
    Crashed(String),
    #[error("{0}")]
    Limit(Limit),
    #[error(
        "the provider had too many requests and wants none for {} s, which is longer than the run can wait",
        retry_after.as_secs_f64().ceil()
    )]
    RateLimited { retry_after: Duration },
    #[error("a later attempt has taken over, or the connection was deleted")]
    Superseded,
    #[error("the host failed")]
    Host(#[source] anyhow::Error),
}

impl FunctionError {
    /// Why a function failed, without the connection's credentials: a provider may have repeated those that it was
    /// sent, and the function what the provider said.
    pub(crate) fn new(error: InvokeError, log: &RunLog) -> Self {
        match error {
            InvokeError::Failed(Failure { code, message, details }) => {
                let mask = log.credentials_mask();
                let (code, message) = (mask.text(&code).into_owned(), mask.text(&message).into_owned());
                let details = details.and_then(|json| serde_json::from_str(&json).ok());
                match details.map(|details| mask.json(details)) {
                    Some(upstream) if code == PROVIDER_HTTP_ERROR => Self::Provider { message, upstream },
                    details => Self::Failed { code, message, details },
                }
            }
            InvokeError::Crashed(message) => {
                Self::Crashed(log.credentials_mask().text(&message).into_owned())
            }
            InvokeError::Limit(limit) => Self::Limit(limit),
            InvokeError::RateLimited { retry_after } => Self::RateLimited { retry_after },
            InvokeError::Superseded => Self::Superseded,
            InvokeError::Host(error) => Self::Host(error),
        }
    }

    /// The stable code, as in `docs/errors.md`.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Failed { .. } => ErrorCode::ActionScriptRuntimeError,
            Self::Provider { .. } => ErrorCode::ScriptHttpError,
            Self::Crashed(_) => ErrorCode::ScriptInternalError,
            Self::Limit(Limit::Wall(_)) => ErrorCode::ExecutionTimeout,
            Self::Limit(_) => ErrorCode::LimitExceeded,
            Self::RateLimited { .. } => ErrorCode::RateLimited,
            Self::Superseded => ErrorCode::ScriptAborted,
            Self::Host(_) => ErrorCode::InternalServerError,
        }
    }

    /// Whether the same run may succeed a little later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Failed { code, .. } => PASSING.contains(&code.as_str()),
            Self::Provider { .. } | Self::RateLimited { .. } | Self::Host(_) => true,
            Self::Crashed(_) | Self::Limit(_) | Self::Superseded => false,
        }
    }

    fn payload(&self) -> Option<Value> {
        match self {
            Self::Failed { details: Some(details), .. } => Some(details.clone()),
            Self::Failed { code, message, details: None } => {
                Some(json!({ "code": code, "message": message }))
            }
            Self::Provider { upstream, .. } => {
                let body = upstream_body(upstream);
                Some(body.get("payload").cloned().unwrap_or(body)).filter(|payload| !payload.is_null())
            }
            Self::Limit(limit) => Some(json!({ "limit": limit.name() })),
            Self::RateLimited { retry_after } => {
                Some(json!({ "retry_after_s": retry_after.as_secs_f64().ceil() as u64 }))
            }
            Self::Crashed(_) | Self::Superseded | Self::Host(_) => None,
        }
    }

    /// For the run's row.
    pub fn to_run_error(&self) -> RunError {
        let details = match self {
            Self::Provider { upstream, .. } => Some(upstream.clone()),
            other => other.payload(),
        };
        RunError {
            code: self.code(),
            message: without_nul(&self.to_string()),
            details: details.map(json_without_nul),
        }
    }
}

/// Why an action gives no result.
#[derive(Debug, thiserror::Error)]
pub enum ActionError {
    #[error("no action `{action}` is deployed for integration `{integration}`")]
    Unknown { action: FunctionName, integration: IntegrationKey },
    #[error("the input does not fit the action's input model: {}", listed(.0))]
    Input(Vec<Problem>),
    #[error("integration `{integration}` has no connection `{connection}`")]
    ConnectionGone { integration: IntegrationKey, connection: ConnectionId },
    #[error("the Idempotency-Key `{0}` was used for another request; choose a new one for each request")]
    KeyReused(IdempotencyKey),
    #[error(
        "the first request with the Idempotency-Key `{0}` has not ended yet; repeat this one a little later"
    )]
    KeyInUse(IdempotencyKey),
    #[error("{0} hosts stopped while they ran the function, so it is not run again")]
    HostsLost(i32),
    #[error("the function returned what does not fit the action's output model: {}", listed(.0))]
    Output(Vec<Problem>),
    #[error(transparent)]
    Function(#[from] FunctionError),
}

impl ActionError {
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown { .. } => ErrorCode::UnknownAction,
            Self::Input(_) => ErrorCode::InvalidActionInput,
            Self::Output(_) => ErrorCode::InvalidActionOutput,
            Self::ConnectionGone { .. } => ErrorCode::UnknownConnection,
            Self::KeyReused(_) => ErrorCode::IdempotencyKeyReused,
            Self::KeyInUse(_) => ErrorCode::IdempotencyKeyInUse,
            Self::HostsLost(_) => ErrorCode::HostLost,
            Self::Function(error) => error.code(),
        }
    }

    pub fn problems(&self) -> &[Problem] {
        match self {
            Self::Input(problems) | Self::Output(problems) => problems,
            _ => &[],
        }
    }

    pub fn payload(&self) -> Option<Value> {
        match self {
            Self::Function(error) => error.payload(),
            _ => None,
        }
    }

    /// Whether the same call may succeed a little later.
    pub(crate) fn is_retryable(&self) -> bool {
        matches!(self, Self::Function(error) if error.is_retryable())
    }

    /// What the provider answered, if that is the cause.
    pub fn upstream(&self) -> Option<Value> {
        match self {
            Self::Function(FunctionError::Provider { upstream, .. }) => Some(told_upstream(upstream)),
            _ => None,
        }
    }

    /// When the same call may succeed, if that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Function(FunctionError::RateLimited { retry_after }) => Some(*retry_after),
            _ => None,
        }
    }

    /// For the run's row.
    pub(crate) fn to_run_error(&self) -> RunError {
        match self {
            Self::Function(error) => error.to_run_error(),
            other => RunError { code: other.code(), message: without_nul(&other.to_string()), details: None },
        }
    }
}

/// A provider's answer for whoever called: of its headers those that say what the body is and how many requests are
/// left. The others are about the exchange with the provider, and stand in the run.
fn told_upstream(upstream: &Value) -> Value {
    let headers = upstream.get("headers").and_then(Value::as_object).into_iter().flatten();
    let is_told = |name: &str| {
        let name = name.to_ascii_lowercase();
        name == "content-type" || name.starts_with("x-rate")
    };
    let headers: Map<String, Value> = headers
        .filter(|(name, _)| is_told(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    json!({ "status": upstream.get("status"), "headers": headers, "body": upstream_body(upstream) })
}

/// The body as clients want it: read, where it is JSON of which nothing was cut off.
fn upstream_body(upstream: &Value) -> Value {
    let body = upstream.get("body").cloned().unwrap_or_default();
    let read = body.as_str().and_then(|text| serde_json::from_str(text).ok());
    read.filter(|read: &Value| read.is_object() || read.is_array()).unwrap_or(body)
}

fn listed(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
