//! All access to Postgres, which stores the state of the service. SQL exists only in this crate.
//!
//! A module contains the functions of one table, or of several that change together. Functions take a connection, so
//! that the caller owns the transaction and can combine steps.
//!
//! The tables of the records database are `sync_states`, `streams`, `records`, `seen_positions`, `dead_letters` and
//! `closed_connections`. They refer to no other tables and are never joined with them, so they can be in a separate
//! database.

pub mod accounts;
pub mod attention;
pub mod audit_log;
pub mod authorizations;
pub mod bundles;
mod citus;
pub mod closed_connections;
pub mod connect_sessions;
pub mod connection_errors;
pub mod connections;
pub mod data_keys;
mod database_pair;
pub mod dead_letters;
pub mod deleted_connections;
pub mod deployments;
pub mod distribution;
mod enums;
pub mod environment_variables;
pub mod environments;
pub mod events;
pub mod function_jobs;
pub mod hosts;
pub mod inbound_webhooks;
pub mod integrations;
pub mod keys;
pub mod outbound_webhooks;
pub mod pages;
pub mod queues;
pub mod rate_limits;
pub mod record_keys;
pub mod recordings;
pub mod records;
pub mod refreshes;
pub mod retention;
pub mod run_statistics;
pub mod runs;
pub mod schedules;
pub mod sealed;
pub mod signing_keys;
pub mod stalled;
pub mod streams;
pub mod sync_states;
mod transaction;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::migrate::MigrateError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Postgres};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub use self::transaction::Transaction;

/// The name of Syncline's sessions in `pg_stat_activity`.
const APPLICATION_NAME: &str = "syncline";
/// The settings of Syncline's sessions. They restrict the planner to the plans that the statements are written for,
/// whatever the statistics say. A new or partitioned table has no statistics, and a plan for ten rows is wrong for ten
/// million.
const SESSION: [(&str, &str); 8] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_sort", "off"),
    ("jit", "off"),
    // A host that stops between two statements must not block its successor. The module `stalled` handles hosts that
    // stop within a statement.
    ("idle_in_transaction_session_timeout", "10s"),
];

/// Migrations create some tables only if they do not exist, which the server would report as notices. Citus warns that
/// it does not copy views to other nodes, where no one needs them.
const QUIET: [(&str, &str); 1] = [("client_min_messages", "error")];

/// The number of prepared statements that each connection caches. Larger than the number of statements, so that none
/// is prepared twice.
const STATEMENTS: usize = 512;
/// The first migrations were numbered by date and time. The baseline that replaced them is numbered 1, 2, 3.
const FIRST_DATED_MIGRATION: i64 = 20_261_121_090_000;
/// Maximum time to wait for a connection of the pool.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time to wait for a database server to start.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// The SQLSTATE of a server that is starting, recovering or shutting down.
const CANNOT_CONNECT_NOW: &str = "57P03";
const TRUSTED_IDLE_TIME: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the database at {setting} cannot be used: {reason}")]
    Unusable { setting: &'static str, reason: String },
    #[error(
        "the database at {setting} was created by a version before the first release and cannot be upgraded: create a \
         new database, or drop and recreate this one"
    )]
    Unreleased { setting: &'static str },
    #[error(
        "the database at {setting} was migrated by a newer version of Syncline: start that version, or restore a \
         backup from before the upgrade"
    )]
    Newer { setting: &'static str },
    #[error("could not migrate the database at {setting}")]
    Migration { setting: &'static str, source: MigrateError },
    #[error("this installation has a separate records database: set SYNCLINE_RECORDS_DATABASE_URL")]
    RecordsElsewhere,
    #[error("the database at DATABASE_URL is a records database: set DATABASE_URL to its control database")]
    RecordsOnly,
    #[error(
        "the database at DATABASE_URL contains the records itself: remove SYNCLINE_RECORDS_DATABASE_URL, or move the \
         records first (see docs/how-to/separate-records-database.md)"
    )]
    RecordsHere,
    #[error(
        "the database at SYNCLINE_RECORDS_DATABASE_URL is not the records database of the database at DATABASE_URL; \
         correct one of the two URLs"
    )]
    OtherRecords,
    #[error(
        "DATABASE_URL and SYNCLINE_RECORDS_DATABASE_URL are the same database: remove the latter, or use two"
    )]
    SameDatabase,
    #[error(
        "could not determine which control and records databases belong together; check DATABASE_URL and \
         SYNCLINE_RECORDS_DATABASE_URL"
    )]
    UnknownPair(#[from] sqlx::Error),
}

/// The number of attempts at a transaction that may deadlock.
pub const DEADLOCK_TRIES: u32 = 5;

/// Whether Postgres aborted a transaction because of a deadlock. Deadlocks occur when a transaction changes many
/// schedules, because no index orders them in the order in which all transactions lock them. A repeated attempt
/// succeeds.
pub fn is_deadlock(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| code == "40P01")
}

/// The databases of an installation.
#[derive(Debug, Clone)]
pub struct Databases {
    pub control: PgConnectOptions,
    /// The records database, if it is separate.
    pub records: Option<PgConnectOptions>,
}

/// The connection pools of the databases.
///
/// Getting a connection is boxed, as is beginning a transaction, because its future has 4 KB and more. Every request's
/// future would contain it, and each layer would copy it, although most requests find what they need in a cache.
#[derive(Clone)]
pub struct Store {
    control: PgPool,
    records: PgPool,
    /// Permits for transactions in the records database.
    records_permits: Arc<Semaphore>,
    is_divided: bool,
    is_on_citus: bool,
}

/// A transaction in the records database. It may wait for the lock of a stream as long as another transaction writes
/// to it. The number of such transactions is limited, so that connections remain for renewing leases and answering
/// requests.
pub struct RecordsTransaction {
    tx: Transaction,
    _permit: OwnedSemaphorePermit,
}

impl RecordsTransaction {
    pub async fn commit(self) -> sqlx::Result<()> {
        self.tx.commit().await
    }

    pub async fn rollback(self) -> sqlx::Result<()> {
        self.tx.rollback().await
    }
}

impl Deref for RecordsTransaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.tx
    }
}

impl DerefMut for RecordsTransaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.tx
    }
}

/// The state of a pool.
#[derive(Debug, Clone, Copy)]
pub struct Connections {
    pub total: usize,
    pub idle: usize,
}

impl Store {
    /// Connects to the databases and migrates them. Several hosts may do so at the same time. Both databases of a pair
    /// have all tables, and each uses only some of them.
    pub async fn open(databases: Databases, max_connections: u32) -> Result<Self, OpenError> {
        let records_permits = Arc::new(Semaphore::new(records_permit_count(max_connections)));
        let (control, mut conn) = prepare(databases.control, "DATABASE_URL").await?;
        let Some(records) = databases.records else {
            database_pair::use_one(&mut conn).await?;
            conn.close().await?;
            let pool = pool(control, max_connections, "DATABASE_URL").await?;
            return Ok(Self {
                control: pool.clone(),
                records: pool,
                records_permits,
                is_divided: false,
                is_on_citus: false,
            });
        };
        let (mut records, mut records_conn) = prepare(records, "SYNCLINE_RECORDS_DATABASE_URL").await?;
        database_pair::use_two(&mut conn, &mut records_conn).await?;
        let is_on_citus = citus::is_installed(&mut records_conn).await?;
        if is_on_citus {
            records = records.options(citus::SESSION);
        }
        conn.close().await?;
        records_conn.close().await?;
        Ok(Self {
            control: pool(control, max_connections, "DATABASE_URL").await?,
            records: pool(records, max_connections, "SYNCLINE_RECORDS_DATABASE_URL").await?,
            records_permits,
            is_divided: true,
            is_on_citus,
        })
    }

    /// Whether the records database is separate.
    pub fn is_divided(&self) -> bool {
        self.is_divided
    }

    /// Whether the records database is separate and on Citus.
    pub fn is_on_citus(&self) -> bool {
        self.is_on_citus
    }

    /// Returns the pool of the control database.
    pub fn control(&self) -> &PgPool {
        &self.control
    }

    /// Acquires a connection to the control database.
    pub async fn connect(&self) -> sqlx::Result<PoolConnection<Postgres>> {
        Box::pin(self.control.acquire()).await
    }

    pub async fn begin(&self) -> sqlx::Result<Transaction> {
        Transaction::begin(&self.control).await
    }

    /// Begins a read-only transaction in which several queries see the same state of the control database.
    pub async fn begin_snapshot(&self) -> sqlx::Result<Transaction> {
        Transaction::begin_with(&self.control, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await
    }

    /// Acquires a connection to the records database.
    pub async fn connect_records(&self) -> sqlx::Result<PoolConnection<Postgres>> {
        Box::pin(self.records.acquire()).await
    }

    pub async fn begin_records(&self) -> sqlx::Result<RecordsTransaction> {
        let permit = tokio::time::timeout(ACQUIRE_TIMEOUT, Arc::clone(&self.records_permits).acquire_owned());
        let permit = permit.await.map_err(|_| sqlx::Error::PoolTimedOut)?;
        let permit = permit.map_err(|_| sqlx::Error::PoolClosed)?;
        Ok(RecordsTransaction { tx: Transaction::begin(&self.records).await?, _permit: permit })
    }

    /// Returns the number of connections to the control database, and how many of them are idle.
    pub fn connections(&self) -> Connections {
        Connections { total: self.control.size() as usize, idle: self.control.num_idle() }
    }

    pub async fn close(&self) {
        self.records.close().await;
        self.control.close().await;
    }
}

/// Returns the number of transactions in the records database: all connections except a quarter. One of the others
/// receives events, and the rest never waits for the lock of a stream.
fn records_permit_count(max_connections: u32) -> usize {
    max_connections.saturating_sub((max_connections / 4).max(2)).max(1) as usize
}

/// Migrates a database. Returns its connection options, and a first connection.
async fn prepare(
    options: PgConnectOptions,
    setting: &'static str,
) -> Result<(PgConnectOptions, PgConnection), OpenError> {
    let options =
        options.application_name(APPLICATION_NAME).options(SESSION).statement_cache_capacity(STATEMENTS);
    // Disables the warnings about slow statements, because a migration may be slow and its text is long.
    let migrating = options.clone().disable_statement_logging().options(QUIET);
    let mut conn =
        connect_with_retries(&migrating, setting).await.map_err(|error| unusable(setting, &error))?;
    sqlx::migrate!().run(&mut conn).await.map_err(|error| migration_failed(setting, error))?;
    Ok((options, conn))
}

fn migration_failed(setting: &'static str, source: MigrateError) -> OpenError {
    match source {
        MigrateError::VersionMissing(version) if version >= FIRST_DATED_MIGRATION => {
            OpenError::Unreleased { setting }
        }
        MigrateError::VersionMissing(_) => OpenError::Newer { setting },
        // A released migration is never edited, so the database has an earlier state of the baseline.
        MigrateError::VersionMismatch(_) => OpenError::Unreleased { setting },
        source => OpenError::Migration { setting, source },
    }
}

async fn pool(
    options: PgConnectOptions,
    max_connections: u32,
    setting: &'static str,
) -> Result<PgPool, OpenError> {
    PgPoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        // Tests a connection that was idle, because the server may have restarted.
        .test_before_acquire(false)
        .before_acquire(|conn, meta| {
            Box::pin(async move {
                if meta.idle_for < TRUSTED_IDLE_TIME {
                    return Ok(true);
                }
                conn.ping().await.map(|()| true)
            })
        })
        .connect_with(options)
        .await
        .map_err(|error| unusable(setting, &error))
}

/// The reason is the server's own message, if it answered.
fn unusable(setting: &'static str, error: &sqlx::Error) -> OpenError {
    let reason = match error {
        sqlx::Error::Database(error) => error.message().to_owned(),
        other => other.to_string(),
    };
    OpenError::Unusable { setting, reason }
}

/// Connects, and waits for a server that is starting or recovering, because it may start together with this host.
/// Pools wait too, but do not report why.
async fn connect_with_retries(
    options: &PgConnectOptions,
    setting: &'static str,
) -> sqlx::Result<PgConnection> {
    let deadline = Instant::now() + CONNECT_TIMEOUT;
    let mut is_reported = false;
    loop {
        match options.connect().await {
            Err(error) if may_be_starting(&error) && Instant::now() < deadline => {
                if !is_reported {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "waiting for the database at {setting}, {}, for up to {} s",
                        place(options),
                        CONNECT_TIMEOUT.as_secs()
                    );
                    is_reported = true;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            result => return result,
        }
    }
}

fn place(options: &PgConnectOptions) -> String {
    match options.get_socket() {
        Some(folder) => folder.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}

fn may_be_starting(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) => true,
        sqlx::Error::Database(error) => error.code().as_deref() == Some(CANNOT_CONNECT_NOW),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_statement_cache_fits_every_statement() {
        let checked = Path::new(env!("CARGO_MANIFEST_DIR")).join(".sqlx").read_dir().unwrap().count();
        // Statements that are composed at run time, such as those of `sealed`, have no file.
        assert!(checked + 50 < STATEMENTS, "{checked} statements do not fit into a cache of {STATEMENTS}");
    }
}
