//! Errors of pages and forms. Each has one stable code and one message.

use std::sync::Arc;

use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};

use syncline_auth::{AccountError, ApiKeyError, AuthError, EnvironmentError, SignInError};
use syncline_engine::{
    ActionError, ApprovalError, AuditLogError, ConnectError, DeadLetterError, DeletionError, DeployError,
    EnvironmentVariableError, FetchError, InboundWebhookError, IntegrationError, LookupError, MetadataError,
    RecordsError, RunsError, SessionError, SyncError,
};
use syncline_outbound_webhooks::DeliveryError;
use syncline_types::error_code::ErrorCode;

/// Why a page cannot be shown, or a form was rejected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PageError {
    #[error("sign in to see this page")]
    SignInRequired,
    #[error("this form was not sent by a page of this session; reload the page and submit it again")]
    CrossSite,
    #[error("{0}")]
    NotFound(String),
    /// A field of a form or a parameter of the query is invalid.
    #[error("{label}: {problem}")]
    Invalid { label: String, problem: String },
    #[error("{message}")]
    Service { code: ErrorCode, message: String },
    #[error("the host could not do this because of an internal error; try again")]
    Internal(#[source] anyhow::Error),
}

impl PageError {
    pub(crate) fn invalid(label: &str, problem: impl ToString) -> Self {
        Self::Invalid { label: label.to_owned(), problem: problem.to_string() }
    }

    pub(crate) fn internal(error: impl Into<anyhow::Error>) -> Self {
        Self::Internal(error.into())
    }

    fn service(code: ErrorCode, error: impl std::error::Error + Send + Sync + 'static) -> Self {
        match code {
            ErrorCode::InternalServerError => Self::Internal(error.into()),
            code => Self::Service { code, message: error.to_string() },
        }
    }

    pub(crate) fn code(&self) -> ErrorCode {
        match self {
            Self::SignInRequired => ErrorCode::SignInRequired,
            Self::CrossSite => ErrorCode::CrossSiteRequest,
            Self::NotFound(_) => ErrorCode::NotFound,
            Self::Invalid { .. } => ErrorCode::InvalidBody,
            Self::Service { code, .. } => *code,
            Self::Internal(_) => ErrorCode::InternalServerError,
        }
    }
}

macro_rules! from_service_errors {
    ($($error:ty),+ $(,)?) => {
        $(impl From<$error> for PageError {
            fn from(error: $error) -> Self {
                Self::service(error.code(), error)
            }
        })+
    };
}

from_service_errors!(
    AccountError,
    ActionError,
    ApiKeyError,
    ApprovalError,
    AuditLogError,
    AuthError,
    ConnectError,
    DeadLetterError,
    DeletionError,
    DeliveryError,
    DeployError,
    EnvironmentError,
    FetchError,
    InboundWebhookError,
    IntegrationError,
    LookupError,
    MetadataError,
    RecordsError,
    RunsError,
    SessionError,
    SignInError,
    SyncError,
);

impl From<EnvironmentVariableError> for PageError {
    fn from(error: EnvironmentVariableError) -> Self {
        Self::internal(error)
    }
}

/// The error of a response, which [`render_errors`](super::error_pages::render_errors) turns into a page.
#[derive(Clone)]
pub(crate) struct Failed(pub(crate) Arc<PageError>);

impl IntoResponse for PageError {
    fn into_response(self) -> Response {
        let mut response = StatusCode::INTERNAL_SERVER_ERROR.into_response();
        response.extensions_mut().insert(Failed(Arc::new(self)));
        response
    }
}

pub(crate) async fn unknown_page(uri: Uri) -> PageError {
    PageError::NotFound(format!("there is no page `{}`", uri.path()))
}
