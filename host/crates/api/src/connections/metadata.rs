//! `/connections/metadata`: what a client's own backend notes beside connections, and hands to functions.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::import::check_members;
use super::{App, parse_name, parse_names};
use crate::error::{ApiError, ErrorBody};
use crate::extract::{ApiJson, ApiPath, ApiQuery, EnvironmentAuth, NoQuery, optional_header};
use syncline_auth::{Client, rights};
use syncline_engine::MetadataChange;
use syncline_types::ids::{ConnectionId, IntegrationKey};

/// Connections of one integration, and metadata for all of them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MetadataRequest {
    connection_id: IdOrIds,
    provider_config_key: String,
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
}

/// One connection's id, or a list of them.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(untagged, expecting = "an id or a list of ids")]
enum IdOrIds {
    One(String),
    Many(Vec<String>),
}

/// `POST /connections/metadata`: replaces the metadata of these connections, of all of them or of none.
#[utoipa::path(
    post, path = "/connections/metadata", tag = "Connections", request_body = MetadataRequest,
    responses((status = 201, body = MetadataRequest), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn set_metadata(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsUpdate>,
    _: NoQuery,
    ApiJson(request): ApiJson<MetadataRequest>,
) -> Result<(StatusCode, Json<MetadataRequest>), ApiError> {
    let echo = app.write_metadata(&client, request, MetadataChange::Replace).await?;
    Ok((StatusCode::CREATED, Json(echo)))
}

/// `PATCH /connections/metadata`: merges these members into the metadata of these connections, of all or of none.
#[utoipa::path(
    patch, path = "/connections/metadata", tag = "Connections", request_body = MetadataRequest,
    responses((status = 200, body = MetadataRequest), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn merge_metadata(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsUpdate>,
    _: NoQuery,
    ApiJson(request): ApiJson<MetadataRequest>,
) -> Result<Json<MetadataRequest>, ApiError> {
    app.write_metadata(&client, request, MetadataChange::Merge).await.map(Json)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OlderQuery {
    provider_config_key: Option<String>,
}

/// `POST /connection/{connection_id}/metadata`: the older form of [`set_metadata`], with nothing but the metadata as
/// its body.
pub(crate) async fn set_metadata_of_one(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsUpdate>,
    ApiPath(id): ApiPath,
    ApiQuery(query): ApiQuery<OlderQuery>,
    headers: HeaderMap,
    ApiJson(metadata): ApiJson<Map<String, Value>>,
) -> Result<(StatusCode, Json<Map<String, Value>>), ApiError> {
    let request = older_request(&id, query, &headers, metadata)?;
    let echo = app.write_metadata(&client, request, MetadataChange::Replace).await?;
    Ok((StatusCode::CREATED, Json(echo.metadata)))
}

/// `PATCH /connection/{connection_id}/metadata`: likewise for [`merge_metadata`].
pub(crate) async fn merge_metadata_of_one(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsUpdate>,
    ApiPath(id): ApiPath,
    ApiQuery(query): ApiQuery<OlderQuery>,
    headers: HeaderMap,
    ApiJson(metadata): ApiJson<Map<String, Value>>,
) -> Result<Json<Map<String, Value>>, ApiError> {
    let request = older_request(&id, query, &headers, metadata)?;
    let echo = app.write_metadata(&client, request, MetadataChange::Merge).await?;
    Ok(Json(echo.metadata))
}

/// The older form names the integration in its query or in a header.
fn older_request(
    id: &str,
    query: OlderQuery,
    headers: &HeaderMap,
    metadata: Map<String, Value>,
) -> Result<MetadataRequest, ApiError> {
    let key = match query.provider_config_key {
        Some(key) => key,
        None => {
            let header = optional_header::<IntegrationKey>(headers, "provider-config-key")?;
            let missing = || {
                ApiError::query("invalid_type", &["provider_config_key"], "is missing, here and as a header")
            };
            header.ok_or_else(missing)?.to_string()
        }
    };
    parse_names(&key, id)?;
    Ok(MetadataRequest { connection_id: IdOrIds::One(id.to_owned()), provider_config_key: key, metadata })
}

impl App {
    /// Writes to all connections that the request names, or to none, and gives the request back.
    async fn write_metadata(
        &self,
        client: &Client,
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
            return Err(ApiError::body("too_small", &["connection_id"], "must name a connection"));
        }
        check_members("metadata", &request.metadata)?;
        let ids: Vec<ConnectionId> = ids.into_iter().collect();
        let metadata = Value::Object(request.metadata);
        self.connections.set_metadata(client.environment.pk, &key, &ids, &metadata, change).await?;
        let Value::Object(metadata) = metadata else { unreachable!("it was made of an object") };
        Ok(MetadataRequest { metadata, ..request })
    }
}
