//! `/sync/…`: triggers, pauses and shows schedules.

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
use super::error::{ApiError, ErrorBody};
use super::extract::{ApiJson, ApiQuery, EnvironmentAuth, NoQuery, optional_header};
use super::time::iso;
use syncline_auth::{Client, rights};
use syncline_config::Frequency;
use syncline_engine::{
    self as engine, ConnectionRoute, SyncCommand, SyncSelection, SyncState, TriggerOptions,
};
use syncline_types::functions::RunState;
use syncline_types::ids::{ConnectionId, FunctionName, IntegrationKey, InvalidName, Variant};

const MAX_SYNCS: usize = 256;

/// `name`, `name::variant`, or both apart.
// It is read by hand: of what is neither, serde would say no more than that.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum SyncReference {
    Name(String),
    Variant(NamedVariant),
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NamedVariant {
    name: String,
    variant: String,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TriggerRequest {
    /// May come in the header `Provider-Config-Key` instead.
    provider_config_key: Option<String>,
    /// Left out: every connection of the integration. May come in the header `Connection-Id` instead.
    connection_id: Option<String>,
    /// Empty: every sync.
    syncs: Vec<SyncReference>,
    opts: Option<TriggerOpts>,
    /// The older form of `opts`.
    sync_mode: Option<SyncMode>,
    /// The oldest form of `opts`.
    full_resync: Option<bool>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TriggerOpts {
    /// Clear the checkpoint and fetch everything again.
    #[serde(default)]
    reset: bool,
    /// With `reset`: clear the records too.
    #[serde(default, rename = "emptyCache")]
    empty_cache: bool,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum SyncMode {
    Incremental,
    FullRefresh,
    FullRefreshAndClearCache,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SyncControlRequest {
    provider_config_key: String,
    /// Left out: every connection of the integration.
    connection_id: Option<String>,
    /// Empty: every sync.
    syncs: Vec<SyncReference>,
}

/// `POST /sync/trigger`: one run at once.
#[utoipa::path(
    post, path = "/sync/trigger", tag = "Syncs", request_body = TriggerRequest,
    responses((status = 200, description = "Nothing"), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn trigger_syncs(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SyncsExecute>,
    headers: HeaderMap,
    _: NoQuery,
    ApiJson(request): ApiJson<TriggerRequest>,
) -> Result<StatusCode, ApiError> {
    let integration = match request.provider_config_key {
        Some(key) => key,
        None => optional_header::<IntegrationKey>(&headers, "provider-config-key")?
            .ok_or_else(|| ApiError::body("invalid_type", &["provider_config_key"], "is required"))?
            .to_string(),
    };
    // Without a connection every one is meant, so what cannot be read must not pass for none.
    let connection = match request.connection_id {
        Some(id) => Some(id),
        None => optional_header::<ConnectionId>(&headers, "connection-id")?.map(|id| id.to_string()),
    };
    let options = match (request.opts, request.sync_mode, request.full_resync) {
        (Some(opts), None, None) => TriggerOptions { reset: opts.reset, empty_cache: opts.empty_cache },
        (Some(_), _, _) => {
            let message =
                "`opts` cannot stand beside `sync_mode` or `full_resync`, which are older forms of it";
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
    app.syncs.command(client.environment.pk, &selection, SyncCommand::Trigger(options)).await?;
    Ok(StatusCode::OK)
}

/// `POST /sync/start`: starts what is paused, with a run at once.
#[utoipa::path(
    post, path = "/sync/start", tag = "Syncs", request_body = SyncControlRequest,
    responses((status = 200, description = "Nothing"), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn start_syncs(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SyncsExecute>,
    _: NoQuery,
    ApiJson(request): ApiJson<SyncControlRequest>,
) -> Result<StatusCode, ApiError> {
    let connection = request.connection_id.as_deref();
    let selection = select(&request.provider_config_key, connection, &request.syncs, ApiError::body)?;
    app.syncs.command(client.environment.pk, &selection, SyncCommand::Start).await?;
    Ok(StatusCode::OK)
}

/// `POST /sync/pause`: pauses; a run in progress completes.
#[utoipa::path(
    post, path = "/sync/pause", tag = "Syncs", request_body = SyncControlRequest,
    responses((status = 200, description = "Nothing"), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn pause_syncs(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SyncsExecute>,
    _: NoQuery,
    ApiJson(request): ApiJson<SyncControlRequest>,
) -> Result<StatusCode, ApiError> {
    let connection = request.connection_id.as_deref();
    let selection = select(&request.provider_config_key, connection, &request.syncs, ApiError::body)?;
    app.syncs.command(client.environment.pk, &selection, SyncCommand::Pause).await?;
    Ok(StatusCode::OK)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StatusQuery {
    provider_config_key: String,
    syncs: String,
    connection_id: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StatusResponse {
    syncs: Vec<SyncStatus>,
}

/// Where one sync of one connection stands.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SyncStatus {
    id: Uuid,
    connection_id: String,
    name: String,
    variant: String,
    /// `INITIAL` until a run has succeeded.
    r#type: &'static str,
    /// `RUNNING`, `PAUSED`, `SUCCESS`, `ERROR` or `STOPPED`.
    status: &'static str,
    frequency: Option<String>,
    #[serde(rename = "finishedAt", skip_serializing_if = "Option::is_none")]
    finished_at: Option<String>,
    #[serde(rename = "nextScheduledSyncAt")]
    next_scheduled_sync_at: Option<String>,
    #[serde(rename = "latestResult", skip_serializing_if = "Option::is_none")]
    latest_result: Option<serde_json::Value>,
    #[serde(rename = "latestExecutionStatus", skip_serializing_if = "Option::is_none")]
    latest_execution_status: Option<&'static str>,
    #[serde(rename = "recordCount")]
    record_count: BTreeMap<String, i64>,
    #[schema(value_type = Option<Object>)]
    checkpoint: Option<Box<RawValue>>,
}

/// `GET /sync/status`: where syncs stand.
#[utoipa::path(
    get, path = "/sync/status", tag = "Syncs",
    params(
        ("provider_config_key" = String, Query, description = "The integration's unique key"),
        ("syncs" = String, Query, description = "Names separated by commas, `name::variant` for a variant, or *"),
        ("connection_id" = Option<String>, Query, description = "Left out: every connection of the integration"),
    ),
    responses((status = 200, body = StatusResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn sync_status(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SyncsRead>,
    ApiQuery(query): ApiQuery<StatusQuery>,
) -> Result<Json<StatusResponse>, ApiError> {
    let wanted = match query.syncs.trim() {
        "*" => Vec::new(),
        "" => {
            return Err(ApiError::query("too_small", &["syncs"], "must be names separated by commas, or *"));
        }
        list => list.split(',').map(|name| SyncReference::Name(name.trim().to_owned())).collect(),
    };
    let connection = query.connection_id.as_deref();
    let selection = select(&query.provider_config_key, connection, &wanted, ApiError::query)?;
    let statuses = app.syncs.status(client.environment.pk, &selection).await?;
    Ok(Json(StatusResponse { syncs: statuses.into_iter().map(SyncStatus::from).collect() }))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FrequencyRequest {
    provider_config_key: String,
    connection_id: String,
    sync_name: String,
    /// The base variant unless given.
    sync_variant: Option<String>,
    /// Such as `every 10 minutes` or cron; null for the default of the sync configuration file.
    #[serde(deserialize_with = "Option::deserialize")]
    frequency: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct FrequencyResponse {
    /// What is active now.
    frequency: String,
}

/// `PUT /sync/update-connection-frequency`: overrides how often a sync of one connection runs.
#[utoipa::path(
    put, path = "/sync/update-connection-frequency", tag = "Syncs", request_body = FrequencyRequest,
    responses((status = 200, body = FrequencyResponse), (status = "4XX", body = ErrorBody)),
)]
pub(super) async fn update_connection_frequency(
    State(app): State<App>,
    client: EnvironmentAuth<rights::SyncsUpdate>,
    _: NoQuery,
    ApiJson(request): ApiJson<FrequencyRequest>,
) -> Result<Json<FrequencyResponse>, ApiError> {
    let invalid = |field: &'static str| {
        move |problem: InvalidName| ApiError::body("invalid_format", &[field], problem.to_string())
    };
    let variant = request.sync_variant.as_deref().unwrap_or(Variant::BASE);
    let variant: Variant = variant.parse().map_err(invalid("sync_variant"))?;
    let minimum = app.deployments.minimum_interval();
    let frequency = request.frequency.map(|text| Frequency::parse(&text, minimum)).transpose();
    let frequency =
        frequency.map_err(|problem| ApiError::body("invalid_format", &["frequency"], problem.to_string()))?;
    let (integration, connection) = (&request.provider_config_key, &request.connection_id);
    let (connection, sync) = app.find_sync_name(&client, integration, connection, &request.sync_name).await?;
    let active = app.syncs.set_frequency(&connection, &sync, &variant, frequency).await?;
    Ok(Json(FrequencyResponse { frequency: active.to_string() }))
}

/// Refuses a part of the request: of its body or of its query.
type Refuse = fn(&'static str, &[&str], String) -> ApiError;

/// The schedules that a request names.
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
        return Err(refuse("too_big", &["syncs"], format!("at most {MAX_SYNCS} syncs can be named")));
    }
    let syncs = syncs.iter().map(SyncReference::parse).collect::<Result<BTreeSet<_>, _>>();
    Ok(SyncSelection { integration, connection, syncs: syncs.map_err(invalid("syncs"))? })
}

impl App {
    /// The connection that a body names, and the name of a sync that need not be deployed.
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
