//! `PATCH` and `DELETE /connections/{connection_id}`.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::import::UserAndTags;
use super::{App, check_webhook_url, parse_names};
use crate::error::ApiError;
use crate::extract::{ApiJson, ApiPath, ApiQuery, EnvironmentAuth, MAX_MEDIUM_BODY_BYTES};
use crate::tags::{EndUser, Organization};
use syncline_auth::rights;
use syncline_engine::ConnectionUpdate;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OfIntegration {
    provider_config_key: String,
}

/// Changes of a connection. Omitted members stay unchanged.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpdateConnectionRequest {
    /// The end user who owns the account.
    end_user: Option<EndUser>,
    /// The organization of the end user. Requires `end_user`.
    organization: Option<Organization>,
    /// New tags, at most 10. They replace all tags, together with those that are derived from `end_user` and
    /// `organization`.
    tags: Option<BTreeMap<String, String>>,
    /// URL for this connection's webhooks. An empty string removes it.
    webhook_url_override: Option<String>,
}

/// The result of a change.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ConnectionChanged {
    /// Always `true`.
    success: bool,
}

/// Update a connection
///
/// Changes the end user, the tags or the webhook URL of a connection. Omitted members stay unchanged. If `end_user` or
/// `tags` is present, all tags are replaced. Credentials do not change. Needs the scope
/// `environment:connections:update`.
#[utoipa::path(
    patch, path = "/connections/{connection_id}", tag = "Connections",
    request_body(content = UpdateConnectionRequest,
        example = json!({
            "end_user": {"id": "7", "email": "ada@example.com", "display_name": "Ada"},
            "tags": {"plan": "pro"}
        })),
    params(
        ("connection_id" = String, Path, description = "The connection id."),
        ("provider_config_key" = String, Query, description = "The unique key of the integration."),
    ),
    responses(
        (
            status = 200, description = "The connection was changed",
            body = ConnectionChanged,
            example = json!({"success": true}),
        ),
    ),
)]
pub(crate) async fn update_connection(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsUpdate>,
    ApiPath(id): ApiPath,
    ApiQuery(query): ApiQuery<OfIntegration>,
    ApiJson(request): ApiJson<UpdateConnectionRequest, MAX_MEDIUM_BODY_BYTES>,
) -> Result<Json<ConnectionChanged>, ApiError> {
    let (key, id) = parse_names(&query.provider_config_key, &id)?;
    let url = request.webhook_url_override.as_deref();
    if let Some(url) = url.filter(|url| !url.is_empty()) {
        check_webhook_url(url)?;
    }
    if request.organization.is_some() && request.end_user.is_none() {
        let message = "requires `end_user`: an organization belongs to an end user";
        return Err(ApiError::body("custom", &["organization"], message));
    }
    let replaces_tags = request.end_user.is_some() || request.tags.is_some();
    let user = UserAndTags::check(request.end_user, request.organization, request.tags)?;
    let update = ConnectionUpdate {
        end_user: user.end_user.as_ref(),
        tags: replaces_tags.then_some(&user.tags),
        webhook_url_override: url.map(|url| Some(url).filter(|url| !url.is_empty())),
    };
    app.connections.update(client.environment.pk, &key, &id, &update, &client.actor()).await?;
    Ok(Json(ConnectionChanged { success: true }))
}

/// Delete a connection
///
/// Deletes a connection and its credentials permanently. Pre-deletion functions run first, for at most 30 seconds.
/// Records are deleted in the background, and runs in progress can no longer write. Needs the scope
/// `environment:connections:delete`.
#[utoipa::path(
    delete, path = "/connections/{connection_id}", tag = "Connections",
    params(
        ("connection_id" = String, Path, description = "The connection id."),
        ("provider_config_key" = String, Query, description = "The unique key of the integration."),
    ),
    responses(
        (
            status = 200, description = "The connection was deleted",
            body = ConnectionChanged,
            example = json!({"success": true}),
        ),
    ),
)]
pub(crate) async fn delete_connection(
    State(app): State<App>,
    client: EnvironmentAuth<rights::ConnectionsDelete>,
    ApiPath(id): ApiPath,
    ApiQuery(query): ApiQuery<OfIntegration>,
) -> Result<Json<ConnectionChanged>, ApiError> {
    let (key, id) = parse_names(&query.provider_config_key, &id)?;
    app.connections.delete(client.environment.pk, &key, &id, &client.actor()).await?;
    Ok(Json(ConnectionChanged { success: true }))
}
