//! `syncline runs`: shows runs and their logs, approves held deletions, and records runs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::client::{Client, ConnectionName, HostArgs, ListArgs, Parameter, item_path};
use super::recordings::{self, ExportArgs, RecordArgs};
use super::{Done, output, style};
use syncline_types::ids::Variant;

const PATH: &str = "runs";
/// How often `--follow` asks for new lines.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// How often a command that has triggered a run asks for it.
const WAIT_EVERY: Duration = Duration::from_millis(100);
/// States of runs.
const RUNNING: &str = "running";
const SUCCESS: &str = "success";

#[derive(Debug, Args)]
pub(super) struct RunsArgs {
    #[command(subcommand)]
    command: RunsCommand,
}

#[derive(Debug, Subcommand)]
enum RunsCommand {
    /// List runs, newest first
    List {
        #[command(flatten)]
        host: HostArgs,
        #[command(flatten)]
        filter: RunFilter,
        #[command(flatten)]
        list: ListArgs,
        /// Continue with each run that starts or finishes, until you stop the command; with --json, prints one JSON
        /// object per line
        #[arg(long, short)]
        follow: bool,
    },
    /// Show one run, as JSON
    Show {
        #[command(flatten)]
        host: HostArgs,
        /// Id of the run
        id: String,
    },
    /// Print the log of a run
    Logs {
        #[command(flatten)]
        host: HostArgs,
        /// Id of the run
        #[arg(required_unless_present = "last")]
        id: Option<String>,
        /// Print the log of the newest run that matches the filters; with --follow, of each run from now on, too
        #[arg(long, conflicts_with = "id")]
        last: bool,
        #[command(flatten)]
        filter: RunFilter,
        #[command(flatten)]
        lines: LineArgs,
        /// Continue until the run has finished; with --last, until you stop the command
        #[arg(long, short)]
        follow: bool,
    },
    /// Choose the runs of a sync that hosts record
    Record(RecordArgs),
    /// Write the recording of a run to a file, for `syncline test`
    Export(ExportArgs),
    /// Delete the records that a held run did not find
    Approve {
        #[command(flatten)]
        host: HostArgs,
        /// Id of the run
        id: String,
    },
}

/// Which lines of a log a command prints, and how.
#[derive(Debug, Args)]
struct LineArgs {
    /// Print only lines of this level and above: debug, info, warn or error
    #[arg(long)]
    level: Option<String>,
    /// Print only lines that contain this text
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
    /// Print one JSON object per line
    #[arg(long)]
    json: bool,
}

/// `syncline logs`: the logs of several runs, one after the other.
#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    #[command(flatten)]
    host: HostArgs,
    #[command(flatten)]
    filter: RunFilter,
    #[command(flatten)]
    lines: LineArgs,
    /// Continue with the log of each later run, until you stop the command
    #[arg(long, short)]
    follow: bool,
}

#[derive(Debug, Default, Args)]
struct RunFilter {
    /// List only runs of this integration, by its unique key
    #[arg(long, value_name = "KEY")]
    integration: Option<String>,
    /// List only runs of this connection
    #[arg(long, requires = "integration", value_name = "ID")]
    connection: Option<String>,
    /// List only runs of this function
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// List only runs of this kind: sync, action, lifecycle or webhook
    #[arg(long)]
    kind: Option<String>,
    /// List only runs of this variant of a sync
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// List only runs in this state: running, success, error, cancelled or lost
    #[arg(long)]
    state: Option<String>,
    /// List only runs started by this trigger: schedule, trigger, start, retry, api, lifecycle or webhook
    #[arg(long)]
    trigger: Option<String>,
    /// List only runs that started at this time or later, such as 2026-03-01T09:00:00Z
    #[arg(long, value_name = "TIME")]
    started_after: Option<String>,
    /// List only runs that started before this time
    #[arg(long, value_name = "TIME")]
    started_before: Option<String>,
}

/// The fields of a run that the list prints.
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
    counts: Option<BTreeMap<String, Counts>>,
    progress: Option<Progress>,
}

#[derive(Debug, Deserialize)]
struct Approved {
    counts: BTreeMap<String, Counts>,
}

#[derive(Debug, Deserialize)]
struct Counts {
    added: u64,
    updated: u64,
    deleted: u64,
}

#[derive(Debug, Deserialize)]
struct RunError {
    code: String,
    #[serde(default)]
    message: String,
}

#[derive(Debug, Deserialize)]
struct Runs {
    runs: Vec<Run>,
}

/// Runs as the host sent them.
#[derive(Debug, Deserialize)]
struct FoundRuns {
    runs: Vec<Value>,
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
        RunsCommand::List { host, filter, list, follow: false } => {
            let client = host.client()?;
            client.print_list(PATH, "runs", &filter.parameters(), &list, line).await?;
        }
        RunsCommand::List { host, filter, list, follow: true } => {
            follow_runs(&host.client()?, &filter, &list).await?;
        }
        RunsCommand::Show { host, id } => {
            let found: Value = host.client()?.get(&item_path(PATH, &id)).await?;
            println!("{found:#}");
        }
        RunsCommand::Logs { host, id, last: _, filter, lines, follow } => {
            let client = host.client()?;
            match id {
                Some(id) => print_log(&client, &id, &lines.parameters(), follow, lines.json).await?,
                None => {
                    print_last_logs(&client, &filter, &lines.parameters(), follow, lines.json).await?;
                }
            }
        }
        RunsCommand::Record(args) => recordings::record(args).await?,
        RunsCommand::Export(args) => recordings::export(args).await?,
        RunsCommand::Approve { host, id } => {
            let path = format!("{}/approve", item_path(PATH, &id));
            let run: Approved = host.client()?.post_json(&path, &json!({})).await?;
            println!("approved run {id}; it has deleted {} records in total", run.deleted());
        }
    }
    Ok(Done::Successful)
}

pub(super) async fn logs(args: LogsArgs) -> anyhow::Result<Done> {
    let LogsArgs { host, filter, lines, follow } = args;
    print_last_logs(&host.client()?, &filter, &lines.parameters(), follow, lines.json).await?;
    Ok(Done::Successful)
}

impl LineArgs {
    fn parameters(&self) -> [Parameter<'_>; 2] {
        [("level", self.level.as_deref()), ("search", self.search.as_deref())]
    }
}

impl RunFilter {
    fn parameters(&self) -> [Parameter<'_>; 9] {
        [
            ("provider_config_key", self.integration.as_deref()),
            ("connection_id", self.connection.as_deref()),
            ("function", self.function.as_deref()),
            ("kind", self.kind.as_deref()),
            ("variant", self.variant.as_deref()),
            ("state", self.state.as_deref()),
            ("trigger", self.trigger.as_deref()),
            ("started_after", self.started_after.as_deref()),
            ("started_before", self.started_before.as_deref()),
        ]
    }
}

fn line(run: &Value) -> anyhow::Result<String> {
    let run = Run::deserialize(run)?;
    let variant = if run.variant == Variant::BASE { String::new() } else { format!("::{}", run.variant) };
    Ok(format!(
        "{}  {}  {}  {:9}  {}/{}  {}{variant}  {}  {}",
        run.id,
        run.started_at,
        style::state(&format!("{:9}", run.state)),
        run.kind,
        run.provider_config_key.as_deref().unwrap_or("-"),
        run.connection_id.as_deref().unwrap_or("-"),
        run.function,
        run.trigger,
        run.remark(),
    ))
}

impl Approved {
    fn deleted(&self) -> u64 {
        self.counts.values().map(|counts| counts.deleted).sum()
    }
}

impl Run {
    /// The result of a finished run in words.
    fn outcome(&self) -> String {
        let counts = self.counts.iter().flatten().map(|(model, Counts { added, updated, deleted })| {
            format!("{model}: {added} added, {updated} updated, {deleted} deleted")
        });
        [format!("{} ({})", style::state(&self.state), self.remark())]
            .into_iter()
            .chain(counts)
            .collect::<Vec<_>>()
            .join("; ")
    }

    /// The run's error, duration or progress.
    fn remark(&self) -> String {
        if let Some(error) = &self.error {
            return match error.message.lines().next() {
                Some(message) if !message.is_empty() => format!("{}: {message}", error.code),
                _ => error.code.clone(),
            };
        }
        match (self.duration_ms, &self.progress) {
            (Some(duration_ms), _) => format!("{duration_ms} ms"),
            (None, Some(Progress { done, total: Some(total) })) => format!("{done} of {total}"),
            (None, Some(Progress { done, total: None })) => format!("{done} done"),
            (None, None) => String::new(),
        }
    }
}

/// Prints the newest runs, oldest first, and then each run that starts or finishes.
async fn follow_runs(client: &Client, filter: &RunFilter, list: &ListArgs) -> anyhow::Result<()> {
    let mut states: HashMap<String, String> = HashMap::new();
    let mut limit = list.limit.to_string();
    loop {
        let parameters = [&filter.parameters()[..], &[("limit", Some(&*limit))]].concat();
        let found: FoundRuns = client.query(PATH, &parameters).await?;
        for found in found.runs.iter().rev() {
            let run = Run::deserialize(found)?;
            if states.insert(run.id, run.state.clone()).is_some_and(|before| before == run.state) {
                continue;
            }
            if list.json {
                println!("{found}");
            } else {
                println!("{}", line(found)?);
            }
        }
        if output::is_closed() {
            return Ok(());
        }
        // A run is found again for as long as it is among the newest.
        let newest: HashSet<&str> = found.runs.iter().filter_map(|run| run["id"].as_str()).collect();
        states.retain(|id, state| newest.contains(&**id) || state == RUNNING);
        "500".clone_into(&mut limit);
        tokio::time::sleep(FOLLOW_EVERY).await;
    }
}

/// Waits for runs of a function that start after the creation of this value.
pub(super) struct NextRun {
    client: Client,
    filter: RunFilter,
    /// The newest run at that time.
    newest: Option<String>,
}

impl NextRun {
    pub(super) async fn of(
        client: &Client,
        connection: &ConnectionName,
        function: &str,
    ) -> anyhow::Result<Self> {
        let mut next = Self::first_of(client, connection, function);
        next.newest = newest_runs(client, &next.filter).await?.into_iter().next().map(|run| run.id);
        Ok(next)
    }

    /// For a connection that was just created: waits for its first run.
    pub(super) fn first_of(client: &Client, connection: &ConnectionName, function: &str) -> Self {
        let filter = RunFilter {
            integration: Some(connection.integration.clone()),
            connection: Some(connection.id.clone()),
            function: Some(function.to_owned()),
            ..RunFilter::default()
        };
        Self { client: client.clone(), filter, newest: None }
    }

    /// Waits for the first such run, prints its log until it has finished, and then its result. Returns whether it
    /// was successful.
    pub(super) async fn follow(&self) -> anyhow::Result<bool> {
        loop {
            if let Some(succeeded) = self.follow_started().await? {
                return Ok(succeeded);
            }
            tokio::time::sleep(WAIT_EVERY).await;
        }
    }

    /// Like [`follow`](Self::follow), but returns nothing if no such run has started.
    pub(super) async fn follow_started(&self) -> anyhow::Result<Option<bool>> {
        let runs = newest_runs(&self.client, &self.filter).await?;
        let fresh = runs.into_iter().take_while(|run| Some(&run.id) != self.newest.as_ref());
        let Some(run) = fresh.last() else { return Ok(None) };
        print_log_of(&self.client, &run.id, &[], Some(WAIT_EVERY), false).await?;
        let run: Run = self.client.get(&item_path(PATH, &run.id)).await?;
        println!("{} {}: {}", run.kind, run.function, run.outcome());
        Ok(Some(run.state == SUCCESS))
    }
}

/// Prints the log of the newest run that matches the filter. With `follows`, continues with each later run.
async fn print_last_logs(
    client: &Client,
    filter: &RunFilter,
    parameters: &[Parameter<'_>],
    follows: bool,
    as_json: bool,
) -> anyhow::Result<()> {
    let mut printed: Option<String> = None;
    loop {
        let mut fresh = newest_runs(client, filter).await?;
        match &printed {
            None => fresh.truncate(1),
            Some(id) => fresh = fresh.into_iter().take_while(|run| run.id != *id).collect(),
        }
        if fresh.is_empty() && !follows {
            bail!("no run matches; list the runs with `syncline runs list`");
        }
        for run in fresh.into_iter().rev() {
            // The output is for programs if it is JSON.
            if !as_json {
                eprintln!("run {} of {} ({})", run.id, run.function, run.started_at);
            }
            print_log(client, &run.id, parameters, follows, as_json).await?;
            printed = Some(run.id);
        }
        if !follows || output::is_closed() {
            return Ok(());
        }
        tokio::time::sleep(FOLLOW_EVERY).await;
    }
}

/// Returns the newest runs that match the filter, newest first.
async fn newest_runs(client: &Client, filter: &RunFilter) -> anyhow::Result<Vec<Run>> {
    let parameters = filter.parameters();
    let found: Runs = client.query(PATH, &[&parameters[..], &[("limit", Some("100"))]].concat()).await?;
    Ok(found.runs)
}

async fn print_log(
    client: &Client,
    id: &str,
    parameters: &[Parameter<'_>],
    follows: bool,
    as_json: bool,
) -> anyhow::Result<()> {
    print_log_of(client, id, parameters, follows.then_some(FOLLOW_EVERY), as_json).await
}

/// Prints the log of a run. With `every`, asks for new lines that often until the run has finished.
async fn print_log_of(
    client: &Client,
    id: &str,
    parameters: &[Parameter<'_>],
    every: Option<Duration>,
    as_json: bool,
) -> anyhow::Result<()> {
    let mut cursor: Option<String> = None;
    loop {
        let page = [parameters, &[("cursor", cursor.as_deref()), ("limit", Some("1000"))]].concat();
        let found: Logs = client.query(&format!("{}/logs", item_path(PATH, id)), &page).await?;
        let is_caught_up = found.logs.is_empty();
        for line in found.logs {
            if as_json {
                println!("{}", serde_json::to_string(&line)?);
            } else {
                let fields = line.fields.map(|fields| format!("  {fields}")).unwrap_or_default();
                let level = format!("{:5}", line.level);
                println!("{}  {}  {}{fields}", line.at, style::state(&level), line.message);
            }
        }
        match found.next_cursor {
            _ if output::is_closed() => return Ok(()),
            None => return Ok(()),
            Some(next) => cursor = Some(next),
        }
        match every {
            _ if !is_caught_up => {}
            None => return Ok(()),
            Some(every) => tokio::time::sleep(every).await,
        }
    }
}
