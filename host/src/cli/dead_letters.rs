//! `syncline dead-letters`: records that were set aside because they do not fit their model.

use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::form_urlencoded;

use super::Done;
use super::client::{Client, HostArgs};

#[derive(Debug, Args)]
pub(super) struct DeadLettersArgs {
    #[command(subcommand)]
    command: DeadLettersCommand,
}

#[derive(Debug, Subcommand)]
enum DeadLettersCommand {
    /// List records that were set aside, with the reason
    List {
        #[command(flatten)]
        host: HostArgs,
        /// Only those of this integration, by its unique key
        #[arg(long, value_name = "KEY")]
        integration: Option<String>,
        /// Only those of this connection
        #[arg(long, requires = "integration", value_name = "ID")]
        connection: Option<String>,
        /// Only those of this model
        #[arg(long)]
        model: Option<String>,
        /// How many at most
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=500))]
        limit: u32,
        /// Write JSON, with the records themselves
        #[arg(long)]
        json: bool,
    },
    /// Save a record after all, if it fits its model as it is deployed now
    Replay {
        #[command(flatten)]
        host: HostArgs,
        /// The letter's id
        id: String,
    },
    /// Drop a record for good
    Drop {
        #[command(flatten)]
        host: HostArgs,
        /// The letter's id
        id: String,
    },
}

#[derive(Debug, Deserialize)]
struct DeadLetters {
    dead_letters: Vec<DeadLetter>,
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
        DeadLettersCommand::List { host, integration, connection, model, limit, json } => {
            let limit = limit.to_string();
            let parameters = [
                ("provider_config_key", integration.as_deref()),
                ("connection_id", connection.as_deref()),
                ("model", model.as_deref()),
                ("limit", Some(&*limit)),
            ];
            list(&host.client()?, &parameters, json).await?;
        }
        DeadLettersCommand::Replay { host, id } => {
            let path = format!("{}/replay", one(&id));
            let Replayed { outcome } = host.client()?.post_json(&path, &json!({})).await?;
            println!("the record was saved: {outcome}");
        }
        DeadLettersCommand::Drop { host, id } => {
            host.client()?.delete(&one(&id)).await?;
            println!("dead letter {id} was dropped");
        }
    }
    Ok(Done::Well)
}

async fn list(client: &Client, parameters: &[(&str, Option<&str>)], as_json: bool) -> anyhow::Result<()> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in parameters {
        if let Some(value) = value {
            query.append_pair(name, value);
        }
    }
    let found: DeadLetters = client.get(&format!("dead-letters?{}", query.finish())).await?;
    if as_json {
        println!("{}", serde_json::to_string_pretty(&found.dead_letters)?);
        return Ok(());
    }
    for letter in found.dead_letters {
        let problems = letter.problems.iter().map(|Problem { path, problem }| match path.as_str() {
            "" => problem.clone(),
            path => format!("at {path}: {problem}"),
        });
        println!(
            "{}  {}  {}/{}  {} {}  {}  times: {}",
            letter.id,
            letter.last_seen_at,
            letter.provider_config_key,
            letter.connection_id,
            letter.model,
            letter.record_id.as_deref().unwrap_or("-"),
            problems.collect::<Vec<_>>().join("; "),
            letter.times,
        );
    }
    Ok(())
}

fn one(id: &str) -> String {
    let escaped: String = form_urlencoded::byte_serialize(id.as_bytes()).collect();
    format!("dead-letters/{escaped}")
}
