//! The Postgres server of the benchmarks, and a separate database for each measurement.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, PgConnection, Row};

pub struct Server {
    url: String,
}

/// The Postgres settings that determine how fast it writes.
#[derive(Serialize)]
pub struct PostgresFacts {
    version: String,
    fsync: String,
    synchronous_commit: String,
    full_page_writes: String,
    autovacuum: String,
    shared_buffers: String,
    max_wal_size: String,
}

impl Server {
    pub fn new(url: &str) -> Result<Self> {
        url.parse::<PgConnectOptions>().context("the URL of the database is invalid")?;
        Ok(Self { url: url.to_owned() })
    }

    pub async fn facts(&self) -> Result<PostgresFacts> {
        let mut conn = self.connect().await?;
        let row = sqlx::query(
            "SELECT current_setting('server_version'), current_setting('fsync'),
                    current_setting('synchronous_commit'), current_setting('full_page_writes'),
                    current_setting('autovacuum'), current_setting('shared_buffers'),
                    current_setting('max_wal_size')",
        )
        .fetch_one(&mut conn)
        .await?;
        Ok(PostgresFacts {
            version: row.get(0),
            fsync: row.get(1),
            synchronous_commit: row.get(2),
            full_page_writes: row.get(3),
            autovacuum: row.get(4),
            shared_buffers: row.get(5),
            max_wal_size: row.get(6),
        })
    }

    /// Creates an empty database, and drops an existing one of the same name.
    pub async fn create_database(&self, name: &str) -> Result<Database> {
        self.drop_database(name).await?;
        let mut conn = self.connect().await?;
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut conn).await?;
        let (server, _) =
            self.url.rsplit_once('/').context("the URL of the database contains no database name")?;
        Ok(Database { url: format!("{server}/{name}") })
    }

    pub async fn drop_database(&self, name: &str) -> Result<()> {
        let mut conn = self.connect().await?;
        let statement = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut conn).await?;
        Ok(())
    }

    async fn connect(&self) -> Result<PgConnection> {
        connect(&self.url).await
    }
}

impl fmt::Display for PostgresFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Postgres {} with fsync {}, synchronous_commit {}, full_page_writes {}, autovacuum {}, shared_buffers {}, \
             max_wal_size {}",
            self.version,
            self.fsync,
            self.synchronous_commit,
            self.full_page_writes,
            self.autovacuum,
            self.shared_buffers,
            self.max_wal_size
        )
    }
}

pub struct Database {
    pub url: String,
}

impl Database {
    pub async fn connect(&self) -> Result<PgConnection> {
        connect(&self.url).await
    }

    /// Writes outstanding data of earlier measurements to disk, so that it does not slow down the next one.
    pub async fn settle(&self) -> Result<()> {
        let mut conn = self.connect().await?;
        sqlx::raw_sql("CHECKPOINT").execute(&mut conn).await?;
        Ok(())
    }

    /// Creates the host's tables with its migrations, for measurements without a host.
    pub async fn migrate(&self) -> Result<()> {
        let migrations = Path::new(env!("CARGO_MANIFEST_DIR")).join("../host/crates/store/migrations");
        let mut files: Vec<_> =
            std::fs::read_dir(migrations)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        files.sort();
        let mut conn = self.connect().await?;
        for file in files {
            let migration = std::fs::read_to_string(&file)?;
            sqlx::raw_sql(AssertSqlSafe(migration))
                .execute(&mut conn)
                .await
                .with_context(|| format!("{} failed", file.display()))?;
        }
        Ok(())
    }

    /// Returns how often autovacuum has vacuumed and analysed the host's record tables.
    pub async fn autovacuums(&self) -> Result<(i64, i64)> {
        let mut conn = self.connect().await?;
        let counts = sqlx::query_as(
            "SELECT coalesce(sum(autovacuum_count), 0)::bigint, coalesce(sum(autoanalyze_count), 0)::bigint
             FROM pg_stat_user_tables WHERE schemaname = 'public' AND relname LIKE 'records%'",
        )
        .fetch_one(&mut conn)
        .await?;
        Ok(counts)
    }
}

async fn connect(url: &str) -> Result<PgConnection> {
    let options: PgConnectOptions = url.parse()?;
    options.disable_statement_logging().connect().await.context("could not connect to Postgres")
}
