//! `/integrations`: providers set up in the environment.

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, EnvironmentAuth, NoQuery};
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
    credentials: Option<serde_json::Value>,
}

/// `GET /integrations`: all of the environment.
#[utoipa::path(
    get, path = "/integrations", tag = "Integrations",
    responses((status = 200, body = IntegrationsResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn list_integrations(
    State(app): State<App>,
    client: EnvironmentAuth,
    _: NoQuery,
) -> Result<Json<IntegrationsResponse>, ApiError> {
    client.require(Scope::IntegrationsList)?;
    let mut conn = app.engine.store.connect().await?;
    let found = integrations::list(&mut conn, client.environment.pk).await?;
    Ok(Json(IntegrationsResponse {
        data: found.into_iter().map(|integration| app.integration_body(integration)).collect(),
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
        }
    }
}

fn iso(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Millis, true)
}
