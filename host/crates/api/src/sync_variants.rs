//! `/sync/{name}/variant/{variant}`: further instances of a sync for one connection.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::error::{ApiError, ErrorBody, FieldError};
use super::extract::{ApiJson, ApiPath, EnvironmentAuth, NoQuery};
use syncline_auth::rights;
use syncline_types::ids::{FunctionName, InvalidName, Variant};

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
    ApiPath((name, variant)): ApiPath<(String, String)>,
    _: NoQuery,
    ApiJson(request): ApiJson<VariantRequest>,
) -> Result<Json<VariantResponse>, ApiError> {
    let (name, variant) = parse_path(&name, &variant)?;
    let (integration, connection) = (&request.provider_config_key, &request.connection_id);
    let (connection, sync) = app.find_sync_name(&client, integration, connection, name.as_str()).await?;
    let id = app.syncs.create_variant(&connection, &sync, &variant).await?;
    Ok(Json(VariantResponse { id, name: sync.to_string(), variant: variant.to_string() }))
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
    ApiPath((name, variant)): ApiPath<(String, String)>,
    _: NoQuery,
    ApiJson(request): ApiJson<VariantRequest>,
) -> Result<StatusCode, ApiError> {
    let (name, variant) = parse_path(&name, &variant)?;
    let (integration, connection) = (&request.provider_config_key, &request.connection_id);
    // Also of a sync that is not deployed any more.
    let (connection, name) = app.find_sync_name(&client, integration, connection, name.as_str()).await?;
    app.syncs.delete_variant(&connection, &name, &variant).await?;
    Ok(StatusCode::OK)
}

fn parse_path(name: &str, variant: &str) -> Result<(FunctionName, Variant), ApiError> {
    let invalid = |part: &'static str| {
        move |problem: InvalidName| ApiError::Path {
            errors: vec![FieldError::new("invalid_format", &[part], problem.to_string())],
        }
    };
    if variant.eq_ignore_ascii_case(Variant::BASE) {
        return Err(ApiError::BaseVariant);
    }
    Ok((name.parse().map_err(invalid("name"))?, variant.parse().map_err(invalid("variant"))?))
}
