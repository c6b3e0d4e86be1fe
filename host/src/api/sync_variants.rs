//! `/sync/{name}/variant/{variant}`: further instances of a sync for one connection.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::error::{ApiError, ErrorBody, FieldError};
use super::extract::{ApiJson, EnvironmentAuth, NoQuery};
use crate::auth::rights;
use crate::engine::VariantError;
use crate::ids::Variant;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct VariantRequest {
    provider_config_key: String,
    connection_id: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct VariantResponse {
    id: Uuid,
    name: String,
    variant: String,
}

/// `POST /sync/{name}/variant/{variant}`: makes a variant, with its own schedule, records and checkpoint.
#[utoipa::path(
    post, path = "/sync/{name}/variant/{variant}", tag = "Sync variants", request_body = VariantRequest,
    params(("name" = String, Path, description = "The sync"), ("variant" = String, Path, description = "Not `base`")),
    responses((status = 200, body = VariantResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn create_variant(
    State(app): State<App>,
    client: EnvironmentAuth<rights::VariantsCreate>,
    Path((name, variant)): Path<(String, String)>,
    _: NoQuery,
    ApiJson(request): ApiJson<VariantRequest>,
) -> Result<Json<VariantResponse>, ApiError> {
    let variant = parse_variant(&variant)?;
    let found = app.find_sync(&client, &request.provider_config_key, &request.connection_id, &name).await?;
    let (connection, sync) = (&found.connection, &found.sync.name);
    match app.engine.create_variant(connection, sync, &variant).await {
        Ok(id) => Ok(Json(VariantResponse { id, name: sync.to_string(), variant: variant.to_string() })),
        Err(VariantError::Store(error)) => Err(error.into()),
        Err(VariantError::SyncGone) => {
            let integration = connection.integration_key.clone();
            Err(ApiError::UnknownSync { sync: sync.to_string(), integration })
        }
        Err(error) => Err(ApiError::Variant(error)),
    }
}

/// `DELETE /sync/{name}/variant/{variant}`: removes a variant with all of its records.
#[utoipa::path(
    delete, path = "/sync/{name}/variant/{variant}", tag = "Sync variants", request_body = VariantRequest,
    params(("name" = String, Path, description = "The sync"), ("variant" = String, Path, description = "Not `base`")),
    responses((status = 200, description = "Nothing"), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn delete_variant(
    State(app): State<App>,
    client: EnvironmentAuth<rights::VariantsDelete>,
    Path((name, variant)): Path<(String, String)>,
    _: NoQuery,
    ApiJson(request): ApiJson<VariantRequest>,
) -> Result<StatusCode, ApiError> {
    let variant = parse_variant(&variant)?;
    let (integration, connection) = (&request.provider_config_key, &request.connection_id);
    // Also of a sync that is not deployed any more.
    let (connection, name) = app.find_sync_name(&client, integration, connection, &name).await?;
    if app.engine.delete_variant(&connection, &name, &variant).await? {
        return Ok(StatusCode::OK);
    }
    let sync = app.deployed(&client, connection, name).await?.sync;
    Err(ApiError::UnknownVariant { sync: sync.name.to_string(), variant: variant.to_string() })
}

fn parse_variant(text: &str) -> Result<Variant, ApiError> {
    if text.eq_ignore_ascii_case(Variant::BASE) {
        return Err(ApiError::BaseVariant);
    }
    text.parse().map_err(|problem: crate::ids::InvalidName| ApiError::Path {
        errors: vec![FieldError::new("invalid_format", &["variant"], problem.to_string())],
    })
}
