//! Runs functions of a project on this computer, without a host.

use std::sync::Arc;

use clap::Args;

use super::compiled::CompiledArgs;
use super::serve::parse_metadata_key;
use syncline_egress::{EgressGateway, EgressSettings, HostPort};
use syncline_engine::{DryRuns, ProjectFunction, Replay};
use syncline_providers::Catalogue;
use syncline_recording::{InvalidRecording, Recording};
use syncline_telemetry::clock::Clock;

/// Settings that a host has, too.
#[derive(Debug, Args)]
pub(super) struct LocalRunArgs {
    #[command(flatten)]
    compiled: CompiledArgs,
    /// Name of the field of a record that contains its metadata
    #[arg(
        long,
        env = "SYNCLINE_RECORD_METADATA_KEY",
        default_value = "_service_metadata",
        value_name = "NAME",
        value_parser = parse_metadata_key
    )]
    pub(super) record_metadata_key: String,
}

impl LocalRunArgs {
    pub(super) fn start(&self, catalogue: Catalogue, allow: Vec<HostPort>) -> anyhow::Result<Arc<DryRuns>> {
        let sandbox = self.compiled.sandbox(8)?;
        let settings = EgressSettings { allow, ..EgressSettings::default() };
        let gateway = Arc::new(EgressGateway::new(settings, Clock::system())?);
        let metadata_key = self.record_metadata_key.as_str().into();
        Ok(Arc::new(DryRuns::new(Arc::new(catalogue), gateway, sandbox, metadata_key)))
    }
}

/// Replays a recording `times` times on a separate thread. Returns the first replay, and the first one with another
/// result.
pub(super) async fn replay(
    runs: &Arc<DryRuns>,
    function: &Arc<ProjectFunction>,
    recording: Recording,
    times: u32,
) -> anyhow::Result<Vec<Replay>> {
    let (runs, function) = (Arc::clone(runs), Arc::clone(function));
    let replays = move || -> anyhow::Result<Vec<Replay>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let all = runtime.block_on(async {
            let mut replays: Vec<Replay> = Vec::new();
            for _ in 0..times {
                let replay = runs.replay(&function, &recording).await?;
                match replays.as_slice() {
                    [] => replays.push(replay),
                    [first] if digest(first) != digest(&replay) => replays.push(replay),
                    _ => {}
                }
            }
            Ok::<_, InvalidRecording>(replays)
        });
        Ok(all?)
    };
    tokio::task::spawn_blocking(replays).await?
}

/// A digest of everything that a replay is compared by.
pub(super) fn digest(replay: &Replay) -> String {
    let text = serde_json::to_vec(&(&replay.outcome, &replay.exchanges, &replay.unmatched));
    blake3::hash(&text.expect("an outcome can be represented as JSON")).to_hex()[..16].to_owned()
}
