//! `/environment-variables`: settings that functions read.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiPath, EnvironmentAuth, NoQuery};
use crate::auth::Scope;

const MAX_VALUE_BYTES: usize = 64 << 10;

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct VariableBody {
    name: String,
    value: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PutVariableRequest {
    value: String,
}

/// `GET /environment-variables`: every variable of the environment, by name.
#[utoipa::path(
    get, path = "/environment-variables", tag = "Environment variables",
    responses((status = 200, body = Vec<VariableBody>), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn list_variables(
    State(app): State<App>,
    client: EnvironmentAuth,
    _: NoQuery,
) -> Result<Json<Vec<VariableBody>>, ApiError> {
    client.require(Scope::VariablesRead)?;
    let variables = app.engine.variables.list(&client.environment).await.map_err(ApiError::internal)?;
    Ok(Json(variables.into_iter().map(|(name, value)| VariableBody { name, value }).collect()))
}

/// `PUT /environment-variables/{name}`: sets one.
#[utoipa::path(
    put, path = "/environment-variables/{name}", tag = "Environment variables",
    request_body = PutVariableRequest, params(("name" = String, Path)),
    responses((status = 204), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn put_variable(
    State(app): State<App>,
    client: EnvironmentAuth,
    ApiPath(name): ApiPath,
    _: NoQuery,
    ApiJson(request): ApiJson<PutVariableRequest>,
) -> Result<StatusCode, ApiError> {
    client.require(Scope::VariablesWrite)?;
    check_name(&name)?;
    if request.value.len() > MAX_VALUE_BYTES {
        return Err(ApiError::body(
            "too_big",
            &["value"],
            format!("must be at most {MAX_VALUE_BYTES} bytes long"),
        ));
    }
    if request.value.contains('\0') {
        return Err(ApiError::body("invalid_format", &["value"], "must not hold a NUL character"));
    }
    app.engine.variables.set(&client.environment, &name, &request.value).await.map_err(ApiError::internal)?;
    Ok(StatusCode::NO_CONTENT)
}

/// `DELETE /environment-variables/{name}`: removes one; there need not be any.
#[utoipa::path(
    delete, path = "/environment-variables/{name}", tag = "Environment variables", params(("name" = String, Path)),
    responses((status = 204), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn delete_variable(
    State(app): State<App>,
    client: EnvironmentAuth,
    ApiPath(name): ApiPath,
    _: NoQuery,
) -> Result<StatusCode, ApiError> {
    client.require(Scope::VariablesWrite)?;
    check_name(&name)?;
    app.engine.variables.delete(&client.environment, &name).await.map_err(ApiError::internal)?;
    Ok(StatusCode::NO_CONTENT)
}

/// A guest sees variables as its process environment, so their names are as portable as there.
fn check_name(name: &str) -> Result<(), ApiError> {
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if starts_well && name.len() <= 255 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Ok(());
    }
    let message =
        "must be letters, digits and `_`, not begin with a digit, and be at most 255 long".to_owned();
    Err(ApiError::Path { errors: vec![super::error::FieldError::new("invalid_format", &["name"], message)] })
}
