//! Postgres: all state of the service. SQL is only here.
//!
//! A module holds the functions of one table or of a few that change together. They take a connection, so
//! that the caller owns the transaction and steps combine.
//!
//! The tables of syncs' output (`sync_states`, `streams`, `records`, `seen_positions`, `dead_letters`,
//! `closed_connections`) refer to no others, and nothing joins across: they may live in a database of their own.

pub mod authorizations;
mod begin;
pub mod closed_connections;
pub mod connect_sessions;
pub mod connection_errors;
pub mod connections;
pub mod data_keys;
mod database_pair;
pub mod dead_letters;
pub mod deleted_connections;
pub mod deployments;
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
pub mod queues;
pub mod rate_limits;
pub mod record_keys;
pub mod records;
pub mod refreshes;
pub mod retention;
pub mod runs;
pub mod schedules;
pub mod sealed;
pub mod signing_keys;
pub mod stalled;
pub mod streams;
pub mod sync_states;

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::migrate::MigrateError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Postgres, Transaction};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What sessions of ours are known by.
const APPLICATION_NAME: &str = "syncline";
/// How a session of ours behaves. The planner is held to the plans that our statements are written for, whatever
/// the statistics say: a new or partitioned table has none, and a plan chosen for ten rows is wrong for ten million.
const SESSION: [(&str, &str); 8] = [
    ("plan_cache_mode", "force_generic_plan"),
    ("enable_seqscan", "off"),
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_sort", "off"),
    ("jit", "off"),
    // A host that is stopped between two statements must not keep its successor from the lock; `stalled` sees to one
    // that is stopped within a statement.
    ("idle_in_transaction_session_timeout", "10s"),
];

/// Migrations find some of their tables there already, of which the server would tell.
const QUIET: [(&str, &str); 1] = [("client_min_messages", "warning")];

/// Each connection keeps this many statements prepared: more than there are, so that none is prepared again.
const STATEMENTS: usize = 512;
/// Migrations were numbered by their date and time before the baseline replaced them; today they are numbered 1, 2, 3.
const FIRST_DATED_MIGRATION: i64 = 20_261_121_090_000;
/// How long a connection is waited for.
const ACQUIRE_PATIENCE: Duration = Duration::from_secs(30);
/// How long a database may take to listen.
const CONNECT_PATIENCE: Duration = Duration::from_secs(30);
/// What a server answers that starts, recovers or ends.
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
    #[error("the tables of the database at {setting} could not be brought up to date")]
    Migration { setting: &'static str, source: MigrateError },
    #[error("the records of this database are in another one; name it in SYNCLINE_RECORDS_DATABASE_URL")]
    RecordsElsewhere,
    #[error("the database at DATABASE_URL holds another one's records and nothing else; name that one")]
    RecordsOnly,
    #[error(
        "the database at DATABASE_URL holds its records itself; leave SYNCLINE_RECORDS_DATABASE_URL out, or move them \
         first, as docs/how-to/separate-records-database.md says"
    )]
    RecordsHere,
    #[error(
        "the database at SYNCLINE_RECORDS_DATABASE_URL is not the one that has the records of DATABASE_URL's"
    )]
    OtherRecords,
    #[error(
        "DATABASE_URL and SYNCLINE_RECORDS_DATABASE_URL name the same database; leave the latter out, or make one"
    )]
    SameDatabase,
    #[error("it could not be told which databases belong together")]
    Halves(#[from] sqlx::Error),
}

/// How often what deadlocks is tried.
pub const DEADLOCK_TRIES: u32 = 5;

/// Whether Postgres ended a transaction since it and others waited for each other. That happens where one changes many
/// schedules: no index has them in the order in which all lock them. Tried again, it goes through.
pub fn is_deadlock(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| code == "40P01")
}

/// Where everything is kept.
#[derive(Debug, Clone)]
pub struct Databases {
    pub control: PgConnectOptions,
    /// For syncs' output, if it is kept apart.
    pub records: Option<PgConnectOptions>,
}

/// The pools through which everything is read and written.
#[derive(Clone)]
pub struct Store {
    control: PgPool,
    records: PgPool,
    /// How many transactions there may be beside the records.
    records_room: Arc<Semaphore>,
    is_divided: bool,
}

/// A transaction beside the records. It may wait for the lock of a stream for as long as somebody writes there, so there
/// are never so many that no connection is left to renew leases and to answer with.
pub struct RecordsTransaction {
    tx: Transaction<'static, Postgres>,
    _room: OwnedSemaphorePermit,
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
    /// Connects, and brings the tables up to date. Several hosts may do so at once. Both databases of a pair have all
    /// tables, and each uses its half of them.
    pub async fn open(databases: Databases, max_connections: u32) -> Result<Self, OpenError> {
        let records_room = Arc::new(Semaphore::new(room_beside_records(max_connections)));
        let (control, mut conn) = prepare(databases.control, "DATABASE_URL").await?;
        let Some(records) = databases.records else {
            database_pair::use_one(&mut conn).await?;
            conn.close().await?;
            let pool = pool(control, max_connections, "DATABASE_URL").await?;
            return Ok(Self { control: pool.clone(), records: pool, records_room, is_divided: false });
        };
        let (records, mut records_conn) = prepare(records, "SYNCLINE_RECORDS_DATABASE_URL").await?;
        database_pair::use_two(&mut conn, &mut records_conn).await?;
        conn.close().await?;
        records_conn.close().await?;
        Ok(Self {
            control: pool(control, max_connections, "DATABASE_URL").await?,
            records: pool(records, max_connections, "SYNCLINE_RECORDS_DATABASE_URL").await?,
            records_room,
            is_divided: true,
        })
    }

    /// Whether syncs' output is in a database of its own.
    pub fn is_divided(&self) -> bool {
        self.is_divided
    }

    /// Everything but syncs' output.
    pub fn control(&self) -> &PgPool {
        &self.control
    }

    /// A connection to everything but syncs' output.
    pub async fn connect(&self) -> sqlx::Result<PoolConnection<Postgres>> {
        self.control.acquire().await
    }

    pub async fn begin(&self) -> sqlx::Result<Transaction<'static, Postgres>> {
        begin::begin(&self.control).await
    }

    /// For several queries that must see the same state of everything but syncs' output.
    pub async fn begin_snapshot(&self) -> sqlx::Result<Transaction<'static, Postgres>> {
        begin::begin_with(&self.control, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await
    }

    /// A connection to syncs' output.
    pub async fn connect_records(&self) -> sqlx::Result<PoolConnection<Postgres>> {
        self.records.acquire().await
    }

    pub async fn begin_records(&self) -> sqlx::Result<RecordsTransaction> {
        let room = tokio::time::timeout(ACQUIRE_PATIENCE, Arc::clone(&self.records_room).acquire_owned());
        let room = room.await.map_err(|_| sqlx::Error::PoolTimedOut)?;
        let room = room.map_err(|_| sqlx::Error::PoolClosed)?;
        Ok(RecordsTransaction { tx: begin::begin(&self.records).await?, _room: room })
    }

    /// How many connections there are, and how many of them nobody uses.
    pub fn connections(&self) -> Connections {
        Connections { total: self.control.size() as usize, idle: self.control.num_idle() }
    }

    pub async fn close(&self) {
        self.records.close().await;
        self.control.close().await;
    }
}

/// All connections but a quarter: of those one listens, and the others are never kept waiting by a lock of a stream.
fn room_beside_records(max_connections: u32) -> usize {
    max_connections.saturating_sub((max_connections / 4).max(2)).max(1) as usize
}

/// Brings a database's tables up to date. Gives how to connect to it, and a first connection.
async fn prepare(
    options: PgConnectOptions,
    setting: &'static str,
) -> Result<(PgConnectOptions, PgConnection), OpenError> {
    let options =
        options.application_name(APPLICATION_NAME).options(SESSION).statement_cache_capacity(STATEMENTS);
    // A slow migration is nothing to warn of, and its text is long.
    let migrating = options.clone().disable_statement_logging().options(QUIET);
    let mut conn = connect_patiently(&migrating, setting).await.map_err(|error| unusable(setting, &error))?;
    sqlx::migrate!().run(&mut conn).await.map_err(|error| migration_failed(setting, error))?;
    Ok((options, conn))
}

fn migration_failed(setting: &'static str, source: MigrateError) -> OpenError {
    match source {
        MigrateError::VersionMissing(version) if version >= FIRST_DATED_MIGRATION => {
            OpenError::Unreleased { setting }
        }
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
        .acquire_timeout(ACQUIRE_PATIENCE)
        // A connection that has lain idle is tried first: the server may have gone and come back.
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

/// In the server's own words, if it answered.
fn unusable(setting: &'static str, error: &sqlx::Error) -> OpenError {
    let reason = match error {
        sqlx::Error::Database(error) => error.message().to_owned(),
        other => other.to_string(),
    };
    OpenError::Unusable { setting, reason }
}

/// Waits for a server that does not listen yet, or recovers: it may be starting beside us. Pools wait too, but do not tell
/// why.
async fn connect_patiently(options: &PgConnectOptions, setting: &'static str) -> sqlx::Result<PgConnection> {
    let deadline = Instant::now() + CONNECT_PATIENCE;
    let mut is_told = false;
    loop {
        match options.connect().await {
            Err(error) if may_be_starting(&error) && Instant::now() < deadline => {
                if !is_told {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "waiting for the database at {setting}, {}, for up to {} s",
                        place(options),
                        CONNECT_PATIENCE.as_secs()
                    );
                    is_told = true;
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
    fn a_connection_keeps_every_statement_prepared() {
        let checked = Path::new(env!("CARGO_MANIFEST_DIR")).join(".sqlx").read_dir().unwrap().count();
        // Statements that are put together at run time, such as those of `sealed`, have no file.
        assert!(checked + 50 < STATEMENTS, "there are {checked} statements, and room for {STATEMENTS}");
    }
}
