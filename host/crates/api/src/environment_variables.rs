//! `/environment-variables`: settings that functions read.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::error::{ApiError, FieldError};
use super::extract::{ApiJson, ApiPath, EnvironmentAuth, MAX_MEDIUM_BODY_BYTES, NoQuery};
use syncline_auth::rights;
use syncline_engine::{InvalidVariableValue, VariableValue};
use syncline_types::ids::{InvalidName, VariableName};

/// An environment variable.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct VariableBody {
    /// Name of the variable.
    name: String,
    /// Value of the variable.
    value: String,
}

/// The value of a variable.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PutVariableRequest {
    /// The value, at most 64 KB.
    value: String,
}

/// List environment variables
///
/// Returns all variables of the environment with their values, sorted by name. Functions can read them. Needs the
/// scope `environment:variables:read`.
#[utoipa::path(
    get, path = "/environment-variables", tag = "Environment variables",
    responses(
        (
            status = 200, description = "The variables",
            body = Vec<VariableBody>,
            example = json!([{"name": "REGION", "value": "eu"}]),
        ),
    ),
)]
pub(super) async fn list_variables(
    State(app): State<App>,
    client: EnvironmentAuth<rights::VariablesRead>,
    _: NoQuery,
) -> Result<Json<Vec<VariableBody>>, ApiError> {
    let variables =
        app.variables.reveal(&client.environment, &client.actor()).await.map_err(ApiError::internal)?;
    Ok(Json(variables.into_iter().map(|(name, value)| VariableBody { name, value }).collect()))
}

/// Set an environment variable
///
/// Creates a variable or replaces its value. A value can have 64 KB. Needs the scope `environment:variables:write`.
#[utoipa::path(
    put, path = "/environment-variables/{name}", tag = "Environment variables",

    request_body(content = PutVariableRequest,
        example = json!({"value": "eu"})),
    params(
        ("name" = String, Path, description = "Name of the variable."),
    ),
    responses(
        (status = 204, description = "The variable was set"),
    ),
)]
pub(super) async fn put_variable(
    State(app): State<App>,
    client: EnvironmentAuth<rights::VariablesWrite>,
    ApiPath(name): ApiPath,
    _: NoQuery,
    ApiJson(request): ApiJson<PutVariableRequest, MAX_MEDIUM_BODY_BYTES>,
) -> Result<StatusCode, ApiError> {
    let name = parse_name(&name)?;
    let value = VariableValue::new(request.value).map_err(|problem| {
        let code = match problem {
            InvalidVariableValue::TooLong => "too_big",
            InvalidVariableValue::Nul => "invalid_format",
        };
        ApiError::body(code, &["value"], problem.to_string())
    })?;
    app.variables
        .set(&client.environment, &name, &value, &client.actor())
        .await
        .map_err(ApiError::internal)?;
    Ok(StatusCode::NO_CONTENT)
}

/// Delete an environment variable
///
/// Deletes a variable. Also succeeds if the variable does not exist. Needs the scope `environment:variables:write`.
#[utoipa::path(
    delete, path = "/environment-variables/{name}", tag = "Environment variables",
    params(
        ("name" = String, Path, description = "Name of the variable."),
    ),
    responses(
        (status = 204, description = "The variable no longer exists"),
    ),
)]
pub(super) async fn delete_variable(
    State(app): State<App>,
    client: EnvironmentAuth<rights::VariablesWrite>,
    ApiPath(name): ApiPath,
    _: NoQuery,
) -> Result<StatusCode, ApiError> {
    let name = parse_name(&name)?;
    app.variables.delete(&client.environment, &name, &client.actor()).await.map_err(ApiError::internal)?;
    Ok(StatusCode::NO_CONTENT)
}

fn parse_name(name: &str) -> Result<VariableName, ApiError> {
    name.parse().map_err(|problem: InvalidName| ApiError::Path {
        errors: vec![FieldError::new("invalid_format", &["name"], problem.to_string())],
    })
}
