//! `/dead-letters`: records that were set aside because they do not match their model.

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
use super::error::ApiError;
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

/// A page of dead letters.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeadLettersResponse {
    /// The dead letters, oldest first.
    dead_letters: Vec<DeadLetterBody>,
    /// Cursor of the next page, or `null` on the last page.
    next_cursor: Option<String>,
}

/// A record that did not match its model and was set aside.
#[derive(Debug, Serialize, ToSchema)]
struct DeadLetterBody {
    /// Id of the dead letter.
    id: Uuid,
    /// The unique key of the integration.
    provider_config_key: String,
    /// The connection id.
    connection_id: String,
    /// Name of the model.
    model: String,
    /// Variant of the sync; `base` is the default variant.
    variant: String,
    /// Name of the function that saved the record.
    function: String,
    /// Id of the run that saved the record last.
    run_id: String,
    /// Id of the record, or `null` if the id itself is invalid.
    record_id: Option<String>,
    /// The problems, each with its path in the record. They contain names and types, never values.
    problems: Value,
    /// The record as the function saved it.
    #[schema(value_type = serde_json::Value)]
    payload: Box<RawValue>,
    /// How many times the function has saved this invalid record.
    times: i64,
    /// When the record was first set aside.
    first_seen_at: String,
    /// When the record was last set aside.
    last_seen_at: String,
}

/// The result of a replay.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DeadLetterReplayResponse {
    /// `added`, `updated` or `unchanged`.
    outcome: &'static str,
}

/// List dead letters
///
/// Returns records that did not match their model and were set aside, oldest first. Each dead letter has the payload
/// and the problems that were found in it. A page ends early when its payloads reach 16 MiB (configurable by the
/// operator). Needs the scope `environment:records:read`.
#[utoipa::path(
    get, path = "/dead-letters", tag = "Records",
    params(
        ("provider_config_key" = Option<String>, Query, description = "Returns only dead letters of this integration. Required with `connection_id`."),
        ("connection_id" = Option<String>, Query, description = "Returns only dead letters of this connection. Requires `provider_config_key`."),
        ("model" = Option<String>, Query, description = "Returns only dead letters of this model."),
        ("limit" = Option<i64>, Query, description = "Page size, 1 to 500. Default: 100. Larger values are treated as 500."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page. Omit it for the first page."),
    ),
    responses(
        (
            status = 200, description = "A page of dead letters",
            body = DeadLettersResponse,
            example = json!({
                "dead_letters": [
                    {
                        "id": "01978a3e-5f60-7c21-9d4e-2b6a1f0c8e11",
                        "provider_config_key": "shop",
                        "connection_id": "user-1",
                        "model": "Buyer",
                        "variant": "base",
                        "function": "buyers",
                        "run_id": "01978a3e-1111-7c21-9d4e-2b6a1f0c8e11",
                        "record_id": "b-7",
                        "problems": [{"path": "/email", "problem": "must be text, not a number"}],
                        "payload": {"id": "b-7", "name": "Grace", "email": 42},
                        "times": 3,
                        "first_seen_at": "2026-03-01T09:00:00.000Z",
                        "last_seen_at": "2026-03-03T09:00:00.000Z"
                    }
                ],
                "next_cursor": null
            }),
        ),
    ),
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

/// Replay a dead letter
///
/// Validates the record against the deployed version of its model and saves it if it matches. Then the dead letter is
/// removed.
///
/// Fails with 409 `dead_letter_refused` if the record still does not match, and with 409 `dead_letter_superseded` if the
/// record was saved or deleted in the meantime. Needs the scope `environment:records:write`.
#[utoipa::path(
    post, path = "/dead-letters/{id}/replay", tag = "Records",
    params(
        ("id" = Uuid, Path, description = "Id of the dead letter."),
    ),
    responses(
        (
            status = 200, description = "The record was saved",
            body = DeadLetterReplayResponse,
            example = json!({"outcome": "added"}),
        ),
    ),
)]
pub(super) async fn replay_dead_letter(
    State(app): State<App>,
    client: EnvironmentAuth<rights::RecordsWrite>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<Json<DeadLetterReplayResponse>, ApiError> {
    let outcome =
        match app.dead_letters.replay(client.environment.pk, parse_id(&id)?, &client.actor()).await? {
            Replayed::Added => "added",
            Replayed::Updated => "updated",
            Replayed::Unchanged => "unchanged",
        };
    Ok(Json(DeadLetterReplayResponse { outcome }))
}

/// Delete a dead letter
///
/// Deletes a dead letter permanently. The record is not saved. Needs the scope `environment:records:write`.
#[utoipa::path(
    delete, path = "/dead-letters/{id}", tag = "Records",
    params(
        ("id" = Uuid, Path, description = "Id of the dead letter."),
    ),
    responses(
        (status = 204, description = "The dead letter was deleted"),
    ),
)]
pub(super) async fn drop_dead_letter(
    State(app): State<App>,
    client: EnvironmentAuth<rights::RecordsWrite>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<StatusCode, ApiError> {
    app.dead_letters.discard(client.environment.pk, parse_id(&id)?, &client.actor()).await?;
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
