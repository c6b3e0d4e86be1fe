//! `/sync/…`: triggers, pauses and shows schedules.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use chrono::{DateTime, Utc};
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
use syncline_config::{Frequency, FunctionKind};
use syncline_engine::{ConnectionRoute, DeployedFunction, SyncCommand, next_slot, slot_after_change};
use syncline_store::integrations::Integration;
use syncline_store::schedules::{ScheduleStatus, Target, TriggerOptions, Whose};
use syncline_store::{Store, integrations, schedules, streams, sync_states};
use syncline_types::functions::RunState;
use syncline_types::ids::{
    ConnectionId, ConnectionPk, FunctionName, IntegrationKey, IntegrationPk, InvalidName, ModelName, Variant,
};

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
    let target = app
        .find_schedules(&client, &integration, connection.as_deref(), &request.syncs, ApiError::body)
        .await?;
    let count = app.syncs.command(&target.target, SyncCommand::Trigger(options)).await?;
    target.require_any(count)?;
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
    let target = app
        .find_schedules(&client, &request.provider_config_key, connection, &request.syncs, ApiError::body)
        .await?;
    let count = app.syncs.command(&target.target, SyncCommand::Start).await?;
    target.require_any(count)?;
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
    let target = app
        .find_schedules(&client, &request.provider_config_key, connection, &request.syncs, ApiError::body)
        .await?;
    let count = app.syncs.command(&target.target, SyncCommand::Pause).await?;
    target.require_any(count)?;
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
    let target =
        app.find_schedules(&client, &query.provider_config_key, connection, &wanted, ApiError::query).await?;
    let mut conn = app.store.connect().await?;
    let statuses = schedules::list_status(&mut conn, &target.target).await?;
    drop(conn);
    let kept = Kept::look(&app.store, &statuses).await?;
    let describe = |status| app.describe(&target.integration, status, &kept);
    Ok(Json(StatusResponse { syncs: statuses.into_iter().map(describe).collect() }))
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
    let found = app
        .find_sync(&client, &request.provider_config_key, &request.connection_id, &request.sync_name)
        .await?;
    let minimum = app.deployments.minimum_interval();
    let frequency = request.frequency.map(|text| Frequency::parse(&text, minimum)).transpose();
    let frequency =
        frequency.map_err(|problem| ApiError::body("invalid_format", &["frequency"], problem.to_string()))?;
    let active = frequency.as_ref().or(found.sync.frequency());
    let active = active.ok_or_else(|| ApiError::internal(anyhow::anyhow!("a sync without a frequency")))?;
    let text = frequency.as_ref().map(ToString::to_string);
    let (connection, name) = (found.connection.pk, &found.sync.name);
    let mut tx = app.store.begin().await?;
    let Some(before) = schedules::hold_planning(&mut tx, connection, name, &variant).await? else {
        return Err(ApiError::UnknownVariant { sync: name.to_string(), variant: variant.to_string() });
    };
    // Whoever says the same again and again changes nothing.
    if before.frequency_override != text {
        let started_at = before.started_at.unwrap_or(before.now);
        let next = slot_after_change(active, found.sync.timezone(), started_at, before.now, rand::random());
        schedules::set_frequency(&mut tx, connection, name, &variant, text.as_deref(), next).await?;
        schedules::notify_due(&mut tx).await?;
        tx.commit().await?;
    }
    Ok(Json(FrequencyResponse { frequency: active.to_string() }))
}

/// Refuses a part of the request: of its body or of its query.
type Refuse = fn(&'static str, &[&str], String) -> ApiError;

/// The schedules that a request names.
struct FoundSchedules {
    target: Target,
    integration: Integration,
}

impl FoundSchedules {
    fn require_any(&self, count: u64) -> Result<(), ApiError> {
        if count == 0 && matches!(self.target.whose, Whose::Connection(_)) {
            return Err(ApiError::NoSyncs(self.integration.unique_key.clone()));
        }
        Ok(())
    }
}

/// A deployed sync of a connection.
pub(super) struct FoundSync {
    pub connection: Arc<ConnectionRoute>,
    pub sync: Arc<DeployedFunction>,
}

impl App {
    /// The sync that a body names.
    pub(super) async fn find_sync(
        &self,
        client: &Client,
        integration: &str,
        connection: &str,
        sync: &str,
    ) -> Result<FoundSync, ApiError> {
        let (connection, name) = self.find_sync_name(client, integration, connection, sync).await?;
        self.deployed(client, connection, name).await
    }

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

    /// The sync of that name, which has to be deployed.
    pub(super) async fn deployed(
        &self,
        client: &Client,
        connection: Arc<ConnectionRoute>,
        name: FunctionName,
    ) -> Result<FoundSync, ApiError> {
        let sync =
            self.find_deployed_sync(client, connection.integration, &name).await?.ok_or_else(|| {
                let integration = connection.integration_key.clone();
                ApiError::UnknownSync { sync: name.to_string(), integration }
            })?;
        Ok(FoundSync { connection, sync })
    }

    async fn find_deployed_sync(
        &self,
        client: &Client,
        integration: IntegrationPk,
        name: &FunctionName,
    ) -> Result<Option<Arc<DeployedFunction>>, ApiError> {
        let functions = &self.functions;
        let found =
            functions.find_deployed(client.environment.pk, integration, FunctionKind::Sync, name).await;
        found.map_err(ApiError::Internal)
    }

    async fn find_schedules(
        &self,
        client: &Client,
        integration: &str,
        connection: Option<&str>,
        syncs: &[SyncReference],
        refuse: Refuse,
    ) -> Result<FoundSchedules, ApiError> {
        let invalid = |field: &'static str| {
            move |problem: InvalidName| refuse("invalid_format", &[field], problem.to_string())
        };
        let key: IntegrationKey = integration.parse().map_err(invalid("provider_config_key"))?;
        let connection: Option<ConnectionId> =
            connection.map(str::parse).transpose().map_err(invalid("connection_id"))?;
        if syncs.len() > MAX_SYNCS {
            return Err(refuse("too_big", &["syncs"], format!("at most {MAX_SYNCS} syncs can be named")));
        }
        let named = syncs
            .iter()
            .map(SyncReference::parse)
            .collect::<Result<BTreeSet<_>, _>>()
            .map_err(invalid("syncs"))?;

        let mut conn = self.store.connect().await?;
        let found = integrations::find(&mut conn, client.environment.pk, &key).await?;
        let integration = found.ok_or_else(|| syncline_engine::LookupError::UnknownIntegration(key.clone()))?;
        drop(conn);
        let whose = match connection {
            None => Whose::Integration(integration.pk),
            Some(id) => Whose::Connection(self.find_connection_by_name(client, &key, &id).await?.pk),
        };
        for (sync, _) in &named {
            if self.find_deployed_sync(client, integration.pk, sync).await?.is_none() {
                return Err(ApiError::UnknownSync { sync: sync.to_string(), integration: key });
            }
        }
        let syncs = (!named.is_empty()).then(|| named.into_iter().collect());
        let target = Target { whose, syncs };
        self.require_variants(&target).await?;
        Ok(FoundSchedules { target, integration })
    }

    /// A variant that nobody has is most likely a slip of the pen. The base is there wherever the sync is.
    async fn require_variants(&self, target: &Target) -> Result<(), ApiError> {
        let named = target.syncs.iter().flatten().filter(|(_, variant)| !variant.is_base());
        let named: Vec<_> = named.collect();
        if named.is_empty() {
            return Ok(());
        }
        let there = schedules::list_variants(&mut *self.store.connect().await?, target).await?;
        match named.into_iter().find(|wanted| !there.contains(wanted)) {
            None => Ok(()),
            Some((sync, variant)) => {
                Err(ApiError::UnknownVariant { sync: sync.to_string(), variant: variant.to_string() })
            }
        }
    }

    fn describe(&self, integration: &Integration, status: ScheduleStatus, kept: &Kept) -> SyncStatus {
        let spec = self.functions.find_sync(integration.pk, &status.sync);
        let frequency =
            status.frequency_override.clone().or_else(|| spec.as_ref().map(|spec| spec.frequency_text()));
        let declared = spec.as_ref().map(|spec| spec.models()).unwrap_or_default();
        let record_count = declared.iter().map(|model| {
            let stream = (status.connection, model.clone(), status.variant.clone());
            (model.to_string(), kept.live.get(&stream).copied().unwrap_or(0))
        });
        let sync = (status.connection, status.sync.clone(), status.variant.clone());
        let latest = status.latest.as_ref();
        SyncStatus {
            id: status.id,
            connection_id: status.connection_id.to_string(),
            name: status.sync.to_string(),
            variant: status.variant.to_string(),
            r#type: if status.has_succeeded { "INCREMENTAL" } else { "INITIAL" },
            status: status_word(&status, spec.is_some()),
            frequency,
            finished_at: latest.filter(|_| !status.is_running).and_then(|run| run.finished_at).map(iso),
            next_scheduled_sync_at: next_run(&status, spec.as_deref()).map(iso),
            latest_result: latest.and_then(|run| run.counts.clone()),
            latest_execution_status: if status.is_running {
                Some("RUNNING")
            } else {
                latest.map(|run| if run.state == RunState::Success { "SUCCESS" } else { "STOPPED" })
            },
            record_count: record_count.collect(),
            checkpoint: kept.checkpoints.get(&sync).and_then(|text| RawValue::from_string(text.clone()).ok()),
        }
    }
}

/// What is kept beside the records of the connections whose syncs are asked for.
struct Kept {
    live: HashMap<(ConnectionPk, ModelName, Variant), i64>,
    checkpoints: HashMap<(ConnectionPk, FunctionName, Variant), String>,
}

impl Kept {
    /// Asks once for all of them.
    async fn look(store: &Store, statuses: &[ScheduleStatus]) -> sqlx::Result<Self> {
        let mut connections: Vec<_> = statuses.iter().map(|status| status.connection).collect();
        connections.dedup();
        let mut conn = store.connect_records().await?;
        Ok(Self {
            live: streams::live_counts(&mut conn, &connections).await?,
            checkpoints: sync_states::checkpoints(&mut conn, &connections).await?,
        })
    }
}

/// None only if it is paused. While a run is on, the next slot as it stands: it is planned when the run has ended.
fn next_run(status: &ScheduleStatus, sync: Option<&DeployedFunction>) -> Option<DateTime<Utc>> {
    if status.is_paused {
        return None;
    }
    if !status.is_running {
        return status.next_run_at;
    }
    let overridden = status.frequency_override.as_deref().and_then(|text| text.parse::<Frequency>().ok());
    let frequency = overridden.as_ref().or(sync?.frequency())?;
    let started_at = status.started_at.unwrap_or(status.now);
    Some(next_slot(frequency, sync?.timezone(), started_at, status.now, 0.0))
}

fn status_word(status: &ScheduleStatus, is_deployed: bool) -> &'static str {
    match &status.latest {
        _ if status.is_running => "RUNNING",
        _ if status.is_paused => "PAUSED",
        _ if !is_deployed => "STOPPED",
        Some(run) if run.state != RunState::Success => "ERROR",
        _ if status.is_interrupted => "ERROR",
        _ => "SUCCESS",
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

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_store::schedules::LatestRun;

    #[test]
    fn a_status_is_one_word_of_all_that_is_known() {
        let word = |is_running, is_paused, is_deployed, is_interrupted, latest: Option<RunState>| {
            let status = ScheduleStatus {
                id: Uuid::nil(),
                connection: ConnectionPk(1),
                connection_id: "customer-1".parse().unwrap(),
                sync: "steps".parse().unwrap(),
                variant: Variant::base(),
                is_paused,
                is_running,
                is_interrupted,
                frequency_override: None,
                next_run_at: None,
                started_at: None,
                now: Utc::now(),
                latest: latest.map(|state| LatestRun { state, finished_at: None, counts: None }),
                has_succeeded: false,
            };
            status_word(&status, is_deployed)
        };
        let (yes, no) = (true, false);
        assert_eq!(word(yes, yes, no, yes, Some(RunState::Error)), "RUNNING");
        assert_eq!(word(no, yes, no, yes, Some(RunState::Error)), "PAUSED");
        assert_eq!(
            word(no, no, no, no, Some(RunState::Success)),
            "STOPPED",
            "nothing that is deployed runs it"
        );
        assert_eq!(word(no, no, no, yes, Some(RunState::Error)), "STOPPED", "whatever came of it before");
        assert_eq!(word(no, no, no, no, None), "STOPPED");
        assert_eq!(word(no, no, yes, no, Some(RunState::Error)), "ERROR");
        assert_eq!(
            word(no, no, yes, yes, Some(RunState::Success)),
            "ERROR",
            "the attempt after it was interrupted"
        );
        assert_eq!(word(no, no, yes, no, Some(RunState::Success)), "SUCCESS");
        assert_eq!(word(no, no, yes, no, None), "SUCCESS", "it has never run");
    }
}
