//! `syncline env`: environments, their settings, their signing keys and their variables.

mod settings;
mod vars;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::json;

use super::Done;
use super::database::DatabaseArgs;
use super::installation::{EnvironmentArgs, Installation};
use syncline_auth::{DEFAULT_ENVIRONMENT, EnvironmentError, FormerKeys};
use syncline_engine::{PreDeletion, run_pre_deletion_through_hosts};
use syncline_types::ids::EnvironmentName;

#[derive(Debug, Args)]
pub(super) struct EnvArgs {
    #[command(subcommand)]
    command: EnvCommand,
}

#[derive(Debug, Subcommand)]
enum EnvCommand {
    /// List the environments
    List {
        #[command(flatten)]
        database: DatabaseArgs,
        /// Write JSON
        #[arg(long)]
        json: bool,
    },
    /// Make an environment
    Create {
        #[command(flatten)]
        database: DatabaseArgs,
        /// What it is called: a-z, 0-9, `_` and `-`
        name: String,
    },
    /// Delete an environment with its integrations, connections, records, variables and keys
    Delete {
        #[command(flatten)]
        database: DatabaseArgs,
        name: String,
        /// Really delete it: nothing brings it back
        #[arg(long, short)]
        yes: bool,
    },
    /// Show an environment's settings
    Show {
        #[command(flatten)]
        environment: EnvironmentArgs,
        /// Show its webhook signing keys, too
        #[arg(long)]
        secrets: bool,
        /// Write JSON
        #[arg(long)]
        json: bool,
    },
    /// Change settings, such as webhook_url=https://example.com/hooks; nothing behind the `=` takes one away
    Set {
        #[command(flatten)]
        environment: EnvironmentArgs,
        #[arg(required = true, value_name = "SETTING=VALUE")]
        settings: Vec<String>,
    },
    /// Make a new webhook signing key and show it; the one before signs for 24 hours more
    RotateSigningKey {
        #[command(flatten)]
        environment: EnvironmentArgs,
        /// Let the keys before end at once: somebody else may have them
        #[arg(long)]
        now: bool,
    },
    /// List, set and remove variables, which functions read
    Vars(vars::VarsArgs),
}

pub(super) async fn run(args: EnvArgs) -> anyhow::Result<Done> {
    match args.command {
        EnvCommand::List { database, json } => list(&database, json).await?,
        EnvCommand::Create { database, name } => create(&database, &name).await?,
        EnvCommand::Delete { database, name, yes } => delete(&database, &name, yes).await?,
        EnvCommand::Show { environment, secrets, json } => {
            settings::show(&environment, secrets, json).await?;
        }
        EnvCommand::Set { environment, settings } => settings::set(&environment, &settings).await?,
        EnvCommand::RotateSigningKey { environment, now } => rotate_signing_key(&environment, now).await?,
        EnvCommand::Vars(args) => vars::run(args).await?,
    }
    Ok(Done::Well)
}

async fn list(args: &DatabaseArgs, as_json: bool) -> anyhow::Result<()> {
    let installation = Installation::open(args).await?;
    let environments = installation.environments.list();
    if as_json {
        let listed: Vec<_> = environments
            .iter()
            .map(|environment| {
                json!({
                    "id": environment.id, "name": environment.name, "created_at": environment.created_at,
                })
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&listed)?);
    } else {
        for environment in environments {
            let made = environment.created_at.format("%F %T");
            println!("{}  {}  made {made}", environment.id, environment.name);
        }
    }
    installation.close().await
}

async fn create(args: &DatabaseArgs, name: &str) -> anyhow::Result<()> {
    let name: EnvironmentName = name.parse()?;
    let installation = Installation::open(args).await?;
    installation.environments.create(&name).await?;
    println!("made `{name}`; `syncline keys create NAME --environment {name}` makes a secret key for it");
    installation.close().await
}

async fn delete(args: &DatabaseArgs, name: &str, yes: bool) -> anyhow::Result<()> {
    if name == DEFAULT_ENVIRONMENT {
        bail!("`{name}` stays: every host makes it when it starts");
    }
    let installation = Installation::open(args).await?;
    let environment = installation.environment(name)?;
    if !yes {
        bail!("`{name}` and everything in it would be gone for good; say --yes to delete it");
    }
    let note = match run_pre_deletion_through_hosts(&installation.store, environment.pk).await? {
        PreDeletion::Done => "",
        PreDeletion::OutOfTime => "; not all functions that run before a deletion had come to their end",
        PreDeletion::NoHost => "; no host is on, so the functions that run before a deletion did not run",
    };
    installation.environments.delete(environment.pk).await?;
    println!("deleted `{name}`{note}");
    installation.close().await
}

async fn rotate_signing_key(args: &EnvironmentArgs, now: bool) -> anyhow::Result<()> {
    let installation = Installation::open(&args.database).await?;
    let environment = installation.environment(&args.environment)?;
    let former = if now { FormerKeys::EndNow } else { FormerKeys::Overlap };
    let key = match installation.environments.rotate_signing_key(environment.pk, former).await {
        Err(EnvironmentError::SigningKeysOverlap) => bail!(
            "the signing key before the present one still signs; wait until it has ended, or say --now to end both"
        ),
        rotated => rotated?,
    };
    println!("{}", key.expose_text());
    installation.close().await
}
