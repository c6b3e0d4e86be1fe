//! `/webhooks/received`: webhooks that providers sent, and their replay.

pub mod ingest;

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::connections::parse_name;
use super::error::ApiError;
use super::extract::{ApiJson, ApiPath, ApiQuery, EnvironmentAuth, NoQuery};
use super::lists::{cut_to_page, parse_limit, parse_time};
use super::time::iso;
use syncline_auth::rights;
use syncline_engine::{
    InboundWebhook, InboundWebhookDetail, InboundWebhookError, InboundWebhookFilter, InboundWebhookState,
    WebhookJob,
};
use syncline_types::ids::IntegrationKey;
use syncline_types::sanitize::sanitize_text;

const DEFAULT_LIMIT: i64 = 100;
const MAX_LIMIT: i64 = 500;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InboundWebhooksQuery {
    state: Option<String>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    provider_config_key: Option<String>,
    since: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

/// A page of provider webhooks.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct InboundWebhooksResponse {
    /// The webhooks, newest first.
    webhooks: Vec<InboundWebhookBody>,
    /// Cursor of the next page, or `null` on the last page.
    next_cursor: Option<String>,
}

/// A webhook that a provider sent.
#[derive(Debug, Serialize, ToSchema)]
struct InboundWebhookBody {
    /// Id of the webhook.
    id: Uuid,
    /// The unique key of the integration.
    provider_config_key: String,
    /// Type of the event, if the provider's format has one. For several events in one webhook, the type of the first.
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// The provider's id of the delivery, or another value that identifies it.
    delivery_id: Option<String>,
    /// `received`, `processing`, `processed`, `unmatched` (matches no connection), `failed`, or `handshake` (the
    /// provider tested the URL; the webhook is not processed).
    state: String,
    /// Number of connections that the webhook is about.
    connections: i32,
    /// Number of function calls that have not finished.
    functions_left: i32,
    /// Number of function calls that failed.
    functions_failed: i32,
    /// How many times the webhook was replayed.
    replays: i32,
    /// Why the webhook was not processed, or `null`.
    error: Option<String>,
    /// When the webhook arrived.
    received_at: String,
    /// When processing finished, or `null`.
    finished_at: Option<String>,
}

/// A provider webhook with its content and functions.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct InboundWebhookDetailBody {
    #[serde(flatten)]
    webhook: InboundWebhookBody,
    /// The headers of the request.
    headers: BTreeMap<String, String>,
    /// The body as the provider sent it. A body that is not JSON is a string.
    #[schema(value_type = serde_json::Value)]
    body: Box<RawValue>,
    /// The functions that process the webhook. Absent once their runs have been deleted.
    functions: Vec<WebhookFunctionBody>,
}

/// A function that processes a webhook for one connection.
#[derive(Debug, Serialize, ToSchema)]
struct WebhookFunctionBody {
    /// Id of the job. It stays the same in every attempt and when the webhook is replayed.
    job_id: Uuid,
    /// The connection id.
    connection_id: String,
    /// Name of the function.
    name: String,
    /// `queued`, `running`, `success` or `error`.
    state: &'static str,
    /// Number of failed attempts.
    failures: i32,
}

/// The webhooks to process again.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayRequest {
    /// Selects webhooks that arrived at this time or later. RFC 3339, such as `2026-03-01T09:00:00Z`.
    since: String,
    /// `processed`, `unmatched` or `failed`. Default: `unmatched` and `failed`.
    state: Option<String>,
    /// Selects only webhooks of this integration.
    provider_config_key: Option<String>,
    /// Selects only webhooks with this type of event.
    #[serde(rename = "type")]
    event_type: Option<String>,
}

/// The result of a replay.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReplayResponse {
    /// Number of webhooks that will be processed again.
    count: u64,
}

/// List provider webhooks
///
/// Returns the webhooks that providers have sent to this environment, newest first. Needs the scope
/// `environment:webhooks:read`.
#[utoipa::path(
    get, path = "/webhooks/received", tag = "Webhooks",
    params(
        ("state" = Option<String>, Query, description = "`received`, `processing`, `processed`, `unmatched`, `failed` or `handshake`."),
        ("type" = Option<String>, Query, description = "Type of the event, as the provider names it."),
        ("provider_config_key" = Option<String>, Query, description = "Returns only webhooks of this integration."),
        ("since" = Option<String>, Query, description = "Returns only webhooks that arrived at this time or later. RFC 3339."),
        ("limit" = Option<i64>, Query, description = "Page size, 1 to 500. Default: 100. Larger values are treated as 500."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page. Omit it for the first page."),
    ),
    responses(
        (
            status = 200, description = "A page of provider webhooks",
            body = InboundWebhooksResponse,
            example = json!({
                "webhooks": [
                    {
                        "id": "01978a3e-6666-7c21-9d4e-2b6a1f0c8e11",
                        "provider_config_key": "shop",
                        "type": "customer.updated",
                        "delivery_id": "evt_1",
                        "state": "processed",
                        "connections": 1,
                        "functions_left": 0,
                        "functions_failed": 0,
                        "replays": 0,
                        "error": null,
                        "received_at": "2026-03-01T09:00:00.000Z",
                        "finished_at": "2026-03-01T09:00:00.800Z"
                    }
                ],
                "next_cursor": null
            }),
        ),
    ),
)]
pub(super) async fn list_inbound_webhooks(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhooksRead>,
    ApiQuery(query): ApiQuery<InboundWebhooksQuery>,
) -> Result<Json<InboundWebhooksResponse>, ApiError> {
    let limit = parse_limit(query.limit.as_deref(), DEFAULT_LIMIT, MAX_LIMIT)?;
    let broken = |_| ApiError::Cursor { problem: "was not returned by this list" };
    let filter = InboundWebhookFilter {
        states: query.state.as_deref().map_or(Ok(InboundWebhookState::ALL.to_vec()), |text| {
            parse_state(text, &InboundWebhookState::ALL, ApiError::query)
        })?,
        event_type: query.event_type.map(|text| sanitize_text(&text)),
        since: query.since.map(|text| parse_time("since", &text, ApiError::query)).transpose()?,
        before: query.cursor.map(|cursor| cursor.parse::<Uuid>().map_err(broken)).transpose()?,
        integration: parse_integration(query.provider_config_key, ApiError::query)?,
    };
    let mut found = app.inbound_webhook_log.list(client.environment.pk, filter, limit + 1).await?;
    let next_cursor = cut_to_page(&mut found, limit).map(|last| last.id.to_string());
    Ok(Json(InboundWebhooksResponse {
        webhooks: found.into_iter().map(InboundWebhookBody::from).collect(),
        next_cursor,
    }))
}

/// Get a provider webhook
///
/// Returns one webhook with its headers, its body and the functions that process it. Needs the scope
/// `environment:webhooks:read`.
#[utoipa::path(
    get, path = "/webhooks/received/{id}", tag = "Webhooks",
    params(
        ("id" = Uuid, Path, description = "Id of the webhook."),
    ),
    responses(
        (
            status = 200, description = "The webhook",
            body = InboundWebhookDetailBody,
            example = json!({
                "id": "01978a3e-6666-7c21-9d4e-2b6a1f0c8e11",
                "provider_config_key": "shop",
                "type": "customer.updated",
                "delivery_id": "evt_1",
                "state": "processed",
                "connections": 1,
                "functions_left": 0,
                "functions_failed": 0,
                "replays": 0,
                "error": null,
                "received_at": "2026-03-01T09:00:00.000Z",
                "finished_at": "2026-03-01T09:00:00.800Z",
                "headers": {"content-type": "application/json"},
                "body": {"id": "evt_1", "type": "customer.updated"},
                "functions": [
                    {
                        "job_id": "01978a3e-6667-7c21-9d4e-2b6a1f0c8e11",
                        "connection_id": "user-1",
                        "name": "buyer-changed",
                        "state": "success",
                        "failures": 0
                    }
                ]
            }),
        ),
    ),
)]
pub(super) async fn get_inbound_webhook(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhooksRead>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<Json<InboundWebhookDetailBody>, ApiError> {
    let detail = app.inbound_webhook_log.get(client.environment.pk, parse_id(&id)?).await?;
    InboundWebhookDetailBody::new(detail).map(Json)
}

/// Replay a provider webhook
///
/// Processes a webhook again: calls its functions and forwards it to your backend. Fails with 409 `webhook_in_flight`
/// if it is still being processed. Needs the scope `environment:webhooks:redeliver`.
#[utoipa::path(
    post, path = "/webhooks/received/{id}/replay", tag = "Webhooks",
    params(
        ("id" = Uuid, Path, description = "Id of the webhook."),
    ),
    responses(
        (
            status = 202, description = "The webhook will be processed again",
            body = InboundWebhookDetailBody,
            example = json!({
                "id": "01978a3e-6666-7c21-9d4e-2b6a1f0c8e11",
                "provider_config_key": "shop",
                "type": "customer.updated",
                "delivery_id": "evt_1",
                "state": "received",
                "connections": 1,
                "functions_left": 0,
                "functions_failed": 0,
                "replays": 1,
                "error": null,
                "received_at": "2026-03-01T09:00:00.000Z",
                "finished_at": null,
                "headers": {"content-type": "application/json"},
                "body": {"id": "evt_1", "type": "customer.updated"},
                "functions": [
                    {
                        "job_id": "01978a3e-6667-7c21-9d4e-2b6a1f0c8e11",
                        "connection_id": "user-1",
                        "name": "buyer-changed",
                        "state": "success",
                        "failures": 0
                    }
                ]
            }),
        ),
    ),
)]
pub(super) async fn replay(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhooksRedeliver>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<(StatusCode, Json<InboundWebhookDetailBody>), ApiError> {
    let detail =
        app.inbound_webhook_log.replay(client.environment.pk, parse_id(&id)?, &client.actor()).await?;
    Ok((StatusCode::ACCEPTED, Json(InboundWebhookDetailBody::new(detail)?)))
}

/// Replay provider webhooks
///
/// Processes all finished webhooks again that arrived since a time. By default these are the failed ones and those
/// that matched no connection. Needs the scope `environment:webhooks:redeliver`.
#[utoipa::path(
    post, path = "/webhooks/received/replay", tag = "Webhooks",
    request_body(content = ReplayRequest,
        example = json!({"since": "2026-03-01T09:00:00Z", "state": "failed", "provider_config_key": "shop"})),
    responses(
        (
            status = 202, description = "The number of webhooks that will be processed again",
            body = ReplayResponse,
            example = json!({"count": 4}),
        ),
    ),
)]
pub(super) async fn replay_many(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhooksRedeliver>,
    _: NoQuery,
    ApiJson(request): ApiJson<ReplayRequest>,
) -> Result<(StatusCode, Json<ReplayResponse>), ApiError> {
    let states = match &request.state {
        Some(text) => parse_state(text, &InboundWebhookState::OVER, ApiError::body)?,
        None => vec![InboundWebhookState::Unmatched, InboundWebhookState::Failed],
    };
    let filter = InboundWebhookFilter {
        states,
        event_type: request.event_type.map(|text| sanitize_text(&text)),
        since: Some(parse_time("since", &request.since, ApiError::body)?),
        before: None,
        integration: parse_integration(request.provider_config_key, ApiError::body)?,
    };
    let count = app.inbound_webhook_log.replay_many(client.environment.pk, filter, &client.actor()).await?;
    Ok((StatusCode::ACCEPTED, Json(ReplayResponse { count })))
}

impl InboundWebhookDetailBody {
    fn new(detail: InboundWebhookDetail) -> Result<Self, ApiError> {
        Ok(Self {
            webhook: detail.webhook.into(),
            headers: serde_json::from_value(detail.headers).map_err(ApiError::internal)?,
            body: RawValue::from_string(detail.body).map_err(ApiError::internal)?,
            functions: detail.functions.into_iter().map(WebhookFunctionBody::from).collect(),
        })
    }
}

impl From<InboundWebhook> for InboundWebhookBody {
    fn from(received: InboundWebhook) -> Self {
        Self {
            id: received.id,
            provider_config_key: received.integration_key.into(),
            event_type: received.event_type,
            delivery_id: received.delivery_id,
            state: received.state,
            connections: received.connections,
            functions_left: received.jobs_left,
            functions_failed: received.jobs_failed,
            replays: received.replays,
            error: received.error,
            received_at: iso(received.received_at),
            finished_at: received.finished_at.map(iso),
        }
    }
}

impl From<WebhookJob> for WebhookFunctionBody {
    fn from(job: WebhookJob) -> Self {
        Self {
            job_id: job.id,
            connection_id: job.connection_id.into(),
            name: job.function.to_string(),
            state: job.state.as_str(),
            failures: job.failures,
        }
    }
}

fn parse_id(text: &str) -> Result<Uuid, InboundWebhookError> {
    text.parse().map_err(|_| InboundWebhookError::Unknown(text.chars().take(60).collect()))
}

fn parse_integration(
    key: Option<String>,
    refuse: fn(&'static str, &[&str], String) -> ApiError,
) -> Result<Option<IntegrationKey>, ApiError> {
    key.map(|key| parse_name("provider_config_key", &key, refuse)).transpose()
}

fn parse_state(
    text: &str,
    known: &[InboundWebhookState],
    refuse: fn(&'static str, &[&str], String) -> ApiError,
) -> Result<Vec<InboundWebhookState>, ApiError> {
    let state = known.iter().find(|state| state.as_str() == text);
    let names: Vec<String> = known.iter().map(|state| format!("`{}`", state.as_str())).collect();
    let message = || format!("must be one of {}", names.join(", "));
    state.map(|state| vec![*state]).ok_or_else(|| refuse("invalid_value", &["state"], message()))
}
