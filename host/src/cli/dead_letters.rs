//! `syncline dead-letters`: records that were set aside because they do not match their model.

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Done;
use super::client::{HostArgs, ListArgs, item_path};

const PATH: &str = "dead-letters";

#[derive(Debug, Args)]
pub(super) struct DeadLettersArgs {
    #[command(subcommand)]
    command: DeadLettersCommand,
}

#[derive(Debug, Subcommand)]
enum DeadLettersCommand {
    /// List dead letters with the reason for each; with --json also the records
    List {
        #[command(flatten)]
        host: HostArgs,
        /// List only dead letters of this integration, by its unique key
        #[arg(long, value_name = "KEY")]
        integration: Option<String>,
        /// List only dead letters of this connection
        #[arg(long, requires = "integration", value_name = "ID")]
        connection: Option<String>,
        /// List only dead letters of this model
        #[arg(long)]
        model: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Save the record of a dead letter, if it matches its deployed model
    Replay {
        #[command(flatten)]
        host: HostArgs,
        /// Id of the dead letter
        id: String,
    },
    /// Permanently drop a dead letter and its record
    Drop {
        #[command(flatten)]
        host: HostArgs,
        /// Id of the dead letter
        id: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct DeadLetter {
    id: String,
    provider_config_key: String,
    connection_id: String,
    model: String,
    variant: String,
    function: String,
    run_id: String,
    record_id: Option<String>,
    problems: Vec<Problem>,
    payload: Value,
    times: u64,
    first_seen_at: String,
    last_seen_at: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Problem {
    path: String,
    problem: String,
}

#[derive(Debug, Deserialize)]
struct Replayed {
    outcome: String,
}

pub(super) async fn run(args: DeadLettersArgs) -> anyhow::Result<Done> {
    match args.command {
        DeadLettersCommand::List { host, integration, connection, model, list } => {
            let parameters = [
                ("provider_config_key", integration.as_deref()),
                ("connection_id", connection.as_deref()),
                ("model", model.as_deref()),
            ];
            let client = host.client()?;
            client.print_list(PATH, "dead_letters", &parameters, &list, DeadLetter::line).await?;
        }
        DeadLettersCommand::Replay { host, id } => {
            let path = format!("{}/replay", item_path(PATH, &id));
            let Replayed { outcome } = host.client()?.post_json(&path, &json!({})).await?;
            println!("the record was saved: {outcome}");
        }
        DeadLettersCommand::Drop { host, id } => {
            host.client()?.delete(&item_path(PATH, &id)).await?;
            println!("dead letter {id} was dropped");
        }
    }
    Ok(Done::Successful)
}

impl DeadLetter {
    fn line(&self) -> anyhow::Result<String> {
        let problems = self.problems.iter().map(|Problem { path, problem }| match path.as_str() {
            "" => problem.clone(),
            path => format!("at {path}: {problem}"),
        });
        Ok(format!(
            "{}  {}  {}/{}  {} {}  {}  times: {}",
            self.id,
            self.last_seen_at,
            self.provider_config_key,
            self.connection_id,
            self.model,
            self.record_id.as_deref().unwrap_or("-"),
            problems.collect::<Vec<_>>().join("; "),
            self.times,
        ))
    }
}
