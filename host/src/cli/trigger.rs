//! `syncline trigger` and `syncline action`: run functions on a host.

use clap::Args;
use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::Done;
use super::client::{Client, ConnectionName, HostArgs};
use super::json_input::JsonInput;
use super::runs::NextRun;
use super::selection::{ConnectionArgs, explain};

#[derive(Debug, Args)]
pub(super) struct TriggerArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Syncs to run, as NAME or NAME::VARIANT
    #[arg(required_unless_present = "all", value_name = "SYNC")]
    syncs: Vec<String>,
    /// Run all syncs of the connection
    #[arg(long, conflicts_with = "syncs")]
    all: bool,
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Run the syncs of all connections of the integration
    #[arg(long, requires = "integration", conflicts_with = "connection")]
    all_connections: bool,
    /// Clear the checkpoint first, so that everything is fetched again
    #[arg(long)]
    reset: bool,
    /// Delete the records, too
    #[arg(long, requires = "reset")]
    empty_cache: bool,
    /// Print the logs of the runs, and fail if one of them fails
    #[arg(long, short, conflicts_with_all = ["all", "all_connections"])]
    follow: bool,
}

#[derive(Debug, Args)]
pub(super) struct ActionArgs {
    #[command(flatten)]
    host: HostArgs,
    /// Name of the action
    action: String,
    /// Input as JSON; @FILE reads a file, and @- standard input
    #[arg(value_name = "JSON")]
    input: Option<String>,
    #[command(flatten)]
    connection: ConnectionArgs,
}

#[derive(Debug, Serialize)]
struct ActionRequest<'a> {
    action_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Box<RawValue>>,
}

pub(super) async fn trigger(args: TriggerArgs) -> anyhow::Result<Done> {
    let client = args.host.client()?;
    let (integration, connection) = match &args.connection.integration {
        Some(integration) if args.all_connections => (integration.clone(), None),
        _ => {
            let connection = args.connection.find(&client).await?;
            (connection.integration.clone(), Some(connection))
        }
    };
    let names: Vec<String> = args.syncs.iter().map(|sync| base_name(sync).to_owned()).collect();
    let mut runs = Vec::new();
    if let (true, Some(connection)) = (args.follow, &connection) {
        for name in &names {
            runs.push(NextRun::of(&client, connection, name).await?);
        }
    }
    let body = json!({
        "provider_config_key": integration,
        "connection_id": connection.as_ref().map(|connection| &connection.id),
        "syncs": args.syncs,
        "opts": { "reset": args.reset, "emptyCache": args.empty_cache },
    });
    if let Err(error) = client.post_for_text("sync/trigger", body.to_string().into_bytes()).await {
        return Err(explain(&client, &integration, &names, error).await);
    }
    let syncs = if args.all { "all syncs".to_owned() } else { args.syncs.join(", ") };
    match &connection {
        Some(connection) => println!("triggered {syncs} of {connection}"),
        None => println!("triggered {syncs} of all connections of {integration}"),
    }
    let mut failed = 0;
    for run in runs {
        failed += usize::from(!run.follow().await?);
    }
    anyhow::ensure!(failed == 0, "runs that failed: {failed}");
    Ok(Done::Successful)
}

pub(super) async fn action(args: ActionArgs) -> anyhow::Result<Done> {
    let input = args.input.as_deref().map(JsonInput::read).transpose()?;
    let client = args.host.client()?;
    let connection = args.connection.find(&client).await?;
    let output = run_action(&client, &connection, &args.action, input).await;
    match output {
        Ok(output) if output.is_empty() => {}
        Ok(output) => println!("{output}"),
        Err(error) => return Err(explain(&client, &connection.integration, &[args.action], error).await),
    }
    Ok(Done::Successful)
}

/// Runs an action. Returns its output as JSON, exactly as the host sent it, or nothing if it has no output.
pub(super) async fn run_action(
    client: &Client,
    connection: &ConnectionName,
    action: &str,
    input: Option<JsonInput>,
) -> anyhow::Result<String> {
    let request = ActionRequest { action_name: action, input: input.map(JsonInput::into_raw) };
    client.for_connection(connection).post_for_text("action/trigger", serde_json::to_vec(&request)?).await
}

/// The name of a sync without its variant.
fn base_name(sync: &str) -> &str {
    sync.split_once("::").map_or(sync, |(name, _)| name)
}
