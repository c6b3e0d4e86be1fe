//! `/dead-letters`: records that were set aside because they do not fit their model.

use std::collections::HashMap;

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
use super::lists::{Cursors, cut_to_page, parse_limit};
use super::time::iso;
use syncline_auth::{Client, rights};
use syncline_crypto::RecordKeys;
use syncline_engine::{DeadLetterError, Replayed};
use syncline_store::dead_letters::{self, DeadLetter, Filter};
use syncline_store::{connections, integrations};
use syncline_types::ids::{ConnectionId, ConnectionPk, IntegrationKey};

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
    let filter = app.letter_filter(&client, query.provider_config_key, query.connection_id).await?;
    let filter = Filter { model, after, ..filter };
    let mut conn = app.store.connect_records().await?;
    let mut found = dead_letters::list(&mut conn, environment, &filter, limit + 1).await?;
    drop(conn);
    let next_cursor = cut_to_page(&mut found, limit).map(|last| cursors.encode_number(last.number));
    let mut pks: Vec<_> = found.iter().map(|letter| letter.stream.connection).collect();
    pks.dedup();
    let names = connections::names(&mut *app.store.connect().await?, &pks).await?;
    let names: HashMap<_, _> = names.into_iter().map(|(pk, key, id)| (pk, (key, id))).collect();
    let newest_key = found.iter().filter_map(DeadLetter::payload_key).max();
    let keys = match newest_key {
        Some(number) => app.environments.record_keys_with(environment, number).await,
        None => app.environments.record_keys(environment).await,
    };
    let keys = keys.map_err(ApiError::internal)?;
    let dead_letters = found.into_iter().filter_map(|letter| DeadLetterBody::new(letter, &names, &keys));
    Ok(Json(DeadLettersResponse { dead_letters: dead_letters.collect::<Result<_, _>>()?, next_cursor }))
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
    let outcome = match app.records.replay_dead_letter(client.environment.pk, parse_id(&id)?).await? {
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
    app.records.drop_dead_letter(client.environment.pk, parse_id(&id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl App {
    async fn letter_filter(
        &self,
        client: &Client,
        key: Option<String>,
        id: Option<String>,
    ) -> Result<Filter, ApiError> {
        let Some(key) = key else {
            if id.is_none() {
                return Ok(Filter::default());
            }
            let message = "is required too: a connection's id is unique within an integration only";
            return Err(ApiError::query("invalid_type", &["provider_config_key"], message));
        };
        let key = parse_name::<IntegrationKey>("provider_config_key", &key, ApiError::query)?;
        if let Some(id) = id {
            let id = parse_name::<ConnectionId>("connection_id", &id, ApiError::query)?;
            let connection = self.find_connection_by_name(client, &key, &id).await?.pk;
            return Ok(Filter { connection: Some(connection), ..Filter::default() });
        }
        let mut conn = self.store.connect().await?;
        let integration = integrations::find(&mut conn, client.environment.pk, &key).await?;
        let integration = integration.ok_or(ApiError::UnknownIntegration(key))?.pk;
        Ok(Filter { integration: Some(integration), ..Filter::default() })
    }
}

type Names = HashMap<ConnectionPk, (IntegrationKey, ConnectionId)>;

impl DeadLetterBody {
    /// `None`: its connection is gone, and it will be soon.
    fn new(letter: DeadLetter, names: &Names, keys: &RecordKeys) -> Option<Result<Self, ApiError>> {
        let (integration, connection) = names.get(&letter.stream.connection)?;
        let payload = letter.payload(keys).map_err(ApiError::internal);
        let payload = payload.and_then(|text| RawValue::from_string(text).map_err(ApiError::internal));
        let payload = match payload {
            Ok(payload) => payload,
            Err(error) => return Some(Err(error)),
        };
        Some(Ok(Self {
            id: letter.id,
            provider_config_key: integration.to_string(),
            connection_id: connection.to_string(),
            model: letter.model.to_string(),
            variant: letter.variant.to_string(),
            function: letter.function,
            run_id: letter.run_id,
            record_id: letter.external_id,
            problems: letter.problems,
            payload,
            times: letter.times,
            first_seen_at: iso(letter.first_seen_at),
            last_seen_at: iso(letter.last_seen_at),
        }))
    }
}

fn parse_id(id: &str) -> Result<Uuid, ApiError> {
    id.parse().map_err(|_| DeadLetterError::Unknown(id.chars().take(60).collect()).into())
}
