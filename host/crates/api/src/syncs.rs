//! `/sync/…`: triggers, starts and pauses syncs, and returns their status.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use uuid::Uuid;

use super::App;
use super::error::ApiError;
use super::extract::{ApiJson, ApiQuery, EnvironmentAuth, MAX_MEDIUM_BODY_BYTES, NoQuery, optional_header};
use super::lists::{Cursors, cut_to_page, parse_limit};
use super::time::iso;
use syncline_auth::{Client, rights};
use syncline_config::Frequency;
use syncline_engine::{
    self as engine, ConnectionRoute, RecordingOrder, SyncCommand, SyncSelection, SyncState, TriggerOptions,
};
use syncline_types::functions::{RecordedRuns, RunState};
use syncline_types::ids::{ConnectionId, FunctionName, IntegrationKey, InvalidName, SchedulePk, Variant};

const MAX_SYNCS: usize = 256;
const MAX_LIMIT: i64 = 500;

/// A sync: its name, `name::variant`, or an object with `name` and, optionally, `variant`.
// Deserialized by hand, because serde's message for an untagged enum does not say what is allowed.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum SyncReference {
    Name(String),
    Variant(NamedVariant),
}

/// A sync and its variant.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NamedVariant {
    /// Name of the sync.
    name: String,
    /// Name of the variant. Default: `base`.
    #[serde(default = "base_variant")]
    variant: String,
}

fn base_variant() -> String {
    Variant::BASE.to_owned()
}

/// The syncs to run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TriggerRequest {
    /// The unique key of the integration. Can be sent as the header `Provider-Config-Key` instead.
    provider_config_key: Option<String>,
    /// The connection id. Can be sent as the header `Connection-Id` instead. Default: all connections of the
    /// integration.
    connection_id: Option<String>,
    /// The syncs, at most 256. An empty list selects all syncs.
    syncs: Vec<SyncReference>,
    /// What to reset before the run.
    opts: Option<TriggerOpts>,
    /// Older form of `opts`. Cannot be combined with it.
    sync_mode: Option<SyncMode>,
    /// Oldest form of `opts`; `true` means `reset`. Cannot be combined with `opts`.
    full_resync: Option<bool>,
}

/// What to reset before a run.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TriggerOpts {
    /// Cancels a run in progress and clears the checkpoint, so that the new run fetches everything again. Default:
    /// `false`.
    #[serde(default)]
    reset: bool,
    /// With `reset`, also deletes the stored records. Default: `false`.
    #[serde(default, rename = "emptyCache")]
    empty_cache: bool,
}

/// Older form of `opts`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum SyncMode {
    Incremental,
    FullRefresh,
    FullRefreshAndClearCache,
}

/// The syncs to start or pause.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SyncControlRequest {
    /// The unique key of the integration.
    provider_config_key: String,
    /// The connection id. Default: all connections of the integration.
    connection_id: Option<String>,
    /// The syncs, at most 256. An empty list selects all syncs.
    syncs: Vec<SyncReference>,
}

/// Trigger syncs
///
/// Starts one run of each selected sync immediately. Schedules do not change, and paused syncs stay paused. If a run is
/// in progress, one more run follows it.
///
/// With `opts.reset`, the host cancels a run in progress, clears the checkpoint and fetches everything again. With
/// `opts.emptyCache` in addition, it deletes the stored records first. The integration and the connection can be named in the body, or in the headers
/// `Provider-Config-Key` and `Connection-Id`. Needs the scope `environment:syncs:execute`.
#[utoipa::path(
    post, path = "/sync/trigger", tag = "Syncs",
    request_body(content = TriggerRequest,
        example = json!({
            "provider_config_key": "shop",
            "connection_id": "user-1",
            "syncs": ["buyers"],
            "opts": {"reset": true, "emptyCache": false}
        })),
    responses(
        (status = 200, description = "The runs are requested. The response has no body."),
    ),
)]
pub(super) async fn trigger_syncs(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SyncsExecute>,
    headers: HeaderMap,
    _: NoQuery,
    ApiJson(request): ApiJson<TriggerRequest, MAX_MEDIUM_BODY_BYTES>,
) -> Result<StatusCode, ApiError> {
    let integration = match request.provider_config_key {
        Some(key) => key,
        None => optional_header::<IntegrationKey>(&headers, "provider-config-key")?
            .ok_or_else(|| ApiError::body("invalid_type", &["provider_config_key"], "is required"))?
            .to_string(),
    };
    // No connection means all connections, so an invalid header must not count as absent.
    let connection = match request.connection_id {
        Some(id) => Some(id),
        None => optional_header::<ConnectionId>(&headers, "connection-id")?.map(|id| id.to_string()),
    };
    let options = match (request.opts, request.sync_mode, request.full_resync) {
        (Some(opts), None, None) => TriggerOptions { reset: opts.reset, empty_cache: opts.empty_cache },
        (Some(_), _, _) => {
            let message =
                "`opts` cannot be combined with `sync_mode` or `full_resync`, which are older forms of it";
            return Err(ApiError::body("custom", &["opts"], message));
        }
        (None, Some(SyncMode::Incremental), _) => TriggerOptions::default(),
        (None, Some(SyncMode::FullRefresh), _) => TriggerOptions { reset: true, empty_cache: false },
        (None, Some(SyncMode::FullRefreshAndClearCache), _) => {
            TriggerOptions { reset: true, empty_cache: true }
        }
        (None, None, full_resync) => TriggerOptions { reset: full_resync == Some(true), empty_cache: false },
    };
    let selection = select(&integration, connection.as_deref(), &request.syncs, ApiError::body)?;
    app.syncs
        .command(client.environment.pk, &selection, SyncCommand::Trigger(options), &client.actor())
        .await?;
    Ok(StatusCode::OK)
}

/// Start syncs
///
/// Resumes the schedules of paused syncs. Each starts a run immediately and then continues at its frequency. Syncs
/// that are not paused are not affected. Needs the scope `environment:syncs:execute`.
#[utoipa::path(
    post, path = "/sync/start", tag = "Syncs",
    request_body(content = SyncControlRequest,
        example = json!({"provider_config_key": "shop", "connection_id": "user-1", "syncs": ["buyers"]})),
    responses(
        (status = 200, description = "The syncs are started. The response has no body."),
    ),
)]
pub(super) async fn start_syncs(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SyncsExecute>,
    _: NoQuery,
    ApiJson(request): ApiJson<SyncControlRequest, MAX_MEDIUM_BODY_BYTES>,
) -> Result<StatusCode, ApiError> {
    let connection = request.connection_id.as_deref();
    let selection = select(&request.provider_config_key, connection, &request.syncs, ApiError::body)?;
    app.syncs.command(client.environment.pk, &selection, SyncCommand::Start, &client.actor()).await?;
    Ok(StatusCode::OK)
}

/// Pause syncs
///
/// Pauses the schedules of syncs. A run in progress completes; no further run starts until the syncs are started
/// again. Needs the scope `environment:syncs:execute`.
#[utoipa::path(
    post, path = "/sync/pause", tag = "Syncs",
    request_body(content = SyncControlRequest,
        example = json!({"provider_config_key": "shop", "connection_id": "user-1", "syncs": ["buyers"]})),
    responses(
        (status = 200, description = "The syncs are paused. The response has no body."),
    ),
)]
pub(super) async fn pause_syncs(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SyncsExecute>,
    _: NoQuery,
    ApiJson(request): ApiJson<SyncControlRequest, MAX_MEDIUM_BODY_BYTES>,
) -> Result<StatusCode, ApiError> {
    let connection = request.connection_id.as_deref();
    let selection = select(&request.provider_config_key, connection, &request.syncs, ApiError::body)?;
    app.syncs.command(client.environment.pk, &selection, SyncCommand::Pause, &client.actor()).await?;
    Ok(StatusCode::OK)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StatusQuery {
    provider_config_key: String,
    syncs: String,
    connection_id: Option<String>,
    limit: Option<String>,
    cursor: Option<String>,
}

/// The status of the selected syncs.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StatusResponse {
    /// One entry for each sync, connection and variant.
    syncs: Vec<SyncStatus>,
    /// Cursor of the next page, or `null` on the last page. Only with `limit` or `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    next_cursor: Option<Option<String>>,
}

/// The status of one sync of one connection.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SyncStatus {
    /// Id of the schedule.
    id: Uuid,
    /// The connection id.
    connection_id: String,
    /// Name of the sync.
    name: String,
    /// Name of the variant; `base` is the default variant.
    variant: String,
    /// `INITIAL` until a run has succeeded, then `INCREMENTAL`.
    r#type: &'static str,
    /// `RUNNING`, `PAUSED`, `SUCCESS`, `ERROR` or `STOPPED`.
    status: &'static str,
    /// The active frequency, such as `every 1 hour`.
    frequency: Option<String>,
    /// When the latest run finished. Absent while a run is in progress.
    #[serde(rename = "finishedAt", skip_serializing_if = "Option::is_none")]
    finished_at: Option<String>,
    /// When the next run is due, or `null` if none is scheduled.
    #[serde(rename = "nextScheduledSyncAt")]
    next_scheduled_sync_at: Option<String>,
    /// Counts of the latest run by model: `added`, `updated` and `deleted`.
    #[serde(rename = "latestResult", skip_serializing_if = "Option::is_none")]
    latest_result: Option<serde_json::Value>,
    /// `RUNNING`, `SUCCESS` or `STOPPED`. Absent before the first run.
    #[serde(rename = "latestExecutionStatus", skip_serializing_if = "Option::is_none")]
    latest_execution_status: Option<&'static str>,
    /// When the latest run is retried. Absent if no retry is planned. `nextScheduledSyncAt` is the regular run after it.
    #[serde(rename = "retryAt", skip_serializing_if = "Option::is_none")]
    retry_at: Option<String>,
    /// The error of the latest run. Absent if it succeeded.
    #[serde(rename = "latestError", skip_serializing_if = "Option::is_none")]
    latest_error: Option<LatestError>,
    /// Number of stored records by model, without deleted ones.
    #[serde(rename = "recordCount")]
    record_count: BTreeMap<String, i64>,
    /// The checkpoint that the function set, or `null`.
    #[schema(value_type = Option<Object>)]
    checkpoint: Option<Box<RawValue>>,
}

/// The error of a sync's latest run.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LatestError {
    /// The stable code of the error.
    code: String,
    /// What happened.
    message: String,
    /// Id of the run, whose log has more.
    #[serde(rename = "runId")]
    run_id: Uuid,
}

/// Get the status of syncs
///
/// Returns the schedule, the latest result or error, and the record counts of each selected sync. After a failed run,
/// `retryAt` says when it is retried. An integration with many
/// connections has many syncs: send `limit` to get them in pages. Needs the scope `environment:syncs:read`.
#[utoipa::path(
    get, path = "/sync/status", tag = "Syncs",
    params(
        ("provider_config_key" = String, Query, description = "The unique key of the integration."),
        ("syncs" = String, Query, description = "Names of syncs, separated by commas; `name::variant` for a variant. `*` selects all."),
        ("connection_id" = Option<String>, Query, description = "The connection id. Default: all connections of the integration."),
        ("limit" = Option<i64>, Query, description = "Page size, at least 1. Default with `cursor`: 500. Values above 500 are treated as 500. Without `limit` and `cursor`, the response contains all selected syncs."),
        ("cursor" = Option<String>, Query, description = "`next_cursor` of the previous page. Omit it for the first page."),
    ),
    responses(
        (
            status = 200, description = "The status of each sync",
            body = StatusResponse,
            example = json!({
                "syncs": [
                    {
                        "id": "01978a3e-2222-7c21-9d4e-2b6a1f0c8e11",
                        "connection_id": "user-1",
                        "name": "buyers",
                        "variant": "base",
                        "type": "INCREMENTAL",
                        "status": "SUCCESS",
                        "frequency": "every 1 hour",
                        "finishedAt": "2026-03-01T09:00:04.000Z",
                        "nextScheduledSyncAt": "2026-03-01T10:00:00.000Z",
                        "latestResult": {"Buyer": {"added": 2, "updated": 1, "deleted": 0}},
                        "latestExecutionStatus": "SUCCESS",
                        "recordCount": {"Buyer": 120},
                        "checkpoint": {"cursor": "2026-03-01T09:00:00Z"}
                    }
                ]
            }),
        ),
    ),
)]
pub(super) async fn sync_status(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SyncsRead>,
    ApiQuery(query): ApiQuery<StatusQuery>,
) -> Result<Json<StatusResponse>, ApiError> {
    let references = match query.syncs.trim() {
        "*" => Vec::new(),
        "" => {
            return Err(ApiError::query(
                "too_small",
                &["syncs"],
                "must be names of syncs separated by commas, or `*`",
            ));
        }
        list => list.split(',').map(|name| SyncReference::Name(name.trim().to_owned())).collect(),
    };
    let connection = query.connection_id.as_deref();
    let selection = select(&query.provider_config_key, connection, &references, ApiError::query)?;
    let environment = client.environment.pk;
    if query.limit.is_none() && query.cursor.is_none() {
        let statuses = app.syncs.status(environment, &selection).await?;
        let syncs = statuses.into_iter().map(SyncStatus::from).collect();
        return Ok(Json(StatusResponse { syncs, next_cursor: None }));
    }
    let limit = parse_limit(query.limit.as_deref(), MAX_LIMIT, MAX_LIMIT)?;
    let cursors = Cursors { list: "syncs", environment };
    let after = query.cursor.map_or(Ok(0), |cursor| cursors.decode_number(&cursor))?;
    let rows = limit.unsigned_abs() as usize + 1;
    let mut found = app.syncs.status_page(environment, &selection, SchedulePk(after), rows).await?;
    let next_cursor = cut_to_page(&mut found, limit).map(|(last, _)| cursors.encode_number(last.0));
    let syncs = found.into_iter().map(|(_, status)| status.into()).collect();
    Ok(Json(StatusResponse { syncs, next_cursor: Some(next_cursor) }))
}

/// The new frequency of a sync of one connection.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FrequencyRequest {
    /// The unique key of the integration.
    provider_config_key: String,
    /// The connection id.
    connection_id: String,
    /// Name of the sync.
    sync_name: String,
    /// Name of the variant. Default: the base variant.
    sync_variant: Option<String>,
    /// An interval such as `every 10 minutes`, or a cron expression. `null` restores the frequency of `syncline.toml`.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required = true)]
    frequency: Option<String>,
}

/// The frequency after the change.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FrequencyResponse {
    /// The active frequency.
    frequency: String,
}

/// Override the frequency of a sync
///
/// Overrides how often a sync runs for one connection. Send `null` as `frequency` to return to the frequency in
/// `syncline.toml`.
///
/// The interval must be between 30 seconds (or the minimum that the operator has set) and 31 days. Needs the scope
/// `environment:syncs:update`.
#[utoipa::path(
    put, path = "/sync/update-connection-frequency", tag = "Syncs",
    request_body(content = FrequencyRequest,
        example = json!({
            "provider_config_key": "shop",
            "connection_id": "user-1",
            "sync_name": "buyers",
            "frequency": "every 10 minutes"
        })),
    responses(
        (
            status = 200, description = "The active frequency",
            body = FrequencyResponse,
            example = json!({"frequency": "every 10 minutes"}),
        ),
    ),
)]
pub(super) async fn update_connection_frequency(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SyncsUpdate>,
    _: NoQuery,
    ApiJson(request): ApiJson<FrequencyRequest>,
) -> Result<Json<FrequencyResponse>, ApiError> {
    let variant = parse_variant(request.sync_variant.as_deref())?;
    let minimum = app.deployments.minimum_interval();
    let frequency = request.frequency.map(|text| Frequency::parse(&text, minimum)).transpose();
    let frequency =
        frequency.map_err(|problem| ApiError::body("invalid_format", &["frequency"], problem.to_string()))?;
    let (integration, connection) = (&request.provider_config_key, &request.connection_id);
    let (connection, sync) = app.find_sync_name(&client, integration, connection, &request.sync_name).await?;
    let active = app.syncs.set_frequency(&connection, &sync, &variant, frequency, &client.actor()).await?;
    Ok(Json(FrequencyResponse { frequency: active.to_string() }))
}

/// Which runs of a sync of one connection to record.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RecordingRequest {
    /// The unique key of the integration.
    provider_config_key: String,
    /// The connection id.
    connection_id: String,
    /// Name of the sync.
    sync_name: String,
    /// Name of the variant. Default: the base variant.
    sync_variant: Option<String>,
    /// `next_failed_run` or `every_run`. `null` ends the recording of further runs.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(required = true)]
    runs: Option<SelectedRuns>,
    /// For how many days a recording is kept, from 1 to 30. Default: 7.
    #[schema(minimum = 1, maximum = 30)]
    retention_days: Option<i32>,
}

/// The runs that are recorded.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum SelectedRuns {
    NextFailedRun,
    EveryRun,
}

/// Which runs are recorded after the change.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RecordingResponse {
    /// `next_failed_run`, `every_run`, or `null` if no runs are recorded.
    runs: Option<SelectedRuns>,
    /// For how many days a recording is kept, or `null` if no runs are recorded.
    retention_days: Option<i32>,
}

/// Record runs of a sync
///
/// Chooses which later runs of a sync are recorded for one connection: the first run that fails, or every run that
/// succeeds or fails. `GET /runs/{id}/recording` returns the recording of a run. Recordings are encrypted, and contain
/// no credentials or other secrets of the connection. Needs the scope `environment:syncs:update`.
#[utoipa::path(
    put, path = "/sync/recording", tag = "Syncs",
    request_body(content = RecordingRequest,
        example = json!({
            "provider_config_key": "shop",
            "connection_id": "user-1",
            "sync_name": "buyers",
            "runs": "next_failed_run"
        })),
    responses(
        (
            status = 200, description = "Which runs are recorded",
            body = RecordingResponse,
            example = json!({"runs": "next_failed_run", "retention_days": 7}),
        ),
    ),
)]
pub(super) async fn set_recording(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SyncsUpdate>,
    _: NoQuery,
    ApiJson(request): ApiJson<RecordingRequest>,
) -> Result<Json<RecordingResponse>, ApiError> {
    let variant = parse_variant(request.sync_variant.as_deref())?;
    let days = request.retention_days.unwrap_or(RecordingOrder::DEFAULT_DAYS);
    if !(1..=RecordingOrder::MAX_DAYS).contains(&days) {
        let code = if days < 1 { "too_small" } else { "too_big" };
        let message = format!("must be a number of days from 1 to {}", RecordingOrder::MAX_DAYS);
        return Err(ApiError::body(code, &["retention_days"], message));
    }
    let order = request.runs.map(|runs| RecordingOrder { runs: runs.into(), days });
    let (integration, connection) = (&request.provider_config_key, &request.connection_id);
    let (connection, sync) = app.find_sync_name(&client, integration, connection, &request.sync_name).await?;
    app.syncs.set_recording(&connection, &sync, &variant, order, &client.actor()).await?;
    Ok(Json(RecordingResponse { runs: request.runs, retention_days: order.map(|order| order.days) }))
}

impl From<SelectedRuns> for RecordedRuns {
    fn from(runs: SelectedRuns) -> Self {
        match runs {
            SelectedRuns::NextFailedRun => Self::NextFailedRun,
            SelectedRuns::EveryRun => Self::EveryRun,
        }
    }
}

/// Parses the field `sync_variant` of a body. Without it, the base variant is meant.
fn parse_variant(text: Option<&str>) -> Result<Variant, ApiError> {
    let invalid =
        |problem: InvalidName| ApiError::body("invalid_format", &["sync_variant"], problem.to_string());
    text.unwrap_or(Variant::BASE).parse().map_err(invalid)
}

/// Creates the error for an invalid part of the request, in its body or its query.
type Refuse = fn(&'static str, &[&str], String) -> ApiError;

/// Parses the schedules that a request selects.
fn select(
    integration: &str,
    connection: Option<&str>,
    syncs: &[SyncReference],
    refuse: Refuse,
) -> Result<SyncSelection, ApiError> {
    let invalid = |field: &'static str| {
        move |problem: InvalidName| refuse("invalid_format", &[field], problem.to_string())
    };
    let integration = integration.parse().map_err(invalid("provider_config_key"))?;
    let connection = connection.map(str::parse).transpose().map_err(invalid("connection_id"))?;
    if syncs.len() > MAX_SYNCS {
        return Err(refuse(
            "too_big",
            &["syncs"],
            format!("at most {MAX_SYNCS} syncs are allowed in one request"),
        ));
    }
    let syncs = syncs.iter().map(SyncReference::parse).collect::<Result<BTreeSet<_>, _>>();
    Ok(SyncSelection { integration, connection, syncs: syncs.map_err(invalid("syncs"))? })
}

impl App {
    /// Finds the connection that a body names, and parses the name of a sync, which need not be deployed.
    pub(super) async fn find_sync_name(
        &self,
        client: &Client,
        integration: &str,
        connection: &str,
        sync: &str,
    ) -> Result<(Arc<ConnectionRoute>, FunctionName), ApiError> {
        let invalid = |field: &'static str| {
            move |problem: InvalidName| ApiError::body("invalid_format", &[field], problem.to_string())
        };
        let integration: IntegrationKey = integration.parse().map_err(invalid("provider_config_key"))?;
        let connection: ConnectionId = connection.parse().map_err(invalid("connection_id"))?;
        let name: FunctionName = sync.parse().map_err(invalid("sync_name"))?;
        let connection = self.find_connection_by_name(client, &integration, &connection).await?;
        Ok((connection, name))
    }
}

impl From<engine::SyncStatus> for SyncStatus {
    fn from(status: engine::SyncStatus) -> Self {
        let is_running = status.state == SyncState::Running;
        let latest = status.latest;
        Self {
            id: status.id,
            connection_id: status.connection.to_string(),
            name: status.sync.to_string(),
            variant: status.variant.to_string(),
            r#type: if status.has_succeeded { "INCREMENTAL" } else { "INITIAL" },
            status: match status.state {
                SyncState::Running => "RUNNING",
                SyncState::Paused => "PAUSED",
                SyncState::Stopped => "STOPPED",
                SyncState::Success => "SUCCESS",
                SyncState::Error => "ERROR",
            },
            frequency: status.frequency,
            finished_at: latest.as_ref().filter(|_| !is_running).and_then(|run| run.finished_at).map(iso),
            next_scheduled_sync_at: status.next_run_at.map(iso),
            latest_execution_status: if is_running {
                Some("RUNNING")
            } else {
                latest.as_ref().map(|run| if run.state == RunState::Success { "SUCCESS" } else { "STOPPED" })
            },
            retry_at: status.retry_at.map(iso),
            latest_error: latest.as_ref().and_then(|run| {
                let error = run.error.clone()?;
                Some(LatestError { code: error.code, message: error.message, run_id: run.id })
            }),
            latest_result: latest.and_then(|run| run.counts),
            record_count: status
                .record_counts
                .into_iter()
                .map(|(model, count)| (model.to_string(), count))
                .collect(),
            checkpoint: status.checkpoint.and_then(|text| RawValue::from_string(text).ok()),
        }
    }
}

impl SyncReference {
    fn parse(&self) -> Result<(FunctionName, Variant), InvalidName> {
        let (name, variant) = match self {
            Self::Name(text) => text.split_once("::").unwrap_or((text, Variant::BASE)),
            Self::Variant(named) => (named.name.as_str(), named.variant.as_str()),
        };
        Ok((name.parse()?, variant.parse()?))
    }
}

impl<'de> Deserialize<'de> for SyncReference {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ReferenceVisitor;

        impl<'de> Visitor<'de> for ReferenceVisitor {
            type Value = SyncReference;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a sync, `name::variant`, or an object with `name` and `variant`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<SyncReference, E> {
                Ok(SyncReference::Name(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<SyncReference, A::Error> {
                NamedVariant::deserialize(MapAccessDeserializer::new(members)).map(SyncReference::Variant)
            }
        }

        deserializer.deserialize_any(ReferenceVisitor)
    }
}
