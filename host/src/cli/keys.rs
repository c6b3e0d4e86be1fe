//! `syncline keys`: secret keys of environments, and encryption keys.

use std::sync::Arc;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};

use super::Done;
use super::database::DatabaseArgs;
use crate::auth::{ApiKey, DEFAULT_ENVIRONMENT, Environments, ScopePreset};
use crate::crypto::MasterKeys;
use crate::store::Store;
use crate::store::keys::{self, NewKey};

/// The name of the key that follows `SYNCLINE_SECRET_KEY`.
const CONFIGURED_KEY: &str = "SYNCLINE_SECRET_KEY";
/// The name of the key that a first start makes.
const FIRST_KEY: &str = "first key";

#[derive(Debug, Args)]
pub(super) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// List the valid keys, without the keys themselves
    List {
        #[command(flatten)]
        database: DatabaseArgs,
        /// Write JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a key and show it, this once
    Create {
        #[command(flatten)]
        database: DatabaseArgs,
        /// What the key is called
        name: String,
        /// The environment that it opens
        #[arg(long, default_value = DEFAULT_ENVIRONMENT)]
        environment: String,
        /// What it may do
        #[arg(long, value_enum, default_value_t = ScopePreset::Full)]
        scope: ScopePreset,
    },
    /// Revoke a key, on every host at once
    Revoke {
        #[command(flatten)]
        database: DatabaseArgs,
        /// The key's name or id
        key: String,
        /// The environment that it opens
        #[arg(long, default_value = DEFAULT_ENVIRONMENT)]
        environment: String,
    },
    /// Make a key for SYNCLINE_ENCRYPTION_KEY
    Encryption {
        /// The id that the key is known by
        #[arg(long, default_value = "1")]
        id: String,
    },
}

pub(super) async fn run(args: KeysArgs) -> anyhow::Result<Done> {
    match args.command {
        KeysCommand::List { database, json } => list(&database, json).await?,
        KeysCommand::Create { database, name, environment, scope } => {
            create(&database, &name, &environment, scope).await?;
        }
        KeysCommand::Revoke { database, key, environment } => revoke(&database, &key, &environment).await?,
        KeysCommand::Encryption { id } => {
            let key = MasterKeys::generate(&id);
            // What is printed must be what a host takes.
            MasterKeys::parse(&key)?;
            println!("{}", *key);
        }
    }
    Ok(Done::Well)
}

async fn list(args: &DatabaseArgs, json: bool) -> anyhow::Result<()> {
    let database = args.open(true).await?;
    let store = Store::open(database.options.clone(), 2).await?;
    let listed = keys::list(&mut *store.connect().await?).await?;
    if json {
        println!("{}", serde_json::to_string_pretty(&listed)?);
    } else {
        for key in listed {
            let used =
                key.last_used_at.map_or_else(|| "never".to_owned(), |at| at.format("%F %T").to_string());
            println!(
                "{}  {}/{}  {}…  {}  made {}  last used {used}",
                key.id,
                key.environment,
                key.name,
                key.prefix,
                key.scopes.join(","),
                key.created_at.format("%F %T"),
            );
        }
    }
    store.close().await;
    database.close().await
}

async fn create(
    args: &DatabaseArgs,
    name: &str,
    environment: &str,
    scope: ScopePreset,
) -> anyhow::Result<()> {
    let database = args.open(true).await?;
    let store = Store::open(database.options.clone(), 2).await?;
    let environments = Environments::open(store.clone(), args.master_keys(None)?, Arc::default()).await?;
    let environment = environments
        .find_by_name(environment)
        .with_context(|| format!("there is no environment `{environment}`"))?;
    let key = ApiKey::generate();
    let new = NewKey {
        environment: environment.pk,
        name,
        prefix: key.shown_prefix(),
        hash: &key.hash(),
        scopes: &scope.scopes(),
    };
    if !keys::create(&mut *store.connect().await?, &new).await? {
        bail!(
            "environment `{}` has a key `{name}` already; choose another name, or revoke that one",
            environment.name
        );
    }
    println!("{}", key.expose());
    store.close().await;
    database.close().await
}

async fn revoke(args: &DatabaseArgs, key: &str, environment: &str) -> anyhow::Result<()> {
    let database = args.open(true).await?;
    let store = Store::open(database.options.clone(), 2).await?;
    let environments = Environments::open(store.clone(), args.master_keys(None)?, Arc::default()).await?;
    let environment = environments
        .find_by_name(environment)
        .with_context(|| format!("there is no environment `{environment}`"))?;
    if !keys::revoke(&mut *store.connect().await?, environment.pk, key).await? {
        bail!("environment `{}` has no valid key `{key}`; `syncline keys list` shows them", environment.name);
    }
    println!("revoked `{key}`");
    store.close().await;
    database.close().await
}

/// A key that was made because there was none.
pub(super) struct GeneratedKey(ApiKey);

impl GeneratedKey {
    pub(super) fn expose(&self) -> &str {
        self.0.expose()
    }
}

/// Sees to it that the default environment has a key: the configured one, which follows its setting, or a new one if
/// the database has none.
pub(super) async fn ensure_key(
    store: &Store,
    environments: &Environments,
    configured: Option<&str>,
) -> anyhow::Result<Option<GeneratedKey>> {
    let environment =
        environments.find_by_name(DEFAULT_ENVIRONMENT).context("the default environment is missing")?;
    let mut tx = store.begin().await?;
    let store_key = |key: &ApiKey, name: &'static str| (key.hash(), key.shown_prefix().to_owned(), name);
    let generated = match configured {
        None if keys::any_exists(&mut tx).await? => return Ok(None),
        None => Some(ApiKey::generate()),
        Some(_) => None,
    };
    let (hash, prefix, name) = match (&generated, configured) {
        (Some(key), _) => store_key(key, FIRST_KEY),
        (None, text) => {
            let key =
                ApiKey::parse(text.unwrap_or_default()).context("SYNCLINE_SECRET_KEY cannot be used")?;
            keys::revoke_replaced(&mut tx, environment.pk, CONFIGURED_KEY, &key.hash()).await?;
            store_key(&key, CONFIGURED_KEY)
        }
    };
    let scopes = ScopePreset::Full.scopes();
    let new = NewKey { environment: environment.pk, name, prefix: &prefix, hash: &hash, scopes: &scopes };
    // Another host may have stored the same key a moment ago.
    keys::create(&mut tx, &new).await?;
    tx.commit().await?;
    Ok(generated.map(GeneratedKey))
}
