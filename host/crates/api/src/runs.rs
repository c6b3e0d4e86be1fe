//! `/runs`: what was run, how it ended, what it used and what it said.

use axum::Json;
use axum::extract::State;
use chrono::DateTime;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::connections::parse_name;
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiPath, ApiQuery, EnvironmentAuth, NoQuery};
use super::lists::{Cursors, cut_to_page, parse_limit, parse_scope, parse_time, parse_word, words};
use super::time::iso;
use syncline_auth::rights;
use syncline_engine::{LineFilter, LoggedRun, RunFilter, RunPlace, RunsError};
use syncline_sandbox::LogLevel;
use syncline_types::functions::{FunctionKind, RunState, RunTrigger};
use syncline_types::ids::{FunctionName, Variant};

const DEFAULT_LIMIT: i64 = 100;
const MAX_LIMIT: i64 = 500;
const MAX_LINES: i64 = 1_000;
const MAX_SEARCH_BYTES: usize = 200;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunsQuery {
    provider_config_key: Option<String>,
    connection_id: Option<String>,
    kind: Option<String>,
    function: Option<String>,
    variant: Option<String>,
    state: Option<String>,
    trigger: Option<String>,
    started_after: Option<String>,
    started_before: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogsQuery {
    level: Option<String>,
    search: Option<String>,
    since: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RunsResponse {
    runs: Vec<RunBody>,
    /// Where the next page begins; null if there is none.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RunBody {
    id: Uuid,
    /// `sync`, `action`, `lifecycle` or `webhook`.
    kind: String,
    function: String,
    variant: String,
    /// Null if it was deleted.
    provider_config_key: Option<String>,
    /// Null if it was deleted.
    connection_id: Option<String>,
    /// What it was run by: `schedule`, `trigger`, `start`, `retry`, `api`, `lifecycle` or `webhook`.
    trigger: String,
    /// From 1; another one follows a failure.
    attempt: i32,
    /// The id under which an asynchronous action was accepted.
    job_id: Option<Uuid>,
    /// `running`, `success`, `error`, `cancelled` or `lost`.
    state: String,
    started_at: String,
    finished_at: Option<String>,
    duration_ms: Option<i64>,
    error: Option<RunErrorBody>,
    /// Of syncs, by model: `added`, `updated` and `deleted`.
    #[schema(value_type = Option<Object>)]
    counts: Option<Value>,
    progress: Option<ProgressBody>,
    usage: UsageBody,
    /// When the deletions were approved that it had held back.
    approved_at: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct RunErrorBody {
    code: String,
    message: String,
    /// Only of a single run: it may be long.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    details: Option<Value>,
}

/// How far the function says that it is.
#[derive(Debug, Serialize, ToSchema)]
struct ProgressBody {
    done: i64,
    total: Option<i64>,
}

/// What is null is not known yet.
#[derive(Debug, Serialize, ToSchema)]
struct UsageBody {
    cpu_ms: Option<f64>,
    peak_memory_bytes: Option<i64>,
    /// Requests to providers, as the function sent them.
    requests: Option<i64>,
    /// Of their bodies, with what was sent again.
    sent_bytes: Option<i64>,
    received_bytes: Option<i64>,
    /// Handed over to be saved or deleted, also those that had not changed.
    records: Option<i64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LogsResponse {
    logs: Vec<LineBody>,
    /// What gives the lines behind these; null if no more can come.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct LineBody {
    /// From 0.
    line: i32,
    at: String,
    /// `debug`, `info`, `warn` or `error`.
    level: String,
    message: String,
    #[schema(value_type = Option<Object>)]
    fields: Option<Value>,
}

/// `GET /runs`: a page of the environment's runs, the newest first.
#[utoipa::path(
    get, path = "/runs", tag = "Runs",
    params(
        ("provider_config_key" = Option<String>, Query, description = "Of this integration"),
        ("connection_id" = Option<String>, Query, description = "Together with `provider_config_key`"),
        ("kind" = Option<String>, Query, description = "`sync`, `action`, `lifecycle` or `webhook`"),
        ("function" = Option<String>, Query, description = "The function's name"),
        ("variant" = Option<String>, Query, description = "Of a sync"),
        ("state" = Option<String>, Query, description = "`running`, `success`, `error`, `cancelled` or `lost`"),
        ("trigger" = Option<String>, Query, description = "`schedule`, `trigger`, `start`, `retry`, `api`, `lifecycle` or `webhook`"),
        ("started_after" = Option<String>, Query, description = "Begun at this time or later"),
        ("started_before" = Option<String>, Query, description = "Begun before this time"),
        ("limit" = Option<i64>, Query, description = "1 to 500, default 100"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, body = RunsResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn list_runs(
    State(app): State<App>,
    client: EnvironmentAuth<rights::LogsRead>,
    ApiQuery(query): ApiQuery<RunsQuery>,
) -> Result<Json<RunsResponse>, ApiError> {
    let environment = client.environment.pk;
    let limit = parse_limit(query.limit.as_deref(), DEFAULT_LIMIT, MAX_LIMIT)?;
    let state = query.state.map(|text| parse_word("state", &text, words(RunState::ALL)));
    let kind = query.kind.map(|text| parse_word("kind", &text, words(FunctionKind::ALL)));
    let trigger = query.trigger.map(|text| parse_word("trigger", &text, words(RunTrigger::ALL)));
    let function = query.function.map(|text| parse_name::<FunctionName>("function", &text, ApiError::query));
    let variant = query.variant.map(|text| parse_name::<Variant>("variant", &text, ApiError::query));
    let cursors = Cursors { list: "runs", environment };
    let time =
        |name, text: Option<String>| text.map(|text| parse_time(name, &text, ApiError::query)).transpose();
    let filter = RunFilter {
        scope: parse_scope(query.provider_config_key.as_deref(), query.connection_id.as_deref())?,
        states: state.transpose()?.map_or_else(|| RunState::ALL.to_vec(), |state| vec![state]),
        kind: kind.transpose()?,
        function: function.transpose()?,
        variant: variant.transpose()?,
        trigger: trigger.transpose()?,
        started_after: time("started_after", query.started_after)?,
        started_before: time("started_before", query.started_before)?,
        behind: query.cursor.map(|cursor| cursors.decode(&cursor, read_place)).transpose()?,
    };
    let mut found = app.runs.list(environment, filter, limit + 1).await?;
    let next_cursor = cut_to_page(&mut found, limit).map(|last| cursors.encode(&place_bytes(last)));
    Ok(Json(RunsResponse { runs: found.into_iter().map(RunBody::from).collect(), next_cursor }))
}

/// `GET /runs/{id}`: one run, also while it is on.
#[utoipa::path(
    get, path = "/runs/{id}", tag = "Runs", params(("id" = Uuid, Path)),
    responses((status = 200, body = RunBody), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn get_run(
    State(app): State<App>,
    client: EnvironmentAuth<rights::LogsRead>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<Json<RunBody>, ApiError> {
    let run = app.runs.get(client.environment.pk, parse_id(&id)?).await?;
    Ok(Json(run.into()))
}

/// `GET /runs/{id}/logs`: what the function said, and the requests that it sent, the first first. While the run is
/// on, lines appear within about a second.
#[utoipa::path(
    get, path = "/runs/{id}/logs", tag = "Runs",
    params(
        ("id" = Uuid, Path),
        ("level" = Option<String>, Query, description = "`debug` (default), `info`, `warn` or `error`: this level and those above"),
        ("search" = Option<String>, Query, description = "Lines with this text in the message or the fields, in any case"),
        ("since" = Option<String>, Query, description = "Written at this time or later"),
        ("limit" = Option<i64>, Query, description = "1 to 1000, default 100"),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the page before"),
    ),
    responses((status = 200, body = LogsResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn list_run_logs(
    State(app): State<App>,
    client: EnvironmentAuth<rights::LogsRead>,
    ApiPath(id): ApiPath,
    ApiQuery(query): ApiQuery<LogsQuery>,
) -> Result<Json<LogsResponse>, ApiError> {
    let limit = parse_limit(query.limit.as_deref(), DEFAULT_LIMIT, MAX_LINES)?;
    let level = query.level.as_deref().map_or(Ok(LogLevel::Debug), |text| {
        parse_word("level", text, LogLevel::ALL.map(|level| (level.as_str(), level)))
    })?;
    let filter = LineFilter {
        levels: LogLevel::ALL.into_iter().filter(|other| *other >= level).map(LogLevel::as_str).collect(),
        search: query.search.map(parse_search).transpose()?,
        since: query.since.map(|text| parse_time("since", &text, ApiError::query)).transpose()?,
        after: query.cursor.map_or(Ok(-1), |text| parse_line(&text))?,
    };
    let mut log = app.runs.log(client.environment.pk, parse_id(&id)?, &filter, limit + 1).await?;
    let has_more = cut_to_page(&mut log.lines, limit).is_some() || !log.is_complete;
    let next_cursor = has_more.then(|| log.lines.last().map_or(filter.after, |line| line.line).to_string());
    let logs = log.lines.into_iter().map(|line| LineBody {
        line: line.line,
        at: iso(line.at),
        level: line.level,
        message: line.message,
        fields: line.fields,
    });
    Ok(Json(LogsResponse { logs: logs.collect(), next_cursor }))
}

/// `POST /runs/{id}/approve`: deletes the records that a held run has not seen again, unless they were saved since.
#[utoipa::path(
    post, path = "/runs/{id}/approve", tag = "Runs", params(("id" = Uuid, Path)),
    responses((status = 200, body = RunBody), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn approve_run(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SyncsExecute>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<Json<RunBody>, ApiError> {
    let environment = client.environment.pk;
    let run = app.runs.get(environment, parse_id(&id)?).await?;
    app.syncs.approve_run(environment, run.id).await?;
    Ok(Json(app.runs.get(environment, run.id).await?.into()))
}

impl From<LoggedRun> for RunBody {
    fn from(run: LoggedRun) -> Self {
        let error = run.error_code.map(|code| RunErrorBody {
            code: code.to_string(),
            message: run.error_message.unwrap_or_default(),
            details: run.error_details,
        });
        Self {
            id: run.id,
            kind: run.kind.to_string(),
            function: run.function,
            variant: run.variant,
            provider_config_key: run.integration.map(Into::into),
            connection_id: run.connection.map(Into::into),
            trigger: run.trigger.to_string(),
            attempt: run.attempt,
            job_id: run.job,
            state: run.state.to_string(),
            started_at: iso(run.started_at),
            finished_at: run.finished_at.map(iso),
            duration_ms: run.finished_at.map(|finished_at| (finished_at - run.started_at).num_milliseconds()),
            error,
            counts: run.counts,
            progress: run.progress_done.map(|done| ProgressBody { done, total: run.progress_total }),
            usage: UsageBody {
                cpu_ms: run.cpu_us.map(|cpu_us| cpu_us as f64 / 1_000.0),
                peak_memory_bytes: run.peak_memory_bytes,
                requests: run.requests,
                sent_bytes: run.sent_bytes,
                received_bytes: run.received_bytes,
                records: run.records,
            },
            approved_at: run.approved_at.map(iso),
        }
    }
}

fn parse_id(text: &str) -> Result<Uuid, RunsError> {
    text.parse().map_err(|_| RunsError::Unknown(text.chars().take(60).collect()))
}

fn parse_search(text: String) -> Result<String, ApiError> {
    if text.len() > MAX_SEARCH_BYTES {
        let message = format!("must be at most {MAX_SEARCH_BYTES} bytes long");
        return Err(ApiError::query("too_big", &["search"], message));
    }
    Ok(text)
}

fn parse_line(text: &str) -> Result<i32, ApiError> {
    let line = text.parse::<i32>().ok().filter(|line| *line >= -1);
    line.ok_or(ApiError::Cursor { problem: "is not one that this log gave out" })
}

/// Where a run stands in the list, for its cursor: its start and its id.
fn place_bytes(run: &LoggedRun) -> Vec<u8> {
    [&run.started_at.timestamp_micros().to_be_bytes()[..], run.id.as_bytes()].concat()
}

fn read_place(bytes: [u8; 24]) -> Option<RunPlace> {
    let started_at = DateTime::from_timestamp_micros(i64::from_be_bytes(*bytes.first_chunk()?))?;
    Some(RunPlace { started_at, id: Uuid::from_bytes(*bytes.last_chunk()?) })
}
