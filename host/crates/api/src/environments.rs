//! `/environments`: all of the installation's. Their scopes are of the account, which no environment's own keys have.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::error::{ApiError, ErrorBody, FieldError};
use super::extract::{ApiJson, ApiPath, EnvironmentAuth, NoQuery};
use syncline_auth::{SettingsChange, rights};
use syncline_types::environment_settings::HttpUrl;
use syncline_types::ids::{EnvironmentName, InvalidName};

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateEnvironmentRequest {
    name: String,
    #[schema(value_type = Option<String>)]
    callback_url: Option<HttpUrl>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CreatedEnvironmentResponse {
    data: CreatedEnvironmentBody,
}

#[derive(Debug, Serialize, ToSchema)]
struct CreatedEnvironmentBody {
    id: Uuid,
    name: String,
}

/// `POST /environments`: makes one. It has no secret key yet.
#[utoipa::path(
    post, path = "/environments", tag = "Environments", request_body = CreateEnvironmentRequest,
    responses((status = 200, body = CreatedEnvironmentResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn create_environment(
    State(app): State<App>,
    _: EnvironmentAuth<rights::EnvironmentsCreate>,
    _: NoQuery,
    ApiJson(request): ApiJson<CreateEnvironmentRequest>,
) -> Result<Json<CreatedEnvironmentResponse>, ApiError> {
    let name: EnvironmentName = request
        .name
        .parse()
        .map_err(|problem: InvalidName| ApiError::body("invalid_format", &["name"], problem.to_string()))?;
    let environments = &app.environments;
    let environment = environments.create(&name).await?;
    if request.callback_url.is_some() {
        let change = SettingsChange { callback_url: Some(request.callback_url), ..SettingsChange::default() };
        environments.change_settings(environment.pk, &change).await?;
    }
    let data = CreatedEnvironmentBody { id: environment.id, name: environment.name.to_string() };
    Ok(Json(CreatedEnvironmentResponse { data }))
}

/// `DELETE /environments/{id}`: deletes one with all that is in it.
#[utoipa::path(
    delete, path = "/environments/{id}", tag = "Environments", params(("id" = Uuid, Path)),
    responses((status = 204), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn delete_environment(
    State(app): State<App>,
    _: EnvironmentAuth<rights::EnvironmentsDelete>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<StatusCode, ApiError> {
    let id: Uuid = id.parse().map_err(|_| ApiError::Path {
        errors: vec![FieldError::new("invalid_format", &["id"], "must be the UUID of an environment")],
    })?;
    app.connections.delete_environment(id).await?;
    Ok(StatusCode::NO_CONTENT)
}
