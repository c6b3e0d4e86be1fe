//! `/sync/{name}/variant/{variant}`: further instances of a sync for one connection.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::error::{ApiError, FieldError};
use super::extract::{ApiJson, ApiPath, EnvironmentAuth, NoQuery};
use syncline_auth::rights;
use syncline_types::ids::{FunctionName, InvalidName, Variant};

/// The connection of a variant.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct VariantRequest {
    /// The unique key of the integration.
    provider_config_key: String,
    /// The connection id.
    connection_id: String,
}

/// A variant of a sync.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct VariantResponse {
    /// Id of the schedule.
    id: Uuid,
    /// Name of the sync.
    name: String,
    /// Name of the variant.
    variant: String,
}

/// Create a sync variant
///
/// Creates a further instance of a sync for one connection, with its own schedule, checkpoint and records. Read its
/// records with the parameter `variant`.
///
/// A sync can have at most 100 variants per connection. Fails with 409 `sync_variant_already_exists` if the variant
/// exists. Needs the scope `environment:syncs:variant:create`.
#[utoipa::path(
    post, path = "/sync/{name}/variant/{variant}", tag = "Sync variants",
    request_body(content = VariantRequest,
        example = json!({"provider_config_key": "shop", "connection_id": "user-1"})),
    params(
        ("name" = String, Path, description = "Name of the sync."),
        ("variant" = String, Path, description = "Name of the variant. `base` is reserved for the default variant."),
    ),
    responses(
        (
            status = 200, description = "The variant was created",
            body = VariantResponse,
            example = json!({
                "id": "01978a3e-3333-7c21-9d4e-2b6a1f0c8e11",
                "name": "buyers",
                "variant": "europe"
            }),
        ),
    ),
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
    let id = app.syncs.create_variant(&connection, &sync, &variant, &client.actor()).await?;
    Ok(Json(VariantResponse { id, name: sync.to_string(), variant: variant.to_string() }))
}

/// Delete a sync variant
///
/// Deletes a variant of a sync with its schedule, checkpoint and all of its records. This also works for a sync that
/// is no longer deployed. Needs the scope `environment:syncs:variant:delete`.
#[utoipa::path(
    delete, path = "/sync/{name}/variant/{variant}", tag = "Sync variants",
    request_body(content = VariantRequest,
        example = json!({"provider_config_key": "shop", "connection_id": "user-1"})),
    params(
        ("name" = String, Path, description = "Name of the sync."),
        ("variant" = String, Path, description = "Name of the variant. `base` is reserved for the default variant."),
    ),
    responses(
        (status = 200, description = "The variant was deleted. The response has no body."),
    ),
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
    // Not checked against the deployed syncs: variants of a removed sync can be deleted, too.
    let (connection, name) = app.find_sync_name(&client, integration, connection, name.as_str()).await?;
    app.syncs.delete_variant(&connection, &name, &variant, &client.actor()).await?;
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
