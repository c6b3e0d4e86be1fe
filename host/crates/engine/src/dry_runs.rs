//! Runs functions without a deployment and without a database: dry runs, and replays of recordings.
//!
//! The functions run in the real sandbox. Their records, checkpoint and metadata stay in memory.

pub(crate) mod capabilities;
pub(crate) mod client;
pub(crate) mod kept;
pub(crate) mod report;
pub(crate) mod state;

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::Mutex;

use crate::dry_runs::capabilities::DryRunCapabilities;
use crate::dry_runs::client::GatewayClient;
use crate::dry_runs::kept::{KeptRecords, RecordedRecords};
use crate::dry_runs::report::{Replay, Report};
use crate::dry_runs::state::DryRunState;
use crate::functions::{DeployedFunction, stored_functions};
use crate::invoker::action::{check, checked_output, malformed_input};
use crate::invoker::error::ActionError;
use crate::records::commit::checks::ChangeChecks;
use syncline_auth::StoredCredentials;
use syncline_config::{FunctionKind, IntegrationSpec, SyncConfig};
use syncline_egress::{CredentialsUnavailable, EgressGateway};
use syncline_model::canonical_text;
use syncline_providers::{Catalogue, Provider};
use syncline_recording::{InvalidRecording, Player, Recorder, Recording, RunFailure};
use syncline_sandbox::{
    Call, ConnectionInfo, Finished, InvalidComponent, PreparedComponent, PriorityClass, ProviderClient,
    RunInfo, RunLog, Sandbox, Sources,
};
use syncline_types::ids::{FunctionName, IntegrationPk, ProviderSlug, Variant};

/// Runs functions of a project.
pub struct DryRuns {
    catalogue: Arc<Catalogue>,
    gateway: Arc<EgressGateway>,
    sandbox: Arc<Sandbox>,
    metadata_key: Arc<str>,
}

/// A function of a project.
pub struct ProjectFunction {
    pub kind: FunctionKind,
    pub(crate) function: Arc<DeployedFunction>,
    pub(crate) provider: ProviderSlug,
}

/// The data that a function reads.
#[derive(Debug, Clone)]
pub struct RunData {
    pub run: RunInfo,
    /// JSON text.
    pub input: Option<String>,
    pub connection: ConnectionInfo,
    /// JSON text, like the following members.
    pub metadata: String,
    pub credentials: Option<String>,
    pub variables: Vec<(String, String)>,
    pub checkpoint: Option<String>,
}

impl ProjectFunction {
    /// Prepares a function that `syncline.toml` lists. `None` if it does not list the function.
    pub fn find(
        config: &SyncConfig,
        integration: &IntegrationSpec,
        kind: FunctionKind,
        name: &FunctionName,
        component: Arc<PreparedComponent>,
    ) -> anyhow::Result<Option<Self>> {
        let found = stored_functions(integration).find(|(of, listed, _)| *of == kind && listed == name);
        let Some((_, name, stored)) = found else { return Ok(None) };
        // There is no database, so the integration has no row.
        let row = IntegrationPk(0);
        let (kind, function) =
            DeployedFunction::new(row, name, component, stored, &config.models, &config.keeping)?;
        Ok(Some(Self { kind, function: Arc::new(function), provider: integration.provider.clone() }))
    }

    pub fn name(&self) -> &FunctionName {
        &self.function.name
    }

    /// Whether a run is full: whether the host would delete the records that it does not save.
    pub fn is_full(&self, checkpoint: Option<&str>) -> bool {
        self.function.tracks_deletes() && (!self.function.has_incremental_runs() || checkpoint.is_none())
    }

    /// The input of a lifecycle function. Other functions have none of their own.
    pub fn own_input(&self) -> Option<String> {
        self.function.event_input()
    }
}

impl DryRuns {
    pub fn new(
        catalogue: Arc<Catalogue>,
        gateway: Arc<EgressGateway>,
        sandbox: Arc<Sandbox>,
        metadata_key: Arc<str>,
    ) -> Self {
        Self { catalogue, gateway, sandbox, metadata_key }
    }

    /// Compiles a component.
    pub async fn prepare(&self, wasm: &[u8]) -> Result<Arc<PreparedComponent>, InvalidComponent> {
        self.sandbox.prepare(wasm).await.map(Arc::new)
    }

    /// The catalogue's entry of a provider.
    pub fn provider(&self, slug: &ProviderSlug) -> Option<Arc<Provider>> {
        self.catalogue.find(slug)
    }

    /// Runs a function against the provider.
    pub async fn run(
        &self,
        function: &ProjectFunction,
        data: RunData,
        credentials: &StoredCredentials,
        kept: Arc<dyn KeptRecords>,
        recorder: Option<&Recorder>,
    ) -> Result<Report, CredentialsUnavailable> {
        let log = RunLog::new(function.function.limits.log_bytes);
        log.hide_credentials(credentials.secrets());
        data.variables.iter().for_each(|(_, value)| log.hide(value));
        let gateway = Arc::new(GatewayClient::new(self, function, &data, credentials, log.clone())?);
        let provider: Arc<dyn ProviderClient> = match recorder {
            Some(recorder) => recorder.client(Arc::clone(&gateway) as Arc<dyn ProviderClient>, &log),
            None => Arc::clone(&gateway) as Arc<dyn ProviderClient>,
        };
        let sources = recorder.map_or(Sources::System, Recorder::sources);
        let mut report = self.execute(function, data, kept, provider, sources, log).await;
        report.requests = gateway.sent();
        Ok(report)
    }

    /// Runs a function with the data of its recording. Needs a runtime with a single thread.
    pub async fn replay(
        &self,
        function: &ProjectFunction,
        recording: &Recording,
    ) -> Result<Replay, InvalidRecording> {
        let player = Player::new(recording);
        let sources = player.sources(recording)?;
        let text =
            |raw: &Option<Box<serde_json::value::RawValue>>| raw.as_ref().map(|raw| raw.get().to_owned());
        let data = RunData {
            run: recording.run_info(),
            input: text(&recording.input),
            connection: recording.connection_info(),
            metadata: recording.connection.metadata.get().to_owned(),
            credentials: text(&recording.connection.credentials),
            variables: recording.variables.clone().into_iter().collect(),
            checkpoint: text(&recording.checkpoint),
        };
        let kept = Arc::new(RecordedRecords::new(&recording.kept));
        let log = RunLog::new(function.function.limits.log_bytes);
        let report = self.execute(function, data, kept, player.client(), sources, log).await;
        Ok(Replay {
            outcome: report.outcome().for_recording(),
            exchanges: player.exchanges(),
            unmatched: player.unmatched(),
        })
    }

    async fn execute(
        &self,
        project: &ProjectFunction,
        data: RunData,
        kept: Arc<dyn KeptRecords>,
        provider: Arc<dyn ProviderClient>,
        sources: Sources,
        log: RunLog,
    ) -> Report {
        let ProjectFunction { kind, function, .. } = project;
        let variant = (*kind == FunctionKind::Sync)
            .then(|| data.run.variant.parse().unwrap_or_else(|_| Variant::base()));
        let checks = ChangeChecks::new(
            Arc::clone(&function.models),
            Arc::clone(&self.metadata_key),
            variant,
            &function.limits,
            log.clone(),
        );
        let data = Arc::new(data);
        let state = Arc::new(Mutex::new(DryRunState::new(&data, kept)));
        let result = match checked_input(function, data.input.as_deref()) {
            Err(error) => Err(error),
            Ok(()) => {
                let granted = function.granted_variables(data.variables.clone());
                let process = if function.env.is_some() { granted } else { Vec::new() };
                let capabilities = DryRunCapabilities {
                    provider,
                    function: Arc::clone(function),
                    data: Arc::clone(&data),
                    checks,
                    state: Arc::clone(&state),
                };
                let call = Call {
                    kind: *kind,
                    name: function.name.as_str(),
                    priority: PriorityClass::Interactive,
                    input: data.input.as_ref(),
                    variables: &process,
                    sources,
                };
                let capabilities = Box::new(capabilities);
                let Finished { result, .. } = self
                    .sandbox
                    .invoke(&function.component, call, capabilities, &function.limits, &log)
                    .await;
                match result {
                    Err(error) => Err(ActionError::Function(error)),
                    Ok(output) if *kind == FunctionKind::Action => checked_output(function, output),
                    Ok(output) => Ok(output),
                }
            }
        };
        let mut state = state.lock().await;
        let result = match result {
            Ok(output) if *kind == FunctionKind::Sync => {
                state.complete(function, &data.run).await.map(|()| output).map_err(ActionError::host)
            }
            result => result,
        };
        let lines = log.drain();
        Report::new(result.map_err(|error| failure(&error, *kind)), &state, &data, log, lines)
    }
}

fn failure(error: &ActionError, kind: FunctionKind) -> RunFailure {
    let run_error = error.to_run_error(kind);
    let message = error.host_failure().map_or(run_error.message, |cause| format!("{cause:#}"));
    RunFailure { code: run_error.code.as_str().to_owned(), message }
}

fn checked_input(function: &DeployedFunction, input: Option<&str>) -> Result<(), ActionError> {
    if let Some(Err(malformed)) = input.map(canonical_text) {
        return Err(malformed_input(&malformed));
    }
    function.input().map_or(Ok(()), |shape| check(shape, input).map_err(ActionError::Input))
}

/// The members of credentials that a recording contains as they are.
const PLAIN_MEMBERS: [&str; 2] = ["type", "expires_at"];

/// Replaces the values of credentials with placeholders.
pub(crate) fn placeholders(credentials: Value) -> Value {
    match credentials {
        Value::Object(members) => {
            let members =
                members.into_iter().map(|(name, value)| match PLAIN_MEMBERS.contains(&name.as_str()) {
                    true => (name, value),
                    false => (name, placeholders(value)),
                });
            Value::Object(members.collect())
        }
        Value::Array(values) => values.into_iter().map(placeholders).collect(),
        Value::String(_) => Value::String("***".to_owned()),
        other => other,
    }
}
