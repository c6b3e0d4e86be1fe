//! `/integrations`: providers set up in the environment.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::App;
use super::error::{ApiError, FieldError};
use super::extract::{ApiJson, ApiPath, ApiQuery, Caller, EnvironmentAuth, MAX_MEDIUM_BODY_BYTES, NoQuery};
use super::one_or_many::OneOrMany;
use super::time::iso;
use syncline_auth::{Environment, IntegrationSettings, Scope, Texts, rights};
use syncline_engine::{Integration, IntegrationChange, MAX_SETTINGS, NewIntegration};
use syncline_types::actor::Actor;
use syncline_types::ids::{IntegrationKey, InvalidName, ProviderSlug};
use syncline_types::secret::Secret;
use syncline_web::addresses::webhook_url;

const MAX_SETTING_BYTES: usize = 8192;

/// A provider that is set up in the environment.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct IntegrationBody {
    /// The unique key. Called `provider_config_key` in other requests.
    unique_key: String,
    /// Slug of the provider in the catalogue.
    provider: String,
    /// Name that the Connect UI shows. Default: the name of the provider.
    display_name: String,
    /// URL of the logo.
    logo: String,
    /// Whether provider webhooks are forwarded to the webhook URL of the environment.
    forward_webhooks: bool,
    /// When the integration was created.
    created_at: String,
    /// When the integration was last changed.
    updated_at: String,
    /// URL for the webhooks of the provider, or `null` if the catalogue does not describe them. Only with
    /// `include=webhook`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    webhook_url: Option<Option<String>>,
    /// Credentials of the app with masked secrets, or `null` without an app. Only with `include=credentials` and the
    /// scope `environment:integrations:read_credentials`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    credentials: Option<Value>,
    /// Scopes that the app requests, if they differ from those of the catalogue. Only for connect sessions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scopes: Vec<String>,
}

/// One integration.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct IntegrationResponse {
    /// The integration.
    data: IntegrationBody,
}

/// A list of integrations.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct IntegrationsResponse {
    /// The integrations.
    data: Vec<IntegrationBody>,
}

/// An integration to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateIntegrationRequest {
    /// Slug of the provider in the catalogue, such as `stripe-api-key`.
    provider: String,
    /// The key of the integration, unique in the environment.
    unique_key: String,
    /// Name that the Connect UI shows, 1 to 255 characters. Default: the name of the provider.
    display_name: Option<String>,
    /// Whether to forward provider webhooks to the webhook URL of the environment. Default: `true`.
    forward_webhooks: Option<bool>,
    /// Credentials of the app. Required for providers of the auth modes `OAUTH1`, `OAUTH2`, `APP` and `CUSTOM`,
    /// optional for `TBA`. OAuth: `{"type": "OAUTH2", "client_id": …, "client_secret": …, "scopes": "a,b",
    /// "webhook_secret": …}`. App: `{"type": "APP", "app_id": …, "app_link": …, "private_key": …}`. `CUSTOM` has the
    /// members of both.
    #[schema(value_type = Option<Object>)]
    credentials: Option<Map<String, Value>>,
    /// Settings of the integration: at most 100 strings of 8,192 bytes. They are encrypted and never returned.
    #[serde(default)]
    integration_config: BTreeMap<String, String>,
    /// Further settings, with the same limits. They are encrypted and never returned.
    #[serde(default)]
    custom: BTreeMap<String, String>,
}

/// List integrations
///
/// Returns all integrations of the environment, in the order of their creation. With a connect session token, only those
/// that the session allows, in the order of its `allowed_integrations`.
/// Needs the scope `environment:integrations:list`, or a session token.
#[utoipa::path(
    get, path = "/integrations", tag = "Integrations",
    security(("secret_key" = []),
        ("session_token" = [])),
    responses(
        (
            status = 200, description = "The integrations",
            body = IntegrationsResponse,
            example = json!({
                "data": [
                    {
                        "unique_key": "shop",
                        "provider": "stripe-api-key",
                        "display_name": "Shop",
                        "logo": "https://syncline.example.com/images/template-logos/stripe-api-key.svg",
                        "forward_webhooks": true,
                        "created_at": "2026-03-01T09:00:00.000Z",
                        "updated_at": "2026-03-01T09:00:00.000Z"
                    }
                ]
            }),
        ),
    ),
)]
pub(super) async fn list_integrations(
    State(app): State<App>,
    caller: Caller,
    _: NoQuery,
) -> Result<Json<IntegrationsResponse>, ApiError> {
    let mut found = app.integrations.list(caller.environment().pk).await?;
    if let Caller::Session(session) = &caller {
        found.sort_by_key(|integration| session.position(&integration.unique_key));
    }
    let seen = found.into_iter().filter(|integration| caller.sees(&integration.unique_key));
    let listed = seen.map(|integration| {
        let scopes = match &caller {
            Caller::Client(_) => Vec::new(),
            Caller::Session(session) => app.app_scopes(&session.environment, &integration)?,
        };
        Ok(IntegrationBody { scopes, ..app.integration_body(integration) })
    });
    Ok(Json(IntegrationsResponse { data: listed.collect::<Result<_, ApiError>>()? }))
}

/// Create an integration
///
/// Sets up a provider in the environment under a unique key. Providers that need an OAuth app require its
/// `credentials`.
///
/// Fails with 404 `unknown_provider` if the catalogue does not contain the provider, and with 409
/// `duplicate_integration` if the key is in use. Needs the scope `environment:integrations:create`.
#[utoipa::path(
    post, path = "/integrations", tag = "Integrations",
    request_body(content = CreateIntegrationRequest,
        example = json!({"provider": "stripe-api-key", "unique_key": "shop", "display_name": "Shop"})),
    responses(
        (
            status = 200, description = "The integration was created",
            body = IntegrationResponse,
            example = json!({
                "data": {
                    "unique_key": "shop",
                    "provider": "stripe-api-key",
                    "display_name": "Shop",
                    "logo": "https://syncline.example.com/images/template-logos/stripe-api-key.svg",
                    "forward_webhooks": true,
                    "created_at": "2026-03-01T09:00:00.000Z",
                    "updated_at": "2026-03-01T09:00:00.000Z"
                }
            }),
        ),
    ),
)]
pub(super) async fn create_integration(
    State(app): State<App>,
    client: EnvironmentAuth<rights::IntegrationsCreate>,
    _: NoQuery,
    ApiJson(request): ApiJson<CreateIntegrationRequest, MAX_MEDIUM_BODY_BYTES>,
) -> Result<Json<IntegrationResponse>, ApiError> {
    let unique_key = parse_unique_key(&request.unique_key)?;
    let provider: ProviderSlug = request.provider.parse().map_err(|problem: InvalidName| {
        ApiError::body("invalid_format", &["provider"], problem.to_string())
    })?;
    check_display_name(request.display_name.as_deref())?;
    let new = NewIntegration {
        unique_key,
        provider,
        display_name: request.display_name,
        forward_webhooks: request.forward_webhooks.unwrap_or(true),
        credentials: request.credentials,
        settings: IntegrationSettings {
            integration_config: checked_texts("integration_config", request.integration_config)?,
            custom: checked_texts("custom", request.custom)?,
        },
    };
    let created = app.integrations.create(&client.environment, new, &client.actor()).await?;
    Ok(Json(IntegrationResponse { data: app.integration_body(created) }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IntegrationQuery {
    #[serde(default)]
    include: OneOrMany,
}

/// Get an integration
///
/// Returns one integration. `include=webhook` adds the URL for the webhooks of the provider. `include=credentials`
/// adds the credentials of the app with masked secrets and needs the scope
/// `environment:integrations:read_credentials`; without it they are left out. Needs the scope
/// `environment:integrations:read`.
#[utoipa::path(
    get, path = "/integrations/{unique_key}", tag = "Integrations",
    params(
        ("unique_key" = String, Path, description = "The unique key of the integration."),
        ("include" = Option<Vec<String>>, Query, description = "Further members: `webhook` and `credentials`. Repeat the parameter or separate the values with commas; `include[]` also works."),
    ),
    responses(
        (
            status = 200, description = "The integration",
            body = IntegrationResponse,
            example = json!({
                "data": {
                    "unique_key": "shop",
                    "provider": "stripe-api-key",
                    "display_name": "Shop",
                    "logo": "https://syncline.example.com/images/template-logos/stripe-api-key.svg",
                    "forward_webhooks": true,
                    "created_at": "2026-03-01T09:00:00.000Z",
                    "updated_at": "2026-03-01T09:00:00.000Z",
                    "webhook_url": "https://syncline.example.com/webhook/01978a3e-0001-7c21-9d4e-2b6a1f0c8e11/shop"
                }
            }),
        ),
    ),
)]
pub(super) async fn get_integration(
    State(app): State<App>,
    client: EnvironmentAuth<rights::IntegrationsRead>,
    ApiPath(key): ApiPath,
    ApiQuery(query): ApiQuery<IntegrationQuery>,
) -> Result<Json<IntegrationResponse>, ApiError> {
    let (mut with_webhook, mut with_credentials) = (false, false);
    for part in query.include.into_vec().iter().flat_map(|parts| parts.split(',')) {
        match part {
            "webhook" => with_webhook = true,
            "credentials" => with_credentials = true,
            other => {
                let message = format!("must contain only `webhook` and `credentials` (got `{other}`)");
                return Err(ApiError::query("invalid_value", &["include"], message));
            }
        }
    }
    let key = parse_path_key(&key)?;
    let integration = app.integrations.get(client.environment.pk, &key).await?;
    let provider = app.catalogue.find(&integration.provider);
    let takes_webhooks = provider.is_some_and(|provider| provider.webhook.is_some());
    let webhook_url =
        takes_webhooks.then(|| webhook_url(&app.public_url, client.environment.id, &integration.unique_key));
    let webhook_url = with_webhook.then_some(webhook_url);
    let credentials = if with_credentials && client.allows(Scope::IntegrationsReadCredentials) {
        Some(app.shown_credentials(&client.environment, &integration, &client.actor()).await?)
    } else {
        None
    };
    let body = IntegrationBody { webhook_url, credentials, ..app.integration_body(integration) };
    Ok(Json(IntegrationResponse { data: body }))
}

/// Changes of an integration. Omitted members stay unchanged.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdateIntegrationRequest {
    /// New key of the integration. Its connections, syncs and records stay.
    unique_key: Option<String>,
    /// Name that the Connect UI shows, 1 to 255 characters.
    display_name: Option<String>,
    /// Whether to forward provider webhooks to the webhook URL of the environment.
    forward_webhooks: Option<bool>,
    /// Credentials of the app. Members that are omitted stay unchanged; `scopes` and `webhook_secret` are removed with
    /// `""` and `null`.
    #[schema(value_type = Option<Object>)]
    credentials: Option<Map<String, Value>>,
    /// Settings to add or replace, by name. At most 100 in total.
    #[serde(default)]
    integration_config: BTreeMap<String, String>,
    /// Further settings to add or replace, by name. At most 100 in total.
    #[serde(default)]
    custom: BTreeMap<String, String>,
}

/// Update an integration
///
/// Changes the given members; members that are omitted stay unchanged. A new `unique_key` renames the integration; its
/// connections, syncs and records stay. Needs the scope `environment:integrations:update`.
#[utoipa::path(
    patch, path = "/integrations/{unique_key}", tag = "Integrations",
    request_body(content = UpdateIntegrationRequest,
        example = json!({"display_name": "Web shop"})),
    params(
        ("unique_key" = String, Path, description = "The unique key of the integration."),
    ),
    responses(
        (
            status = 200, description = "The integration after the change",
            body = IntegrationResponse,
            example = json!({
                "data": {
                    "unique_key": "shop",
                    "provider": "stripe-api-key",
                    "display_name": "Web shop",
                    "logo": "https://syncline.example.com/images/template-logos/stripe-api-key.svg",
                    "forward_webhooks": true,
                    "created_at": "2026-03-01T09:00:00.000Z",
                    "updated_at": "2026-03-01T09:00:00.000Z"
                }
            }),
        ),
    ),
)]
pub(super) async fn update_integration(
    State(app): State<App>,
    client: EnvironmentAuth<rights::IntegrationsUpdate>,
    ApiPath(key): ApiPath,
    _: NoQuery,
    ApiJson(request): ApiJson<UpdateIntegrationRequest, MAX_MEDIUM_BODY_BYTES>,
) -> Result<Json<IntegrationResponse>, ApiError> {
    let key = parse_path_key(&key)?;
    let unique_key = request.unique_key.as_deref().map(parse_unique_key).transpose()?;
    check_display_name(request.display_name.as_deref())?;
    let change = IntegrationChange {
        unique_key,
        display_name: request.display_name,
        forward_webhooks: request.forward_webhooks,
        credentials: request.credentials,
        settings: IntegrationSettings {
            integration_config: checked_texts("integration_config", request.integration_config)?,
            custom: checked_texts("custom", request.custom)?,
        },
    };
    let updated = app.integrations.update(&client.environment, &key, change, &client.actor()).await?;
    Ok(Json(IntegrationResponse { data: app.integration_body(updated) }))
}

/// The result of a deletion.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeletedResponse {
    /// Always `true`.
    success: bool,
}

impl DeletedResponse {
    pub(super) const DONE: Self = Self { success: true };
}

/// Delete an integration
///
/// Deletes an integration permanently, together with its connections, their credentials and their records. Needs the
/// scope `environment:integrations:delete`.
#[utoipa::path(
    delete, path = "/integrations/{unique_key}", tag = "Integrations",
    params(
        ("unique_key" = String, Path, description = "The unique key of the integration."),
    ),
    responses(
        (
            status = 200, description = "The integration was deleted",
            body = DeletedResponse,
            example = json!({"success": true}),
        ),
    ),
)]
pub(super) async fn delete_integration(
    State(app): State<App>,
    client: EnvironmentAuth<rights::IntegrationsDelete>,
    ApiPath(key): ApiPath,
    _: NoQuery,
) -> Result<Json<DeletedResponse>, ApiError> {
    let key = parse_path_key(&key)?;
    app.integrations.delete(client.environment.pk, &key, &client.actor()).await?;
    Ok(Json(DeletedResponse::DONE))
}

/// Create a quick-start integration
///
/// Not supported: always fails with 501 `not_implemented`, because a self-hosted service has no shared apps of a vendor.
/// The route exists for existing clients. Needs the scope `environment:integrations:create`.
#[utoipa::path(post, path = "/integrations/quickstart", tag = "Integrations", responses())]
pub(super) async fn create_quickstart(
    _: EnvironmentAuth<rights::IntegrationsCreate>,
) -> Result<(), ApiError> {
    Err(ApiError::NotOffered(
        "this host has no shared apps; create the integration with the credentials of your own app",
    ))
}

impl App {
    fn integration_body(&self, integration: Integration) -> IntegrationBody {
        let display_name = integration.display_name.unwrap_or_else(|| {
            let provider = self.catalogue.find(&integration.provider);
            provider
                .map_or_else(|| integration.provider.to_string(), |provider| provider.display_name.clone())
        });
        IntegrationBody {
            unique_key: integration.unique_key.to_string(),
            display_name,
            logo: self.logo_url(&integration.provider),
            provider: integration.provider.to_string(),
            forward_webhooks: integration.forward_webhooks,
            created_at: iso(integration.created_at),
            updated_at: iso(integration.updated_at),
            webhook_url: None,
            credentials: None,
            scopes: Vec::new(),
        }
    }

    /// URL of a provider's logo.
    pub(super) fn logo_url(&self, provider: &ProviderSlug) -> String {
        format!("{}/images/template-logos/{provider}.svg", self.public_url)
    }

    async fn shown_credentials(
        &self,
        environment: &Environment,
        integration: &Integration,
        actor: &Actor,
    ) -> Result<Value, ApiError> {
        let credentials = self.integrations.reveal_app_credentials(environment, integration, actor).await?;
        let Some(credentials) = credentials else { return Ok(Value::Null) };
        let provider = self.catalogue.find(&integration.provider);
        let provider = provider.ok_or_else(|| ApiError::UnknownProvider(integration.provider.to_string()))?;
        Ok(credentials.to_wire(provider.auth_mode))
    }

    /// The scopes that an integration's app requests; empty if the provider's default scopes apply.
    fn app_scopes(
        &self,
        environment: &Environment,
        integration: &Integration,
    ) -> Result<Vec<String>, ApiError> {
        let credentials = self.integrations.app_credentials(environment, integration)?;
        let app = credentials.as_ref().and_then(|credentials| credentials.oauth());
        Ok(app.map(|app| app.scopes.clone()).unwrap_or_default())
    }
}

fn parse_unique_key(text: &str) -> Result<IntegrationKey, ApiError> {
    text.parse().map_err(|problem: InvalidName| {
        ApiError::body("invalid_format", &["unique_key"], problem.to_string())
    })
}

/// Parses a unique key from the path.
pub(super) fn parse_path_key(text: &str) -> Result<IntegrationKey, ApiError> {
    text.parse().map_err(|problem: InvalidName| ApiError::Path {
        errors: vec![FieldError::new("invalid_format", &["unique_key"], problem.to_string())],
    })
}

fn check_display_name(name: Option<&str>) -> Result<(), ApiError> {
    let Some(name) = name else { return Ok(()) };
    if name.contains('\0') {
        return Err(ApiError::body("invalid_format", &["display_name"], "must not contain a NUL character"));
    }
    match name.chars().count() {
        1..=255 => Ok(()),
        0 => Err(ApiError::body("too_small", &["display_name"], "must be 1 to 255 characters long")),
        _ => Err(ApiError::body("too_big", &["display_name"], "must be 1 to 255 characters long")),
    }
}

fn check_count(field: &'static str, members: usize) -> Result<(), ApiError> {
    if members <= MAX_SETTINGS {
        return Ok(());
    }
    let message = format!("must have at most {MAX_SETTINGS} members (got {members})");
    Err(ApiError::body("too_big", &[field], message))
}

fn checked_texts(field: &'static str, texts: BTreeMap<String, String>) -> Result<Texts, ApiError> {
    check_count(field, texts.len())?;
    let too_long = texts.iter().find(|(name, value)| name.len() > 255 || value.len() > MAX_SETTING_BYTES);
    if let Some((name, _)) = too_long {
        let message =
            format!("the name must be at most 255 bytes long and the value at most {MAX_SETTING_BYTES}");
        return Err(ApiError::body("too_big", &[field, name], message));
    }
    Ok(texts.into_iter().map(|(name, value)| (name, Secret::new(value))).collect())
}
