//! `syncline env`: environments, their settings, their signing keys and their variables.

mod bundle_keys;
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
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Create an environment
    Create {
        #[command(flatten)]
        database: DatabaseArgs,
        /// Name of the environment: a-z, 0-9, `_` and `-`
        name: String,
    },
    /// Delete an environment with its integrations, connections, records, variables and keys
    Delete {
        #[command(flatten)]
        database: DatabaseArgs,
        name: String,
        /// Confirm the deletion, which cannot be undone
        #[arg(long, short)]
        yes: bool,
    },
    /// Show an environment's settings
    Show {
        #[command(flatten)]
        environment: EnvironmentArgs,
        /// Include the webhook signing keys
        #[arg(long)]
        secrets: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Change settings, such as webhook_url=https://example.com/hooks; an empty value removes a setting
    Set {
        #[command(flatten)]
        environment: EnvironmentArgs,
        #[arg(required = true, value_name = "SETTING=VALUE")]
        settings: Vec<String>,
    },
    /// Create a new webhook signing key and print it; the previous key signs for 24 more hours
    RotateSigningKey {
        #[command(flatten)]
        environment: EnvironmentArgs,
        /// End the previous keys at once, because they may have leaked
        #[arg(long)]
        now: bool,
    },
    /// Manage the variables that functions can read
    Vars(vars::VarsArgs),
    /// Require signatures of bundles, and manage the keys that are trusted
    BundleKeys(bundle_keys::BundleKeysArgs),
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
        EnvCommand::BundleKeys(args) => bundle_keys::run(args).await?,
    }
    Ok(Done::Successful)
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
            let created = environment.created_at.format("%F %T");
            println!("{}  {}  created {created}", environment.id, environment.name);
        }
    }
    installation.close().await
}

async fn create(args: &DatabaseArgs, name: &str) -> anyhow::Result<()> {
    let name: EnvironmentName = name.parse()?;
    let installation = Installation::open(args).await?;
    installation.environments.create(&name, &installation.actor).await?;
    println!(
        "created `{name}`; create a secret key for it with `syncline keys create NAME --environment {name}`"
    );
    installation.close().await
}

async fn delete(args: &DatabaseArgs, name: &str, yes: bool) -> anyhow::Result<()> {
    if name == DEFAULT_ENVIRONMENT {
        bail!("`{name}` cannot be deleted, because every host creates it at startup");
    }
    let installation = Installation::open(args).await?;
    let environment = installation.environment(name)?;
    if !yes {
        bail!("this permanently deletes `{name}` and everything in it; confirm with --yes");
    }
    let note = match run_pre_deletion_through_hosts(&installation.store, environment.pk).await? {
        PreDeletion::Done => "",
        PreDeletion::OutOfTime => "; not all pre-deletion functions finished in time",
        PreDeletion::NoHost => "; the pre-deletion functions did not run, because no host is running",
    };
    installation.environments.delete(environment.pk, &installation.actor).await?;
    println!("deleted `{name}`{note}");
    installation.close().await
}

async fn rotate_signing_key(args: &EnvironmentArgs, now: bool) -> anyhow::Result<()> {
    let installation = Installation::open(&args.database).await?;
    let environment = installation.environment(&args.environment)?;
    let former = if now { FormerKeys::EndNow } else { FormerKeys::Overlap };
    let Installation { environments, actor, .. } = &installation;
    let key = match environments.rotate_signing_key(environment.pk, former, actor).await {
        Err(EnvironmentError::SigningKeysOverlap) => bail!(
            "the previous signing key is still valid; wait until it has expired, or use --now to end both keys"
        ),
        rotated => rotated?,
    };
    println!("{}", key.expose_text());
    installation.close().await
}
