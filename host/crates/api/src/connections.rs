//! `/connections`: links of end users to providers.

mod change;
mod import;
mod list;
mod metadata;

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

pub(super) use self::change::*;
pub(super) use self::import::*;
pub(super) use self::metadata::*;

use super::App;
use super::error::{ApiError, FieldError};
use super::extract::{ApiPath, ApiQuery, EnvironmentAuth, parse_flag};
use super::time::iso_with_offset;
use syncline_auth::{Scope, remove_refresh_tokens, rights};
use syncline_engine::{
    ConnectionError, ConnectionFilter, ConnectionPage, CredentialOptions, DescribedConnection, FetchError,
    Freshness,
};
use syncline_types::ids::{ConnectionId, IntegrationKey, InvalidName};
use syncline_types::metadata::Metadata;

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

/// A page of connections.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ConnectionsResponse {
    /// The connections, newest first.
    connections: Vec<ConnectionListing>,
}

/// A current problem of a connection.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(super) struct ActiveError {
    /// `auth` (credentials) or `sync` (the last run of a sync failed).
    r#type: String,
    /// Id under which the problem was logged.
    log_id: String,
}

/// A connection without its credentials.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ConnectionListing {
    /// Internal number of the connection.
    id: i64,
    /// The connection id.
    connection_id: String,
    /// The unique key of the integration.
    provider_config_key: String,
    /// Slug of the provider in the catalogue.
    provider: String,
    /// Current problems of the connection.
    errors: Vec<ActiveError>,
    /// The end user who connected the account, or `null`.
    #[schema(value_type = Option<Object>)]
    end_user: Option<Value>,
    /// Tags of the connection. Keys are in lower case.
    #[schema(value_type = Object)]
    tags: Value,
    /// JSON object that your backend and your functions share.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Metadata>,
    /// When the connection was created.
    created: String,
}

/// A connection with its configuration and credentials.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ConnectionBody {
    /// Internal number of the connection.
    id: i64,
    /// The connection id.
    connection_id: String,
    /// The unique key of the integration.
    provider_config_key: String,
    /// Slug of the provider in the catalogue.
    provider: String,
    /// Current problems of the connection.
    errors: Vec<ActiveError>,
    /// The end user who connected the account, or `null`.
    #[schema(value_type = Option<Object>)]
    end_user: Option<Value>,
    /// Tags of the connection. Keys are in lower case.
    #[schema(value_type = Object)]
    tags: Value,
    /// JSON object that your backend and your functions share.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Metadata>,
    /// Values about the account that were collected while connecting, such as a subdomain.
    #[schema(value_type = Object)]
    connection_config: Value,
    /// URL for this connection's webhooks, or `null` for the URLs of the environment.
    webhook_url_override: Option<String>,
    /// When the connection was created.
    created_at: String,
    /// When the connection was last changed.
    updated_at: String,
    /// When the credentials were last read, or `null`.
    last_fetched_at: Option<String>,
    /// Live credentials; the members depend on `type`, the auth mode. Empty without the scope
    /// `environment:connections:read_credentials`.
    #[schema(value_type = Object)]
    credentials: Value,
}

/// List connections
///
/// Returns connections of the environment without their credentials, newest first. All filters can be combined. Pages
/// are numbered; request pages until one has fewer entries than `limit`. Needs the scope
/// `environment:connections:list`.
#[utoipa::path(
    get, path = "/connections", tag = "Connections",
    params(
        ("connectionId" = Option<String>, Query, description = "Returns only connections with exactly this id."),
        ("search" = Option<String>, Query, description = "Returns only connections whose id, or whose end user's name or email address, contains this text. 1 to 255 characters."),
        ("endUserId" = Option<String>, Query, description = "Returns only connections of the end user with this id, or with this value of the tag `end_user_id`."),
        ("endUserOrganizationId" = Option<String>, Query, description = "Returns only connections of the organization with this id, or with this value of the tag `organization_id`."),
        ("integrationId" = Option<String>, Query, description = "Unique keys of integrations, separated by commas."),
        ("tags" = Option<Object>, Query, style = DeepObject, explode, description = "Returns only connections with all of these tags: `tags[plan]=pro`."),
        ("limit" = Option<i64>, Query, description = "Page size, 1 to 2,000. Default: 10,000."),
        ("page" = Option<i64>, Query, description = "Number of the page, from 0. Default: 0."),
    ),
    responses(
        (
            status = 200, description = "A page of connections",
            body = ConnectionsResponse,
            example = json!({
                "connections": [
                    {
                        "id": 1,
                        "connection_id": "user-1",
                        "provider_config_key": "shop",
                        "provider": "stripe-api-key",
                        "errors": [],
                        "end_user": {
                            "id": "7",
                            "display_name": "Ada",
                            "email": "ada@example.com",
                            "tags": null,
                            "organization": null
                        },
                        "tags": {"end_user_id": "7", "plan": "pro"},
                        "metadata": {"region": "eu"},
                        "created": "2026-03-01T09:00:00.000+00:00"
                    }
                ]
            }),
        ),
    ),
)]
pub(super) async fn list_connections(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsList>,
    ApiQuery(query): ApiQuery<ConnectionsQuery>,
) -> Result<Response, ApiError> {
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
        errors: None,
        behind: None,
    };
    let page = ConnectionPage { limit, offset: page * limit };
    list::respond(app, client.environment.pk, filter, page).await
}

/// The query of `GET /connections/{connection_id}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ConnectionQuery {
    provider_config_key: String,
    force_refresh: Option<String>,
    refresh_token: Option<String>,
    refresh_github_app_jwt_token: Option<String>,
}

/// Get a connection
///
/// Returns one connection with its live credentials. The host refreshes an expired token first. Without the scope
/// `environment:connections:read_credentials`, `credentials` is empty.
///
/// Fails with 424 `invalid_credentials` if the credentials cannot be refreshed at the moment, and with 400 if the
/// provider has rejected them; `payload.connection` then has the connection without credentials. Needs the scope
/// `environment:connections:read`.
#[utoipa::path(
    get, path = "/connections/{connection_id}", tag = "Connections",
    params(
        ("connection_id" = String, Path, description = "The connection id."),
        ("provider_config_key" = String, Query, description = "The unique key of the integration."),
        ("force_refresh" = Option<bool>, Query, description = "Refreshes the token even if it is still valid. Default: `false`. Needs the scope for credentials."),
        ("refresh_token" = Option<bool>, Query, description = "Includes the refresh token of an OAuth connection. Default: `false`. Needs the scope for credentials."),
        ("refresh_github_app_jwt_token" = Option<bool>, Query, description = "Includes a new JWT of the app as `jwtToken`. Default: `false`. Needs the scope for credentials."),
    ),
    responses(
        (
            status = 200, description = "The connection",
            body = ConnectionBody,
            example = json!({
                "id": 1,
                "connection_id": "user-1",
                "provider_config_key": "shop",
                "provider": "stripe-api-key",
                "errors": [],
                "end_user": {
                    "id": "7",
                    "display_name": "Ada",
                    "email": "ada@example.com",
                    "tags": null,
                    "organization": null
                },
                "tags": {"end_user_id": "7", "plan": "pro"},
                "metadata": {"region": "eu"},
                "connection_config": {},
                "webhook_url_override": null,
                "created_at": "2026-03-01T09:00:00.000+00:00",
                "updated_at": "2026-03-01T09:00:00.000+00:00",
                "last_fetched_at": "2026-03-01T09:00:00.000+00:00",
                "credentials": {"type": "API_KEY", "apiKey": "sk_test_1"}
            }),
        ),
    ),
)]
pub(super) async fn get_connection(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsRead>,
    ApiPath(id): ApiPath,
    ApiQuery(query): ApiQuery<ConnectionQuery>,
) -> Result<Json<ConnectionBody>, ApiError> {
    let forces = parse_query_flag("force_refresh", query.force_refresh.as_deref())?;
    let shows_refresh_token = parse_query_flag("refresh_token", query.refresh_token.as_deref())?;
    let includes_app_token =
        parse_query_flag("refresh_github_app_jwt_token", query.refresh_github_app_jwt_token.as_deref())?;
    if forces || includes_app_token || shows_refresh_token {
        client.require(Scope::ConnectionsReadCredentials)?;
    }
    let (key, id) = parse_names(&query.provider_config_key, &id)?;
    let options = CredentialOptions {
        freshness: if forces { Freshness::Forced } else { Freshness::AsNeeded },
        with_app_token: includes_app_token,
    };
    let options = client.allows(Scope::ConnectionsReadCredentials).then_some(options);
    let body = |mut described: DescribedConnection, credentials| {
        if !shows_refresh_token {
            remove_refresh_tokens(&mut described.connection.connection_config);
        }
        ConnectionBody::new(described, credentials, iso_with_offset)
    };
    match app.connections.fetch(&client.environment, &key, &id, options, &client.actor()).await {
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
    /// `credentials` is `None` if the client lacks the scope for them, or if they could not be refreshed. `format`
    /// formats the times.
    fn new(
        described: DescribedConnection,
        credentials: Option<Value>,
        format: fn(DateTime<Utc>) -> String,
    ) -> Self {
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
            created_at: format(connection.created_at),
            updated_at: format(connection.updated_at),
            last_fetched_at: connection.last_fetched_at.map(format),
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

/// Parses the integration's key from the query and the connection id from the path.
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
            let message = format!("must be a whole number from {least} to {most} (got `{text}`)");
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
