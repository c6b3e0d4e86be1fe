//! `/dead-letters`: records that were set aside because they do not fit their model.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::connections::parse_name;
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiPath, ApiQuery, EnvironmentAuth, NoQuery};
use super::lists::{Cursors, parse_limit, parse_scope};
use super::time::iso;
use syncline_auth::rights;
use syncline_engine::{DeadLetterError, DeadLetterFilter, ListedLetter, Replayed};

const DEFAULT_LIMIT: i64 = 100;
const MAX_LIMIT: i64 = 500;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DeadLettersQuery {
    provider_config_key: Option<String>,
    connection_id: Option<String>,
    model: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeadLettersResponse {
    dead_letters: Vec<DeadLetterBody>,
    /// Where the next page begins; null if there is none.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct DeadLetterBody {
    id: Uuid,
    provider_config_key: String,
    connection_id: String,
    model: String,
    variant: String,
    /// The function that saved it, and the run.
    function: String,
    run_id: String,
    /// Null if it is the id that is wrong.
    record_id: Option<String>,
    /// What is wrong with it, each with its place: names and types, never values.
    problems: Value,
    /// The record, as it was saved.
    #[schema(value_type = Object)]
    payload: Box<RawValue>,
    /// How often it has come.
    times: i64,
    first_seen_at: String,
    last_seen_at: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ReplayResponse {
    /// `added`, `updated` or `unchanged`.
    outcome: &'static str,
}

/// `GET /dead-letters`: a page of the environment's letters, in the order in which they were set aside first.
#[utoipa::path(
    get, path = "/dead-letters", tag = "Records",
    params(
        ("provider_config_key" = Option<String>, Query, description = "Only those of this integration"),
        ("connection_id" = Option<String>, Query, description = "Only those of this connection; together with `provider_config_key`"),
        ("model" = Option<String>, Query, description = "Only those of this model"),
        ("limit" = Option<i64>, Query, description = "1 to 500, default 100"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, body = DeadLettersResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn list_dead_letters(
    State(app): State<App>,
    client: EnvironmentAuth<rights::RecordsRead>,
    ApiQuery(query): ApiQuery<DeadLettersQuery>,
) -> Result<Json<DeadLettersResponse>, ApiError> {
    let environment = client.environment.pk;
    let limit = parse_limit(query.limit.as_deref(), DEFAULT_LIMIT, MAX_LIMIT)?;
    let model =
        query.model.as_deref().map(|model| parse_name("model", model, ApiError::query)).transpose()?;
    let cursors = Cursors { list: "dead letters", environment };
    let after = query.cursor.map_or(Ok(0), |cursor| cursors.decode_number(&cursor))?;
    let scope = parse_scope(query.provider_config_key.as_deref(), query.connection_id.as_deref())?;
    let filter = DeadLetterFilter { scope, model, after };
    let page = app.dead_letters.list(environment, filter, limit).await?;
    let dead_letters = page.letters.into_iter().map(DeadLetterBody::new).collect::<Result<_, _>>()?;
    let next_cursor = page.last.map(|last| cursors.encode_number(last));
    Ok(Json(DeadLettersResponse { dead_letters, next_cursor }))
}

/// `POST /dead-letters/{id}/replay`: saves the record, if it fits its model as it is deployed now.
#[utoipa::path(
    post, path = "/dead-letters/{id}/replay", tag = "Records", params(("id" = Uuid, Path)),
    responses((status = 200, body = ReplayResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn replay_dead_letter(
    State(app): State<App>,
    client: EnvironmentAuth<rights::RecordsWrite>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<Json<ReplayResponse>, ApiError> {
    let outcome = match app.dead_letters.replay(client.environment.pk, parse_id(&id)?).await? {
        Replayed::Added => "added",
        Replayed::Updated => "updated",
        Replayed::Unchanged => "unchanged",
    };
    Ok(Json(ReplayResponse { outcome }))
}

/// `DELETE /dead-letters/{id}`: drops it for good.
#[utoipa::path(
    delete, path = "/dead-letters/{id}", tag = "Records", params(("id" = Uuid, Path)),
    responses((status = 204), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn drop_dead_letter(
    State(app): State<App>,
    client: EnvironmentAuth<rights::RecordsWrite>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<StatusCode, ApiError> {
    app.dead_letters.discard(client.environment.pk, parse_id(&id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl DeadLetterBody {
    fn new(listed: ListedLetter) -> Result<Self, ApiError> {
        let ListedLetter { letter, integration, connection, payload } = listed;
        Ok(Self {
            id: letter.id,
            provider_config_key: integration.to_string(),
            connection_id: connection.to_string(),
            model: letter.model.to_string(),
            variant: letter.variant.to_string(),
            function: letter.function,
            run_id: letter.run_id,
            record_id: letter.external_id,
            problems: letter.problems,
            payload: RawValue::from_string(payload).map_err(ApiError::internal)?,
            times: letter.times,
            first_seen_at: iso(letter.first_seen_at),
            last_seen_at: iso(letter.last_seen_at),
        })
    }
}

fn parse_id(id: &str) -> Result<Uuid, ApiError> {
    id.parse().map_err(|_| DeadLetterError::Unknown(id.chars().take(60).collect()).into())
}
