//! `syncline runs`: what was run, what it said, and approving deletions that a run has held back.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::form_urlencoded;

use super::Done;
use super::client::{Client, HostArgs};

/// How long `--follow` waits before it asks again.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub(super) struct RunsArgs {
    #[command(subcommand)]
    command: RunsCommand,
}

#[derive(Debug, Subcommand)]
enum RunsCommand {
    /// List runs, the newest first
    List {
        #[command(flatten)]
        host: HostArgs,
        #[command(flatten)]
        filter: RunFilter,
        /// How many at most
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
        limit: u32,
        /// Write JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one run, as JSON
    Show {
        #[command(flatten)]
        host: HostArgs,
        /// The run's id
        id: String,
    },
    /// Print what a run said
    Logs {
        #[command(flatten)]
        host: HostArgs,
        /// The run's id
        id: String,
        /// Only lines of this level and those above: debug, info, warn or error
        #[arg(long)]
        level: Option<String>,
        /// Only lines with this text
        #[arg(long, value_name = "TEXT")]
        search: Option<String>,
        /// Go on until the run is over
        #[arg(long, short)]
        follow: bool,
        /// Write a JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Delete the records that a held run has not seen again
    Approve {
        #[command(flatten)]
        host: HostArgs,
        /// The run's id
        id: String,
    },
}

#[derive(Debug, Args)]
struct RunFilter {
    /// Only those of this integration, by its unique key
    #[arg(long, value_name = "KEY")]
    integration: Option<String>,
    /// Only those of this connection
    #[arg(long, requires = "integration", value_name = "ID")]
    connection: Option<String>,
    /// Only those of this function
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Only those of this kind: sync, action, lifecycle or webhook
    #[arg(long)]
    kind: Option<String>,
    /// Only those of this variant of a sync
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Only those in this state: running, success, error, cancelled or lost
    #[arg(long)]
    state: Option<String>,
    /// Only those that were run by this: schedule, trigger, start, retry, api, lifecycle or webhook
    #[arg(long)]
    trigger: Option<String>,
    /// Only those that began at this time or later, such as 2026-03-01T09:00:00Z
    #[arg(long, value_name = "TIME")]
    started_after: Option<String>,
    /// Only those that began before this time
    #[arg(long, value_name = "TIME")]
    started_before: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Runs {
    runs: Vec<Value>,
}

/// What a line of the list shows.
#[derive(Debug, Deserialize)]
struct Run {
    id: String,
    kind: String,
    function: String,
    variant: String,
    provider_config_key: Option<String>,
    connection_id: Option<String>,
    trigger: String,
    state: String,
    started_at: String,
    duration_ms: Option<i64>,
    error: Option<RunError>,
    progress: Option<Progress>,
}

#[derive(Debug, Deserialize)]
struct Approved {
    counts: BTreeMap<String, Counts>,
}

#[derive(Debug, Deserialize)]
struct Counts {
    deleted: u64,
}

#[derive(Debug, Deserialize)]
struct RunError {
    code: String,
}

#[derive(Debug, Deserialize)]
struct Progress {
    done: u64,
    total: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Logs {
    logs: Vec<Line>,
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    line: i32,
    at: String,
    level: String,
    message: String,
    fields: Option<Value>,
}

pub(super) async fn run(args: RunsArgs) -> anyhow::Result<Done> {
    match args.command {
        RunsCommand::List { host, filter, limit, json } => {
            list(&host.client()?, &filter, limit, json).await?;
        }
        RunsCommand::Show { host, id } => {
            let found: Value = host.client()?.get(&one(&id)).await?;
            println!("{found:#}");
        }
        RunsCommand::Logs { host, id, level, search, follow, json } => {
            let parameters = [("level", level.as_deref()), ("search", search.as_deref())];
            print_log(&host.client()?, &id, &parameters, follow, json).await?;
        }
        RunsCommand::Approve { host, id } => {
            let run: Approved =
                host.client()?.post_json(&format!("{}/approve", one(&id)), &json!({})).await?;
            println!("run {id} is approved; {} records of it were deleted in all", run.deleted());
        }
    }
    Ok(Done::Well)
}

async fn list(client: &Client, filter: &RunFilter, limit: u32, as_json: bool) -> anyhow::Result<()> {
    let limit = limit.to_string();
    let parameters = [
        ("provider_config_key", filter.integration.as_deref()),
        ("connection_id", filter.connection.as_deref()),
        ("function", filter.function.as_deref()),
        ("kind", filter.kind.as_deref()),
        ("variant", filter.variant.as_deref()),
        ("state", filter.state.as_deref()),
        ("trigger", filter.trigger.as_deref()),
        ("started_after", filter.started_after.as_deref()),
        ("started_before", filter.started_before.as_deref()),
        ("limit", Some(&*limit)),
    ];
    let found: Runs = client.get(&format!("runs?{}", query(&parameters))).await?;
    if as_json {
        println!("{}", serde_json::to_string_pretty(&found.runs)?);
        return Ok(());
    }
    for run in found.runs {
        let run: Run = serde_json::from_value(run)?;
        let variant = if run.variant == "base" { String::new() } else { format!("::{}", run.variant) };
        println!(
            "{}  {}  {:9}  {:9}  {}/{}  {}{variant}  {}  {}",
            run.id,
            run.started_at,
            run.state,
            run.kind,
            run.provider_config_key.as_deref().unwrap_or("-"),
            run.connection_id.as_deref().unwrap_or("-"),
            run.function,
            run.trigger,
            run.remark(),
        );
    }
    Ok(())
}

impl Approved {
    fn deleted(&self) -> u64 {
        self.counts.values().map(|counts| counts.deleted).sum()
    }
}

impl Run {
    /// What there is to say of it beside its state.
    fn remark(&self) -> String {
        if let Some(error) = &self.error {
            return error.code.clone();
        }
        match (self.duration_ms, &self.progress) {
            (Some(duration_ms), _) => format!("{duration_ms} ms"),
            (None, Some(Progress { done, total: Some(total) })) => format!("{done} of {total}"),
            (None, Some(Progress { done, total: None })) => format!("{done} done"),
            (None, None) => String::new(),
        }
    }
}

async fn print_log(
    client: &Client,
    id: &str,
    parameters: &[(&str, Option<&str>)],
    follows: bool,
    as_json: bool,
) -> anyhow::Result<()> {
    let mut cursor: Option<String> = None;
    loop {
        let page = [parameters, &[("cursor", cursor.as_deref()), ("limit", Some("1000"))]].concat();
        let found: Logs = client.get(&format!("{}/logs?{}", one(id), query(&page))).await?;
        let is_caught_up = found.logs.is_empty();
        for line in found.logs {
            if as_json {
                println!("{}", serde_json::to_string(&line)?);
            } else {
                let fields = line.fields.map(|fields| format!("  {fields}")).unwrap_or_default();
                println!("{}  {:5}  {}{fields}", line.at, line.level, line.message);
            }
        }
        match found.next_cursor {
            None => return Ok(()),
            Some(_) if is_caught_up && !follows => return Ok(()),
            Some(next) => cursor = Some(next),
        }
        if is_caught_up {
            tokio::time::sleep(FOLLOW_EVERY).await;
        }
    }
}

fn query(parameters: &[(&str, Option<&str>)]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    query.finish()
}

fn one(id: &str) -> String {
    let escaped: String = form_urlencoded::byte_serialize(id.as_bytes()).collect();
    format!("runs/{escaped}")
}
