//! `/webhooks/deliveries`: outbound webhooks, their attempts, and redelivery.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::error::ApiError;
use super::extract::{ApiJson, ApiPath, ApiQuery, EnvironmentAuth, NoQuery};
use super::lists::{Cursors, cut_to_page, parse_limit, parse_scope, parse_time};
use super::time::iso;
use syncline_auth::{Client, Scope, rights};
use syncline_engine::NamedScope;
use syncline_outbound_webhooks::{
    Delivery, DeliveryDetail, DeliveryError, DeliveryFilter, DeliveryState, LoggedAttempt,
    url_without_secrets,
};
use syncline_types::ids::{ConnectionId, IntegrationKey};

const DEFAULT_LIMIT: i64 = 100;
const MAX_LIMIT: i64 = 500;
pub(super) const KINDS: [&str; 4] = ["auth", "sync", "forward", "async_action"];

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeliveriesQuery {
    state: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    connection_id: Option<String>,
    provider_config_key: Option<String>,
    since: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

/// A page of deliveries.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeliveriesResponse {
    /// The deliveries, newest first.
    deliveries: Vec<DeliveryBody>,
    /// Cursor of the next page, or `null` on the last page.
    next_cursor: Option<String>,
}

/// An outbound webhook to one URL.
#[derive(Debug, Serialize, ToSchema)]
struct DeliveryBody {
    /// Id of the delivery.
    id: Uuid,
    /// Value of the header `webhook-id`. The same in every attempt and for both URLs of an environment.
    webhook_id: Uuid,
    /// `auth`, `sync`, `forward` or `async_action`.
    #[serde(rename = "type")]
    kind: String,
    /// `pending`, `delivered`, `failed` (no more attempts) or `cancelled` (its URL was removed).
    state: String,
    /// The URL. Without the scope `environment:settings:read` only its origin, because paths and queries can contain
    /// secrets.
    url: String,
    /// The unique key of the integration.
    provider_config_key: Option<String>,
    /// The connection id.
    connection_id: Option<String>,
    /// Number of attempts so far.
    attempt_count: i32,
    /// When the next attempt is due, or `null` if there is none.
    next_attempt_at: Option<String>,
    /// When the webhook was created.
    created_at: String,
    /// When the delivery was completed or given up, or `null`.
    finished_at: Option<String>,
}

/// A delivery with its body and attempts.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeliveryDetailBody {
    #[serde(flatten)]
    delivery: DeliveryBody,
    /// The body, exactly as it is sent.
    #[schema(value_type = serde_json::Value)]
    body: Box<RawValue>,
    /// The attempts, oldest first.
    attempts: Vec<AttemptBody>,
}

/// One attempt of a delivery.
#[derive(Debug, Serialize, ToSchema)]
struct AttemptBody {
    /// Number of the attempt, from 1.
    number: i32,
    /// When the attempt started.
    at: String,
    /// HTTP status of the response, or `null` if there was none.
    status: Option<i32>,
    /// Why the attempt failed, or `null`.
    error: Option<String>,
    /// Duration in milliseconds.
    duration_ms: i32,
}

/// The failed deliveries to send again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RedeliverRequest {
    /// Selects failed deliveries that were created at this time or later. RFC 3339, such as `2026-03-01T09:00:00Z`.
    since: String,
}

/// The result of a redelivery.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RedeliverResponse {
    /// Number of deliveries that are pending again.
    count: u64,
}

/// List webhook deliveries
///
/// Returns the webhooks that this host sends to your backend, newest first, with their state and number of attempts.
/// Needs the scope `environment:webhooks:read`.
#[utoipa::path(
    get, path = "/webhooks/deliveries", tag = "Webhooks",
    params(
        ("state" = Option<String>, Query, description = "`pending`, `delivered`, `failed` or `cancelled`."),
        ("type" = Option<String>, Query, description = "`auth`, `sync`, `forward` or `async_action`."),
        ("connection_id" = Option<String>, Query, description = "Returns only deliveries of this connection. Requires `provider_config_key`."),
        ("provider_config_key" = Option<String>, Query, description = "The unique key of the integration of `connection_id`. Requires `connection_id`."),
        ("since" = Option<String>, Query, description = "Returns only deliveries that were created at this time or later. RFC 3339."),
        ("limit" = Option<i64>, Query, description = "Page size, 1 to 500. Default: 100. Larger values are treated as 500."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page. Omit it for the first page."),
    ),
    responses(
        (
            status = 200, description = "A page of deliveries",
            body = DeliveriesResponse,
            example = json!({
                "deliveries": [
                    {
                        "id": "01978a3e-5555-7c21-9d4e-2b6a1f0c8e11",
                        "webhook_id": "01978a3e-5556-7c21-9d4e-2b6a1f0c8e11",
                        "type": "auth",
                        "state": "delivered",
                        "url": "https://app.example.com/webhooks/syncline",
                        "provider_config_key": "shop",
                        "connection_id": "user-1",
                        "attempt_count": 1,
                        "next_attempt_at": null,
                        "created_at": "2026-03-01T09:00:00.000Z",
                        "finished_at": "2026-03-01T09:00:00.420Z"
                    }
                ],
                "next_cursor": null
            }),
        ),
    ),
)]
pub(super) async fn list_deliveries(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhooksRead>,
    ApiQuery(query): ApiQuery<DeliveriesQuery>,
) -> Result<Json<DeliveriesResponse>, ApiError> {
    let environment = client.environment.pk;
    let limit = parse_limit(query.limit.as_deref(), DEFAULT_LIMIT, MAX_LIMIT)?;
    let cursors = Cursors { list: "webhook deliveries", environment };
    let filter = DeliveryFilter {
        states: query.state.as_deref().map_or(Ok(DeliveryState::ALL.to_vec()), parse_state)?,
        kind: query.kind.map(parse_kind).transpose()?,
        since: query.since.map(|text| parse_time("since", &text, ApiError::query)).transpose()?,
        before: query.cursor.map(|cursor| cursors.decode_number(&cursor)).transpose()?,
        connection: parse_connection(query.provider_config_key.as_deref(), query.connection_id.as_deref())?,
    };
    let mut found = app.deliveries.list(environment, filter, limit + 1).await?;
    let next_cursor = cut_to_page(&mut found, limit).map(|last| cursors.encode_number(last.pk));
    let deliveries = found.into_iter().map(|delivery| DeliveryBody::new(delivery, &client)).collect();
    Ok(Json(DeliveriesResponse { deliveries, next_cursor }))
}

/// Get a webhook delivery
///
/// Returns one delivery with its exact body and the results of its attempts. Needs the scope
/// `environment:webhooks:read`.
#[utoipa::path(
    get, path = "/webhooks/deliveries/{id}", tag = "Webhooks",
    params(
        ("id" = Uuid, Path, description = "Id of the delivery."),
    ),
    responses(
        (
            status = 200, description = "The delivery",
            body = DeliveryDetailBody,
            example = json!({
                "id": "01978a3e-5555-7c21-9d4e-2b6a1f0c8e11",
                "webhook_id": "01978a3e-5556-7c21-9d4e-2b6a1f0c8e11",
                "type": "auth",
                "state": "delivered",
                "url": "https://app.example.com/webhooks/syncline",
                "provider_config_key": "shop",
                "connection_id": "user-1",
                "attempt_count": 1,
                "next_attempt_at": null,
                "created_at": "2026-03-01T09:00:00.000Z",
                "finished_at": "2026-03-01T09:00:00.420Z",
                "body": {
                    "type": "auth",
                    "operation": "creation",
                    "connectionId": "user-1",
                    "providerConfigKey": "shop",
                    "provider": "stripe-api-key",
                    "environment": "dev",
                    "success": true
                },
                "attempts": [
                    {
                        "number": 1,
                        "at": "2026-03-01T09:00:00.000Z",
                        "status": 200,
                        "error": null,
                        "duration_ms": 83
                    }
                ]
            }),
        ),
    ),
)]
pub(super) async fn get_delivery(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhooksRead>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<Json<DeliveryDetailBody>, ApiError> {
    let detail = app.deliveries.get(client.environment.pk, parse_id(&id)?).await?;
    DeliveryDetailBody::new(detail, &client).map(Json)
}

/// Redeliver a webhook
///
/// Sends one webhook again, with its id and body, to the URL that is configured now. Fails with 409 `no_webhook_url`
/// if no URL is configured. Needs the scope `environment:webhooks:redeliver`.
#[utoipa::path(
    post, path = "/webhooks/deliveries/{id}/redeliver", tag = "Webhooks",
    params(
        ("id" = Uuid, Path, description = "Id of the delivery."),
    ),
    responses(
        (
            status = 202, description = "The delivery is pending again",
            body = DeliveryDetailBody,
            example = json!({
                "id": "01978a3e-5555-7c21-9d4e-2b6a1f0c8e11",
                "webhook_id": "01978a3e-5556-7c21-9d4e-2b6a1f0c8e11",
                "type": "auth",
                "state": "pending",
                "url": "https://app.example.com/webhooks/syncline",
                "provider_config_key": "shop",
                "connection_id": "user-1",
                "attempt_count": 1,
                "next_attempt_at": "2026-03-01T09:00:00.000Z",
                "created_at": "2026-03-01T09:00:00.000Z",
                "finished_at": null,
                "body": {
                    "type": "auth",
                    "operation": "creation",
                    "connectionId": "user-1",
                    "providerConfigKey": "shop",
                    "provider": "stripe-api-key",
                    "environment": "dev",
                    "success": true
                },
                "attempts": [
                    {
                        "number": 1,
                        "at": "2026-03-01T09:00:00.000Z",
                        "status": 200,
                        "error": null,
                        "duration_ms": 83
                    }
                ]
            }),
        ),
    ),
)]
pub(super) async fn redeliver(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhooksRedeliver>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<(StatusCode, Json<DeliveryDetailBody>), ApiError> {
    let detail = app.deliveries.redeliver(client.environment.pk, parse_id(&id)?, &client.actor()).await?;
    Ok((StatusCode::ACCEPTED, Json(DeliveryDetailBody::new(detail, &client)?)))
}

/// Redeliver failed webhooks
///
/// Sends all webhooks again that were created since a time and have failed permanently. Skips deliveries whose URL is
/// no longer configured. Needs the scope `environment:webhooks:redeliver`.
#[utoipa::path(
    post, path = "/webhooks/deliveries/redeliver", tag = "Webhooks",
    request_body(content = RedeliverRequest,
        example = json!({"since": "2026-03-01T09:00:00Z"})),
    responses(
        (
            status = 202, description = "The number of deliveries that are pending again",
            body = RedeliverResponse,
            example = json!({"count": 12}),
        ),
    ),
)]
pub(super) async fn redeliver_failed(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhooksRedeliver>,
    _: NoQuery,
    ApiJson(request): ApiJson<RedeliverRequest>,
) -> Result<(StatusCode, Json<RedeliverResponse>), ApiError> {
    let since = parse_time("since", &request.since, ApiError::body)?;
    let count = app.deliveries.redeliver_failed(client.environment.pk, since, &client.actor()).await?;
    Ok((StatusCode::ACCEPTED, Json(RedeliverResponse { count })))
}

impl DeliveryDetailBody {
    fn new(detail: DeliveryDetail, client: &Client) -> Result<Self, ApiError> {
        Ok(Self {
            delivery: DeliveryBody::new(detail.delivery, client),
            body: RawValue::from_string(detail.body).map_err(ApiError::internal)?,
            attempts: detail.attempts.into_iter().map(AttemptBody::from).collect(),
        })
    }
}

impl DeliveryBody {
    fn new(delivery: Delivery, client: &Client) -> Self {
        let url = match client.allows(Scope::SettingsRead) {
            true => delivery.url,
            false => url_without_secrets(&delivery.url),
        };
        let (integration, connection) = delivery.connection.unzip();
        Self {
            id: delivery.id,
            webhook_id: delivery.message_id,
            kind: delivery.kind,
            state: delivery.state,
            url,
            provider_config_key: integration.map(Into::into),
            connection_id: connection.map(Into::into),
            attempt_count: delivery.attempts,
            next_attempt_at: delivery.next_attempt_at.map(iso),
            created_at: iso(delivery.created_at),
            finished_at: delivery.finished_at.map(iso),
        }
    }
}

impl From<LoggedAttempt> for AttemptBody {
    fn from(attempt: LoggedAttempt) -> Self {
        Self {
            number: attempt.number,
            at: iso(attempt.at),
            status: attempt.status,
            error: attempt.error,
            duration_ms: attempt.duration_ms,
        }
    }
}

fn parse_id(text: &str) -> Result<Uuid, DeliveryError> {
    text.parse().map_err(|_| DeliveryError::Unknown(text.chars().take(60).collect()))
}

fn parse_state(text: &str) -> Result<Vec<DeliveryState>, ApiError> {
    let state = DeliveryState::ALL.into_iter().find(|state| state.as_str() == text);
    let message = "must be `pending`, `delivered`, `failed` or `cancelled`";
    state.map(|state| vec![state]).ok_or_else(|| ApiError::query("invalid_value", &["state"], message))
}

fn parse_kind(text: String) -> Result<String, ApiError> {
    if KINDS.contains(&text.as_str()) {
        return Ok(text);
    }
    Err(ApiError::query("invalid_value", &["type"], "must be `auth`, `sync`, `forward` or `async_action`"))
}

fn parse_connection(
    key: Option<&str>,
    id: Option<&str>,
) -> Result<Option<(IntegrationKey, ConnectionId)>, ApiError> {
    match parse_scope(key, id)? {
        NamedScope::Environment => Ok(None),
        NamedScope::Connection { integration, connection } => Ok(Some((integration, connection))),
        NamedScope::Integration(_) => {
            let message = "is required with `provider_config_key`: the list covers one connection or all";
            Err(ApiError::query("invalid_type", &["connection_id"], message))
        }
    }
}
