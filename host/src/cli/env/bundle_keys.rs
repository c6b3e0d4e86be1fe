//! `syncline env bundle-keys`: the public keys with which an environment requires bundles to be signed.

use std::path::Path;

use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::json;

use super::{EnvironmentArgs, Installation};
use syncline_engine::{add_bundle_key, list_bundle_keys, remove_bundle_key};

#[derive(Debug, Args)]
pub(super) struct BundleKeysArgs {
    #[command(subcommand)]
    command: BundleKeysCommand,
}

#[derive(Debug, Subcommand)]
enum BundleKeysCommand {
    /// List the trusted keys; without any, the environment accepts unsigned bundles
    List {
        #[command(flatten)]
        environment: EnvironmentArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Trust a public key of minisign; from then on, every bundle must be signed with a trusted key
    Add {
        #[command(flatten)]
        environment: EnvironmentArgs,
        /// Name of the key, such as the name of its owner
        name: String,
        /// The public key, or its `.pub` file
        #[arg(value_name = "KEY|FILE")]
        key: String,
    },
    /// Stop trusting a key; active versions stay active
    Remove {
        #[command(flatten)]
        environment: EnvironmentArgs,
        name: String,
    },
}

pub(super) async fn run(args: BundleKeysArgs) -> anyhow::Result<()> {
    match args.command {
        BundleKeysCommand::List { environment, json } => list(&environment, json).await,
        BundleKeysCommand::Add { environment, name, key } => add(&environment, &name, &key).await,
        BundleKeysCommand::Remove { environment, name } => remove(&environment, &name).await,
    }
}

async fn list(args: &EnvironmentArgs, as_json: bool) -> anyhow::Result<()> {
    let installation = Installation::open(&args.database).await?;
    let environment = installation.environment(&args.environment)?;
    let keys = list_bundle_keys(&installation.store, environment.pk).await?;
    if as_json {
        let listed: Vec<_> = keys
            .iter()
            .map(
                |key| json!({ "name": key.name, "public_key": key.public_key, "created_at": key.created_at }),
            )
            .collect();
        println!("{}", serde_json::to_string_pretty(&listed)?);
    } else {
        for key in keys {
            println!("{}  {}  added {}", key.name, key.public_key, key.created_at.format("%F %T"));
        }
    }
    installation.close().await
}

async fn add(args: &EnvironmentArgs, name: &str, key: &str) -> anyhow::Result<()> {
    let path = Path::new(key);
    let text = if path.is_file() {
        std::fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))?
    } else {
        key.to_owned()
    };
    let installation = Installation::open(&args.database).await?;
    let environment = installation.environment(&args.environment)?;
    add_bundle_key(&installation.store, environment.pk, name, &text, &installation.actor).await?;
    println!(
        "environment `{}` now accepts only bundles that are signed with a trusted key",
        args.environment
    );
    installation.close().await
}

async fn remove(args: &EnvironmentArgs, name: &str) -> anyhow::Result<()> {
    let installation = Installation::open(&args.database).await?;
    let environment = installation.environment(&args.environment)?;
    remove_bundle_key(&installation.store, environment.pk, name, &installation.actor).await?;
    let rest = list_bundle_keys(&installation.store, environment.pk).await?;
    if rest.is_empty() {
        println!("removed `{name}`; environment `{}` now accepts unsigned bundles", args.environment);
    } else {
        println!("removed `{name}`");
    }
    installation.close().await
}
