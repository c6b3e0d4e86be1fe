//! `/integrations`: providers set up in the environment.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::error::{ApiError, ErrorBody, FieldError};
use super::extract::{ApiJson, ApiPath, ApiQuery, Caller, EnvironmentAuth, NoQuery};
use super::one_or_many::OneOrMany;
use super::time::iso;
use crate::auth::Scope;
use crate::ids::{IntegrationKey, InvalidName, ProviderSlug};
use crate::store::integrations::{self, Integration, NewIntegration};

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
    /// Where the provider sends its webhooks; null if the service takes none of it. With `include=webhook`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    webhook_url: Option<Value>,
    /// The app's own, null for a provider whose connections need no app. With `include=credentials`, for keys
    /// that may read them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    credentials: Option<Value>,
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
    /// Only for providers whose connections need an app of yours.
    #[schema(value_type = Option<Object>)]
    credentials: Option<Value>,
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
    caller.require(Scope::IntegrationsList)?;
    let mut conn = app.engine.store.connect().await?;
    let found = integrations::list(&mut conn, caller.environment().pk).await?;
    let seen = found.into_iter().filter(|integration| caller.sees(&integration.unique_key));
    Ok(Json(IntegrationsResponse {
        data: seen.map(|integration| app.integration_body(integration)).collect(),
    }))
}

/// `POST /integrations`: sets a provider up.
#[utoipa::path(
    post, path = "/integrations", tag = "Integrations", request_body = CreateIntegrationRequest,
    responses((status = 200, body = IntegrationResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn create_integration(
    State(app): State<App>,
    client: EnvironmentAuth,
    _: NoQuery,
    ApiJson(request): ApiJson<CreateIntegrationRequest>,
) -> Result<Json<IntegrationResponse>, ApiError> {
    client.require(Scope::IntegrationsCreate)?;
    let invalid = |field: &'static str| {
        move |problem: InvalidName| ApiError::body("invalid_format", &[field], problem.to_string())
    };
    let unique_key: IntegrationKey = request.unique_key.parse().map_err(invalid("unique_key"))?;
    let slug: ProviderSlug = request.provider.parse().map_err(invalid("provider"))?;
    let provider = app.engine.catalogue.find(&slug).ok_or(ApiError::UnknownProvider(request.provider))?;
    if request.display_name.as_ref().is_some_and(|name| name.is_empty() || name.chars().count() > 255) {
        return Err(ApiError::body("too_big", &["display_name"], "must be 1 to 255 characters long"));
    }
    if request.credentials.is_some() {
        let message = format!(
            "`{slug}` takes no app credentials: its auth mode is {}, and each connection brings its own",
            provider.auth_mode
        );
        return Err(ApiError::body("custom", &["credentials"], message));
    }
    let new = NewIntegration {
        id: Uuid::new_v4(),
        environment: client.environment.pk,
        unique_key: &unique_key,
        provider: &slug,
        display_name: request.display_name.as_deref(),
        forward_webhooks: request.forward_webhooks.unwrap_or(true),
        sealed_credentials: None,
    };
    let mut conn = app.engine.store.connect().await?;
    let created = integrations::create(&mut conn, &new).await?;
    let integration = created.ok_or(ApiError::DuplicateIntegration(unique_key))?;
    Ok(Json(IntegrationResponse { data: app.integration_body(integration) }))
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
    client: EnvironmentAuth,
    ApiPath(key): ApiPath,
    ApiQuery(query): ApiQuery<IntegrationQuery>,
) -> Result<Json<IntegrationResponse>, ApiError> {
    client.require(Scope::IntegrationsRead)?;
    let (mut with_webhook, mut with_credentials) = (false, false);
    for part in query.include.into_vec() {
        match part.as_str() {
            "webhook" => with_webhook = true,
            "credentials" => with_credentials = true,
            other => {
                let message = format!("has `{other}`; it must be `webhook` or `credentials`");
                return Err(ApiError::query("invalid_value", &["include"], message));
            }
        }
    }
    let key: IntegrationKey = key.parse().map_err(|problem: InvalidName| ApiError::Path {
        errors: vec![FieldError::new("invalid_format", &["unique_key"], problem.to_string())],
    })?;
    let mut conn = app.engine.store.connect().await?;
    let found = integrations::find(&mut conn, client.environment.pk, &key).await?;
    let mut body = app.integration_body(found.ok_or(ApiError::UnknownIntegration(key))?);
    // No provider's webhooks are taken yet, and no provider's connections need an app.
    body.webhook_url = with_webhook.then_some(Value::Null);
    body.credentials =
        (with_credentials && client.allows(Scope::IntegrationsReadCredentials)).then_some(Value::Null);
    Ok(Json(IntegrationResponse { data: body }))
}

impl App {
    fn integration_body(&self, integration: Integration) -> IntegrationBody {
        let display_name = integration.display_name.unwrap_or_else(|| {
            let provider = self.engine.catalogue.find(&integration.provider);
            provider
                .map_or_else(|| integration.provider.to_string(), |provider| provider.display_name.clone())
        });
        IntegrationBody {
            unique_key: integration.unique_key.to_string(),
            display_name,
            logo: format!("{}/images/template-logos/{}.svg", self.public_url, integration.provider),
            provider: integration.provider.to_string(),
            forward_webhooks: integration.forward_webhooks,
            created_at: iso(integration.created_at),
            updated_at: iso(integration.updated_at),
            webhook_url: None,
            credentials: None,
        }
    }
}
