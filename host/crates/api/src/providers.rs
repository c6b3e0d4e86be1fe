//! `/providers`: the provider catalogue, and a logo for each entry.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::App;
use super::error::ApiError;
use super::extract::{ApiPath, ApiQuery, Caller, NoQuery};

use syncline_providers::{Provider, monogram};
use syncline_types::ids::ProviderSlug;

/// An entry of the catalogue with the URL of its logo.
#[derive(Debug, Serialize)]
struct ProviderBody<'a> {
    #[serde(flatten)]
    provider: &'a Provider,
    logo_url: String,
}

/// A list of providers.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProvidersResponse {
    /// The entries. Each has the members of its catalogue file and `logo_url`.
    #[schema(value_type = Vec<Object>)]
    data: Vec<Value>,
}

/// One provider.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProviderResponse {
    /// The members of the catalogue file and `logo_url`.
    #[schema(value_type = Object)]
    data: Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProvidersQuery {
    search: Option<String>,
}

/// List providers
///
/// Returns the entries of the provider catalogue. Needs the scope `environment:integrations:list`, or a session token.
#[utoipa::path(
    get, path = "/providers", tag = "Providers",
    security(("secret_key" = []),
        ("session_token" = [])),
    params(
        ("search" = Option<String>, Query, description = "Returns only providers whose slug or name contains this text, ignoring case."),
    ),
    responses(
        (
            status = 200, description = "The providers",
            body = ProvidersResponse,
            example = json!({
                "data": [
                    {
                        "name": "stripe-api-key",
                        "display_name": "Stripe (API key)",
                        "auth_mode": "API_KEY",
                        "logo_url": "https://syncline.example.com/images/template-logos/stripe-api-key.svg"
                    }
                ]
            }),
        ),
    ),
)]
pub(super) async fn list_providers(
    State(app): State<App>,
    _: Caller,
    ApiQuery(query): ApiQuery<ProvidersQuery>,
) -> Result<Json<ProvidersResponse>, ApiError> {
    let search = query.search.unwrap_or_default().to_lowercase();
    let providers = app.catalogue.list();
    let found = providers.iter().filter(|provider| {
        provider.name.as_str().to_lowercase().contains(&search)
            || provider.display_name.to_lowercase().contains(&search)
    });
    let data = found.map(|provider| app.provider_json(provider)).collect::<Result<_, _>>()?;
    Ok(Json(ProvidersResponse { data }))
}

/// Get a provider
///
/// Returns one entry of the provider catalogue. Fails with 404 `unknown_provider` if it does not exist. Needs the
/// scope `environment:integrations:list`, or a session token.
#[utoipa::path(
    get, path = "/providers/{provider}", tag = "Providers",
    security(("secret_key" = []),
        ("session_token" = [])),
    params(
        ("provider" = String, Path, description = "Slug of the provider, such as `stripe-api-key`."),
    ),
    responses(
        (
            status = 200, description = "The provider",
            body = ProviderResponse,
            example = json!({
                "data": {
                    "name": "stripe-api-key",
                    "display_name": "Stripe (API key)",
                    "auth_mode": "API_KEY",
                    "logo_url": "https://syncline.example.com/images/template-logos/stripe-api-key.svg"
                }
            }),
        ),
    ),
)]
pub(super) async fn get_provider(
    State(app): State<App>,
    _: Caller,
    ApiPath(slug): ApiPath,
    _: NoQuery,
) -> Result<Json<ProviderResponse>, ApiError> {
    let data = app.provider_json(&*app.find_provider(&slug)?)?;
    Ok(Json(ProviderResponse { data }))
}

/// List templates
///
/// Always returns an empty list: this service has no function templates. The route exists for existing clients. Needs
/// the scope `environment:integrations:list`, or a session token.
#[utoipa::path(
    get, path = "/providers/{provider}/templates", tag = "Providers",
    params(
        ("provider" = String, Path, description = "Slug of the provider, such as `stripe-api-key`."),
    ),
    responses(
        (
            status = 200, description = "An empty list",
            body = ProvidersResponse,
            example = json!({"data": []}),
        ),
    ),
)]
pub(super) async fn list_templates(
    State(app): State<App>,
    _: Caller,
    ApiPath(slug): ApiPath,
    _: NoQuery,
) -> Result<Json<ProvidersResponse>, ApiError> {
    app.find_provider(&slug)?;
    Ok(Json(ProvidersResponse { data: Vec::new() }))
}

/// `GET /images/template-logos/{slug}.svg`: the provider's monogram. Needs no key.
pub(super) async fn get_logo(
    State(app): State<App>,
    headers: HeaderMap,
    ApiPath(file): ApiPath,
) -> Result<Response, ApiError> {
    let slug = file.strip_suffix(".svg").unwrap_or(&file);
    let svg = monogram(&*app.find_provider(slug)?);
    let tag = format!("\"{}\"", &blake3::hash(svg.as_bytes()).to_hex()[..16]);
    let is_known = headers.get(header::IF_NONE_MATCH).is_some_and(|given| given == tag.as_str());
    let about = [
        (header::ETAG, tag.as_str()),
        (header::CACHE_CONTROL, "public, max-age=86400"),
        (header::CONTENT_TYPE, "image/svg+xml"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    if is_known {
        return Ok((StatusCode::NOT_MODIFIED, about).into_response());
    }
    Ok((about, svg).into_response())
}

impl App {
    fn find_provider(&self, slug: &str) -> Result<Arc<Provider>, ApiError> {
        let found = slug.parse::<ProviderSlug>().ok().and_then(|slug| self.catalogue.find(&slug));
        let Some(provider) = found else {
            return Err(ApiError::UnknownProvider(slug.chars().take(60).collect()));
        };
        Ok(provider)
    }

    fn provider_json(&self, provider: &Provider) -> Result<Value, ApiError> {
        let body = ProviderBody { provider, logo_url: self.logo_url(&provider.name) };
        serde_json::to_value(body).map_err(ApiError::internal)
    }
}
