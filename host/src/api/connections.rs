//! `/connections`: end users' links to providers.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::error::{ApiError, ErrorBody, FieldError};
use super::extract::{ApiJson, ApiPath, ApiQuery, EnvironmentAuth, NoQuery, parse_flag};
use super::tags::{EndUser, checked_tags, generated_tags};
use super::time::iso_with_offset;
use crate::auth::{CredentialsError, Scope, StoredCredentials};
use crate::engine::{Freshness, ImportedConnection, RefreshError};
use crate::ids::{ConnectionId, IntegrationKey, InvalidName};
use crate::nul::has_nul;
use crate::store::connections::{self, Connection, ConnectionFilter};
use crate::store::integrations;

const DEFAULT_LIMIT: i64 = 10_000;
const MAX_LIMIT: i64 = 2_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct ConnectionsQuery {
    connection_id: Option<String>,
    search: Option<String>,
    end_user_id: Option<String>,
    end_user_organization_id: Option<String>,
    integration_id: Option<String>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    limit: Option<String>,
    page: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ConnectionsResponse {
    connections: Vec<ConnectionListing>,
}

/// A connection as a list shows it, without its credentials.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ConnectionListing {
    id: i64,
    connection_id: String,
    provider_config_key: String,
    provider: String,
    #[schema(value_type = Vec<Object>)]
    errors: Vec<Value>,
    #[schema(value_type = Option<Object>)]
    end_user: Option<Value>,
    #[schema(value_type = Object)]
    tags: Value,
    #[schema(value_type = Option<Object>)]
    metadata: Option<Value>,
    created: String,
}

/// A connection with everything.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ConnectionBody {
    id: i64,
    connection_id: String,
    provider_config_key: String,
    provider: String,
    #[schema(value_type = Vec<Object>)]
    errors: Vec<Value>,
    #[schema(value_type = Option<Object>)]
    end_user: Option<Value>,
    #[schema(value_type = Object)]
    tags: Value,
    #[schema(value_type = Option<Object>)]
    metadata: Option<Value>,
    #[schema(value_type = Object)]
    connection_config: Value,
    webhook_url_override: Option<String>,
    created_at: String,
    updated_at: String,
    last_fetched_at: Option<String>,
    /// Empty without the scope `environment:connections:read_credentials`.
    #[schema(value_type = Object)]
    credentials: Value,
}

/// `GET /connections`: a page of the environment's connections, newest first.
#[utoipa::path(
    get, path = "/connections", tag = "Connections",
    params(
        ("connectionId" = Option<String>, Query, description = "Exactly this id"),
        ("search" = Option<String>, Query, description = "Part of the id, or of the end user's name or e-mail"),
        ("endUserId" = Option<String>, Query),
        ("endUserOrganizationId" = Option<String>, Query),
        ("integrationId" = Option<String>, Query, description = "Unique keys of integrations, separated by commas"),
        ("tags" = Option<Object>, Query, style = DeepObject, explode, description = "All of these tags"),
        ("limit" = Option<i64>, Query, description = "Default 10,000, else at most 2,000"),
        ("page" = Option<i64>, Query, description = "From 0"),
    ),
    responses((status = 200, body = ConnectionsResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn list_connections(
    State(app): State<App>,
    client: EnvironmentAuth,
    ApiQuery(query): ApiQuery<ConnectionsQuery>,
) -> Result<Json<ConnectionsResponse>, ApiError> {
    client.require(Scope::ConnectionsList)?;
    let limit = match query.limit {
        None => DEFAULT_LIMIT,
        Some(text) => parse_number("limit", &text, 1, MAX_LIMIT)?,
    };
    let page = query.page.map_or(Ok(0), |text| parse_number("page", &text, 0, i64::from(i32::MAX)))?;
    let tags: Map<String, Value> =
        query.tags.into_iter().map(|(key, value)| (key.to_lowercase(), Value::String(value))).collect();
    let filter = ConnectionFilter {
        connection_id: query.connection_id,
        search: query.search,
        end_user_id: query.end_user_id,
        organization_id: query.end_user_organization_id,
        integrations: query
            .integration_id
            .map(|list| list.split(',').map(|key| key.trim().to_owned()).collect()),
        tags: (!tags.is_empty()).then_some(Value::Object(tags)),
    };
    let mut conn = app.engine.store.connect().await?;
    let found = connections::list(&mut conn, client.environment.pk, &filter, limit, page * limit).await?;
    Ok(Json(ConnectionsResponse { connections: found.into_iter().map(ConnectionListing::from).collect() }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConnectionQuery {
    provider_config_key: String,
    force_refresh: Option<String>,
    refresh_token: Option<String>,
    refresh_github_app_jwt_token: Option<String>,
}

/// `GET /connections/{connection_id}`: one, with its live credentials.
#[utoipa::path(
    get, path = "/connections/{connection_id}", tag = "Connections",
    params(
        ("connection_id" = String, Path),
        ("provider_config_key" = String, Query, description = "The integration's unique key"),
        ("force_refresh" = Option<bool>, Query, description = "Fetch new credentials even if these are valid"),
        ("refresh_token" = Option<bool>, Query, description = "Show the refresh token"),
        ("refresh_github_app_jwt_token" = Option<bool>, Query, description = "Make a new JWT of an app"),
    ),
    responses((status = 200, body = ConnectionBody), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn get_connection(
    State(app): State<App>,
    client: EnvironmentAuth,
    ApiPath(id): ApiPath,
    ApiQuery(query): ApiQuery<ConnectionQuery>,
) -> Result<Json<ConnectionBody>, ApiError> {
    client.require(Scope::ConnectionsRead)?;
    let flag = |name: &'static str, text: &Option<String>| match text {
        None => Ok(false),
        Some(text) => parse_flag(text)
            .ok_or_else(|| ApiError::query("invalid_value", &[name], "must be `true` or `false`")),
    };
    let forces = flag("force_refresh", &query.force_refresh)?;
    let shows_refresh_token = flag("refresh_token", &query.refresh_token)?;
    let renews_app = flag("refresh_github_app_jwt_token", &query.refresh_github_app_jwt_token)?;
    let wants_new = forces || renews_app;
    if wants_new || shows_refresh_token {
        client.require(Scope::ConnectionsReadCredentials)?;
    }
    let key =
        parse_name::<IntegrationKey>("provider_config_key", &query.provider_config_key, ApiError::query)?;
    let id = id.parse::<ConnectionId>().map_err(|problem| ApiError::Path {
        errors: vec![FieldError::new("invalid_format", &["connection_id"], problem.to_string())],
    })?;
    let route = app.find_connection_by_name(&client, &key, &id).await?;
    let mut conn = app.engine.store.connect().await?;
    connections::note_fetched(&mut conn, route.pk).await?;
    drop(conn);
    let environment = &client.environment;
    if !client.allows(Scope::ConnectionsReadCredentials) {
        let mut conn = app.engine.store.connect().await?;
        let connection = connections::get(&mut conn, route.pk).await?;
        let connection =
            connection.ok_or(ApiError::UnknownConnection { integration: key, connection: id })?;
        return Ok(Json(ConnectionBody::new(connection, None)));
    }
    let freshness = if wants_new { Freshness::Forced } else { Freshness::AsNeeded };
    match app.engine.live_credentials(environment, route.pk, freshness).await {
        Ok(live) => {
            let credentials = live.credentials.to_wire(shows_refresh_token);
            Ok(Json(ConnectionBody::new(live.connection, Some(credentials))))
        }
        Err(RefreshError::Gone) => Err(ApiError::UnknownConnection { integration: key, connection: id }),
        Err(error) if error.is_internal() => Err(ApiError::internal(error)),
        Err(error) => {
            let mut conn = app.engine.store.connect().await?;
            let connection = connections::get(&mut conn, route.pk).await?;
            let connection = connection.map(|connection| ConnectionBody::new(connection, None));
            let payload = serde_json::json!({ "connection": connection });
            Err(ApiError::Credentials { error, payload })
        }
    }
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ImportRequest {
    /// Generated if left out.
    connection_id: Option<String>,
    provider_config_key: String,
    /// `{"type": "API_KEY", "apiKey": …}`, `{"type": "BASIC", "username": …, "password": …}` or
    /// `{"type": "NONE"}`, as the provider's auth mode asks for.
    #[schema(value_type = Object)]
    credentials: Map<String, Value>,
    #[serde(default)]
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
    #[serde(default)]
    #[schema(value_type = Object)]
    connection_config: Map<String, Value>,
    webhook_url_override: Option<String>,
    end_user: Option<EndUser>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
}

/// `POST /connections`: takes over credentials that are there already, without calling the provider.
#[utoipa::path(
    post, path = "/connections", tag = "Connections", request_body = ImportRequest,
    responses((status = 201, body = ConnectionBody), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn import_connection(
    State(app): State<App>,
    client: EnvironmentAuth,
    _: NoQuery,
    ApiJson(request): ApiJson<ImportRequest>,
) -> Result<(StatusCode, Json<ConnectionBody>), ApiError> {
    client.require(Scope::ConnectionsCreate)?;
    let key =
        parse_name::<IntegrationKey>("provider_config_key", &request.provider_config_key, ApiError::body)?;
    let id = match &request.connection_id {
        Some(id) => parse_name::<ConnectionId>("connection_id", id, ApiError::body)?,
        None => parse_name::<ConnectionId>("connection_id", &Uuid::new_v4().to_string(), ApiError::body)?,
    };
    for (field, members) in
        [("metadata", &request.metadata), ("connection_config", &request.connection_config)]
    {
        if members.iter().any(|(key, value)| key.contains('\0') || has_nul(value)) {
            return Err(ApiError::body("invalid_format", &[field], "must not hold a NUL character"));
        }
    }
    if let Some(url) = request.webhook_url_override.as_deref().filter(|url| !url.is_empty()) {
        check_webhook_url(url)?;
    }
    if let Some(user) = &request.end_user {
        user.check()?;
    }
    let mut tags = generated_tags(request.end_user.as_ref(), None);
    tags.extend(checked_tags(request.tags)?);
    let mut conn = app.engine.store.connect().await?;
    let found = integrations::find(&mut conn, client.environment.pk, &key).await?;
    drop(conn);
    let integration = found.ok_or(ApiError::UnknownIntegration(key))?;
    let provider = app
        .engine
        .catalogue
        .find(&integration.provider)
        .ok_or_else(|| ApiError::UnknownProvider(integration.provider.to_string()))?;
    let credentials =
        StoredCredentials::import(provider.auth_mode, request.credentials).map_err(credentials_error)?;
    provider.check_config(&request.connection_config).map_err(|problem| {
        let path: Vec<&str> = std::iter::once("connection_config").chain(problem.name()).collect();
        ApiError::body("invalid_value", &path, problem.to_string())
    })?;
    let shown = credentials.to_wire(false);
    let imported = ImportedConnection {
        connection_id: id,
        credentials,
        connection_config: Value::Object(request.connection_config),
        metadata: Value::Object(request.metadata),
        tags: Value::Object(tags),
        end_user: request.end_user.map(|user| user.stored(None)),
        webhook_url_override: request.webhook_url_override.filter(|url| !url.is_empty()),
    };
    let connection = app
        .engine
        .import_connection(&client.environment, &integration, imported)
        .await
        .map_err(ApiError::internal)?;
    let may_read = client.allows(Scope::ConnectionsReadCredentials);
    let body = ConnectionBody::new(connection, may_read.then_some(shown));
    Ok((StatusCode::CREATED, Json(body)))
}

impl ConnectionBody {
    /// Without credentials for those who may not read them, and where there are none to be had.
    fn new(connection: Connection, credentials: Option<Value>) -> Self {
        Self {
            id: connection.pk.0,
            connection_id: connection.connection_id.to_string(),
            provider_config_key: connection.integration_key.to_string(),
            provider: connection.provider.to_string(),
            errors: Vec::new(),
            end_user: connection.end_user,
            tags: connection.tags,
            metadata: connection.metadata,
            connection_config: connection.connection_config,
            webhook_url_override: connection.webhook_url_override,
            created_at: iso_with_offset(connection.created_at),
            updated_at: iso_with_offset(connection.updated_at),
            last_fetched_at: connection.last_fetched_at.map(iso_with_offset),
            credentials: credentials.unwrap_or_else(|| Value::Object(Map::new())),
        }
    }
}

impl From<Connection> for ConnectionListing {
    fn from(connection: Connection) -> Self {
        Self {
            id: connection.pk.0,
            connection_id: connection.connection_id.to_string(),
            provider_config_key: connection.integration_key.to_string(),
            provider: connection.provider.to_string(),
            errors: Vec::new(),
            end_user: connection.end_user,
            tags: connection.tags,
            metadata: connection.metadata,
            created: iso_with_offset(connection.created_at),
        }
    }
}

pub(super) fn parse_name<T: std::str::FromStr<Err = InvalidName>>(
    field: &'static str,
    text: &str,
    refuse: fn(&'static str, &[&str], String) -> ApiError,
) -> Result<T, ApiError> {
    text.parse().map_err(|problem: InvalidName| refuse("invalid_format", &[field], problem.to_string()))
}

fn parse_number(name: &'static str, text: &str, least: i64, most: i64) -> Result<i64, ApiError> {
    match text.parse::<i64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => {
            let message = format!("is `{text}`; it must be a whole number from {least} to {most}");
            Err(ApiError::query("invalid_value", &[name], message))
        }
    }
}

pub(super) fn check_webhook_url(text: &str) -> Result<(), ApiError> {
    let valid =
        url::Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    if valid {
        return Ok(());
    }
    Err(ApiError::body("invalid_format", &["webhook_url_override"], "must be an http or https URL"))
}

fn credentials_error(error: CredentialsError) -> ApiError {
    let path: Vec<&str> = std::iter::once("credentials").chain(error.field()).collect();
    ApiError::body("invalid_value", &path, error.to_string())
}
