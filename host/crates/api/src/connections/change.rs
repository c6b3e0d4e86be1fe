//! `PATCH` and `DELETE /connections/{connection_id}`.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::import::UserAndTags;
use super::{App, check_webhook_url, parse_names};
use crate::error::{ApiError, ErrorBody};
use crate::extract::{ApiJson, ApiPath, ApiQuery, EnvironmentAuth};
use crate::tags::{EndUser, Organization};
use syncline_auth::rights;
use syncline_engine::ConnectionUpdate;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfIntegration {
    provider_config_key: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateConnectionRequest {
    end_user: Option<EndUser>,
    /// The end user's.
    organization: Option<Organization>,
    /// With an end user or tags, all tags are replaced: by those that follow from the end user, and by these.
    tags: Option<BTreeMap<String, String>>,
    /// Empty to remove it.
    webhook_url_override: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ConnectionChanged {
    success: bool,
}

/// `PATCH /connections/{connection_id}`: whose it is, its tags, and where its webhooks go.
#[utoipa::path(
    patch, path = "/connections/{connection_id}", tag = "Connections", request_body = UpdateConnectionRequest,
    params(
        ("connection_id" = String, Path),
        ("provider_config_key" = String, Query, description = "The integration's unique key"),
    ),
    responses((status = 200, body = ConnectionChanged), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn update_connection(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsUpdate>,
    ApiPath(id): ApiPath,
    ApiQuery(query): ApiQuery<OfIntegration>,
    ApiJson(request): ApiJson<UpdateConnectionRequest>,
) -> Result<Json<ConnectionChanged>, ApiError> {
    let (key, id) = parse_names(&query.provider_config_key, &id)?;
    let url = request.webhook_url_override.as_deref();
    if let Some(url) = url.filter(|url| !url.is_empty()) {
        check_webhook_url(url)?;
    }
    if request.organization.is_some() && request.end_user.is_none() {
        let message = "an organization is one of an end user; send `end_user` with it";
        return Err(ApiError::body("custom", &["organization"], message));
    }
    let replaces_tags = request.end_user.is_some() || request.tags.is_some();
    let user = UserAndTags::check(request.end_user, request.organization, request.tags)?;
    let update = ConnectionUpdate {
        end_user: user.end_user.as_ref(),
        tags: replaces_tags.then_some(&user.tags),
        webhook_url_override: url.map(|url| Some(url).filter(|url| !url.is_empty())),
    };
    app.connections.update(client.environment.pk, &key, &id, &update).await?;
    Ok(Json(ConnectionChanged { success: true }))
}

/// `DELETE /connections/{connection_id}`: for good, with its credentials and with what its syncs kept.
#[utoipa::path(
    delete, path = "/connections/{connection_id}", tag = "Connections",
    params(
        ("connection_id" = String, Path),
        ("provider_config_key" = String, Query, description = "The integration's unique key"),
    ),
    responses((status = 200, body = ConnectionChanged), (status = "4XX", body = ErrorBody)),
)]
pub(crate) async fn delete_connection(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsDelete>,
    ApiPath(id): ApiPath,
    ApiQuery(query): ApiQuery<OfIntegration>,
) -> Result<Json<ConnectionChanged>, ApiError> {
    let (key, id) = parse_names(&query.provider_config_key, &id)?;
    app.connections.delete(client.environment.pk, &key, &id).await?;
    Ok(Json(ConnectionChanged { success: true }))
}
