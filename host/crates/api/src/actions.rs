//! `/action/…`: runs a function for one connection, now or soon.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::error::{ApiError, ErrorBody, FieldError};
use super::extract::{ApiJson, ApiPath, ConnectionHeaders, EnvironmentAuth, NoQuery, flag_header};
use syncline_auth::rights;
use syncline_engine::{
    ActionCall, ActionJob, ActionResult, IdempotencyKey, InvalidIdempotencyKey, KeyedResult,
};
use syncline_types::ids::InvalidName;

/// How often a client may have a job tried again.
const MAX_RETRIES: u8 = 5;
/// Tells an answer that is given again.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TriggerActionRequest {
    /// The action's name in the sync configuration file.
    action_name: String,
    /// What the action's input model asks for.
    #[schema(value_type = Option<Object>)]
    input: Option<Box<RawValue>>,
}

/// The headers of `POST /action/trigger` beside those that name the connection.
pub(super) struct ActionHeaders {
    is_async: bool,
    max_retries: u8,
    key: Option<IdempotencyKey>,
}

impl<S: Sync> FromRequestParts<S> for ActionHeaders {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let is_async = flag_header(&parts.headers, "x-async")?;
        let text = |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let max_retries = match text("x-max-retries") {
            None => 0,
            Some(text) => text.parse().ok().filter(|number| *number <= MAX_RETRIES).ok_or_else(|| {
                let message = format!("the header must be a whole number from 0 to {MAX_RETRIES}");
                ApiError::headers("invalid_value", &["x-max-retries"], message)
            })?,
        };
        let key = text("idempotency-key").map(str::parse).transpose();
        let key = key.map_err(|problem: InvalidIdempotencyKey| {
            let message = format!("the header {problem}");
            ApiError::headers("invalid_format", &["idempotency-key"], message)
        })?;
        Ok(Self { is_async, max_retries, key })
    }
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AcceptedAction {
    /// A UUID: the job's.
    id: String,
    /// Where its result will be, below this service's address.
    status_url: String,
}

/// `POST /action/trigger`: runs an action and gives what it returns, or takes it on.
#[utoipa::path(
    post, path = "/action/trigger", tag = "Actions", request_body = TriggerActionRequest,
    params(
        ("Connection-Id" = String, Header, description = "The connection"),
        ("Provider-Config-Key" = String, Header, description = "The integration's unique key"),
        ("X-Async" = Option<bool>, Header, description = "Answer at once with a job instead of waiting"),
        ("X-Max-Retries" = Option<u8>, Header, description = "How often a job is tried again after a failure that may pass: 0 to 5"),
        ("Idempotency-Key" = Option<String>, Header, description = "Repeats of the request under this key do not run the action again for 24 hours"),
    ),
    responses(
        (status = 200, description = "The value that the function returns, as JSON; nothing if it returns nothing"),
        (status = 202, description = "With `X-Async`: the job", body = AcceptedAction),
        (status = 408, description = "The function took longer than it may", body = ErrorBody),
        (status = 409, description = "The Idempotency-Key is in use, or was used for another request", body = ErrorBody),
        (status = 424, description = "The provider answered with an error", body = ErrorBody),
        (status = "4XX", body = ErrorBody),
    ),
)]
pub(super) async fn trigger_action(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ActionsExecute>,
    _: NoQuery,
    target: ConnectionHeaders,
    headers: ActionHeaders,
    ApiJson(request): ApiJson<TriggerActionRequest>,
) -> Result<Response, ApiError> {
    let action = request.action_name.parse().map_err(|problem: InvalidName| {
        ApiError::body("invalid_format", &["action_name"], problem.to_string())
    })?;
    let connection = app.find_connection(&client, &target).await?;
    let input = request.input.map(|json| Box::<str>::from(json).into_string());
    let environment = Arc::clone(&client.environment);
    match headers {
        ActionHeaders { is_async: false, key: None, .. } => {
            let output = app.actions.run(&environment, &connection, &action, input).await?;
            Ok(output_response(output))
        }
        ActionHeaders { is_async: false, key: Some(key), .. } => {
            let call = ActionCall { environment, connection, action, input };
            let KeyedResult { result, is_replay } = app.actions.run_keyed(call, &key).await?;
            let mut response = result_response(result);
            if is_replay {
                response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
            }
            Ok(response)
        }
        ActionHeaders { is_async: true, max_retries, key } => {
            let call = ActionCall { environment, connection, action, input };
            let id = app.actions.enqueue(&call, max_retries, key.as_ref()).await?;
            let status_url = format!("/action/{id}");
            let location = [(header::LOCATION, status_url.clone())];
            let accepted = AcceptedAction { id: id.to_string(), status_url };
            Ok((StatusCode::ACCEPTED, location, Json(accepted)).into_response())
        }
    }
}

/// `GET /action/{id}`: what an asynchronous action came to.
#[utoipa::path(
    get, path = "/action/{id}", tag = "Actions",
    params(("id" = String, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The value that the function returned, as JSON; nothing if it returned nothing"),
        (status = 404, description = "There is no such job, or it is not finished: then `payload.state` is `queued` or `running`", body = ErrorBody),
        (status = "4XX", description = "The function failed: what a call that waits would have been answered", body = ErrorBody),
    ),
)]
pub(super) async fn get_action_result(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ActionsExecute>,
    _: NoQuery,
    ApiPath(id): ApiPath,
) -> Result<Response, ApiError> {
    let id: Uuid = id.parse().map_err(|_| {
        let message = "must be a UUID, as `POST /action/trigger` gives with `X-Async`";
        ApiError::Path { errors: vec![FieldError::new("invalid_format", &["id"], message)] }
    })?;
    let job = app.actions.find_job(&client.environment, id).await.map_err(ApiError::Internal)?;
    match job {
        None => Err(ApiError::UnknownJob(id)),
        Some(ActionJob::Unfinished(state)) => Err(ApiError::ActionNotFinished(state.as_str())),
        Some(ActionJob::Finished(result)) => Ok(result_response(result)),
    }
}

fn result_response(result: ActionResult) -> Response {
    match result {
        ActionResult::Output(output) => output_response(output),
        ActionResult::Failure(failure) => ApiError::ActionFailed(failure).into_response(),
    }
}

fn output_response(output: Option<String>) -> Response {
    match output {
        None => StatusCode::OK.into_response(),
        Some(json) => {
            const JSON: HeaderValue = HeaderValue::from_static("application/json");
            ([(header::CONTENT_TYPE, JSON)], Body::from(json)).into_response()
        }
    }
}
