//! `/connections/metadata`: JSON objects that a backend attaches to connections and shares with functions.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::{App, parse_name, parse_names};
use crate::error::ApiError;
use crate::extract::{
    ApiJson, ApiPath, ApiQuery, EnvironmentAuth, MAX_MEDIUM_BODY_BYTES, NoQuery, optional_header,
};
use syncline_auth::rights;
use syncline_engine::MetadataChange;
use syncline_types::ids::{ConnectionId, IntegrationKey};
use syncline_types::metadata::{InvalidMetadata, Metadata};

/// Metadata for one or several connections of an integration.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MetadataRequest {
    /// A connection id, or a list of them.
    connection_id: IdOrIds,
    /// The unique key of the integration.
    provider_config_key: String,
    /// The metadata: a JSON object of at most 1 MB. Numbers keep all digits.
    #[schema(value_type = Object)]
    metadata: Box<RawValue>,
}

/// A connection id, or a list of them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "an id or a list of ids")]
enum IdOrIds {
    One(String),
    Many(Vec<String>),
}

/// Replace metadata
///
/// Replaces the metadata of one or several connections of an integration. Either all connections are changed or none.
/// Fails with 404 `unknown_connection` if one does not exist. Needs the scope `environment:connections:update`.
#[utoipa::path(
    post, path = "/connections/metadata", tag = "Connections",
    request_body(content = MetadataRequest,
        example = json!({
            "connection_id": ["user-1", "user-2"],
            "provider_config_key": "shop",
            "metadata": {"region": "eu"}
        })),
    responses(
        (
            status = 201, description = "The request body",
            body = MetadataRequest,
            example = json!({
                "connection_id": ["user-1", "user-2"],
                "provider_config_key": "shop",
                "metadata": {"region": "eu"}
            }),
        ),
    ),
)]
pub(crate) async fn set_metadata(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsUpdate>,
    _: NoQuery,
    ApiJson(request): ApiJson<MetadataRequest, MAX_MEDIUM_BODY_BYTES>,
) -> Result<(StatusCode, Json<MetadataRequest>), ApiError> {
    let echo = app.write_metadata(&client, request, MetadataChange::Replace).await?;
    Ok((StatusCode::CREATED, Json(echo)))
}

/// Merge metadata
///
/// Adds or replaces the given members in the metadata of one or several connections; other members stay. Either all
/// connections are changed or none. Fails with 404 `unknown_connection` if one does not exist. Needs the scope
/// `environment:connections:update`.
#[utoipa::path(
    patch, path = "/connections/metadata", tag = "Connections",
    request_body(content = MetadataRequest,
        example = json!({
            "connection_id": ["user-1", "user-2"],
            "provider_config_key": "shop",
            "metadata": {"region": "eu"}
        })),
    responses(
        (
            status = 200, description = "The request body",
            body = MetadataRequest,
            example = json!({
                "connection_id": ["user-1", "user-2"],
                "provider_config_key": "shop",
                "metadata": {"region": "eu"}
            }),
        ),
    ),
)]
pub(crate) async fn merge_metadata(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsUpdate>,
    _: NoQuery,
    ApiJson(request): ApiJson<MetadataRequest, MAX_MEDIUM_BODY_BYTES>,
) -> Result<Json<MetadataRequest>, ApiError> {
    app.write_metadata(&client, request, MetadataChange::Merge).await.map(Json)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OlderQuery {
    provider_config_key: Option<String>,
}

/// `POST /connection/{connection_id}/metadata`: the older form of [`set_metadata`]. The body is the metadata itself.
pub(crate) async fn set_metadata_of_one(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsUpdate>,
    ApiPath(id): ApiPath,
    ApiQuery(query): ApiQuery<OlderQuery>,
    headers: HeaderMap,
    ApiJson(metadata): ApiJson<Box<RawValue>, MAX_MEDIUM_BODY_BYTES>,
) -> Result<(StatusCode, Json<Box<RawValue>>), ApiError> {
    let request = older_request(&id, query, &headers, metadata)?;
    let echo = app.write_metadata(&client, request, MetadataChange::Replace).await?;
    Ok((StatusCode::CREATED, Json(echo.metadata)))
}

/// `PATCH /connection/{connection_id}/metadata`: the older form of [`merge_metadata`].
pub(crate) async fn merge_metadata_of_one(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsUpdate>,
    ApiPath(id): ApiPath,
    ApiQuery(query): ApiQuery<OlderQuery>,
    headers: HeaderMap,
    ApiJson(metadata): ApiJson<Box<RawValue>, MAX_MEDIUM_BODY_BYTES>,
) -> Result<Json<Box<RawValue>>, ApiError> {
    let request = older_request(&id, query, &headers, metadata)?;
    let echo = app.write_metadata(&client, request, MetadataChange::Merge).await?;
    Ok(Json(echo.metadata))
}

/// In the older form, the query or a header names the integration.
fn older_request(
    id: &str,
    query: OlderQuery,
    headers: &HeaderMap,
    metadata: Box<RawValue>,
) -> Result<MetadataRequest, ApiError> {
    let key = match query.provider_config_key {
        Some(key) => key,
        None => {
            let header = optional_header::<IntegrationKey>(headers, "provider-config-key")?;
            let missing = || {
                ApiError::query(
                    "invalid_type",
                    &["provider_config_key"],
                    "is required, as a query parameter or as the header `Provider-Config-Key`",
                )
            };
            header.ok_or_else(missing)?.to_string()
        }
    };
    parse_names(&key, id)?;
    Ok(MetadataRequest { connection_id: IdOrIds::One(id.to_owned()), provider_config_key: key, metadata })
}

impl App {
    /// Writes to all connections that the request names or to none, and returns the request.
    async fn write_metadata(
        &self,
        client: &EnvironmentAuth<rights::ConnectionsUpdate>,
        request: MetadataRequest,
        change: MetadataChange,
    ) -> Result<MetadataRequest, ApiError> {
        let key = &request.provider_config_key;
        let key = parse_name::<IntegrationKey>("provider_config_key", key, ApiError::body)?;
        let given = match &request.connection_id {
            IdOrIds::One(id) => std::slice::from_ref(id),
            IdOrIds::Many(ids) => ids.as_slice(),
        };
        let ids = given.iter().map(|id| parse_name::<ConnectionId>("connection_id", id, ApiError::body));
        let ids = ids.collect::<Result<BTreeSet<_>, _>>()?;
        if ids.is_empty() {
            return Err(ApiError::body("too_small", &["connection_id"], "must name at least one connection"));
        }
        let metadata = parse_metadata(&request.metadata)?;
        let ids: Vec<ConnectionId> = ids.into_iter().collect();
        let (environment, actor) = (client.environment.pk, client.actor());
        self.connections.set_metadata(environment, &key, &ids, &metadata, change, &actor).await?;
        Ok(request)
    }
}

/// Checks the metadata in a request.
pub(super) fn parse_metadata(json: &RawValue) -> Result<Metadata, ApiError> {
    const FIELD: &[&str] = &["metadata"];
    Metadata::parse(json.get()).map_err(|problem| match problem {
        InvalidMetadata::Json(problem) => ApiError::Json { problem: problem.to_string() },
        InvalidMetadata::NotAnObject => ApiError::body("invalid_type", FIELD, problem.to_string()),
        InvalidMetadata::Nul => ApiError::body("invalid_format", FIELD, problem.to_string()),
        InvalidMetadata::TooLong(_) => ApiError::body("too_big", FIELD, problem.to_string()),
    })
}
