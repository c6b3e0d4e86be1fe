//! `syncline runs record` and `syncline runs export`: recordings of runs on hosts.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::client::{HostArgs, item_path};
use super::selection::{ConnectionArgs, explain};
use syncline_types::functions::RecordedRuns;
use syncline_types::ids::Variant;

/// Where a project has its recordings.
const FOLDER: &str = "tests/recordings";

#[derive(Debug, Args)]
pub(super) struct RecordArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Name of the sync
    sync: String,
    /// The runs to record
    #[arg(value_enum)]
    runs: Runs,
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Variant of the sync
    #[arg(long, value_name = "NAME", default_value = Variant::BASE)]
    variant: String,
    /// Days until a recording is deleted, 1 to 30
    #[arg(long, value_name = "DAYS", default_value_t = 7)]
    keep_days: u32,
}

/// The runs that hosts record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Runs {
    /// The first run that fails
    NextFailed,
    /// Every run that succeeds or fails
    Every,
    /// No further runs
    None,
}

#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Id of the run
    id: String,
    /// File to write [default: tests/recordings/ID.json in the current folder]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) async fn record(args: RecordArgs) -> anyhow::Result<()> {
    let RecordArgs { host, sync, runs, connection, variant, keep_days } = args;
    let client = host.client()?;
    let connection = connection.find(&client).await?;
    let recorded = match runs {
        Runs::NextFailed => Some(RecordedRuns::NextFailedRun),
        Runs::Every => Some(RecordedRuns::EveryRun),
        Runs::None => None,
    };
    let body = json!({
        "provider_config_key": connection.integration,
        "connection_id": connection.id,
        "sync_name": sync,
        "sync_variant": variant,
        "runs": recorded,
        "retention_days": keep_days,
    });
    if let Err(error) = client.put_json::<Value>("sync/recording", &body).await {
        return Err(explain(&client, &connection.integration, &[sync], error).await);
    }
    match runs {
        Runs::NextFailed => println!(
            "hosts record the next run of {sync} of {connection} that fails; its log says when it is recorded"
        ),
        Runs::Every => println!("hosts record every run of {sync} of {connection}"),
        Runs::None => println!("hosts record no further runs of {sync} of {connection}"),
    }
    Ok(())
}

pub(super) async fn export(args: ExportArgs) -> anyhow::Result<()> {
    let path = format!("{}/recording", item_path("runs", &args.id));
    let recording: Box<RawValue> = args.host.client()?.get(&path).await?;
    let file = args.output.unwrap_or_else(|| PathBuf::from(FOLDER).join(format!("{}.json", args.id)));
    let write = || {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&file, format!("{recording}\n"))
    };
    write().with_context(|| format!("could not write {}", file.display()))?;
    println!("wrote {}", file.display());
    Ok(())
}
