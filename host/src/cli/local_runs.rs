//! Runs functions of a project on this computer, without a host.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;

use super::serve::parse_metadata_key;
use syncline_crypto::random_bytes;
use syncline_egress::{EgressGateway, EgressSettings, HostPort};
use syncline_engine::{DryRuns, ProjectFunction, Replay};
use syncline_providers::Catalogue;
use syncline_recording::{InvalidRecording, Recording};
use syncline_sandbox::{CompiledCache, Sandbox, SandboxSettings};
use syncline_telemetry::clock::Clock;

/// Settings that a host has, too.
#[derive(Debug, Args)]
pub(super) struct LocalRunArgs {
    /// Folder for compiled components [default: the user's cache folder]
    #[arg(long, env = "SYNCLINE_COMPILED_DIR", value_name = "FOLDER")]
    compiled_dir: Option<PathBuf>,
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
        let folder = self.compiled_dir.clone().or_else(cache_folder).unwrap_or_else(std::env::temp_dir);
        // A host protects its components in the same folder with a different key.
        let folder = folder.join("local");
        let key = compiled_key(&folder)?;
        let compiler =
            std::env::current_exe().context("could not determine the path of the `syncline` binary")?;
        let cache = CompiledCache::new(folder, key, compiler).reusing_functions();
        let sandbox = Arc::new(Sandbox::new(&SandboxSettings { max_invocations: 8 }, cache)?);
        let settings = EgressSettings { allow, ..EgressSettings::default() };
        let gateway = Arc::new(EgressGateway::new(settings, Clock::system())?);
        let metadata_key = self.record_metadata_key.as_str().into();
        Ok(Arc::new(DryRuns::new(Arc::new(catalogue), gateway, sandbox, metadata_key)))
    }
}

fn cache_folder() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("syncline").join("compiled"))
}

/// The key that protects compiled components against changes by others. Created on first use.
fn compiled_key(folder: &Path) -> anyhow::Result<[u8; 32]> {
    let path = folder.join("key");
    if let Some(key) = std::fs::read(&path).ok().and_then(|key| key.try_into().ok()) {
        return Ok(key);
    }
    let create = || {
        std::fs::create_dir_all(folder)?;
        let file = tempfile::NamedTempFile::new_in(folder)?;
        std::fs::write(file.path(), random_bytes::<32>())?;
        match file.persist_noclobber(&path) {
            Ok(_) => {}
            // Another command has just created the key.
            Err(_) if path.exists() => {}
            Err(error) => return Err(error.error),
        }
        std::fs::read(&path)
    };
    let key = create().with_context(|| format!("could not create {}", path.display()))?;
    let invalid = |_| anyhow::anyhow!("{} is damaged; delete it", path.display());
    key.try_into().map_err(invalid)
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
