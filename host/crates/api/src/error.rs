//! Error responses: each has one status, one stable code and one message.
//!
//! `docs/errors.md` lists the codes for clients.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use strum::VariantArray;
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};
use uuid::Uuid;

use syncline_auth::{ApiKeyError, AppCredentialsError, AuthError, EnvironmentError};
use syncline_egress::{EgressError, UploadFailure};
use syncline_engine::{
    ActionError, ActionFailure, ApprovalError, AuditLogError, AuthorizationError, ConnectError,
    DeadLetterError, DeletionError, DeployError, FetchError, InboundWebhookError, IngestError,
    IntegrationError, LookupError, MetadataError, ProxyError, RecordsError, RefreshError, RunsError,
    SessionError, SyncError, TypedConnectionError,
};
use syncline_model::{Invalid, Problem};
use syncline_outbound_webhooks::DeliveryError;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::IntegrationKey;
use syncline_types::units::Bytes;
use syncline_web::status::{status, statuses};

/// The body of every error response.
#[derive(Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "error": {
        "code": "unknown_connection",
        "message": "integration `shop` has no connection `user-1`; check both names, or list the connections with \
                    `GET /connections`"
    }
}))]
pub struct ErrorBody {
    /// The error.
    error: ErrorDetail,
}

/// An error. The error reference lists all codes with their meaning and remedy.
#[derive(Debug, Serialize, ToSchema)]
struct ErrorDetail {
    /// Stable code of the error, for programs.
    #[schema(schema_with = code_schema)]
    code: ErrorCode,
    /// What is wrong and what to do, for people.
    message: String,
    /// The problems of the body, query, path or headers, each with its path.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldError>,
    /// Further information, depending on the code.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Value>,
    /// The response of the provider that caused the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<Value>,
}

/// A problem at one place of the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// Kind of the problem, such as `invalid_type` or `too_big`.
    pub code: &'static str,
    /// What is wrong and what is expected.
    pub message: String,
    /// Path of the invalid value: member names, and indexes as strings.
    pub path: Vec<String>,
}

impl FieldError {
    pub fn new(code: &'static str, path: &[&str], message: impl Into<String>) -> Self {
        Self { code, message: message.into(), path: path.iter().map(|part| (*part).to_owned()).collect() }
    }
}

impl From<&Problem> for FieldError {
    fn from(problem: &Problem) -> Self {
        let path: Vec<&str> = problem.path.split('/').skip(1).collect();
        Self::new("invalid_type", &path, problem.problem.clone())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("the request has no Authorization header; send `Authorization: Bearer <secret key>`")]
    MissingAuthorization,
    #[error("the Authorization header must be `Bearer <secret key>`")]
    MalformedAuthorization,
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("the query has no `connect_session_token`; create one with `POST /connect/sessions`")]
    MissingSessionToken,
    #[error(
        "public keys are not supported; send a `connect_session_token`, which `POST /connect/sessions` returns"
    )]
    PublicKey,
    #[error("{}", first(errors, "the query is not valid"))]
    Query { errors: Vec<FieldError> },
    #[error("{}", first(errors, "the headers are not valid"))]
    Headers { errors: Vec<FieldError> },
    #[error("{}", first(errors, "the body is not valid"))]
    Body { errors: Vec<FieldError> },
    #[error("{}", first(errors, "the path is not valid"))]
    Path { errors: Vec<FieldError> },
    #[error("the body is not JSON: {problem}")]
    Json { problem: String },
    #[error("the content type of the body must be `{expected}` (got `{given}`)")]
    ContentType { given: String, expected: &'static str },
    #[error("bodies with Content-Encoding are not supported (got `{given}`); send the body uncompressed")]
    ContentEncoding { given: String },
    #[error("the rest of the body did not arrive: the client sent nothing for {} seconds", max_pause.as_secs())]
    BodySilent { max_pause: Duration },
    #[error("the body is longer than {}", Bytes(*limit_bytes as u64))]
    TooLarge { limit_bytes: usize },
    #[error("the body is incomplete: the connection was closed before its end")]
    BodyCut,
    #[error(transparent)]
    Typed(#[from] TypedConnectionError),
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error("there is no provider `{0}` in the catalogue; `GET /providers` lists all providers")]
    UnknownProvider(String),
    #[error(transparent)]
    Sync(#[from] SyncError),
    #[error("`base` is the default variant and always exists; use another name")]
    BaseVariant,
    #[error(
        "no function `{function}` is deployed for integration `{integration}`; correct the name, or deploy it"
    )]
    UnknownFunction { function: String, integration: IntegrationKey },
    #[error(transparent)]
    Records(#[from] RecordsError),
    #[error(transparent)]
    Integration(IntegrationError),
    #[error(transparent)]
    Deletion(#[from] DeletionError),
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    ApiKey(#[from] ApiKeyError),
    #[error("the cursor {problem}; omit it to start from the beginning")]
    Cursor { problem: &'static str },
    #[error(transparent)]
    Runs(#[from] RunsError),
    #[error(transparent)]
    Approval(#[from] ApprovalError),
    #[error(transparent)]
    Delivery(#[from] DeliveryError),
    #[error(transparent)]
    DeadLetter(#[from] DeadLetterError),
    #[error(transparent)]
    AuditLog(#[from] AuditLogError),
    #[error(transparent)]
    Intake(#[from] IngestError),
    #[error("the body did not arrive within {} seconds", limit.as_secs())]
    BodyStalled { limit: Duration },
    #[error(transparent)]
    InboundWebhook(#[from] InboundWebhookError),
    #[error(transparent)]
    Action(#[from] ActionError),
    #[error(
        "there is no job `{0}` in this environment, or its result has expired; read a result before it expires"
    )]
    UnknownJob(Uuid),
    #[error("the action is {0} and has no result yet; retry after the seconds in Retry-After")]
    ActionNotFinished(&'static str),
    /// The stored failure of a job.
    #[error("{}", .failure.message)]
    ActionFailed { failure: Box<ActionFailure>, retry_after: Option<Duration> },
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Deploy(#[from] DeployError),
    #[error(transparent)]
    Authorization(#[from] AuthorizationError),
    #[error(
        "this host's limit of concurrent change readers is reached; retry after the seconds in Retry-After, or on another host"
    )]
    TooManyReaders,
    #[error(
        "requests from pages of `{0}` are not allowed; programs other than browsers must not send an Origin header"
    )]
    Origin(String),
    #[error("too many authorizations are in progress on this host; try again in a moment")]
    TooManySockets,
    #[error(
        "this host's memory for request bodies is full; retry after the seconds in Retry-After, or on another host"
    )]
    TooManyBodies,
    #[error(
        "the limit of {per_minute} requests per minute of one {name} is reached; retry after the seconds in Retry-After"
    )]
    TooManyRequests { name: &'static str, per_minute: u32, retry_after: Duration },
    #[error("no route matches {method} {path}; see /docs for all routes")]
    UnknownRoute { method: String, path: String },
    #[error("{path} does not support {method}; the Allow header lists the supported methods")]
    MethodNotAllowed { method: String, path: String },
    #[error("{error}")]
    Credentials { error: RefreshError, payload: Value },
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error("{0}")]
    NotOffered(&'static str),
    #[error(
        "an internal error occurred; the operator can find it in the log by the request id in the X-Request-Id header"
    )]
    Internal(#[source] anyhow::Error),
}

impl ApiError {
    pub fn internal(error: impl Into<anyhow::Error>) -> Self {
        Self::Internal(error.into())
    }

    pub fn body(code: &'static str, path: &[&str], message: impl Into<String>) -> Self {
        Self::Body { errors: vec![FieldError::new(code, path, message)] }
    }

    pub fn query(code: &'static str, path: &[&str], message: impl Into<String>) -> Self {
        Self::Query { errors: vec![FieldError::new(code, path, message)] }
    }

    pub fn headers(code: &'static str, path: &[&str], message: impl Into<String>) -> Self {
        Self::Headers { errors: vec![FieldError::new(code, path, message)] }
    }

    /// The stable code.
    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::MissingAuthorization => ErrorCode::MissingAuthHeader,
            Self::MalformedAuthorization => ErrorCode::MalformedAuthHeader,
            Self::Auth(error) => error.code(),
            Self::Session(error) => error.code(),
            Self::MissingSessionToken => ErrorCode::MissingPublicKey,
            Self::PublicKey => ErrorCode::DeprecatedAuthentication,
            Self::Query { .. } => ErrorCode::InvalidQueryParams,
            Self::Headers { .. } => ErrorCode::InvalidHeaders,
            Self::Body { .. } => ErrorCode::InvalidBody,
            Self::Path { .. } => ErrorCode::InvalidUriParams,
            Self::Json { .. } => ErrorCode::InvalidJson,
            Self::ContentType { .. } => ErrorCode::InvalidContentType,
            Self::ContentEncoding { .. } => ErrorCode::InvalidContentEncoding,
            Self::TooLarge { .. } => ErrorCode::PayloadTooLarge,
            Self::BodyCut => ErrorCode::InvalidBody,
            Self::Typed(error) => error.code(),
            Self::Connect(error) => error.code(),
            Self::Lookup(error) => error.code(),
            Self::UnknownProvider(_) => ErrorCode::UnknownProvider,
            Self::BaseVariant => ErrorCode::InvalidVariant,
            Self::UnknownFunction { .. } => ErrorCode::UnknownFunction,
            Self::Sync(error) => error.code(),
            Self::Records(error) => error.code(),
            Self::Integration(error) => error.code(),
            Self::Deletion(error) => error.code(),
            Self::Fetch(error) => error.code(),
            Self::Environment(error) => error.code(),
            Self::ApiKey(error) => error.code(),
            Self::Cursor { .. } => ErrorCode::InvalidCursor,
            Self::Runs(error) => error.code(),
            Self::Approval(error) => error.code(),
            Self::Delivery(error) => error.code(),
            Self::DeadLetter(error) => error.code(),
            Self::AuditLog(error) => error.code(),
            Self::Intake(error) => error.code(),
            Self::BodySilent { .. } | Self::BodyStalled { .. } => ErrorCode::BodyTimeout,
            Self::InboundWebhook(error) => error.code(),
            Self::Action(error) => error.code(),
            Self::ActionFailed { failure, .. } => failure.code,
            Self::UnknownJob(_) => ErrorCode::UnknownJob,
            Self::ActionNotFinished(_) => ErrorCode::ActionNotFinished,
            Self::Deploy(error) => error.code(),
            Self::Authorization(error) => error.code(),
            Self::TooManyReaders => ErrorCode::TooManyReaders,
            Self::Origin(_) => ErrorCode::OriginNotAllowed,
            Self::TooManySockets => ErrorCode::TooManySockets,
            Self::TooManyBodies => ErrorCode::TooManyBodies,
            Self::TooManyRequests { .. } => ErrorCode::TooManyRequest,
            Self::Credentials { .. } => ErrorCode::InvalidCredentials,
            Self::Proxy(error) => error.code(),
            Self::UnknownRoute { .. } => ErrorCode::NotFound,
            Self::MethodNotAllowed { .. } => ErrorCode::MethodNotAllowed,
            Self::NotOffered(_) => ErrorCode::NotImplemented,
            Self::Internal(_) => ErrorCode::InternalServerError,
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Credentials { error, .. } if error.is_refused() => StatusCode::BAD_REQUEST,
            _ => status(self.code()),
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Action(error) => error.retry_after(),
            Self::ActionFailed { retry_after, .. } => *retry_after,
            Self::TooManyRequests { retry_after, .. } => Some(*retry_after),
            Self::Proxy(ProxyError::Egress(EgressError::RateLimited { retry_after, .. })) => {
                Some(*retry_after)
            }
            _ => None,
        }
    }

    /// Returns status, code and a message without internal details. Logs internal errors.
    pub fn into_client_error(self) -> (StatusCode, ErrorCode, String) {
        let status = self.status();
        if self.is_unlogged(status) {
            log_internal(&self, None);
        }
        (status, self.code(), self.public_message(status))
    }

    /// Whether this is an internal error that was not logged where it occurred.
    fn is_unlogged(&self, status: StatusCode) -> bool {
        status == StatusCode::INTERNAL_SERVER_ERROR && !matches!(self, Self::ActionFailed { .. })
    }

    fn public_message(&self, status: StatusCode) -> String {
        match self {
            Self::ActionFailed { failure, .. } if failure.code != ErrorCode::InternalServerError => {
                return self.to_string();
            }
            Self::ActionFailed { .. } => {}
            _ if status != StatusCode::INTERNAL_SERVER_ERROR => return self.to_string(),
            _ => {}
        }
        Self::Internal(anyhow::anyhow!("")).to_string()
    }

    fn field_errors(&self) -> Vec<FieldError> {
        match self {
            Self::Query { errors }
            | Self::Headers { errors }
            | Self::Body { errors }
            | Self::Path { errors } => errors.clone(),
            Self::DeadLetter(DeadLetterError::Refused { invalid: Invalid::Problems(problems), .. }) => {
                problems.iter().map(FieldError::from).collect()
            }
            Self::Action(error) => error.problems().iter().map(FieldError::from).collect(),
            Self::ActionFailed { failure, .. } => failure.problems.iter().map(FieldError::from).collect(),
            _ => Vec::new(),
        }
    }
}

impl From<MetadataError> for ApiError {
    fn from(error: MetadataError) -> Self {
        match error {
            MetadataError::Lookup(error) => Self::Lookup(error),
            MetadataError::Merged(_) => Self::body("too_big", &["metadata"], error.to_string()),
        }
    }
}

/// Errors about a member of the request include the path of the member.
impl From<IntegrationError> for ApiError {
    fn from(error: IntegrationError) -> Self {
        match &error {
            IntegrationError::MissingCredentials { .. } => {
                Self::body("invalid_type", &["credentials"], error.to_string())
            }
            IntegrationError::InvalidCredentials(invalid) => {
                let path: Vec<&str> = std::iter::once("credentials").chain(invalid.field()).collect();
                let code = match invalid {
                    AppCredentialsError::UnknownField { .. } => "unrecognized_keys",
                    _ => "invalid_value",
                };
                Self::body(code, &path, error.to_string())
            }
            IntegrationError::TooManySettings { name, .. } => {
                Self::body("too_big", &[name], error.to_string())
            }
            _ => Self::Integration(error),
        }
    }
}

/// The cause of a response with status 500, for [`log_cause`].
#[derive(Clone)]
struct InternalCause(Arc<ApiError>);

/// Logs the cause of a response with status 500, with the id of the request that the response names.
pub(crate) fn log_cause<B>(response: &http::Response<B>) {
    if let Some(InternalCause(error)) = response.extensions().get() {
        log_internal(error, response.headers().get("x-request-id"));
    }
}

fn log_internal(error: &ApiError, request_id: Option<&HeaderValue>) {
    tracing::error!(
        request.id = request_id.and_then(|id| id.to_str().ok()),
        error = error as &dyn std::error::Error,
        "request failed with an internal error"
    );
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.status();
        let message = self.public_message(status);
        let (payload, upstream) = match &self {
            Self::Action(error) => (error.payload(), error.upstream()),
            Self::ActionFailed { failure, .. } => (failure.payload.clone(), failure.upstream.clone()),
            Self::ActionNotFinished(state) => (Some(json!({ "state": state })), None),
            Self::DeadLetter(DeadLetterError::Limit(limit)) => (Some(json!({ "limit": limit.name() })), None),
            Self::Deploy(error) => (error.payload(), None),
            Self::Credentials { payload, .. } => (Some(payload.clone()), None),
            _ => (None, None),
        };
        let detail =
            ErrorDetail { code: self.code(), message, errors: self.field_errors(), payload, upstream };
        let mut response = (status, Json(ErrorBody { error: detail })).into_response();
        let is_temporary = matches!(
            self,
            Self::ActionNotFinished(_)
                | Self::TooManyBodies
                | Self::Proxy(ProxyError::Egress(EgressError::Upload(UploadFailure::NoMemory)))
                | Self::Action(ActionError::KeyInUse(_))
                | Self::Intake(IngestError::TooMany | IngestError::Busy | IngestError::NotStored)
        );
        if is_temporary {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if let Some(wait) = self.retry_after() {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(self, Self::TooManyReaders) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        if self.is_unlogged(status) {
            response.extensions_mut().insert(InternalCause(Arc::new(self)));
        }
        response
    }
}

fn first(errors: &[FieldError], otherwise: &str) -> String {
    match errors {
        [] => otherwise.to_owned(),
        [error] if error.path.is_empty() => error.message.clone(),
        [error, ..] if error.path.is_empty() => format!("{} (and {} more)", error.message, errors.len() - 1),
        [error] => format!("`{}`: {}", error.path.join("."), error.message),
        [error, ..] => {
            format!("`{}`: {} (and {} more)", error.path.join("."), error.message, errors.len() - 1)
        }
    }
}

fn code_schema() -> Object {
    let codes = ErrorCode::VARIANTS.iter().copied().filter(|code| !statuses(*code).is_empty());
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some("Stable code of the error, for programs."))
        .enum_values(Some(codes.map(ErrorCode::as_str)))
        .build()
}
