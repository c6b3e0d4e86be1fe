//! What a client is told when a request cannot be served: one status, one stable code, one sentence.
//!
//! `docs/errors.md` lists the codes for clients.

use std::borrow::Cow;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

use syncline_auth::{AuthError, DEFAULT_ENVIRONMENT, EnvironmentError, Refusal};
use syncline_egress::{EgressError, UploadFailure};
use syncline_engine::{
    ActionError, ActionFailure, ApprovalError, AuthorizationError, ConnectError, DeadLetterError,
    DeployError, IngestError, ProxyError, RefreshError, SessionError, TypedConnectionError, VariantError,
};
use syncline_model::{Invalid, Problem};
use syncline_providers::AuthMode;
use syncline_types::ids::{ConnectionId, EnvironmentName, IntegrationKey};

/// The body of every error.
#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Debug, Serialize, ToSchema)]
struct ErrorDetail {
    /// Stable: programs may rely on it.
    #[schema(value_type = String)]
    code: Cow<'static, str>,
    /// For people: what was wrong and what would be right.
    message: String,
    /// Each mistake of a body, a query or the headers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<FieldError>,
    /// What else belongs to this code.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Value>,
    /// What the provider answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<Value>,
}

/// A mistake at one place of what was sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    pub code: &'static str,
    pub message: String,
    /// Where: keys, and indexes as text.
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
    #[error("there is no Authorization header; it must be `Authorization: Bearer <secret key>`")]
    MissingAuthorization,
    #[error("the Authorization header must be `Bearer <secret key>`")]
    MalformedAuthorization,
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("the query has no `connect_session_token`; `POST /connect/sessions` gives one")]
    MissingSessionToken,
    #[error(
        "public keys are not taken; give a `connect_session_token`, which `POST /connect/sessions` gives"
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
    #[error("the body is `{given}`; it must be `{expected}`")]
    ContentType { given: String, expected: &'static str },
    #[error("the body is encoded as `{given}`; it must be sent as it is, without Content-Encoding")]
    ContentEncoding { given: String },
    #[error("nothing more of the body came for {} seconds", patience.as_secs())]
    BodySilent { patience: Duration },
    #[error("the body is longer than {limit_bytes} bytes")]
    TooLarge { limit_bytes: usize },
    #[error("the body did not arrive whole")]
    BodyCut,
    #[error(
        "integration `{integration}` is of auth mode {is}, which does not connect by this route: it is for {asked}"
    )]
    OtherAuthMode { integration: IntegrationKey, is: AuthMode, asked: AuthMode },
    #[error(transparent)]
    Typed(#[from] TypedConnectionError),
    #[error("there is no integration `{0}` in this environment")]
    UnknownIntegration(IntegrationKey),
    #[error("there is no provider `{0}`")]
    UnknownProvider(String),
    #[error("integration `{integration}` has no connection `{connection}`")]
    UnknownConnection { integration: IntegrationKey, connection: ConnectionId },
    #[error("no sync `{sync}` is deployed for integration `{integration}`")]
    UnknownSync { sync: String, integration: IntegrationKey },
    #[error("`base` is the default variant, which always is there; name another")]
    BaseVariant,
    #[error("sync `{sync}` has no variant `{variant}` here")]
    UnknownVariant { sync: String, variant: String },
    #[error(transparent)]
    Variant(VariantError),
    #[error("no function `{function}` is deployed for integration `{integration}`")]
    UnknownFunction { function: String, integration: IntegrationKey },
    #[error("integration `{0}` has no syncs here")]
    NoSyncs(IntegrationKey),
    #[error(
        "no sync of integration `{integration}` has a model `{model}`, and nothing is kept under that name"
    )]
    UnknownModel { model: String, integration: IntegrationKey },
    #[error("integration `{0}` exists already; choose another unique_key")]
    DuplicateIntegration(IntegrationKey),
    #[error("there is no environment {0}")]
    UnknownEnvironment(Uuid),
    #[error("there is an environment `{0}` already; choose another name")]
    DuplicateEnvironment(EnvironmentName),
    #[error("the environment `{DEFAULT_ENVIRONMENT}` stays: every host makes it when it starts")]
    DefaultEnvironment,
    #[error("the environment has no valid key {0}")]
    UnknownKey(Uuid),
    #[error("the environment has a valid key `{0}` already; choose another display_name")]
    DuplicateKey(String),
    #[error("the signing key before the present one still signs; rotate again when it has ended")]
    SigningKeysOverlap,
    #[error("the cursor {problem}; leave it out to begin anew")]
    Cursor { problem: &'static str },
    #[error("`until_cursor` {problem}; give the `cursor` of a record's metadata")]
    UntilCursor { problem: &'static str },
    #[error(
        "there is no run `{id}` in this environment: a run's id is a whole UUID, `syncline runs list` shows them, and old \
         ones are removed"
    )]
    UnknownRun { id: String },
    #[error(transparent)]
    Approval(#[from] ApprovalError),
    #[error("there is no webhook delivery `{id}` in this environment")]
    UnknownWebhook { id: String },
    #[error("the webhook is being sent at this moment; look at it again in a few seconds")]
    WebhookInFlight,
    #[error(
        "there is no URL to send it to: none is set any more, or the one that is set answered that it is gone"
    )]
    NoWebhookUrl,
    #[error(transparent)]
    DeadLetter(#[from] DeadLetterError),
    #[error(transparent)]
    Intake(#[from] IngestError),
    #[error("the body did not arrive within {} seconds", limit.as_secs())]
    BodyStalled { limit: Duration },
    #[error("there is no received webhook `{id}` in this environment")]
    UnknownReceivedWebhook { id: String },
    #[error(
        "the webhook is still being processed, which has to be over first, or is a handshake, with which nothing is done"
    )]
    ReceivedWebhookInFlight,
    #[error(transparent)]
    Action(#[from] ActionError),
    #[error("there is no job `{0}` in this environment; what a job came to is kept for a while only")]
    UnknownJob(Uuid),
    #[error("the action is {0} and has no result yet; ask again a little later")]
    ActionNotFinished(&'static str),
    /// As it was kept.
    #[error("{}", .0.message)]
    ActionFailed(Box<ActionFailure>),
    /// In the words of the function that refuses it.
    #[error("{0}")]
    ConnectionRefused(String),
    #[error("another request has replaced the connection, or deleted it, while a function validated it")]
    ConnectionOvertaken,
    #[error(transparent)]
    Deploy(#[from] DeployError),
    #[error(transparent)]
    Authorization(#[from] AuthorizationError),
    #[error(
        "as many readers as this host takes follow records already; try again in a moment, or at another host"
    )]
    TooManyReaders,
    #[error(
        "requests from pages of `{0}` are not taken here; a program that is no browser sends no Origin header"
    )]
    Origin(String),
    #[error("too many end users are on their way to a provider and back; try again in a moment")]
    TooManySockets,
    #[error("there is nothing at {method} {path}")]
    UnknownRoute { method: String, path: String },
    #[error("{path} does not take {method}; the header Allow lists what it takes")]
    MethodNotAllowed { method: String, path: String },
    #[error("{error}")]
    Credentials { error: RefreshError, payload: Value },
    #[error(transparent)]
    Proxy(#[from] ProxyError),
    #[error("{0}")]
    NotOffered(&'static str),
    #[error("something went wrong on our side; the request's id is in the header X-Request-Id")]
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

    /// The status and the stable code. Codes are public: never rename one.
    fn status_and_code(&self) -> (StatusCode, Cow<'static, str>) {
        if let Self::ActionFailed(failure) = self {
            let status = StatusCode::from_u16(failure.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            return (status, Cow::Owned(failure.code.clone()));
        }
        let (status, code) = self.own_status_and_code();
        (status, Cow::Borrowed(code))
    }

    /// The stable code of what is no failure of an action.
    pub(super) fn own_code(&self) -> &'static str {
        self.own_status_and_code().1
    }

    fn own_status_and_code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::MissingAuthorization => (StatusCode::UNAUTHORIZED, "missing_auth_header"),
            Self::MalformedAuthorization => (StatusCode::UNAUTHORIZED, "malformed_auth_header"),
            Self::Auth(AuthError::Malformed(_)) => (StatusCode::UNAUTHORIZED, "invalid_secret_key_format"),
            Self::Auth(AuthError::Unknown) => (StatusCode::UNAUTHORIZED, "unknown_account"),
            Self::Auth(AuthError::MissingScope(_)) => (StatusCode::FORBIDDEN, "forbidden"),
            Self::Session(SessionError::Malformed(_)) => {
                (StatusCode::UNAUTHORIZED, "invalid_connect_session_token_format")
            }
            Self::Session(SessionError::Unknown) => {
                (StatusCode::UNAUTHORIZED, "unknown_connect_session_token")
            }
            Self::Session(SessionError::NotAllowed(_)) => {
                (StatusCode::BAD_REQUEST, "integration_not_allowed")
            }
            Self::MissingSessionToken => (StatusCode::UNAUTHORIZED, "missing_public_key"),
            Self::PublicKey => (StatusCode::UNAUTHORIZED, "deprecated_authentication"),
            Self::Query { .. } => (StatusCode::BAD_REQUEST, "invalid_query_params"),
            Self::Headers { .. } => (StatusCode::BAD_REQUEST, "invalid_headers"),
            Self::Body { .. } => (StatusCode::BAD_REQUEST, "invalid_body"),
            Self::Path { .. } => (StatusCode::BAD_REQUEST, "invalid_uri_params"),
            Self::Json { .. } => (StatusCode::BAD_REQUEST, "invalid_json"),
            Self::ContentType { .. } => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_content_type"),
            Self::ContentEncoding { .. } => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_content_encoding"),
            Self::TooLarge { .. } => (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large"),
            Self::BodyCut => (StatusCode::BAD_REQUEST, "invalid_body"),
            Self::OtherAuthMode { .. } => (StatusCode::BAD_REQUEST, "invalid_auth_mode"),
            Self::Typed(
                TypedConnectionError::Rejected { .. }
                | TypedConnectionError::Refused { .. }
                | TypedConnectionError::Unconfirmed { .. }
                | TypedConnectionError::Unsendable { .. },
            ) => (StatusCode::BAD_REQUEST, "connection_test_failed"),
            Self::Typed(TypedConnectionError::NoToken { .. }) => {
                (StatusCode::BAD_REQUEST, "request_token_external_error")
            }
            Self::Typed(TypedConnectionError::NoClient) => (StatusCode::BAD_REQUEST, "missing_client_id"),
            Self::ConnectionOvertaken
            | Self::Typed(TypedConnectionError::Connect(ConnectError::Overtaken)) => {
                (StatusCode::CONFLICT, "connection_replaced")
            }
            Self::Typed(TypedConnectionError::Connect(ConnectError::TargetGone)) => {
                (StatusCode::BAD_REQUEST, "invalid_connection")
            }
            Self::UnknownIntegration(_)
            | Self::Typed(TypedConnectionError::Connect(ConnectError::IntegrationGone(_))) => {
                (StatusCode::NOT_FOUND, "unknown_integration")
            }
            Self::UnknownProvider(_) => (StatusCode::NOT_FOUND, "unknown_provider"),
            Self::UnknownConnection { .. } => (StatusCode::NOT_FOUND, "unknown_connection"),
            Self::UnknownSync { .. } => (StatusCode::NOT_FOUND, "unknown_sync"),
            Self::BaseVariant => (StatusCode::BAD_REQUEST, "invalid_variant"),
            Self::UnknownVariant { .. } => (StatusCode::NOT_FOUND, "unknown_variant"),
            Self::Variant(VariantError::Exists) => (StatusCode::CONFLICT, "sync_variant_already_exists"),
            Self::Variant(VariantError::TooMany) => (StatusCode::BAD_REQUEST, "resource_capped"),
            Self::Variant(VariantError::SyncGone) => (StatusCode::NOT_FOUND, "unknown_sync"),
            Self::Variant(VariantError::Store(_)) => {
                (StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error")
            }
            Self::UnknownFunction { .. } => (StatusCode::NOT_FOUND, "unknown_function"),
            Self::NoSyncs(_) => (StatusCode::BAD_REQUEST, "no_syncs_found"),
            Self::UnknownModel { .. } => (StatusCode::NOT_FOUND, "unknown_model"),
            Self::DuplicateIntegration(_) => (StatusCode::CONFLICT, "duplicate_integration"),
            Self::UnknownEnvironment(_) => (StatusCode::NOT_FOUND, "unknown_environment"),
            Self::DuplicateEnvironment(_) => (StatusCode::CONFLICT, "duplicate_environment"),
            Self::DefaultEnvironment => (StatusCode::BAD_REQUEST, "cannot_delete_default_environment"),
            Self::UnknownKey(_) => (StatusCode::NOT_FOUND, "unknown_api_key"),
            Self::DuplicateKey(_) => (StatusCode::CONFLICT, "duplicate_api_key"),
            Self::SigningKeysOverlap => (StatusCode::CONFLICT, "multiple_webhook_signing_keys"),
            Self::Cursor { .. } | Self::UntilCursor { .. } => (StatusCode::BAD_REQUEST, "invalid_cursor"),
            Self::UnknownRun { .. } => (StatusCode::NOT_FOUND, "unknown_run"),
            Self::Approval(ApprovalError::Unknown) => (StatusCode::NOT_FOUND, "unknown_run"),
            Self::Approval(ApprovalError::NotHeld) => (StatusCode::CONFLICT, "run_not_held"),
            Self::Approval(ApprovalError::Approved(_)) => (StatusCode::CONFLICT, "run_already_approved"),
            Self::Approval(ApprovalError::Superseded) => (StatusCode::CONFLICT, "run_superseded"),
            Self::UnknownWebhook { .. } => (StatusCode::NOT_FOUND, "unknown_webhook"),
            Self::WebhookInFlight => (StatusCode::CONFLICT, "webhook_in_flight"),
            Self::NoWebhookUrl => (StatusCode::CONFLICT, "no_webhook_url"),
            Self::DeadLetter(error) => dead_letter_status_and_code(error),
            Self::Intake(error) => intake_status_and_code(error),
            Self::BodySilent { .. } | Self::BodyStalled { .. } => {
                (StatusCode::REQUEST_TIMEOUT, "body_timeout")
            }
            Self::UnknownReceivedWebhook { .. } => (StatusCode::NOT_FOUND, "unknown_webhook"),
            Self::ReceivedWebhookInFlight => (StatusCode::CONFLICT, "webhook_in_flight"),
            Self::Action(error) => error.status_and_code(),
            Self::ConnectionRefused(_)
            | Self::Typed(TypedConnectionError::Connect(ConnectError::Refused(_))) => {
                (StatusCode::BAD_REQUEST, "connection_validation_failed")
            }
            Self::UnknownJob(_) => (StatusCode::NOT_FOUND, "unknown_job"),
            Self::ActionNotFinished(_) => (StatusCode::NOT_FOUND, "action_not_finished"),
            Self::Deploy(error) => error.status_and_code(),
            Self::Authorization(error) => error.status_and_code(),
            Self::TooManyReaders => (StatusCode::TOO_MANY_REQUESTS, "too_many_readers"),
            Self::Origin(_) => (StatusCode::FORBIDDEN, "origin_not_allowed"),
            Self::TooManySockets => (StatusCode::SERVICE_UNAVAILABLE, "too_many_sockets"),
            Self::Credentials { error, .. } if error.is_refused() => {
                (StatusCode::BAD_REQUEST, "invalid_credentials")
            }
            Self::Credentials { .. } => (StatusCode::FAILED_DEPENDENCY, "invalid_credentials"),
            Self::Proxy(ProxyError::Egress(error)) => proxy_status_and_code(error),
            Self::Proxy(ProxyError::Gone) => (StatusCode::NOT_FOUND, "unknown_connection"),
            Self::Proxy(ProxyError::UnknownProvider(_)) => (StatusCode::NOT_FOUND, "unknown_provider"),
            Self::UnknownRoute { .. } => (StatusCode::NOT_FOUND, "not_found"),
            Self::MethodNotAllowed { .. } => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::NotOffered(_) => (StatusCode::NOT_IMPLEMENTED, "not_implemented"),
            Self::Auth(AuthError::Store(_) | AuthError::Environment(_))
            | Self::Session(
                SessionError::Store(_) | SessionError::Environment(_) | SessionError::Unreadable(_),
            )
            | Self::Typed(
                TypedConnectionError::Connect(ConnectError::Store(_) | ConnectError::Validation(_))
                | TypedConnectionError::App(_),
            )
            | Self::ActionFailed(_)
            | Self::Approval(ApprovalError::Store(_) | ApprovalError::Unreadable(_))
            | Self::Proxy(ProxyError::Store(_))
            | Self::Internal(_) => (StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error"),
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Action(error) => error.retry_after(),
            Self::ActionFailed(failure) => failure.retry_after(),
            Self::Proxy(ProxyError::Egress(EgressError::RateLimited { retry_after, .. })) => {
                Some(*retry_after)
            }
            _ => None,
        }
    }

    /// What is told: status, code, and a sentence that gives nothing of ours away. What is our fault is logged here.
    pub fn into_told(self) -> (StatusCode, &'static str, String) {
        let (status, code) = self.own_status_and_code();
        (status, code, self.public_message(status))
    }

    fn public_message(&self, status: StatusCode) -> String {
        match self {
            Self::ActionFailed(failure) if failure.code != "internal_server_error" => {
                return self.to_string();
            }
            // It was logged when it happened.
            Self::ActionFailed(_) => {}
            _ if status != StatusCode::INTERNAL_SERVER_ERROR => return self.to_string(),
            _ => tracing::error!(error = self as &dyn std::error::Error, "a request could not be served"),
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
            Self::ActionFailed(failure) => failure.problems.iter().map(FieldError::from).collect(),
            _ => Vec::new(),
        }
    }
}

impl From<ConnectError> for ApiError {
    fn from(error: ConnectError) -> Self {
        match error {
            ConnectError::Refused(message) => Self::ConnectionRefused(message),
            ConnectError::Overtaken => Self::ConnectionOvertaken,
            ConnectError::IntegrationGone(integration) => Self::UnknownIntegration(integration),
            error => Self::internal(error),
        }
    }
}

impl From<sqlx::Error> for ApiError {
    fn from(error: sqlx::Error) -> Self {
        Self::Internal(error.into())
    }
}

impl From<EnvironmentError> for ApiError {
    fn from(error: EnvironmentError) -> Self {
        Self::Internal(error.into())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, code) = self.status_and_code();
        let message = self.public_message(status);
        let (payload, upstream) = match &self {
            Self::Action(error) => (error.payload(), error.upstream()),
            Self::ActionFailed(failure) => (failure.payload.clone(), failure.upstream.clone()),
            Self::ActionNotFinished(state) => (Some(json!({ "state": state })), None),
            Self::DeadLetter(DeadLetterError::Limit(limit)) => (Some(json!({ "limit": limit.name() })), None),
            Self::Deploy(error) => (error.payload(), None),
            Self::Credentials { payload, .. } => (Some(payload.clone()), None),
            _ => (None, None),
        };
        let detail = ErrorDetail { code, message, errors: self.field_errors(), payload, upstream };
        let mut response = (status, Json(ErrorBody { error: detail })).into_response();
        let passes = matches!(
            self,
            Self::ActionNotFinished(_)
                | Self::Action(ActionError::KeyInUse(_))
                | Self::Intake(IngestError::TooMany | IngestError::Busy | IngestError::NotStored)
        );
        if passes {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if let Some(wait) = self.retry_after() {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if matches!(self, Self::TooManyReaders) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
        }
        response
    }
}

fn dead_letter_status_and_code(error: &DeadLetterError) -> (StatusCode, &'static str) {
    match error {
        DeadLetterError::Unknown(_) => (StatusCode::NOT_FOUND, "unknown_dead_letter"),
        DeadLetterError::UnknownModel(_) => (StatusCode::NOT_FOUND, "unknown_model"),
        DeadLetterError::Refused { .. } => (StatusCode::CONFLICT, "dead_letter_refused"),
        DeadLetterError::Superseded => (StatusCode::CONFLICT, "dead_letter_superseded"),
        DeadLetterError::Limit(_) => (StatusCode::BAD_REQUEST, "limit_exceeded"),
        DeadLetterError::Store(_) | DeadLetterError::Host(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error")
        }
    }
}

/// Of a provider's webhook that is not taken: what 5xx refuses, the provider may send again as it is.
fn intake_status_and_code(error: &IngestError) -> (StatusCode, &'static str) {
    match error {
        IngestError::UnknownEnvironment(_) => (StatusCode::NOT_FOUND, "unknown_environment"),
        IngestError::UnknownIntegration(_) => (StatusCode::NOT_FOUND, "unknown_integration"),
        IngestError::NotTaken(_) => (StatusCode::NOT_FOUND, "webhooks_not_taken"),
        IngestError::Refused(Refusal::Unsigned(_)) => (StatusCode::UNAUTHORIZED, "missing_webhook_signature"),
        IngestError::Refused(Refusal::WrongSignature) => {
            (StatusCode::UNAUTHORIZED, "invalid_webhook_signature")
        }
        IngestError::Refused(Refusal::Expired(_)) => (StatusCode::UNAUTHORIZED, "expired_webhook_signature"),
        IngestError::Refused(Refusal::NoSecret(_) | Refusal::UnusableSecret) => {
            (StatusCode::SERVICE_UNAVAILABLE, "webhook_secret_missing")
        }
        IngestError::Json(_) => (StatusCode::BAD_REQUEST, "invalid_json"),
        IngestError::Compressed => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_content_encoding"),
        IngestError::TooMany => (StatusCode::TOO_MANY_REQUESTS, "too_many_webhooks"),
        IngestError::Busy | IngestError::NotStored => (StatusCode::SERVICE_UNAVAILABLE, "intake_busy"),
        IngestError::NoHandshake { .. } | IngestError::Refused(Refusal::UnusableChallenge(_)) => {
            (StatusCode::BAD_REQUEST, "unknown_handshake")
        }
        IngestError::Failed(_) => (StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error"),
    }
}

/// Of a request that could not be forwarded: 4xx is the client's to correct, 5xx was the provider.
fn proxy_status_and_code(error: &EgressError) -> (StatusCode, &'static str) {
    match error {
        EgressError::InvalidRequest { .. } => (StatusCode::BAD_REQUEST, "invalid_proxy_request"),
        EgressError::HostNotAllowed { .. } | EgressError::PlainHttp { .. } => {
            (StatusCode::BAD_REQUEST, "host_not_allowed")
        }
        EgressError::AddressNotAllowed { .. } => (StatusCode::BAD_REQUEST, "address_not_allowed"),
        EgressError::OverrideNotAllowed { .. } => (StatusCode::BAD_REQUEST, "base_url_override_not_allowed"),
        EgressError::Upload(UploadFailure::Cut) => (StatusCode::BAD_REQUEST, "invalid_body"),
        EgressError::Upload(UploadFailure::TooLong { .. }) => {
            (StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large")
        }
        EgressError::Upload(UploadFailure::Stalled { .. }) => (StatusCode::REQUEST_TIMEOUT, "body_timeout"),
        EgressError::CredentialsUnavailable(_) => (StatusCode::FAILED_DEPENDENCY, "credentials_unavailable"),
        EgressError::Redirected(_) | EgressError::UploadNotKept => {
            (StatusCode::BAD_GATEWAY, "redirect_not_allowed")
        }
        EgressError::TooManyRedirects { .. } => (StatusCode::BAD_GATEWAY, "too_many_redirects"),
        EgressError::Network { .. } | EgressError::ResponseTooLarge { .. } => {
            (StatusCode::BAD_GATEWAY, "upstream_failed")
        }
        EgressError::RateLimited { .. } => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
        EgressError::Timeout { .. } => (StatusCode::GATEWAY_TIMEOUT, "upstream_timeout"),
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use regex::Regex;

    fn captured(text: &str, pattern: &str) -> BTreeSet<String> {
        let pattern = Regex::new(pattern).unwrap();
        pattern.captures_iter(text).map(|found| found[1].to_owned()).collect()
    }

    /// A code that is not explained helps nobody, and one that is explained and gone misleads.
    #[test]
    fn the_manual_lists_every_code_and_no_other() {
        let beside_status = r#"StatusCode::[A-Z_]+,\s*"([a-z_]+)""#;
        let source = [
            (include_str!("error.rs"), beside_status),
            (include_str!("../../engine/src/deployments.rs"), beside_status),
            (include_str!("../../engine/src/authorizations/error.rs"), beside_status),
            (include_str!("../../engine/src/invoker/error.rs"), beside_status),
            (include_str!("../../engine/src/invoker/error.rs"), r#"=> "([a-z_]+)""#),
            (include_str!("../../engine/src/syncs/run.rs"), r#"\bcode: "([a-z_]+)""#),
            (include_str!("../../engine/src/syncs/run/ending.rs"), r#"\bcode: "([a-z_]+)""#),
            (include_str!("../../engine/src/syncs/approvals.rs"), r#"const HELD: &str = "([a-z_]+)""#),
            (include_str!("../../store/src/schedules/leases.rs"), r"error_code = '([a-z_]+)'"),
        ];
        let known: BTreeSet<String> =
            source.iter().flat_map(|(text, pattern)| captured(text, pattern)).collect();
        let listed = captured(include_str!("../../../../docs/errors.md"), r"(?m)^\| `([a-z_]+)` \| [0-9`]");
        assert_eq!(known, listed, "left is in the source, right in docs/errors.md");
    }
}
