//! `/environment`: settings, signing keys and secret keys of an environment.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::error::ApiError;
use super::extract::{ApiJson, EnvironmentAuth, NoQuery};
use super::time::iso;
use syncline_auth::{
    Client, EnvironmentSettings, FormerKeys, Scope, ScopePreset, Scopes, SettingsChange, SigningKey,
    check_key_name, rights,
};
use syncline_types::actor::Actor;

/// An environment.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EnvironmentResponse {
    /// The environment.
    data: EnvironmentBody,
}

/// An environment and its settings.
#[derive(Debug, Serialize, ToSchema)]
struct EnvironmentBody {
    /// Id of the environment.
    id: Uuid,
    /// Name of the environment, such as `dev`.
    name: String,
    /// When the environment was created.
    created_at: String,
    #[serde(flatten)]
    settings: EnvironmentSettings,
    /// The keys that sign webhooks now, newest first.
    webhook_signing_keys: Vec<SigningKeyBody>,
}

/// A key that signs outbound webhooks.
#[derive(Debug, Serialize, ToSchema)]
struct SigningKeyBody {
    /// Id of the key.
    id: Uuid,
    /// When the key was created.
    created_at: String,
    /// When the key stops signing, or `null` if it has not been rotated.
    expires_at: Option<String>,
    /// The key: `whsec_` and Base64. Only with the scope `environment:webhook_signing_key:read`.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// Get the environment
///
/// Returns the name, the settings and the webhook signing keys of the environment of the secret key. The signing keys
/// themselves are included if the key has the scope `environment:webhook_signing_key:read`. Needs the scope
/// `environment:settings:read`.
#[utoipa::path(
    get, path = "/environment", tag = "Environment",
    responses(
        (
            status = 200, description = "The environment",
            body = EnvironmentResponse,
            example = json!({
                "data": {
                    "id": "01978a3e-0001-7c21-9d4e-2b6a1f0c8e11",
                    "name": "dev",
                    "created_at": "2026-03-01T09:00:00.000Z",
                    "webhook_url": "https://app.example.com/webhooks/syncline",
                    "webhook_url_secondary": null,
                    "callback_url": null,
                    "on_auth_creation": true,
                    "on_auth_refresh_error": true,
                    "on_sync_completion_always": false,
                    "on_sync_error": true,
                    "on_async_action_completion": true,
                    "connect_ui_title": "Connect your shop",
                    "connect_ui_primary_color": "#2f5bea",
                    "webhook_signing_keys": [
                        {
                            "id": "01978a3e-0002-7c21-9d4e-2b6a1f0c8e11",
                            "created_at": "2026-03-01T09:00:00.000Z",
                            "expires_at": null
                        }
                    ]
                }
            }),
        ),
    ),
)]
pub(super) async fn get_environment(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SettingsRead>,
    _: NoQuery,
) -> Result<Json<EnvironmentResponse>, ApiError> {
    app.environment_response(&client, &client.actor()).await
}

/// Update the environment
///
/// Changes settings of the environment. Omitted settings stay unchanged; `null` removes a setting. Needs the scope
/// `environment:settings:update`.
#[utoipa::path(
    patch, path = "/environment", tag = "Environment",
    request_body(content = SettingsChange,
        example = json!({
            "webhook_url": "https://app.example.com/webhooks/syncline",
            "connect_ui_title": "Connect your shop"
        })),
    responses(
        (
            status = 200, description = "The environment after the change",
            body = EnvironmentResponse,
            example = json!({
                "data": {
                    "id": "01978a3e-0001-7c21-9d4e-2b6a1f0c8e11",
                    "name": "dev",
                    "created_at": "2026-03-01T09:00:00.000Z",
                    "webhook_url": "https://app.example.com/webhooks/syncline",
                    "webhook_url_secondary": null,
                    "callback_url": null,
                    "on_auth_creation": true,
                    "on_auth_refresh_error": true,
                    "on_sync_completion_always": false,
                    "on_sync_error": true,
                    "on_async_action_completion": true,
                    "connect_ui_title": "Connect your shop",
                    "connect_ui_primary_color": "#2f5bea",
                    "webhook_signing_keys": [
                        {
                            "id": "01978a3e-0002-7c21-9d4e-2b6a1f0c8e11",
                            "created_at": "2026-03-01T09:00:00.000Z",
                            "expires_at": null
                        }
                    ]
                }
            }),
        ),
    ),
)]
pub(super) async fn patch_environment(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SettingsUpdate>,
    _: NoQuery,
    ApiJson(change): ApiJson<SettingsChange>,
) -> Result<Json<EnvironmentResponse>, ApiError> {
    let actor = client.actor();
    app.environments.change_settings(client.environment.pk, &change, &actor).await?;
    app.environment_response(&client, &actor).await
}

/// A new signing key.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RotatedResponse {
    /// The key.
    data: RotatedBody,
}

/// A new signing key.
#[derive(Debug, Serialize, ToSchema)]
struct RotatedBody {
    /// The key: `whsec_` and Base64.
    webhook_signing_key: String,
}

/// Rotate the webhook signing key
///
/// Creates a new key that signs outbound webhooks. The previous key signs them too for 24 hours, so that receivers
/// have time to change it. Needs the scope `environment:webhook_signing_key:rotate`.
#[utoipa::path(
    post, path = "/environment/webhook-signing-key/rotate", tag = "Environment",
    responses(
        (
            status = 200, description = "The new key",
            body = RotatedResponse,
            example = json!({
                "data": {"webhook_signing_key": "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="}
            }),
        ),
    ),
)]
pub(super) async fn rotate_signing_key(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhookSigningKeyRotate>,
    _: NoQuery,
) -> Result<Json<RotatedResponse>, ApiError> {
    let (pk, actor) = (client.environment.pk, client.actor());
    let key = app.environments.rotate_signing_key(pk, FormerKeys::Overlap, &actor).await?;
    Ok(Json(RotatedResponse { data: RotatedBody { webhook_signing_key: key.expose_text().to_owned() } }))
}

/// A secret key to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateKeyRequest {
    /// Id of the environment.
    environment_id: Uuid,
    /// Name of the key, unique in the environment.
    display_name: String,
    /// Scopes of the key. Default: `environment:*`.
    scopes: Option<Vec<String>>,
}

/// A new secret key.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CreatedKeyResponse {
    /// The key.
    data: CreatedKeyBody,
}

/// A new secret key.
#[derive(Debug, Serialize, ToSchema)]
struct CreatedKeyBody {
    /// Id of the key.
    id: Uuid,
    /// Name of the key.
    display_name: String,
    /// Scopes of the key.
    scopes: Vec<String>,
    /// The secret key, which is returned only once.
    secret: String,
    /// When the key was created.
    created_at: String,
}

/// Create a secret key
///
/// Creates a secret key for any environment. The response contains the key; it is not shown again. A key cannot be
/// created with `account:` scopes that the key of this request lacks.
///
/// Fails with 409 `duplicate_api_key` if the environment has a key with this name. Needs the scope
/// `account:environments:api_keys:create`.
#[utoipa::path(
    post, path = "/environment/api-keys", tag = "Environments",
    request_body(content = CreateKeyRequest,
        example = json!({
            "environment_id": "01978a3e-0001-7c21-9d4e-2b6a1f0c8e11",
            "display_name": "backend",
            "scopes": ["environment:records:read"]
        })),
    responses(
        (
            status = 200, description = "The key was created",
            body = CreatedKeyResponse,
            example = json!({
                "data": {
                    "id": "01978a3e-0003-7c21-9d4e-2b6a1f0c8e11",
                    "display_name": "backend",
                    "scopes": ["environment:records:read"],
                    "secret": "sk_syncline_0123456789abcdef",
                    "created_at": "2026-03-01T09:00:00.000Z"
                }
            }),
        ),
    ),
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
    // Scopes over other environments can only be passed on by keys that have them.
    let is_account = |name: &&String| name.starts_with("account:");
    if let Some(name) = scopes.names().iter().filter(is_account).find(|name| !client.scopes().cover(name)) {
        let message = format!("must not contain `{name}`: the key of this request does not have this scope");
        return Err(ApiError::body("invalid_value", &["scopes"], message));
    }
    let environment = app.environments.get_by_id(environment_id).await?;
    let created = app.api_keys.create(environment.pk, &display_name, &scopes, &client.actor()).await?;
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

/// A secret key to revoke.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DeleteKeyRequest {
    /// Id of the environment.
    environment_id: Uuid,
    /// Id of the key.
    key_id: Uuid,
}

/// The result of a change.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SuccessResponse {
    /// Always `true`.
    success: bool,
}

/// Revoke a secret key
///
/// Revokes a secret key of any environment. Every host rejects the key from then on. Needs the scope
/// `account:environments:api_keys:delete`.
#[utoipa::path(
    delete, path = "/environment/api-keys", tag = "Environments",
    request_body(content = DeleteKeyRequest,
        example = json!({
            "environment_id": "01978a3e-0001-7c21-9d4e-2b6a1f0c8e11",
            "key_id": "01978a3e-0003-7c21-9d4e-2b6a1f0c8e11"
        })),
    responses(
        (
            status = 200, description = "The key was revoked",
            body = SuccessResponse,
            example = json!({"success": true}),
        ),
    ),
)]
pub(super) async fn delete_key(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ApiKeysDelete>,
    _: NoQuery,
    ApiJson(request): ApiJson<DeleteKeyRequest>,
) -> Result<Json<SuccessResponse>, ApiError> {
    let environment = app.environments.get_by_id(request.environment_id).await?;
    app.api_keys.revoke(environment.pk, request.key_id, &client.actor()).await?;
    Ok(Json(SuccessResponse { success: true }))
}

impl App {
    async fn environment_response(
        &self,
        client: &Client,
        actor: &Actor,
    ) -> Result<Json<EnvironmentResponse>, ApiError> {
        let environment = &client.environment;
        let settings = self.environments.settings(environment.pk).await?;
        let with_keys = client.allows(Scope::WebhookSigningKeyRead);
        let signing_keys = if with_keys {
            self.environments.reveal_signing_keys(environment.pk, actor).await?
        } else {
            self.environments.signing_keys(environment.pk).await?
        };
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
