//! `/webhooks/received`: what providers have told, and processing it again.

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
use super::lists::{parse_limit, parse_time};
use super::time::iso;
use syncline_auth::{Client, rights};
use syncline_store::events::Event;
use syncline_store::integrations;
use syncline_store::received_webhooks::log::{self, Filter, Received, State as ReceivedState, WebhookJob};
use syncline_types::ids::{IntegrationKey, IntegrationPk};
use syncline_types::nul::without_nul;

/// Webhooks of one statement when many are replayed.
const BATCH: i64 = 500;
const DEFAULT_LIMIT: i64 = 100;
const MAX_LIMIT: i64 = 500;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReceivedQuery {
    state: Option<String>,
    #[serde(rename = "type")]
    event_type: Option<String>,
    provider_config_key: Option<String>,
    since: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReceivedListResponse {
    webhooks: Vec<ReceivedBody>,
    /// Where the next page begins; null if there is none.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ReceivedBody {
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
pub(super) struct ReceivedDetailBody {
    #[serde(flatten)]
    webhook: ReceivedBody,
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
    responses((status = 200, body = ReceivedListResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn list_received(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhooksRead>,
    ApiQuery(query): ApiQuery<ReceivedQuery>,
) -> Result<Json<ReceivedListResponse>, ApiError> {
    let limit = parse_limit(query.limit.as_deref(), DEFAULT_LIMIT, MAX_LIMIT)?;
    let broken = |_| ApiError::Cursor { problem: "is not one that this list gave out" };
    let filter = Filter {
        states: query.state.as_deref().map_or(Ok(ReceivedState::ALL.to_vec()), |text| {
            parse_state(text, &ReceivedState::ALL, ApiError::query)
        })?,
        event_type: query.event_type.map(|text| without_nul(&text)),
        since: query.since.map(|text| parse_time("since", &text, ApiError::query)).transpose()?,
        before: query.cursor.map(|cursor| cursor.parse::<Uuid>().map_err(broken)).transpose()?,
        integration: app.filtered_integration(&client, query.provider_config_key, ApiError::query).await?,
    };
    let mut conn = app.store.connect().await?;
    // One more than is shown tells whether there is a next page.
    let mut found = log::list(&mut conn, client.environment.pk, &filter, limit + 1).await?;
    let has_more = found.len() as i64 > limit;
    found.truncate(limit.unsigned_abs() as usize);
    let next_cursor = found.last().filter(|_| has_more).map(|last| last.id.to_string());
    Ok(Json(ReceivedListResponse {
        webhooks: found.into_iter().map(ReceivedBody::from).collect(),
        next_cursor,
    }))
}

/// `GET /webhooks/received/{id}`: one, with its body and the functions that it was given to.
#[utoipa::path(
    get, path = "/webhooks/received/{id}", tag = "Webhooks", params(("id" = Uuid, Path)),
    responses((status = 200, body = ReceivedDetailBody), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn get_received(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhooksRead>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<Json<ReceivedDetailBody>, ApiError> {
    app.received_detail(&client, &id).await.map(Json)
}

/// `POST /webhooks/received/{id}/replay`: processes one again that is over.
#[utoipa::path(
    post, path = "/webhooks/received/{id}/replay", tag = "Webhooks", params(("id" = Uuid, Path)),
    responses((status = 202, body = ReceivedDetailBody), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn replay(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhooksRedeliver>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<(StatusCode, Json<ReceivedDetailBody>), ApiError> {
    let detail = app.received_detail(&client, &id).await?;
    let mut tx = app.store.begin().await?;
    if log::replay(&mut tx, &[detail.webhook.id]).await? == 0 {
        return Err(ApiError::ReceivedWebhookInFlight);
    }
    tx.commit().await?;
    let detail = app.received_detail(&client, &id).await?;
    app.events.publish(Event::Received);
    Ok((StatusCode::ACCEPTED, Json(detail)))
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
        Some(text) => parse_state(text, &ReceivedState::OVER, ApiError::body)?,
        None => vec![ReceivedState::Unmatched, ReceivedState::Failed],
    };
    let mut filter = Filter {
        states,
        event_type: request.event_type.map(|text| without_nul(&text)),
        since: Some(parse_time("since", &request.since, ApiError::body)?),
        before: None,
        integration: app.filtered_integration(&client, request.provider_config_key, ApiError::body).await?,
    };
    let mut count = 0;
    loop {
        let mut tx = app.store.begin().await?;
        let found = log::list(&mut tx, client.environment.pk, &filter, BATCH).await?;
        let ids: Vec<Uuid> = found.iter().map(|webhook| webhook.id).collect();
        count += log::replay(&mut tx, &ids).await?;
        tx.commit().await?;
        // What comes to its end again meanwhile has the same id, which lies behind.
        let Some(last) = ids.last() else { break };
        filter.before = Some(*last);
        app.events.publish(Event::Received);
    }
    Ok((StatusCode::ACCEPTED, Json(ReplayResponse { count })))
}

impl App {
    async fn received_detail(&self, client: &Client, id: &str) -> Result<ReceivedDetailBody, ApiError> {
        let unknown = || ApiError::UnknownReceivedWebhook { id: id.chars().take(60).collect() };
        let uuid = id.parse::<Uuid>().map_err(|_| unknown())?;
        let mut conn = self.store.connect().await?;
        let found = log::find(&mut conn, client.environment.pk, uuid).await?;
        let (received, stored) = found.ok_or_else(unknown)?;
        let jobs = log::list_jobs(&mut conn, uuid).await?;
        Ok(ReceivedDetailBody {
            webhook: received.into(),
            headers: serde_json::from_value(stored.headers.clone()).map_err(ApiError::internal)?,
            body: RawValue::from_string(stored.to_json()).map_err(ApiError::internal)?,
            functions: jobs.into_iter().map(WebhookFunctionBody::from).collect(),
        })
    }

    async fn filtered_integration(
        &self,
        client: &Client,
        key: Option<String>,
        refuse: fn(&'static str, &[&str], String) -> ApiError,
    ) -> Result<Option<IntegrationPk>, ApiError> {
        let Some(key) = key else { return Ok(None) };
        let key = parse_name::<IntegrationKey>("provider_config_key", &key, refuse)?;
        let mut conn = self.store.connect().await?;
        let found = integrations::find(&mut conn, client.environment.pk, &key).await?;
        Ok(Some(found.ok_or(ApiError::UnknownIntegration(key))?.pk))
    }
}

impl From<Received> for ReceivedBody {
    fn from(received: Received) -> Self {
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

fn parse_state(
    text: &str,
    known: &[ReceivedState],
    refuse: fn(&'static str, &[&str], String) -> ApiError,
) -> Result<Vec<ReceivedState>, ApiError> {
    let state = known.iter().find(|state| state.as_str() == text);
    let names: Vec<String> = known.iter().map(|state| format!("`{}`", state.as_str())).collect();
    let message = || format!("must be one of {}", names.join(", "));
    state.map(|state| vec![*state]).ok_or_else(|| refuse("invalid_value", &["state"], message()))
}
