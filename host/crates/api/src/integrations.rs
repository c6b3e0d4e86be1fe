//! `/integrations`: providers set up in the environment.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::App;
use super::error::{ApiError, ErrorBody, FieldError};
use super::extract::{ApiJson, ApiPath, ApiQuery, Caller, EnvironmentAuth, NoQuery};
use super::one_or_many::OneOrMany;
use super::time::iso;
use syncline_auth::{Environment, IntegrationSettings, Scope, Texts, rights};
use syncline_engine::{Integration, IntegrationChange, MAX_SETTINGS, NewIntegration};
use syncline_types::ids::{IntegrationKey, InvalidName, ProviderSlug};
use syncline_types::secret::Secret;

const MAX_SETTING_BYTES: usize = 8192;
/// What a segment of a path may hold as it is.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// An integration, as clients see it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct IntegrationBody {
    unique_key: String,
    provider: String,
    display_name: String,
    logo: String,
    forward_webhooks: bool,
    created_at: String,
    updated_at: String,
    /// Where the provider sends its webhooks; null if the catalogue does not know how to take them. With
    /// `include=webhook`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    webhook_url: Option<Option<String>>,
    /// The app's own with its secrets masked, or null for an integration without an app. With
    /// `include=credentials`, for keys that may read them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    credentials: Option<Value>,
    /// What the app asks end users to allow, where it is not what the provider's entry says. For connect sessions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    scopes: Vec<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct IntegrationResponse {
    data: IntegrationBody,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct IntegrationsResponse {
    data: Vec<IntegrationBody>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateIntegrationRequest {
    /// A slug of the catalogue, such as `stripe-api-key`.
    provider: String,
    unique_key: String,
    display_name: Option<String>,
    forward_webhooks: Option<bool>,
    /// The app's, for providers of auth modes `OAUTH1`, `OAUTH2`, `APP` and `CUSTOM`, which need one, and `TBA`:
    /// `{"type": "OAUTH2", "client_id": …, "client_secret": …, "scopes": "a,b", "webhook_secret": …}` or
    /// `{"type": "APP", "app_id": …, "app_link": …, "private_key": …}`; `CUSTOM` has both.
    #[schema(value_type = Option<Object>)]
    credentials: Option<Map<String, Value>>,
    /// At most 100 texts of 8192 bytes. Kept sealed and never shown.
    #[serde(default)]
    #[schema(value_type = Object)]
    integration_config: BTreeMap<String, String>,
    /// Likewise.
    #[serde(default)]
    #[schema(value_type = Object)]
    custom: BTreeMap<String, String>,
}

/// `GET /integrations`: all of the environment, or those that a connect session allows.
#[utoipa::path(
    get, path = "/integrations", tag = "Integrations",
    security(("secret_key" = []), ("session_token" = [])),
    responses((status = 200, body = IntegrationsResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn list_integrations(
    State(app): State<App>,
    caller: Caller,
    _: NoQuery,
) -> Result<Json<IntegrationsResponse>, ApiError> {
    let found = app.integrations.list(caller.environment().pk).await?;
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

/// `POST /integrations`: sets a provider up.
#[utoipa::path(
    post, path = "/integrations", tag = "Integrations", request_body = CreateIntegrationRequest,
    responses((status = 200, body = IntegrationResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn create_integration(
    State(app): State<App>,
    client: EnvironmentAuth<rights::IntegrationsCreate>,
    _: NoQuery,
    ApiJson(request): ApiJson<CreateIntegrationRequest>,
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
    let created = app.integrations.create(&client.environment, new).await?;
    Ok(Json(IntegrationResponse { data: app.integration_body(created) }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IntegrationQuery {
    #[serde(default)]
    include: OneOrMany,
}

/// `GET /integrations/{unique_key}`: one.
#[utoipa::path(
    get, path = "/integrations/{unique_key}", tag = "Integrations",
    params(
        ("unique_key" = String, Path),
        ("include" = Option<Vec<String>>, Query, description = "`webhook` and `credentials`; repeatable, also as include[]"),
    ),
    responses((status = 200, description = "The integration", body = IntegrationResponse), (status = "4XX", description = "A refusal", body = ErrorBody)),
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
                let message = format!("has `{other}`; it must be `webhook` or `credentials`");
                return Err(ApiError::query("invalid_value", &["include"], message));
            }
        }
    }
    let key = parse_path_key(&key)?;
    let integration = app.integrations.get(client.environment.pk, &key).await?;
    let provider = app.catalogue.find(&integration.provider);
    let takes_webhooks = provider.is_some_and(|provider| provider.webhook.is_some());
    let webhook_url = takes_webhooks.then(|| app.webhook_url(&client.environment, &integration.unique_key));
    let webhook_url = with_webhook.then_some(webhook_url);
    let credentials = if with_credentials && client.allows(Scope::IntegrationsReadCredentials) {
        Some(app.shown_credentials(&client.environment, &integration)?)
    } else {
        None
    };
    let body = IntegrationBody { webhook_url, credentials, ..app.integration_body(integration) };
    Ok(Json(IntegrationResponse { data: body }))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdateIntegrationRequest {
    /// Another key for the same integration: its connections, syncs and records stay.
    unique_key: Option<String>,
    display_name: Option<String>,
    forward_webhooks: Option<bool>,
    /// In place of those before, as a whole.
    #[schema(value_type = Option<Object>)]
    credentials: Option<Map<String, Value>>,
    /// Key by key in place of those before.
    #[serde(default)]
    #[schema(value_type = Object)]
    integration_config: BTreeMap<String, String>,
    /// Likewise.
    #[serde(default)]
    #[schema(value_type = Object)]
    custom: BTreeMap<String, String>,
}

/// `PATCH /integrations/{unique_key}`: changes what is named.
#[utoipa::path(
    patch, path = "/integrations/{unique_key}", tag = "Integrations", request_body = UpdateIntegrationRequest,
    params(("unique_key" = String, Path)),
    responses((status = 200, body = IntegrationResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn update_integration(
    State(app): State<App>,
    client: EnvironmentAuth<rights::IntegrationsUpdate>,
    ApiPath(key): ApiPath,
    _: NoQuery,
    ApiJson(request): ApiJson<UpdateIntegrationRequest>,
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
    let updated = app.integrations.update(&client.environment, &key, change).await?;
    Ok(Json(IntegrationResponse { data: app.integration_body(updated) }))
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeletedResponse {
    success: bool,
}

impl DeletedResponse {
    pub(super) const DONE: Self = Self { success: true };
}

/// `DELETE /integrations/{unique_key}`: with its connections, and with everything that was kept of them.
#[utoipa::path(
    delete, path = "/integrations/{unique_key}", tag = "Integrations",
    params(("unique_key" = String, Path)),
    responses((status = 200, body = DeletedResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn delete_integration(
    State(app): State<App>,
    client: EnvironmentAuth<rights::IntegrationsDelete>,
    ApiPath(key): ApiPath,
    _: NoQuery,
) -> Result<Json<DeletedResponse>, ApiError> {
    let key = parse_path_key(&key)?;
    app.integrations.delete(client.environment.pk, &key).await?;
    Ok(Json(DeletedResponse::DONE))
}

/// `POST /integrations/quickstart`: would use an app of the vendor's; whoever hosts a service of their own has apps
/// of their own.
pub(super) async fn create_quickstart(
    _: EnvironmentAuth<rights::IntegrationsCreate>,
) -> Result<(), ApiError> {
    Err(ApiError::NotOffered(
        "there are no apps of ours to use; create the integration with the credentials of your own",
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

    /// Where the logo of a provider is.
    pub(super) fn logo_url(&self, provider: &ProviderSlug) -> String {
        format!("{}/images/template-logos/{provider}.svg", self.public_url)
    }

    /// Where the provider of an integration sends its webhooks.
    fn webhook_url(&self, environment: &Environment, key: &IntegrationKey) -> String {
        let key = utf8_percent_encode(key.as_str(), PLAIN);
        format!("{}/webhook/{}/{key}", self.public_url, environment.id)
    }

    fn shown_credentials(
        &self,
        environment: &Environment,
        integration: &Integration,
    ) -> Result<Value, ApiError> {
        let Some(credentials) = self.integrations.app_credentials(environment, integration)? else {
            return Ok(Value::Null);
        };
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

/// The unique key that is a part of the path.
pub(super) fn parse_path_key(text: &str) -> Result<IntegrationKey, ApiError> {
    text.parse().map_err(|problem: InvalidName| ApiError::Path {
        errors: vec![FieldError::new("invalid_format", &["unique_key"], problem.to_string())],
    })
}

fn check_display_name(name: Option<&str>) -> Result<(), ApiError> {
    let Some(name) = name else { return Ok(()) };
    if name.contains('\0') {
        return Err(ApiError::body("invalid_format", &["display_name"], "must not hold a NUL character"));
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
    let message = format!("would have {members} members and may have {MAX_SETTINGS}");
    Err(ApiError::body("too_big", &[field], message))
}

fn checked_texts(field: &'static str, texts: BTreeMap<String, String>) -> Result<Texts, ApiError> {
    check_count(field, texts.len())?;
    let too_long = texts.iter().find(|(name, value)| name.len() > 255 || value.len() > MAX_SETTING_BYTES);
    if let Some((name, _)) = too_long {
        let message = format!("a name may be 255 bytes long and a value {MAX_SETTING_BYTES}");
        return Err(ApiError::body("too_big", &[field, name], message));
    }
    Ok(texts.into_iter().map(|(name, value)| (name, Secret::new(value))).collect())
}
