//! `syncline keys`: secret keys of environments, encryption keys, and the rotation of data keys.

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use indicatif::ProgressBar;

use super::Done;
use super::database::DatabaseArgs;
use super::installation::{EnvironmentArgs, Installation};
use syncline_auth::{
    ApiKey, ApiKeyError, ApiKeys, DEFAULT_ENVIRONMENT, Environments, Resealed, ScopePreset, Scopes,
    check_key_name,
};
use syncline_crypto::MasterKeys;
use syncline_store::Store;
use syncline_store::keys;
use syncline_types::actor::Actor;

/// Name of the key that follows `SYNCLINE_SECRET_KEY`.
const CONFIGURED_KEY: &str = "SYNCLINE_SECRET_KEY";
/// Name of the key that the first start creates.
const FIRST_KEY: &str = "first key";

#[derive(Debug, Args)]
pub(super) struct KeysArgs {
    #[command(subcommand)]
    command: KeysCommand,
}

#[derive(Debug, Subcommand)]
enum KeysCommand {
    /// List the valid keys, without their secrets
    List {
        #[command(flatten)]
        database: DatabaseArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Create a secret key and print it once
    Create {
        #[command(flatten)]
        environment: EnvironmentArgs,
        /// Name of the key
        name: String,
        /// Preset of scopes
        #[arg(long, value_enum, default_value_t = ScopePreset::Full)]
        scope: ScopePreset,
        /// The exact scopes instead of a preset, such as environment:records:read,environment:syncs:*
        #[arg(long, value_delimiter = ',', value_name = "NAMES", conflicts_with = "scope")]
        scopes: Vec<String>,
    },
    /// Revoke a key on all hosts
    Revoke {
        #[command(flatten)]
        environment: EnvironmentArgs,
        /// Name or id of the key
        key: String,
    },
    /// Encrypt every environment's data key with the first encryption key, while hosts are running
    RotateEncryption {
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Replace an environment's data key and encrypt its secrets again, while hosts are running; safe to repeat
    RotateData {
        #[command(flatten)]
        environment: EnvironmentArgs,
    },
    /// Print a new key for SYNCLINE_ENCRYPTION_KEY
    Encryption {
        /// Id of the key
        #[arg(long, default_value = "1")]
        id: String,
    },
}

pub(super) async fn run(args: KeysArgs) -> anyhow::Result<Done> {
    match args.command {
        KeysCommand::List { database, json } => list(&database, json).await?,
        KeysCommand::Create { environment, name, scope, scopes } => {
            let scopes =
                if scopes.is_empty() { Scopes::new(scope.scopes()) } else { Scopes::parse(&scopes)? };
            create(&environment, &name, &scopes).await?;
        }
        KeysCommand::Revoke { environment, key } => revoke(&environment, &key).await?,
        KeysCommand::RotateEncryption { database } => rotate_encryption(&database).await?,
        KeysCommand::RotateData { environment } => rotate_data(&environment).await?,
        KeysCommand::Encryption { id } => {
            let key = MasterKeys::generate(&id);
            // Verify that a host will accept the printed key.
            MasterKeys::parse(&key)?;
            println!("{}", *key);
        }
    }
    Ok(Done::Successful)
}

async fn list(args: &DatabaseArgs, json: bool) -> anyhow::Result<()> {
    let database = args.open().await?;
    let store = Store::open(database.databases.clone(), 2).await?;
    let listed = keys::list(&mut *store.connect().await?).await?;
    if json {
        println!("{}", serde_json::to_string_pretty(&listed)?);
    } else {
        for key in listed {
            let used =
                key.last_used_at.map_or_else(|| "never".to_owned(), |at| at.format("%F %T").to_string());
            println!(
                "{}  {}/{}  {}…  {}  created {}  last used {used}",
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

async fn create(args: &EnvironmentArgs, name: &str, scopes: &Scopes) -> anyhow::Result<()> {
    check_key_name(name).map_err(|problem| anyhow::anyhow!("the name of the key {problem}"))?;
    let installation = Installation::open(&args.database).await?;
    let environment = installation.environment(&args.environment)?;
    let Installation { api_keys, actor, .. } = &installation;
    let created = match api_keys.create(environment.pk, name, scopes, actor).await {
        Err(ApiKeyError::Duplicate(_)) => bail!(
            "environment `{}` already has a key `{name}`; choose another name, or revoke that key",
            environment.name
        ),
        created => created?,
    };
    println!("{}", created.key.expose());
    installation.close().await
}

async fn revoke(args: &EnvironmentArgs, key: &str) -> anyhow::Result<()> {
    let installation = Installation::open(&args.database).await?;
    let environment = installation.environment(&args.environment)?;
    let Installation { api_keys, actor, .. } = &installation;
    if !api_keys.revoke_by_name_or_id(environment.pk, key, actor).await? {
        bail!(
            "environment `{}` has no valid key `{key}`; list the keys with `syncline keys list`",
            environment.name
        );
    }
    println!("revoked `{key}`");
    installation.close().await
}

async fn rotate_encryption(args: &DatabaseArgs) -> anyhow::Result<()> {
    let installation = Installation::open(args).await?;
    let rewrapped = installation.environments.rewrap_data_keys(&installation.actor).await?;
    println!(
        "encrypted {rewrapped} data keys again; all data keys use the first key of SYNCLINE_ENCRYPTION_KEY now, so \
         you can remove the other keys from it"
    );
    installation.close().await
}

async fn rotate_data(args: &EnvironmentArgs) -> anyhow::Result<()> {
    let installation = Installation::open(&args.database).await?;
    let environment = installation.environment(&args.environment)?;
    let progress = ProgressBar::new_spinner().with_message("secrets encrypted again");
    let tell = |values| progress.set_position(values);
    let rotated = installation.environments.rotate_data_key(environment.pk, &tell, &installation.actor).await;
    progress.finish_and_clear();
    let Resealed { version, values } = rotated?;
    println!(
        "environment `{}` now uses version {version} of its data key; {values} secrets were encrypted again",
        environment.name
    );
    installation.close().await
}

/// A secret key that was created because the database had none.
pub(super) struct GeneratedKey(ApiKey);

impl GeneratedKey {
    pub(super) fn expose(&self) -> &str {
        self.0.expose()
    }
}

/// Makes sure that the default environment has a secret key: the configured one, which follows its setting, or a
/// new one if the database has none.
pub(super) async fn ensure_key(
    api_keys: &ApiKeys,
    environments: &Environments,
    configured: Option<ApiKey>,
) -> anyhow::Result<Option<GeneratedKey>> {
    let environment =
        environments.find_by_name(DEFAULT_ENVIRONMENT).context("the default environment is missing")?;
    let (scopes, actor) = (Scopes::new(ScopePreset::Full.scopes()), Actor::host());
    match configured {
        Some(key) => {
            api_keys.replace(environment.pk, CONFIGURED_KEY, &scopes, &key, &actor).await?;
            Ok(None)
        }
        None if api_keys.any_exists().await? => Ok(None),
        None => {
            let created = api_keys.create(environment.pk, FIRST_KEY, &scopes, &actor).await;
            match created {
                // Another host has created it a moment ago.
                Err(ApiKeyError::Duplicate(_)) => Ok(None),
                created => Ok(Some(GeneratedKey(created?.key))),
            }
        }
    }
}
