//! `/environment`: what the key's environment sets for all that happens in it, its signing keys and secret keys.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, EnvironmentAuth, NoQuery};
use super::time::iso;
use syncline_auth::{
    Client, EnvironmentSettings, FormerKeys, Scope, ScopePreset, Scopes, SettingsChange, SigningKey,
    check_key_name, rights,
};

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EnvironmentResponse {
    data: EnvironmentBody,
}

#[derive(Debug, Serialize, ToSchema)]
struct EnvironmentBody {
    id: Uuid,
    name: String,
    created_at: String,
    #[serde(flatten)]
    settings: EnvironmentSettings,
    /// Those that sign webhooks now, the newest first.
    webhook_signing_keys: Vec<SigningKeyBody>,
}

#[derive(Debug, Serialize, ToSchema)]
struct SigningKeyBody {
    id: Uuid,
    created_at: String,
    /// Until when it signs; null until it is rotated.
    expires_at: Option<String>,
    /// `whsec_` and base64. For keys with the scope `environment:webhook_signing_key:read`.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// `GET /environment`: name, settings and signing keys.
#[utoipa::path(
    get, path = "/environment", tag = "Environment",
    responses((status = 200, body = EnvironmentResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn get_environment(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SettingsRead>,
    _: NoQuery,
) -> Result<Json<EnvironmentResponse>, ApiError> {
    app.environment_response(&client).await
}

/// `PATCH /environment`: changes some settings. What is left out stays, null takes away.
#[utoipa::path(
    patch, path = "/environment", tag = "Environment", request_body = SettingsChange,
    responses((status = 200, body = EnvironmentResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn patch_environment(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SettingsUpdate>,
    _: NoQuery,
    ApiJson(change): ApiJson<SettingsChange>,
) -> Result<Json<EnvironmentResponse>, ApiError> {
    app.environments.change_settings(client.environment.pk, &change).await?;
    app.environment_response(&client).await
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RotatedResponse {
    data: RotatedBody,
}

#[derive(Debug, Serialize, ToSchema)]
struct RotatedBody {
    /// `whsec_` and base64.
    webhook_signing_key: String,
}

/// `POST /environment/webhook-signing-key/rotate`: makes a new key. The one before signs for 24 hours more.
#[utoipa::path(
    post, path = "/environment/webhook-signing-key/rotate", tag = "Environment",
    responses((status = 200, body = RotatedResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn rotate_signing_key(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhookSigningKeyRotate>,
    _: NoQuery,
) -> Result<Json<RotatedResponse>, ApiError> {
    let environments = &app.environments;
    let key = environments.rotate_signing_key(client.environment.pk, FormerKeys::Overlap).await?;
    Ok(Json(RotatedResponse { data: RotatedBody { webhook_signing_key: key.expose_text().to_owned() } }))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateKeyRequest {
    environment_id: Uuid,
    display_name: String,
    /// By default `environment:*`.
    scopes: Option<Vec<String>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CreatedKeyResponse {
    data: CreatedKeyBody,
}

#[derive(Debug, Serialize, ToSchema)]
struct CreatedKeyBody {
    id: Uuid,
    display_name: String,
    scopes: Vec<String>,
    /// The key itself, shown this once.
    secret: String,
    created_at: String,
}

/// `POST /environment/api-keys`: makes a secret key of any environment.
#[utoipa::path(
    post, path = "/environment/api-keys", tag = "Environments", request_body = CreateKeyRequest,
    responses((status = 200, body = CreatedKeyResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn create_key(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ApiKeysCreate>,
    _: NoQuery,
    ApiJson(request): ApiJson<CreateKeyRequest>,
) -> Result<Json<CreatedKeyResponse>, ApiError> {
    let CreateKeyRequest { environment_id, display_name, scopes } = request;
    check_key_name(&display_name)
        .map_err(|problem| ApiError::body("invalid_format", &["display_name"], problem))?;
    let scopes = Scopes::parse(&scopes.unwrap_or_else(|| ScopePreset::Full.scopes()))
        .map_err(|unknown| ApiError::body("invalid_value", &["scopes"], unknown.to_string()))?;
    // Rights over other environments are passed on by those alone who have them.
    let is_account = |name: &&String| name.starts_with("account:");
    if let Some(name) = scopes.names().iter().filter(is_account).find(|name| !client.scopes().cover(name)) {
        let message = format!("has `{name}`, which the key of this request does not have itself");
        return Err(ApiError::body("invalid_value", &["scopes"], message));
    }
    let environment = app.environments.get_by_id(environment_id).await?;
    let created = app.api_keys.create(environment.pk, &display_name, &scopes).await?;
    Ok(Json(CreatedKeyResponse {
        data: CreatedKeyBody {
            id: created.id,
            display_name,
            scopes: scopes.names().to_vec(),
            secret: created.key.expose().to_owned(),
            created_at: iso(created.created_at),
        },
    }))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteKeyRequest {
    environment_id: Uuid,
    key_id: Uuid,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SuccessResponse {
    success: bool,
}

/// `DELETE /environment/api-keys`: revokes a secret key of any environment, on every host at once.
#[utoipa::path(
    delete, path = "/environment/api-keys", tag = "Environments", request_body = DeleteKeyRequest,
    responses((status = 200, body = SuccessResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn delete_key(
    State(app): State<App>,
    _: EnvironmentAuth<rights::ApiKeysDelete>,
    _: NoQuery,
    ApiJson(request): ApiJson<DeleteKeyRequest>,
) -> Result<Json<SuccessResponse>, ApiError> {
    let environment = app.environments.get_by_id(request.environment_id).await?;
    app.api_keys.revoke(environment.pk, request.key_id).await?;
    Ok(Json(SuccessResponse { success: true }))
}

impl App {
    async fn environment_response(&self, client: &Client) -> Result<Json<EnvironmentResponse>, ApiError> {
        let environment = &client.environment;
        let settings = self.environments.settings(environment.pk).await?;
        let signing_keys = self.environments.signing_keys(environment.pk).await?;
        let with_keys = client.allows(Scope::WebhookSigningKeyRead);
        let data = EnvironmentBody {
            id: environment.id,
            name: environment.name.to_string(),
            created_at: iso(environment.created_at),
            settings: (*settings).clone(),
            webhook_signing_keys: signing_keys.iter().map(|key| signing_key_body(key, with_keys)).collect(),
        };
        Ok(Json(EnvironmentResponse { data }))
    }
}

fn signing_key_body(key: &SigningKey, with_key: bool) -> SigningKeyBody {
    SigningKeyBody {
        id: key.id,
        created_at: iso(key.created_at),
        expires_at: key.expires_at.map(iso),
        key: with_key.then(|| key.expose_text().to_owned()),
    }
}
