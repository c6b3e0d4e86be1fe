//! Failed runs whose provider rejected the connection's credentials: their error code, and the connection's error.

use std::sync::Arc;

use http::StatusCode;
use uuid::Uuid;

use crate::credentials::Credentials;
use crate::outbound_webhooks::{self, AuthEvent, AuthOperation};
use syncline_store::connection_errors::{self, Failing};
use syncline_store::connections;
use syncline_store::runs::RunError;
use syncline_types::error_code::ErrorCode;
use syncline_types::functions::FunctionKind;
use syncline_types::ids::{ConnectionPk, EnvironmentPk, FunctionName, Variant};

/// The provider's final answer to a request with the connection's credentials: 401 or 403.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    /// The version of the rejected credentials.
    pub(crate) version: i64,
    pub(crate) status: StatusCode,
    pub(crate) host: String,
}

/// A failed run.
pub(crate) struct FailedRun<'a> {
    pub(crate) id: Uuid,
    pub(crate) environment: EnvironmentPk,
    pub(crate) connection: ConnectionPk,
    pub(crate) kind: FunctionKind,
    pub(crate) function: &'a FunctionName,
    pub(crate) variant: &'a Variant,
}

/// A rejection that made a run fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RejectionCause {
    rejection: Rejection,
    code: ErrorCode,
}

impl Rejection {
    /// Whether the rejection made a function of this kind fail with `error`.
    ///
    /// A 403 can also mean that one object or endpoint is closed to the account. It counts only for syncs, because the
    /// caller of an action receives the provider's answer.
    fn cause(self, kind: FunctionKind, error: &RunError) -> Option<RejectionCause> {
        let is_unhandled_answer = error.code == ErrorCode::ScriptHttpError;
        let upstream = error.details.as_ref().and_then(|details| details.get("status")?.as_u64());
        let is_same_status = upstream.is_none_or(|status| status == u64::from(self.status.as_u16()));
        let is_own_error = matches!(
            error.code,
            ErrorCode::ActionScriptRuntimeError
                | ErrorCode::SyncScriptFailure
                | ErrorCode::WebhookScriptFailure
                | ErrorCode::LifecycleScriptFailure
        );
        let code = match self.status {
            StatusCode::UNAUTHORIZED if is_own_error || is_unhandled_answer && is_same_status => {
                ErrorCode::CredentialsRejected
            }
            StatusCode::FORBIDDEN if kind == FunctionKind::Sync && is_unhandled_answer && is_same_status => {
                ErrorCode::ProviderAccessDenied
            }
            _ => return None,
        };
        Some(RejectionCause { rejection: self, code })
    }
}

/// Gives the error of a run its code if the provider's rejection caused it. A 403 keeps the function's own error.
pub(crate) fn explain(
    error: RunError,
    kind: FunctionKind,
    rejection: Option<Rejection>,
) -> (RunError, Option<RejectionCause>) {
    match rejection.and_then(|rejection| rejection.cause(kind, &error)) {
        Some(cause) if cause.code == ErrorCode::CredentialsRejected => {
            (RunError { code: cause.code, ..error }, Some(cause))
        }
        cause => (error, cause),
    }
}

impl RejectionCause {
    fn message(&self, run: &FailedRun<'_>) -> String {
        let Rejection { status, host, .. } = &self.rejection;
        let (kind, function, status) = (run.kind, run.function, status.as_u16());
        match self.code {
            ErrorCode::ProviderAccessDenied => format!(
                "the provider denied access: `{host}` answered {kind} `{function}` with {status}; check the \
                 permissions and scopes of the account, then let the end user reconnect"
            ),
            _ => format!(
                "the provider rejected the credentials: `{host}` answered {kind} `{function}` with {status}; the end \
                 user must reconnect"
            ),
        }
    }
}

impl Credentials {
    /// Stores that the provider's rejection made a run fail. Clients receive one webhook when the provider begins to
    /// reject the credentials, not one per run.
    pub(crate) async fn note_rejection(&self, run: &FailedRun<'_>, cause: &RejectionCause) {
        if let Err(error) = self.try_note_rejection(run, cause).await {
            tracing::warn!(
                run.id = %run.id,
                error = format!("{error:#}"),
                "could not store that the provider rejected the credentials of a connection",
            );
        }
    }

    async fn try_note_rejection(&self, run: &FailedRun<'_>, cause: &RejectionCause) -> anyhow::Result<()> {
        let code = cause.code;
        let message = cause.message(run);
        let failing = match code {
            ErrorCode::ProviderAccessDenied => {
                Failing::Access { name: run.function.as_str(), variant: run.variant.as_str() }
            }
            _ => Failing::Auth,
        };
        let mut tx = self.store.begin().await?;
        let rejection = connection_errors::Rejection {
            connection: run.connection,
            version: cause.rejection.version,
            failing,
            log_id: run.id,
            code,
            message: &message,
        };
        let is_new = connection_errors::set_rejected(&mut tx, &rejection).await?;
        // With a 403, the provider may accept the credentials for everything else.
        if is_new
            && code == ErrorCode::CredentialsRejected
            && let Some(connection) = connections::get(&mut tx, run.connection).await?
        {
            let environment = self.environments.get(run.environment).await?;
            let auth_mode = self.catalogue.find(&connection.provider).map(|provider| provider.auth_mode);
            let event = AuthEvent::of(&connection, auth_mode, AuthOperation::Refresh);
            outbound_webhooks::note_auth(&mut tx, &environment, &event.failed(code, &message)).await?;
        }
        Ok(tx.commit().await?)
    }

    /// Deletes the error of an earlier rejection after the provider has accepted the same or newer credentials.
    pub(crate) async fn clear_rejected(self: &Arc<Self>, connection: ConnectionPk, log_id: Uuid) {
        let cleared = async {
            connection_errors::clear_rejected(&mut *self.store.connect().await?, connection, log_id).await
        };
        if let Err(error) = cleared.await {
            tracing::warn!(
                connection.pk = connection.0,
                error = &error as &dyn std::error::Error,
                "could not delete the error of a connection whose credentials work again; a later run deletes it",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn code(status: u16, kind: FunctionKind, error: (ErrorCode, Value)) -> (ErrorCode, Option<ErrorCode>) {
        let status = StatusCode::from_u16(status).unwrap();
        let rejection = Rejection { version: 1, status, host: "api.example.com".to_owned() };
        let (code, details) = error;
        let error = RunError { code, message: String::new(), details: Some(details) };
        let (error, cause) = explain(error, kind, Some(rejection));
        (error.code, cause.map(|cause| cause.code))
    }

    #[test]
    fn a_rejection_explains_only_the_errors_that_it_caused() {
        use ErrorCode::{
            CredentialsRejected, LimitExceeded, ProviderAccessDenied, ScriptHttpError, ScriptInternalError,
            SyncScriptFailure,
        };
        use FunctionKind::{Action, Sync};
        let answer = |status: u16| (ScriptHttpError, json!({ "status": status }));
        let own = || (SyncScriptFailure, json!({ "code": "no-orders" }));
        assert_eq!(code(401, Sync, answer(401)), (CredentialsRejected, Some(CredentialsRejected)));
        assert_eq!(code(401, Action, answer(401)), (CredentialsRejected, Some(CredentialsRejected)));
        assert_eq!(code(401, Sync, own()), (CredentialsRejected, Some(CredentialsRejected)));
        assert_eq!(code(401, Sync, answer(500)), (ScriptHttpError, None), "a later request failed");
        for other in [ScriptInternalError, LimitExceeded] {
            assert_eq!(code(401, Sync, (other, json!({}))), (other, None));
        }
        assert_eq!(code(403, Sync, answer(403)), (ScriptHttpError, Some(ProviderAccessDenied)));
        assert_eq!(code(403, Action, answer(403)), (ScriptHttpError, None));
        assert_eq!(code(403, Sync, own()), (SyncScriptFailure, None));
    }
}
