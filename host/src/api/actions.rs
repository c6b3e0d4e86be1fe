//! `/action/…`: runs a function for one connection, now.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ConnectionHeaders, EnvironmentAuth, NoQuery, flag_header};
use crate::auth::Scope;
use crate::ids::InvalidName;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TriggerActionRequest {
    /// The action's name in the sync configuration file.
    action_name: String,
    /// What the action's input model asks for.
    #[schema(value_type = Option<Object>)]
    input: Option<Box<RawValue>>,
}

/// `POST /action/trigger`: runs an action and gives what it returns.
#[utoipa::path(
    post, path = "/action/trigger", tag = "Actions", request_body = TriggerActionRequest,
    params(
        ("Connection-Id" = String, Header, description = "The connection"),
        ("Provider-Config-Key" = String, Header, description = "The integration's unique key"),
    ),
    responses(
        (status = 200, description = "The value that the function returns, as JSON; nothing if it returns nothing"),
        (status = 408, description = "The function took longer than it may", body = ErrorBody),
        (status = 424, description = "The provider answered with an error", body = ErrorBody),
        (status = "4XX", body = ErrorBody),
    ),
)]
pub(super) async fn trigger_action(
    State(app): State<App>,
    client: EnvironmentAuth,
    _: NoQuery,
    target: ConnectionHeaders,
    headers: HeaderMap,
    ApiJson(request): ApiJson<TriggerActionRequest>,
) -> Result<Response, ApiError> {
    client.require(Scope::ActionsExecute)?;
    if flag_header(&headers, "x-async")? {
        return Err(ApiError::NotOffered(
            "asynchronous actions are not offered; leave out the header X-Async",
        ));
    }
    let name = request.action_name.parse().map_err(|problem: InvalidName| {
        ApiError::body("invalid_format", &["action_name"], problem.to_string())
    })?;
    let connection = app.find_connection(&client, &target).await?;
    let input = request.input.map(|json| Box::<str>::from(json).into_string());
    let output = app.engine.run_action(&client.environment, &connection, &name, input).await?;
    Ok(match output {
        None => StatusCode::OK.into_response(),
        Some(json) => {
            const JSON: HeaderValue = HeaderValue::from_static("application/json");
            ([(header::CONTENT_TYPE, JSON)], Body::from(json)).into_response()
        }
    })
}
