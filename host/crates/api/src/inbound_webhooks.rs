//! `/webhooks/received`: what providers have told, and processing it again.

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
use super::error::{ApiError, ErrorBody};
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

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct InboundWebhooksResponse {
    webhooks: Vec<InboundWebhookBody>,
    /// Where the next page begins; null if there is none.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct InboundWebhookBody {
    id: Uuid,
    provider_config_key: String,
    /// The event's type, where the provider tells it; of several events in one webhook, the first one's.
    #[serde(rename = "type")]
    event_type: Option<String>,
    /// The provider's id of the delivery, or what else no other delivery has.
    delivery_id: Option<String>,
    /// `received`, `processing`, `processed`, `unmatched` (about no connection), `failed`, or `handshake` (the provider
    /// tried the URL out, and nothing is done with it).
    state: String,
    /// How many connections it is about.
    connections: i32,
    /// How many functions are still to end.
    functions_left: i32,
    functions_failed: i32,
    replays: i32,
    /// Why it was not processed.
    error: Option<String>,
    received_at: String,
    finished_at: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct InboundWebhookDetailBody {
    #[serde(flatten)]
    webhook: InboundWebhookBody,
    headers: BTreeMap<String, String>,
    /// As the provider wrote it; what is not JSON as text.
    #[schema(value_type = Object)]
    body: Box<RawValue>,
    /// The functions that it was given to, while their runs are remembered.
    functions: Vec<WebhookFunctionBody>,
}

#[derive(Debug, Serialize, ToSchema)]
struct WebhookFunctionBody {
    /// The same in every attempt, and when it is replayed.
    job_id: Uuid,
    connection_id: String,
    name: String,
    /// `queued`, `running`, `success` or `error`.
    state: &'static str,
    /// How many attempts have failed.
    failures: i32,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReplayRequest {
    /// Those that came in at this time or later, such as `2026-03-01T09:00:00Z`.
    since: String,
    /// `processed`, `unmatched` or `failed`; the last two if none is named.
    state: Option<String>,
    provider_config_key: Option<String>,
    #[serde(rename = "type")]
    event_type: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReplayResponse {
    /// How many are processed again.
    count: u64,
}

/// `GET /webhooks/received`: a page of what providers have told the environment, the newest first.
#[utoipa::path(
    get, path = "/webhooks/received", tag = "Webhooks",
    params(
        ("state" = Option<String>, Query, description = "`received`, `processing`, `processed`, `unmatched`, `failed` or `handshake`"),
        ("type" = Option<String>, Query, description = "The event's type, as the provider names it"),
        ("provider_config_key" = Option<String>, Query),
        ("since" = Option<String>, Query, description = "Came in at this time or later"),
        ("limit" = Option<i64>, Query, description = "1 to 500, default 100"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, body = InboundWebhooksResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn list_inbound_webhooks(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhooksRead>,
    ApiQuery(query): ApiQuery<InboundWebhooksQuery>,
) -> Result<Json<InboundWebhooksResponse>, ApiError> {
    let limit = parse_limit(query.limit.as_deref(), DEFAULT_LIMIT, MAX_LIMIT)?;
    let broken = |_| ApiError::Cursor { problem: "is not one that this list gave out" };
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

/// `GET /webhooks/received/{id}`: one, with its body and the functions that it was given to.
#[utoipa::path(
    get, path = "/webhooks/received/{id}", tag = "Webhooks", params(("id" = Uuid, Path)),
    responses((status = 200, body = InboundWebhookDetailBody), (status = "4XX", body = ErrorBody)),
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

/// `POST /webhooks/received/{id}/replay`: processes one again that is over.
#[utoipa::path(
    post, path = "/webhooks/received/{id}/replay", tag = "Webhooks", params(("id" = Uuid, Path)),
    responses((status = 202, body = InboundWebhookDetailBody), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn replay(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhooksRedeliver>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<(StatusCode, Json<InboundWebhookDetailBody>), ApiError> {
    let detail = app.inbound_webhook_log.replay(client.environment.pk, parse_id(&id)?).await?;
    Ok((StatusCode::ACCEPTED, Json(InboundWebhookDetailBody::new(detail)?)))
}

/// `POST /webhooks/received/replay`: processes again what came in since a time and is over.
#[utoipa::path(
    post, path = "/webhooks/received/replay", tag = "Webhooks", request_body = ReplayRequest,
    responses((status = 202, body = ReplayResponse), (status = "4XX", body = ErrorBody)),
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
    let count = app.inbound_webhook_log.replay_many(client.environment.pk, filter).await?;
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
