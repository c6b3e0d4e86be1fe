//! `/environments`: creates and deletes environments of the installation. Needs scopes of the account, which ordinary
//! secret keys do not have.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::error::{ApiError, FieldError};
use super::extract::{ApiJson, ApiPath, EnvironmentAuth, NoQuery};
use syncline_auth::{SettingsChange, rights};
use syncline_types::environment_settings::HttpUrl;
use syncline_types::ids::{EnvironmentName, InvalidName};

/// An environment to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateEnvironmentRequest {
    /// Name of the environment, such as `staging`.
    name: String,
    /// URL to which providers redirect users, if it is not an address of this host. At most 2,048 bytes.
    #[schema(value_type = Option<String>)]
    callback_url: Option<HttpUrl>,
}

/// A new environment.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CreatedEnvironmentResponse {
    /// The environment.
    data: CreatedEnvironmentBody,
}

/// A new environment.
#[derive(Debug, Serialize, ToSchema)]
struct CreatedEnvironmentBody {
    /// Id of the environment.
    id: Uuid,
    /// Name of the environment.
    name: String,
}

/// Create an environment
///
/// Creates an environment. It has no secret key yet: create one with `POST /environment/api-keys`. Fails with 409
/// `duplicate_environment` if the name is in use. Needs the scope `account:environments:create`.
#[utoipa::path(
    post, path = "/environments", tag = "Environments",
    request_body(content = CreateEnvironmentRequest,
        example = json!({"name": "staging"})),
    responses(
        (
            status = 200, description = "The environment was created",
            body = CreatedEnvironmentResponse,
            example = json!({"data": {"id": "01978a3e-0001-7c21-9d4e-2b6a1f0c8e11", "name": "staging"}}),
        ),
    ),
)]
pub(super) async fn create_environment(
    State(app): State<App>,
    client: EnvironmentAuth<rights::EnvironmentsCreate>,
    _: NoQuery,
    ApiJson(request): ApiJson<CreateEnvironmentRequest>,
) -> Result<Json<CreatedEnvironmentResponse>, ApiError> {
    let name: EnvironmentName = request
        .name
        .parse()
        .map_err(|problem: InvalidName| ApiError::body("invalid_format", &["name"], problem.to_string()))?;
    let environments = &app.environments;
    let actor = client.actor();
    let environment = environments.create(&name, &actor).await?;
    if request.callback_url.is_some() {
        let change = SettingsChange { callback_url: Some(request.callback_url), ..SettingsChange::default() };
        environments.change_settings(environment.pk, &change, &actor).await?;
    }
    let data = CreatedEnvironmentBody { id: environment.id, name: environment.name.to_string() };
    Ok(Json(CreatedEnvironmentResponse { data }))
}

/// Delete an environment
///
/// Deletes an environment permanently, with its integrations, connections, records and keys. The default environment
/// cannot be deleted. Needs the scope `account:environments:delete`.
#[utoipa::path(
    delete, path = "/environments/{id}", tag = "Environments",
    params(
        ("id" = Uuid, Path, description = "Id of the environment."),
    ),
    responses(
        (status = 204, description = "The environment was deleted"),
    ),
)]
pub(super) async fn delete_environment(
    State(app): State<App>,
    client: EnvironmentAuth<rights::EnvironmentsDelete>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<StatusCode, ApiError> {
    let id: Uuid = id.parse().map_err(|_| ApiError::Path {
        errors: vec![FieldError::new("invalid_format", &["id"], "must be the UUID of an environment")],
    })?;
    app.connections.delete_environment(id, &client.actor()).await?;
    Ok(StatusCode::NO_CONTENT)
}
