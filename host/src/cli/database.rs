//! The database and the encryption keys that commands share: from the environment, or private ones in the data
//! directory.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use sqlx::postgres::PgConnectOptions;
use tokio_util::sync::CancellationToken;

use crate::private_postgres::{self, PrivatePostgres};
use syncline_crypto::MasterKeys;
use syncline_store::Databases;

/// Where the host stores its data.
#[derive(Debug, Clone, Args)]
pub(super) struct DatabaseArgs {
    /// Postgres server to use; without one, the host starts a private Postgres in its data directory
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    database_url: Option<String>,
    /// Postgres database for records; by default they are in the same database as everything else
    #[arg(long, env = "SYNCLINE_RECORDS_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    records_database_url: Option<String>,
    /// Folder for the host's files, including its private Postgres [default: .syncline, as root /var/lib/syncline]
    #[arg(long, env = "SYNCLINE_DATA_DIR", value_name = "FOLDER")]
    data_dir: Option<PathBuf>,
    /// 32-byte keys that encrypt the data keys, as id:base64, separated by commas; the first one is active
    #[arg(long, env = "SYNCLINE_ENCRYPTION_KEY", hide_env_values = true, value_name = "KEYS")]
    encryption_key: Option<String>,
}

/// A database that accepts connections for as long as this value exists.
pub(super) struct Database {
    pub(super) databases: Databases,
    pub(super) private: Option<PrivatePostgres>,
}

impl DatabaseArgs {
    pub(super) fn data_dir(&self) -> PathBuf {
        self.data_dir.clone().unwrap_or_else(|| {
            if rustix::process::geteuid().is_root() {
                PathBuf::from("/var/lib/syncline")
            } else {
                PathBuf::from(".syncline")
            }
        })
    }

    /// Opens the database of a host: the given one, or a private one, which is created on first use. Returns
    /// nothing if `stop` is cancelled before the private Postgres is ready; it is stopped again in that case.
    pub(super) async fn open_for_host(&self, stop: &CancellationToken) -> anyhow::Result<Option<Database>> {
        if let Some(databases) = self.given()? {
            return Ok(Some(Database { databases, private: None }));
        }
        let started = PrivatePostgres::start_unless(stop, &self.data_dir()).await?;
        Ok(started.map(Database::of_private))
    }

    /// Opens the database of a command: the given one, or the private one of the data directory, which is started
    /// unless a host is running it.
    pub(super) async fn open(&self) -> anyhow::Result<Database> {
        if let Some(databases) = self.given()? {
            return Ok(Database { databases, private: None });
        }
        let data_dir = self.data_dir();
        if let Some(control) = private_postgres::find_running(&data_dir)? {
            return Ok(Database { databases: Databases { control, records: None }, private: None });
        }
        if !private_postgres::exists(&data_dir) {
            bail!(
                "there is no private Postgres in the data directory `{}`; set --data-dir to the host's data \
                 directory, or --database-url to the host's database",
                data_dir.display()
            );
        }
        Ok(Database::of_private(PrivatePostgres::start(&data_dir).await?))
    }

    fn given(&self) -> anyhow::Result<Option<Databases>> {
        let Some(url) = &self.database_url else {
            if self.records_database_url.is_some() {
                bail!(
                    "SYNCLINE_RECORDS_DATABASE_URL is set without DATABASE_URL; set DATABASE_URL to the control database"
                );
            }
            return Ok(None);
        };
        let records = self.records_database_url.as_deref();
        Ok(Some(Databases {
            control: parse_url(url, "DATABASE_URL")?,
            records: records.map(|url| parse_url(url, "SYNCLINE_RECORDS_DATABASE_URL")).transpose()?,
        }))
    }

    /// Returns the encryption keys of a host: the given ones or, for development on one machine, the key in the
    /// data directory, which the first start creates.
    pub(super) fn master_keys_of_host(&self, listen: SocketAddr) -> anyhow::Result<MasterKeys> {
        if let Some(keys) = self.given_master_keys()? {
            return Ok(keys);
        }
        if !listen.ip().is_loopback() {
            bail!(
                "SYNCLINE_ENCRYPTION_KEY must be set to listen on {listen}, which other machines can reach; \
                 create a key with `syncline keys encryption`, and back it up: stored credentials cannot be \
                 decrypted without it"
            );
        }
        if let Some(keys) = self.stored_master_keys()? {
            return Ok(keys);
        }
        let key = MasterKeys::generate("dev");
        write_private_file(&self.key_file(), key.as_bytes())?;
        Ok(MasterKeys::parse(&key)?)
    }

    /// Returns the encryption keys of an existing installation. Creating a new key would be useless here.
    pub(super) fn master_keys(&self) -> anyhow::Result<MasterKeys> {
        if let Some(keys) = self.given_master_keys()? {
            return Ok(keys);
        }
        self.stored_master_keys()?.with_context(|| {
            format!(
                "the host's encryption key was not found at {}; set SYNCLINE_ENCRYPTION_KEY, or set --data-dir to the \
                 host's data directory",
                self.key_file().display()
            )
        })
    }

    fn given_master_keys(&self) -> anyhow::Result<Option<MasterKeys>> {
        let keys = self.encryption_key.as_deref().map(MasterKeys::parse);
        keys.transpose().context("SYNCLINE_ENCRYPTION_KEY is invalid")
    }

    fn stored_master_keys(&self) -> anyhow::Result<Option<MasterKeys>> {
        let path = self.key_file();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("could not read {}", path.display())),
        };
        let keys = MasterKeys::parse(text.trim());
        keys.map(Some).with_context(|| format!("the encryption key in {} is invalid", path.display()))
    }

    fn key_file(&self) -> PathBuf {
        self.data_dir().join("encryption.key")
    }
}

impl Database {
    fn of_private(private: PrivatePostgres) -> Self {
        let databases = Databases { control: private.connect_options().clone(), records: None };
        Self { databases, private: Some(private) }
    }

    pub(super) async fn close(self) -> anyhow::Result<()> {
        if let Some(private) = self.private {
            private.stop().await?;
        }
        Ok(())
    }
}

fn parse_url(url: &str, setting: &'static str) -> anyhow::Result<PgConnectOptions> {
    let refusal = || format!("{setting} is not a Postgres URL such as postgres://user:password@host/name");
    // The driver accepts any scheme, and would connect to another kind of server.
    if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
        bail!(refusal());
    }
    url.parse().with_context(refusal)
}

/// Writes a file that only its owner can read.
pub(super) fn write_private_file(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let write = || {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().with_context(|| format!("could not write {}", path.display()))
}
