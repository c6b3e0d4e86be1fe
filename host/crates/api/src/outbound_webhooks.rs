//! `/webhooks/deliveries`: what clients were told, or are still to be told, and telling it again.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use url::Url;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiPath, ApiQuery, EnvironmentAuth, NoQuery};
use super::lists::{Cursors, cut_to_page, parse_limit, parse_scope, parse_time};
use super::time::iso;
use syncline_auth::{Client, Scope, rights};
use syncline_engine::NamedScope;
use syncline_outbound_webhooks::{
    Delivery, DeliveryDetail, DeliveryError, DeliveryFilter, DeliveryState, LoggedAttempt,
};
use syncline_types::ids::{ConnectionId, IntegrationKey};

const DEFAULT_LIMIT: i64 = 100;
const MAX_LIMIT: i64 = 500;
const KINDS: [&str; 4] = ["auth", "sync", "forward", "async_action"];

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

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeliveriesResponse {
    deliveries: Vec<DeliveryBody>,
    /// Where the next page begins; null if there is none.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct DeliveryBody {
    id: Uuid,
    /// The header `webhook-id`: the same in every attempt, and for both URLs of an environment.
    webhook_id: Uuid,
    /// `auth` or `sync`.
    #[serde(rename = "type")]
    kind: String,
    /// `pending`, `delivered`, `failed` (given up) or `cancelled` (its URL was gone).
    state: String,
    /// Only the host without the scope `environment:settings:read`: paths and queries may hold secrets.
    url: String,
    provider_config_key: Option<String>,
    connection_id: Option<String>,
    attempt_count: i32,
    next_attempt_at: Option<String>,
    created_at: String,
    finished_at: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeliveryDetailBody {
    #[serde(flatten)]
    delivery: DeliveryBody,
    /// Exactly what is sent.
    #[schema(value_type = Object)]
    body: Box<RawValue>,
    attempts: Vec<AttemptBody>,
}

#[derive(Debug, Serialize, ToSchema)]
struct AttemptBody {
    number: i32,
    at: String,
    /// What the receiver answered; null if it did not.
    status: Option<i32>,
    /// Why it was not delivered.
    error: Option<String>,
    duration_ms: i32,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RedeliverRequest {
    /// Failed deliveries that were written at this time or later, such as `2026-03-01T09:00:00Z`.
    since: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RedeliverResponse {
    /// How many are on their way again.
    count: u64,
}

/// `GET /webhooks/deliveries`: a page of the environment's deliveries, the newest first.
#[utoipa::path(
    get, path = "/webhooks/deliveries", tag = "Webhooks",
    params(
        ("state" = Option<String>, Query, description = "`pending`, `delivered`, `failed` or `cancelled`"),
        ("type" = Option<String>, Query, description = "`auth`, `sync`, `forward` or `async_action`"),
        ("connection_id" = Option<String>, Query, description = "Together with `provider_config_key`"),
        ("provider_config_key" = Option<String>, Query, description = "Together with `connection_id`"),
        ("since" = Option<String>, Query, description = "Written at this time or later"),
        ("limit" = Option<i64>, Query, description = "1 to 500, default 100"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, body = DeliveriesResponse), (status = "4XX", body = ErrorBody)),
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

/// `GET /webhooks/deliveries/{id}`: one, with its body and its attempts.
#[utoipa::path(
    get, path = "/webhooks/deliveries/{id}", tag = "Webhooks", params(("id" = Uuid, Path)),
    responses((status = 200, body = DeliveryDetailBody), (status = "4XX", body = ErrorBody)),
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

/// `POST /webhooks/deliveries/{id}/redeliver`: sends one again, under its id, to the URL that is set now.
#[utoipa::path(
    post, path = "/webhooks/deliveries/{id}/redeliver", tag = "Webhooks", params(("id" = Uuid, Path)),
    responses((status = 202, body = DeliveryDetailBody), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn redeliver(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhooksRedeliver>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<(StatusCode, Json<DeliveryDetailBody>), ApiError> {
    let detail = app.deliveries.redeliver(client.environment.pk, parse_id(&id)?).await?;
    Ok((StatusCode::ACCEPTED, Json(DeliveryDetailBody::new(detail, &client)?)))
}

/// `POST /webhooks/deliveries/redeliver`: sends again what was given up since a time. What has no URL any more is
/// passed over.
#[utoipa::path(
    post, path = "/webhooks/deliveries/redeliver", tag = "Webhooks", request_body = RedeliverRequest,
    responses((status = 202, body = RedeliverResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn redeliver_failed(
    State(app): State<App>,
    client: EnvironmentAuth<rights::WebhooksRedeliver>,
    _: NoQuery,
    ApiJson(request): ApiJson<RedeliverRequest>,
) -> Result<(StatusCode, Json<RedeliverResponse>), ApiError> {
    let since = parse_time("since", &request.since, ApiError::body)?;
    let count = app.deliveries.redeliver_failed(client.environment.pk, since).await?;
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
        let url =
            if client.allows(Scope::SettingsRead) { delivery.url } else { without_secrets(&delivery.url) };
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

/// Where a URL leads, without what may be secret in it.
fn without_secrets(url: &str) -> String {
    match Url::parse(url) {
        Ok(url) => format!("{}/…", url.origin().ascii_serialization()),
        Err(_) => "…".to_owned(),
    }
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
            let message =
                "is required with `provider_config_key`: deliveries are listed of one connection or of all";
            Err(ApiError::query("invalid_type", &["connection_id"], message))
        }
    }
}
