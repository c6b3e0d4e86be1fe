//! `/connections`: end users' links to providers.

mod change;
mod import;
mod metadata;

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

pub(super) use self::change::*;
pub(super) use self::import::*;
pub(super) use self::metadata::*;

use super::App;
use super::error::{ApiError, ErrorBody, FieldError};
use super::extract::{ApiPath, ApiQuery, EnvironmentAuth, parse_flag};
use super::time::iso_with_offset;
use syncline_auth::{Scope, remove_refresh_tokens, rights};
use syncline_engine::{
    ConnectionError, ConnectionFilter, ConnectionPage, CredentialOptions, DescribedConnection, FetchError,
    Freshness,
};
use syncline_types::ids::{ConnectionId, IntegrationKey, InvalidName};

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

/// What does not work about a connection now.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct ActiveError {
    /// `auth` or `sync`.
    r#type: String,
    log_id: String,
}

/// A connection as a list shows it, without its credentials.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ConnectionListing {
    id: i64,
    connection_id: String,
    provider_config_key: String,
    provider: String,
    errors: Vec<ActiveError>,
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
    errors: Vec<ActiveError>,
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
        ("endUserId" = Option<String>, Query, description = "The end user's id, or the tag `end_user_id`"),
        ("endUserOrganizationId" = Option<String>, Query, description = "The organization's id, or the tag `organization_id`"),
        ("integrationId" = Option<String>, Query, description = "Unique keys of integrations, separated by commas"),
        ("tags" = Option<Object>, Query, style = DeepObject, explode, description = "All of these tags"),
        ("limit" = Option<i64>, Query, description = "Default 10,000, else at most 2,000"),
        ("page" = Option<i64>, Query, description = "From 0"),
    ),
    responses((status = 200, body = ConnectionsResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn list_connections(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsList>,
    ApiQuery(query): ApiQuery<ConnectionsQuery>,
) -> Result<Json<ConnectionsResponse>, ApiError> {
    let limit = match query.limit {
        None => DEFAULT_LIMIT,
        Some(text) => parse_number("limit", &text, 1, MAX_LIMIT)?,
    };
    let page = query.page.map_or(Ok(0), |text| parse_number("page", &text, 0, i64::from(i32::MAX)))?;
    for (name, text) in [
        ("connectionId", &query.connection_id),
        ("search", &query.search),
        ("endUserId", &query.end_user_id),
        ("endUserOrganizationId", &query.end_user_organization_id),
    ] {
        check_query_text(name, text.as_deref())?;
    }
    let tags: Map<String, Value> =
        query.tags.into_iter().map(|(key, value)| (key.to_lowercase(), Value::String(value))).collect();
    let filter = ConnectionFilter {
        connection_id: query.connection_id,
        search: query.search,
        end_user_id: query.end_user_id,
        organization_id: query.end_user_organization_id,
        integrations: query.integration_id.as_deref().map(parse_integrations).transpose()?,
        tags: (!tags.is_empty()).then_some(Value::Object(tags)),
    };
    let page = ConnectionPage { limit, offset: page * limit };
    let found = app.connections.list(client.environment.pk, &filter, page).await?;
    let listings = found.into_iter().map(ConnectionListing::from);
    Ok(Json(ConnectionsResponse { connections: listings.collect() }))
}

/// The query by which all routes of one connection name its integration.
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
        ("refresh_github_app_jwt_token" = Option<bool>, Query, description = "Also give a new JWT of the app, as `jwtToken`"),
    ),
    responses((status = 200, body = ConnectionBody), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn get_connection(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsRead>,
    ApiPath(id): ApiPath,
    ApiQuery(query): ApiQuery<ConnectionQuery>,
) -> Result<Json<ConnectionBody>, ApiError> {
    let forces = parse_query_flag("force_refresh", query.force_refresh.as_deref())?;
    let shows_refresh_token = parse_query_flag("refresh_token", query.refresh_token.as_deref())?;
    let wants_app_token =
        parse_query_flag("refresh_github_app_jwt_token", query.refresh_github_app_jwt_token.as_deref())?;
    if forces || wants_app_token || shows_refresh_token {
        client.require(Scope::ConnectionsReadCredentials)?;
    }
    let (key, id) = parse_names(&query.provider_config_key, &id)?;
    let options = CredentialOptions {
        freshness: if forces { Freshness::Forced } else { Freshness::AsNeeded },
        with_app_token: wants_app_token,
    };
    let options = client.allows(Scope::ConnectionsReadCredentials).then_some(options);
    let body = |mut described: DescribedConnection, credentials| {
        if !shows_refresh_token {
            remove_refresh_tokens(&mut described.connection.connection_config);
        }
        ConnectionBody::new(described, credentials)
    };
    match app.connections.fetch(&client.environment, &key, &id, options).await {
        Ok(fetched) => {
            let credentials = fetched.credentials.map(|credentials| credentials.to_wire(shows_refresh_token));
            Ok(Json(body(fetched.described, credentials)))
        }
        Err(FetchError::Unusable { error, connection }) => {
            let payload = serde_json::json!({ "connection": body(*connection, None) });
            Err(ApiError::Credentials { error, payload })
        }
        Err(error) => Err(error.into()),
    }
}

impl ConnectionBody {
    /// `credentials` is `None` for clients that may not read them, and if they could not be refreshed.
    fn new(described: DescribedConnection, credentials: Option<Value>) -> Self {
        let DescribedConnection { connection, errors } = described;
        Self {
            id: connection.pk.0,
            connection_id: connection.connection_id.to_string(),
            provider_config_key: connection.integration_key.to_string(),
            provider: connection.provider.to_string(),
            errors: errors.into_iter().map(ActiveError::from).collect(),
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

impl From<DescribedConnection> for ConnectionListing {
    fn from(described: DescribedConnection) -> Self {
        let DescribedConnection { connection, errors } = described;
        Self {
            id: connection.pk.0,
            connection_id: connection.connection_id.to_string(),
            provider_config_key: connection.integration_key.to_string(),
            provider: connection.provider.to_string(),
            errors: errors.into_iter().map(ActiveError::from).collect(),
            end_user: connection.end_user,
            tags: connection.tags,
            metadata: connection.metadata,
            created: iso_with_offset(connection.created_at),
        }
    }
}

impl From<ConnectionError> for ActiveError {
    fn from(error: ConnectionError) -> Self {
        Self { r#type: error.kind, log_id: error.log_id.to_string() }
    }
}

/// The names of a connection, of which the key stands in the query and the id in the path.
fn parse_names(key: &str, id: &str) -> Result<(IntegrationKey, ConnectionId), ApiError> {
    let key = parse_name("provider_config_key", key, ApiError::query)?;
    let id = id.parse().map_err(|problem: InvalidName| ApiError::Path {
        errors: vec![FieldError::new("invalid_format", &["connection_id"], problem.to_string())],
    })?;
    Ok((key, id))
}

pub(super) fn parse_name<T: std::str::FromStr<Err = InvalidName>>(
    field: &'static str,
    text: &str,
    refuse: fn(&'static str, &[&str], String) -> ApiError,
) -> Result<T, ApiError> {
    text.parse().map_err(|problem: InvalidName| refuse("invalid_format", &[field], problem.to_string()))
}

fn parse_integrations(list: &str) -> Result<Vec<String>, ApiError> {
    let keys = list.split(',').map(str::trim).map(|key| {
        parse_name::<IntegrationKey>("integrationId", key, ApiError::query).map(|key| key.to_string())
    });
    keys.collect()
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

fn parse_query_flag(name: &'static str, text: Option<&str>) -> Result<bool, ApiError> {
    let Some(text) = text else { return Ok(false) };
    parse_flag(text).ok_or_else(|| ApiError::query("invalid_value", &[name], "must be `true` or `false`"))
}

fn check_query_text(name: &'static str, text: Option<&str>) -> Result<(), ApiError> {
    match text.map(|text| text.chars().count()) {
        None | Some(1..=255) => Ok(()),
        Some(0) => Err(ApiError::query("too_small", &[name], "must be 1 to 255 characters long")),
        Some(_) => Err(ApiError::query("too_big", &[name], "must be 1 to 255 characters long")),
    }
}
