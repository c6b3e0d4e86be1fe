//! `/runs`: executions of functions with their results, resource usage and logs.

use axum::Json;
use axum::extract::State;
use chrono::DateTime;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::connections::parse_name;
use super::error::ApiError;
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
const MAX_SEARCH_CHARS: usize = 200;

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

/// A page of runs.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RunsResponse {
    /// The runs, newest first.
    runs: Vec<RunBody>,
    /// Cursor of the next page, or `null` on the last page.
    next_cursor: Option<String>,
}

/// One execution of a function.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RunBody {
    /// Id of the run.
    id: Uuid,
    /// Kind of the function: `sync`, `action`, `lifecycle` or `webhook`.
    kind: String,
    /// Name of the function.
    function: String,
    /// Variant of the sync; `base` is the default variant.
    variant: String,
    /// The unique key of the integration, or `null` after it was deleted.
    provider_config_key: Option<String>,
    /// The connection id, or `null` after the connection was deleted.
    connection_id: Option<String>,
    /// What started the run: `schedule`, `trigger`, `start`, `retry`, `api`, `lifecycle` or `webhook`.
    trigger: String,
    /// Number of the attempt, from 1. A retry is a run of its own.
    attempt: i32,
    /// Id of the job that the run belongs to, for asynchronous executions.
    job_id: Option<Uuid>,
    /// `running`, `success`, `error`, `cancelled` or `lost` (its host was lost).
    state: String,
    /// When the run started.
    started_at: String,
    /// When the run finished, or `null` while it is running.
    finished_at: Option<String>,
    /// Duration in milliseconds, or `null` while the run is in progress.
    duration_ms: Option<i64>,
    /// Why the run failed, or `null`.
    error: Option<RunErrorBody>,
    /// For a sync, counts by model: `added`, `updated` and `deleted`.
    #[schema(value_type = Option<Object>)]
    counts: Option<Value>,
    /// What the function last reported as its progress.
    progress: Option<ProgressBody>,
    /// Resources that the run has used.
    usage: UsageBody,
    /// When the held deletions of the run were approved, or `null`.
    approved_at: Option<String>,
}

/// Why a run failed.
#[derive(Debug, Serialize, ToSchema)]
struct RunErrorBody {
    /// Stable code of the error. See the error reference.
    code: String,
    /// Message for people.
    message: String,
    /// Further details. Returned for a single run only, because they can be long.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    details: Option<Value>,
}

/// The progress that a function reported.
#[derive(Debug, Serialize, ToSchema)]
struct ProgressBody {
    /// Completed units of work.
    done: i64,
    /// All units of work, if the function knows the number.
    total: Option<i64>,
}

/// Resources that a run has used. A value that is not known yet is `null`.
#[derive(Debug, Serialize, ToSchema)]
struct UsageBody {
    /// CPU time in milliseconds.
    cpu_ms: Option<f64>,
    /// Highest memory use in bytes.
    peak_memory_bytes: Option<i64>,
    /// Number of requests that the function sent to the provider.
    requests: Option<i64>,
    /// Bytes of sent request bodies, including retries and redirects.
    sent_bytes: Option<i64>,
    /// Bytes of received response bodies, including retries and redirects.
    received_bytes: Option<i64>,
    /// Number of records that the function saved or deleted, including unchanged ones.
    records: Option<i64>,
}

/// A page of log lines.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LogsResponse {
    /// The lines, oldest first.
    logs: Vec<LineBody>,
    /// Cursor of the next page, or `null` when there can be no more lines.
    next_cursor: Option<String>,
}

/// One line of a log.
#[derive(Debug, Serialize, ToSchema)]
struct LineBody {
    /// Number of the line, from 0.
    line: i32,
    /// When the line was written.
    at: String,
    /// `debug`, `info`, `warn` or `error`.
    level: String,
    /// The message.
    message: String,
    /// Fields that the function added to the message.
    #[schema(value_type = Option<Object>)]
    fields: Option<Value>,
}

/// List runs
///
/// Returns runs of the environment, newest first. A sync's run is listed from its start. Other runs are listed once
/// they have taken one second, or when they finish. Needs the scope `environment:logs:read`.
#[utoipa::path(
    get, path = "/runs", tag = "Runs",
    params(
        ("provider_config_key" = Option<String>, Query, description = "Returns only runs of this integration. Required with `connection_id`."),
        ("connection_id" = Option<String>, Query, description = "Returns only runs of this connection. Requires `provider_config_key`."),
        ("kind" = Option<String>, Query, description = "`sync`, `action`, `lifecycle` or `webhook`."),
        ("function" = Option<String>, Query, description = "Returns only runs of the function with this name."),
        ("variant" = Option<String>, Query, description = "Returns only runs of this variant of a sync."),
        ("state" = Option<String>, Query, description = "`running`, `success`, `error`, `cancelled` or `lost`."),
        ("trigger" = Option<String>, Query, description = "`schedule`, `trigger`, `start`, `retry`, `api`, `lifecycle` or `webhook`."),
        ("started_after" = Option<String>, Query, description = "Returns only runs that started at this time or later. RFC 3339."),
        ("started_before" = Option<String>, Query, description = "Returns only runs that started before this time. RFC 3339."),
        ("limit" = Option<i64>, Query, description = "Page size, 1 to 500. Default: 100. Larger values are treated as 500."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page. Omit it for the first page."),
    ),
    responses(
        (
            status = 200, description = "A page of runs",
            body = RunsResponse,
            example = json!({
                "runs": [
                    {
                        "id": "01978a3e-1111-7c21-9d4e-2b6a1f0c8e11",
                        "kind": "sync",
                        "function": "buyers",
                        "variant": "base",
                        "provider_config_key": "shop",
                        "connection_id": "user-1",
                        "trigger": "schedule",
                        "attempt": 1,
                        "job_id": null,
                        "state": "success",
                        "started_at": "2026-03-01T09:00:00.000Z",
                        "finished_at": "2026-03-01T09:00:04.000Z",
                        "duration_ms": 4000,
                        "error": null,
                        "counts": {"Buyer": {"added": 2, "updated": 1, "deleted": 0}},
                        "progress": {"done": 120, "total": 120},
                        "usage": {
                            "cpu_ms": 38.5,
                            "peak_memory_bytes": 4194304,
                            "requests": 3,
                            "sent_bytes": 0,
                            "received_bytes": 48213,
                            "records": 120
                        },
                        "approved_at": null
                    }
                ],
                "next_cursor": null
            }),
        ),
    ),
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

/// Get a run
///
/// Returns one run with its result, progress and resource usage, also while it is running. Needs the scope
/// `environment:logs:read`.
#[utoipa::path(
    get, path = "/runs/{id}", tag = "Runs",
    params(
        ("id" = Uuid, Path, description = "Id of the run."),
    ),
    responses(
        (
            status = 200, description = "The run",
            body = RunBody,
            example = json!({
                "id": "01978a3e-1111-7c21-9d4e-2b6a1f0c8e11",
                "kind": "sync",
                "function": "buyers",
                "variant": "base",
                "provider_config_key": "shop",
                "connection_id": "user-1",
                "trigger": "schedule",
                "attempt": 1,
                "job_id": null,
                "state": "success",
                "started_at": "2026-03-01T09:00:00.000Z",
                "finished_at": "2026-03-01T09:00:04.000Z",
                "duration_ms": 4000,
                "error": null,
                "counts": {"Buyer": {"added": 2, "updated": 1, "deleted": 0}},
                "progress": {"done": 120, "total": 120},
                "usage": {
                    "cpu_ms": 38.5,
                    "peak_memory_bytes": 4194304,
                    "requests": 3,
                    "sent_bytes": 0,
                    "received_bytes": 48213,
                    "records": 120
                },
                "approved_at": null
            }),
        ),
    ),
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

/// A recording, in the format of its file.
#[derive(Debug, Serialize, ToSchema)]
#[schema(value_type = Object)]
pub(super) struct RecordingBody(Box<RawValue>);

/// Get the recording of a run
///
/// Returns everything that the function received in the run, and its result, with secrets masked. Save the response to
/// a file in the project, and replay it with `syncline test`. The recording contains records and responses of the
/// provider. Needs the scope `environment:records:read`.
#[utoipa::path(
    get, path = "/runs/{id}/recording", tag = "Runs",
    params(
        ("id" = Uuid, Path, description = "Id of the run."),
    ),
    responses(
        (
            status = 200, description = "The recording",
            body = RecordingBody,
            example = json!({
                "format": 1,
                "integration": "shop",
                "kind": "sync",
                "function": "buyers",
                "started_at": "2026-03-01T09:00:00Z",
                "random_seed": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
                "run": {
                    "id": "01978a3e-1111-7c21-9d4e-2b6a1f0c8e11", "variant": "base", "attempt": 1, "is_full": false
                },
                "connection": {
                    "id": "user-1", "provider": "shop", "environment": "prod", "config": {}, "tags": {}, "metadata": {}
                },
                "variables": {},
                "checkpoint": null,
                "kept": [],
                "exchanges": [
                    {
                        "request": {"method": "GET", "url": "/buyers"},
                        "took_us": 84000,
                        "response": {"status": 500}
                    }
                ],
                "expected": {
                    "error": {"code": "script_http_error", "message": "the provider answered with status 500"},
                    "records": [],
                    "unchanged": 0,
                    "checkpoint": null,
                    "metadata": {},
                    "log": []
                }
            }),
        ),
    ),
)]
pub(super) async fn get_run_recording(
    State(app): State<App>,
    client: EnvironmentAuth<rights::RecordsRead>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<Json<RecordingBody>, ApiError> {
    let text = app.runs.recording(&client.environment, parse_id(&id)?, &client.actor()).await?;
    Ok(Json(RecordingBody(RawValue::from_string(text).map_err(RunsError::from)?)))
}

/// List the log lines of a run
///
/// Returns what the function logged and the requests that it sent, oldest first. While the run is in progress, new
/// lines appear about once per second.
///
/// To follow a log, repeat the request with `next_cursor` until it is `null`. Needs the scope `environment:logs:read`.
#[utoipa::path(
    get, path = "/runs/{id}/logs", tag = "Runs",
    params(
        ("id" = Uuid, Path, description = "Id of the run."),
        ("level" = Option<String>, Query, description = "The lowest level to return: `debug`, `info`, `warn` or `error`. Default: `debug`."),
        ("search" = Option<String>, Query, description = "Returns only lines that contain this text in the message or the fields, ignoring case. At most 200 characters."),
        ("since" = Option<String>, Query, description = "Returns only lines that were written at this time or later. RFC 3339."),
        ("limit" = Option<i64>, Query, description = "Page size, 1 to 1,000. Default: 100. Larger values are treated as 1,000."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page. Omit it for the first page."),
    ),
    responses(
        (
            status = 200, description = "A page of log lines",
            body = LogsResponse,
            example = json!({
                "logs": [
                    {
                        "line": 0,
                        "at": "2026-03-01T09:00:00.000Z",
                        "level": "info",
                        "message": "fetched 120 buyers",
                        "fields": {"page": 1}
                    }
                ],
                "next_cursor": null
            }),
        ),
    ),
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
    let log = app.runs.log(client.environment.pk, parse_id(&id)?, &filter, limit).await?;
    let has_more = log.has_more || !log.is_complete;
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

/// Approve held deletions
///
/// Carries out the deletions that a full sync held back because there were suspiciously many. Deletes the records that
/// the run did not find, except those that were saved again since.
///
/// Fails with 409 if the run holds no deletions, was approved already, or a later run has replaced it. Needs the scope
/// `environment:syncs:execute`.
#[utoipa::path(
    post, path = "/runs/{id}/approve", tag = "Runs",
    params(
        ("id" = Uuid, Path, description = "Id of the run."),
    ),
    responses(
        (
            status = 200, description = "The run, with `approved_at`",
            body = RunBody,
            example = json!({
                "id": "01978a3e-1111-7c21-9d4e-2b6a1f0c8e11",
                "kind": "sync",
                "function": "buyers",
                "variant": "base",
                "provider_config_key": "shop",
                "connection_id": "user-1",
                "trigger": "schedule",
                "attempt": 1,
                "job_id": null,
                "state": "success",
                "started_at": "2026-03-01T09:00:00.000Z",
                "finished_at": "2026-03-01T09:00:04.000Z",
                "duration_ms": 4000,
                "error": null,
                "counts": {"Buyer": {"added": 2, "updated": 1, "deleted": 0}},
                "progress": {"done": 120, "total": 120},
                "usage": {
                    "cpu_ms": 38.5,
                    "peak_memory_bytes": 4194304,
                    "requests": 3,
                    "sent_bytes": 0,
                    "received_bytes": 48213,
                    "records": 120
                },
                "approved_at": "2026-03-01T10:30:00.000Z"
            }),
        ),
    ),
)]
pub(super) async fn approve_run(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SyncsExecute>,
    ApiPath(id): ApiPath,
    _: NoQuery,
) -> Result<Json<RunBody>, ApiError> {
    let environment = client.environment.pk;
    let run = app.runs.get(environment, parse_id(&id)?).await?;
    app.syncs.approve_run(environment, run.id, &client.actor()).await?;
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
    if text.chars().count() > MAX_SEARCH_CHARS {
        let message = format!("must be at most {MAX_SEARCH_CHARS} characters long");
        return Err(ApiError::query("too_big", &["search"], message));
    }
    Ok(text)
}

fn parse_line(text: &str) -> Result<i32, ApiError> {
    let line = text.parse::<i32>().ok().filter(|line| *line >= -1);
    line.ok_or(ApiError::Cursor { problem: "was not returned by this log" })
}

/// The position of a run in the list, for its cursor: its start and its id.
fn place_bytes(run: &LoggedRun) -> Vec<u8> {
    [&run.started_at.timestamp_micros().to_be_bytes()[..], run.id.as_bytes()].concat()
}

fn read_place(bytes: [u8; 24]) -> Option<RunPlace> {
    let started_at = DateTime::from_timestamp_micros(i64::from_be_bytes(*bytes.first_chunk()?))?;
    Some(RunPlace { started_at, id: Uuid::from_bytes(*bytes.last_chunk()?) })
}
