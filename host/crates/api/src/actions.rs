//! `/action/…`: runs an action for one connection, synchronously or as a job.

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
use super::error::{ApiError, FieldError};
use super::extract::{
    ApiJson, ApiPath, ConnectionHeaders, EnvironmentAuth, MAX_BODY_BYTES, NoQuery, flag_header,
};
use syncline_auth::rights;
use syncline_engine::{
    ActionCall, ActionJob, ActionResult, IdempotencyKey, InvalidIdempotencyKey, KeyedResult,
};
use syncline_types::ids::InvalidName;

/// Maximum of the header `X-Max-Retries`.
const MAX_RETRIES: u8 = 5;
/// Marks a response that repeats an earlier result.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// The action to run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TriggerActionRequest {
    /// Name of the action in `syncline.toml`.
    action_name: String,
    /// The input, which must match the action's input model. Can be omitted if the action has none.
    #[schema(value_type = serde_json::Value, required = false)]
    input: Option<Box<RawValue>>,
}

/// The headers of `POST /action/trigger`, except those that name the connection.
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

/// An asynchronous execution of an action.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AcceptedAction {
    /// Id of the job.
    id: String,
    /// Path of the result, relative to the base address of this API.
    status_url: String,
}

/// Trigger an action
///
/// Runs an action for one connection and returns its result. The response is the value that the function returns, as
/// JSON, or an empty body if the function returns nothing. An action can take 2 minutes by default and 15 minutes at
/// most.
///
/// With `X-Async: true` the request returns 202 with a job at once. Poll `GET /action/{id}` for the result, which is
/// kept for 24 hours by default.
///
/// An `Idempotency-Key` makes repetitions safe: for 24 hours, a request with the same key does not run the action
/// again and gets the same result. Fails with 400 if the function fails or the input does not match the action's input
/// model, with 404 if the connection or the action does not exist, and with 408 on a timeout. Needs the scope
/// `environment:actions:execute`.
#[utoipa::path(
    post, path = "/action/trigger", tag = "Actions",
    request_body(content = TriggerActionRequest,
        example = json!({"action_name": "add-buyer", "input": {"name": "Ada", "email": "ada@example.com"}})),
    params(
        ("Connection-Id" = String, Header, description = "The connection id. With `Provider-Config-Key`, it names the connection."),
        ("Provider-Config-Key" = String, Header, description = "The unique key of the integration."),
        ("X-Async" = Option<bool>, Header, description = "Returns a job at once instead of waiting for the result. Default: `false`."),
        ("X-Max-Retries" = Option<u8>, Header, description = "How many times a job is retried after a temporary failure: 0 to 5. Default: 0. Used with `X-Async` only."),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable ASCII characters. Requests with the same key run the action only once within 24 hours."),
    ),
    responses(
        (status = 200, description = "The value that the function returns, as JSON. The body is empty if it returns nothing.",
            body = serde_json::Value, content_type = "application/json", example = json!({"id": "b-8", "name": "Ada"})),
        (
            status = 202, description = "With `X-Async`: the job",
            body = AcceptedAction,
            example = json!({
                "id": "01978a3e-4444-7c21-9d4e-2b6a1f0c8e11",
                "statusUrl": "/action/01978a3e-4444-7c21-9d4e-2b6a1f0c8e11"
            }),
        ),
    ),
)]
pub(super) async fn trigger_action(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ActionsExecute>,
    _: NoQuery,
    target: ConnectionHeaders,
    headers: ActionHeaders,
    ApiJson(request): ApiJson<TriggerActionRequest, MAX_BODY_BYTES>,
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
            let mut response = result_response(&app, result);
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

/// Get the result of an asynchronous action
///
/// Returns the result of a job that `POST /action/trigger` created with `X-Async`. A finished job returns what a
/// synchronous request would have returned: the value of the function, or its error.
///
/// While the job is queued or running, the request fails with 404 `action_not_finished`; retry after the seconds in
/// `Retry-After`. Results are kept for 24 hours by default; then the request fails with 404 `unknown_job`. Needs the
/// scope `environment:actions:execute`.
#[utoipa::path(
    get, path = "/action/{id}", tag = "Actions",
    params(
        ("id" = String, Path, description = "Id of the job."),
    ),
    responses(
        (status = 200, description = "The value that the function returned, as JSON. The body is empty if it returned nothing.",
            body = serde_json::Value, content_type = "application/json", example = json!({"id": "b-8", "name": "Ada"})),
    ),
)]
pub(super) async fn get_action_result(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ActionsExecute>,
    _: NoQuery,
    ApiPath(id): ApiPath,
) -> Result<Response, ApiError> {
    let id: Uuid = id.parse().map_err(|_| {
        let message = "must be the UUID of a job, which `POST /action/trigger` returns with `X-Async`";
        ApiError::Path { errors: vec![FieldError::new("invalid_format", &["id"], message)] }
    })?;
    let job = app.actions.find_job(&client.environment, id).await.map_err(ApiError::Internal)?;
    match job {
        None => Err(ApiError::UnknownJob(id)),
        Some(ActionJob::Unfinished(state)) => Err(ApiError::ActionNotFinished(state.as_str())),
        Some(ActionJob::Finished(result)) => Ok(result_response(&app, result)),
    }
}

fn result_response(app: &App, result: ActionResult) -> Response {
    match result {
        ActionResult::Output(output) => output_response(output),
        ActionResult::Failure(failure) => {
            let retry_after = failure.retry_after(app.clock.now());
            ApiError::ActionFailed { failure, retry_after }.into_response()
        }
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
