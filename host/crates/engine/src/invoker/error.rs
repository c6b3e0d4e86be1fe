//! Why an action failed, and how errors of functions are stored and returned to clients.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::actions::idempotency_key::IdempotencyKey;
use syncline_model::Problem;
use syncline_sandbox::{FunctionError, Interrupt};
use syncline_store::runs::RunError;
use syncline_types::error_code::ErrorCode;
use syncline_types::functions::FunctionKind;
use syncline_types::ids::{ConnectionId, FunctionName, IntegrationKey};
use syncline_types::json;
use syncline_types::sanitize::{sanitize_json, sanitize_text};

/// Why an action returned no result.
#[derive(Debug, thiserror::Error)]
pub enum ActionError {
    #[error(
        "no action `{action}` is deployed for integration `{integration}`; correct the name, or deploy it"
    )]
    Unknown { action: FunctionName, integration: IntegrationKey },
    #[error("the input does not match the action's input model: {}", join_problems(.0))]
    Input(Vec<Problem>),
    #[error(
        "integration `{integration}` has no connection `{connection}`; check both names, or list the connections with \
         `GET /connections`"
    )]
    ConnectionGone { integration: IntegrationKey, connection: ConnectionId },
    #[error("the Idempotency-Key `{0}` was used for another request; choose a new one for each request")]
    KeyReused(IdempotencyKey),
    #[error("the first request with the Idempotency-Key `{0}` is still in progress; repeat this one later")]
    KeyInUse(IdempotencyKey),
    #[error("{0} hosts stopped while they ran the function, so it is not retried")]
    HostsLost(i32),
    #[error("the output does not match the action's output model: {}", join_problems(.0))]
    Output(Vec<Problem>),
    #[error(transparent)]
    Function(#[from] FunctionError),
}

impl ActionError {
    /// A failure of the host itself.
    pub(crate) fn host(error: impl Into<anyhow::Error>) -> Self {
        Self::Function(Interrupt::Host(error.into()).into())
    }

    /// The connection was deleted, or a later attempt has taken over.
    pub(crate) fn superseded() -> Self {
        Self::Function(Interrupt::Superseded.into())
    }

    /// The cause, if the host itself failed.
    pub fn host_failure(&self) -> Option<&anyhow::Error> {
        match self {
            Self::Function(FunctionError::Interrupted(Interrupt::Host(error))) => Some(error),
            _ => None,
        }
    }

    /// Whether the connection was deleted, or a later attempt has taken over.
    pub(crate) fn is_superseded(&self) -> bool {
        matches!(self, Self::Function(FunctionError::Interrupted(Interrupt::Superseded)))
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown { .. } => ErrorCode::UnknownAction,
            Self::Input(_) => ErrorCode::InvalidActionInput,
            Self::Output(_) => ErrorCode::InvalidActionOutput,
            Self::ConnectionGone { .. } => ErrorCode::UnknownConnection,
            Self::KeyReused(_) => ErrorCode::IdempotencyKeyReused,
            Self::KeyInUse(_) => ErrorCode::IdempotencyKeyInUse,
            Self::HostsLost(_) => ErrorCode::HostLost,
            Self::Function(error) => error.code(FunctionKind::Action),
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
            Self::Function(error) => function_payload(error),
            _ => None,
        }
    }

    /// Whether the same call may succeed when it is repeated later.
    pub(crate) fn is_retryable(&self) -> bool {
        matches!(self, Self::Function(error) if error.is_retryable())
    }

    /// The provider's response, if it caused the error.
    pub fn upstream(&self) -> Option<Value> {
        match self {
            Self::Function(FunctionError::Provider { upstream, .. }) => Some(shown_upstream(upstream)),
            _ => None,
        }
    }

    /// The delay after which the same call may succeed, if known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Function(FunctionError::Interrupted(Interrupt::RateLimited { retry_after })) => {
                Some(*retry_after)
            }
            _ => None,
        }
    }

    /// The error as the row of the run stores it. Webhook and lifecycle functions run like actions, too.
    pub(crate) fn to_run_error(&self, kind: FunctionKind) -> RunError {
        match self {
            Self::Function(error) => function_run_error(error, kind),
            other => {
                RunError { code: other.code(), message: sanitize_text(&other.to_string()), details: None }
            }
        }
    }
}

/// The error of a function as the row of its run stores it.
pub(crate) fn function_run_error(error: &FunctionError, kind: FunctionKind) -> RunError {
    let details = match error {
        FunctionError::Provider { upstream, .. } => Some(upstream.clone()),
        other => function_payload(other),
    };
    RunError {
        code: error.code(kind),
        message: sanitize_text(&error.to_string()),
        details: details.map(sanitize_json),
    }
}

fn function_payload(error: &FunctionError) -> Option<Value> {
    match error {
        FunctionError::Failed { details: Some(details), .. } => Some(details.clone()),
        FunctionError::Failed { code, message, details: None } => {
            Some(json!({ "code": code, "message": message }))
        }
        FunctionError::Provider { upstream, .. } => {
            let body = upstream_body(upstream);
            Some(body.get("payload").cloned().unwrap_or(body)).filter(|payload| !payload.is_null())
        }
        FunctionError::Interrupted(Interrupt::Limit(limit)) => Some(json!({ "limit": limit.name() })),
        FunctionError::Interrupted(Interrupt::RateLimited { retry_after }) => {
            Some(json!({ "retry_after_s": retry_after.as_secs_f64().ceil() as u64 }))
        }
        FunctionError::Crashed(_)
        | FunctionError::Interrupted(Interrupt::Superseded | Interrupt::Host(_)) => None,
    }
}

/// The provider's response as clients see it. Its headers are limited to `content-type` and those about rate limits;
/// the row of the run has all of them.
fn shown_upstream(upstream: &Value) -> Value {
    let headers = upstream.get("headers").and_then(Value::as_object).into_iter().flatten();
    let is_shown = |name: &str| {
        let name = name.to_ascii_lowercase();
        name == "content-type" || name.starts_with("x-rate")
    };
    let headers: Map<String, Value> = headers
        .filter(|(name, _)| is_shown(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    json!({ "status": upstream.get("status"), "headers": headers, "body": upstream_body(upstream) })
}

/// The body of a provider's response: parsed if it is a complete JSON object or array, and text otherwise.
fn upstream_body(upstream: &Value) -> Value {
    let body = upstream.get("body").cloned().unwrap_or_default();
    let parsed = body.as_str().and_then(|text| json::parse(text).ok());
    parsed.filter(|parsed| parsed.is_object() || parsed.is_array()).unwrap_or(body)
}

fn join_problems(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
