//! A separate database for each test.

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection};

use super::citus::{self, ClusterDatabase};

/// The tables of the records database.
pub const RECORD_TABLES: [&str; 6] =
    ["sync_states", "streams", "records", "seen_positions", "dead_letters", "closed_connections"];

static MIGRATIONS: Migrator = sqlx::migrate!("crates/store/migrations");
/// Advisory lock of the test that creates the template on a server.
pub(super) const TEMPLATE_LOCK: i64 = 0x5379_6e63;

/// A database that is dropped with this value, even if clients are still connected.
///
/// `make test-citus` gives it a separate records database on a cluster. Statements about tables of the records database
/// are sent there.
pub struct TestDatabase {
    server_url: String,
    name: String,
    records: Option<RecordsDatabase>,
}

/// A separate records database.
enum RecordsDatabase {
    OnCluster(ClusterDatabase),
    OnServer(Box<TestDatabase>),
}

impl RecordsDatabase {
    fn url(&self) -> String {
        match self {
            Self::OnCluster(records) => records.url(),
            Self::OnServer(records) => records.url(),
        }
    }
}

impl TestDatabase {
    pub async fn create() -> Self {
        let mut db = Self::create_control().await;
        if citus::cluster_url().is_some() {
            db = db.with_records(ClusterDatabase::create().await);
        }
        db
    }

    /// Creates a database without a separate records database.
    pub async fn create_control() -> Self {
        Self::create_on(&server_url()).await
    }

    /// Adds a separate records database on a cluster.
    pub fn with_records(mut self, records: ClusterDatabase) -> Self {
        self.records = Some(RecordsDatabase::OnCluster(records));
        self
    }

    /// Adds a separate records database on another server.
    pub async fn with_records_on(mut self, server_url: &str) -> Self {
        self.records = Some(RecordsDatabase::OnServer(Box::new(Self::create_on(server_url).await)));
        self
    }

    /// Creates a database on a server that the test runs itself.
    pub async fn create_on(server_url: &str) -> Self {
        let template = template(server_url).await.expect("a database with every table can be made");
        Self::create_from(server_url, &template).await
    }

    /// Creates a database without tables, which a host then creates.
    pub async fn create_empty() -> Self {
        Self::create_from(&server_url(), "template1").await
    }

    async fn create_from(server_url: &str, template: &str) -> Self {
        let name = format!("syncline_it_{}", uuid::Uuid::new_v4().simple());
        let create = format!("CREATE DATABASE {name} TEMPLATE {template}");
        execute(server_url, create).await.expect("a database can be created");
        Self { server_url: server_url.to_owned(), name, records: None }
    }

    pub fn url(&self) -> String {
        sibling(&self.server_url, &self.name)
    }

    /// The separate records database, if it is on a cluster.
    pub fn cluster(&self) -> Option<&ClusterDatabase> {
        match &self.records {
            Some(RecordsDatabase::OnCluster(records)) => Some(records),
            _ => None,
        }
    }

    /// The URL of the separate records database, if there is one.
    pub fn records_url(&self) -> Option<String> {
        self.records.as_ref().map(RecordsDatabase::url)
    }

    /// The URL of the database that a statement concerns.
    fn url_for(&self, sql: &str) -> String {
        match &self.records {
            Some(records) if concerns_records(sql) => records.url(),
            _ => self.url(),
        }
    }

    /// Runs a query that returns one number, for facts that the API does not show.
    pub async fn number(&self, sql: &str) -> i64 {
        let mut conn = connect(&self.url_for(sql)).await;
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut conn).await.expect("the query gives a number")
    }

    /// Like [`number`](Self::number), for a text column with any number of rows.
    pub async fn texts(&self, sql: &str) -> Vec<String> {
        let mut conn = connect(&self.url_for(sql)).await;
        sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut conn).await.expect("the query gives text")
    }

    /// The targets of the audit log's entries with this action, oldest first.
    pub async fn audited(&self, action: &str) -> Vec<String> {
        let target = "target_kind || ' ' || target";
        self.texts(&format!("SELECT {target} FROM audit_log WHERE action = '{action}' ORDER BY pk")).await
    }

    /// Makes changes that a client cannot make, to create rare states.
    pub async fn execute(&self, sql: &str) {
        execute(&self.url_for(sql), sql.to_owned()).await.expect("the statement is executed");
    }

    /// The tables that contain this text in plaintext, also as bytes.
    pub async fn tables_with(&self, secret: &str) -> Vec<String> {
        let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        let tables =
            self.texts("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1").await;
        assert!(tables.contains(&"connections".to_owned()), "{tables:?}");
        let mut with = Vec::new();
        for table in tables {
            let rows = format!(
                "SELECT count(*) FROM {table} AS t WHERE t::text LIKE '%{secret}%' OR t::text LIKE '%{hex}%'"
            );
            if self.number(&rows).await > 0 {
                with.push(table);
            }
        }
        with
    }

    /// Every row of every table as text, with bytes in hexadecimal.
    pub async fn dump(&self) -> Vec<(String, String)> {
        let tables = "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
                      WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1";
        let mut dump = Vec::new();
        for table in self.texts(tables).await {
            let rows = self.texts(&format!("SELECT t::text FROM {table} AS t")).await.join("\n");
            dump.push((table, rows));
        }
        dump
    }

    /// Closes every connection and rejects new ones, as a restarting server does.
    pub async fn refuse_connections(&self) {
        let name = &self.name;
        let refuse = format!("ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false");
        execute(&self.server_url, refuse).await.expect("connections can be refused");
        let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
        execute(&self.server_url, end).await.expect("connections can be ended");
    }

    pub async fn accept_connections(&self) {
        let take = format!("ALTER DATABASE {} WITH ALLOW_CONNECTIONS true", self.name);
        execute(&self.server_url, take).await.expect("connections can be accepted");
    }

    /// Shifts the time that new database connections see by the given number of hours.
    pub async fn shift_clock(&self, hours: i32) {
        let sql = format!(
            "CREATE SCHEMA moved;
             CREATE FUNCTION moved.now() RETURNS timestamptz STABLE LANGUAGE sql
                 AS $$ SELECT pg_catalog.now() + interval '{hours} hours' $$;
             CREATE FUNCTION moved.clock_timestamp() RETURNS timestamptz VOLATILE LANGUAGE sql
                 AS $$ SELECT pg_catalog.clock_timestamp() + interval '{hours} hours' $$;
             DO $$ DECLARE statement text; BEGIN
                 FOR statement IN
                     SELECT format('ALTER TABLE %I ALTER COLUMN %I SET DEFAULT moved.now()', table_name, column_name)
                     FROM information_schema.columns WHERE table_schema = 'public' AND column_default = 'now()'
                 LOOP EXECUTE statement; END LOOP;
                 EXECUTE format('ALTER DATABASE %I SET search_path = public, moved, pg_catalog', current_database());
             END $$"
        );
        self.execute(&sql).await;
    }

    /// Activates the first version of every bundle, as if another host had done so and this host had not been notified.
    pub async fn switch_to_first_versions(&self) {
        self.execute(
            "UPDATE deployments SET state = 'superseded' WHERE state = 'active';
             UPDATE deployments SET state = 'active' WHERE version = 1 AND state = 'superseded'",
        )
        .await;
    }

    /// A connection for transactions and other sequences of statements.
    pub async fn connect(&self) -> PgConnection {
        connect(&self.url()).await
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        let url = self.server_url.clone();
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        // The test's own runtime may be shutting down.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.map(|runtime| runtime.block_on(execute(&url, statement)))
        });
        match dropping.join() {
            Ok(Ok(Ok(()))) => {}
            _ => eprintln!("the database {} was not dropped", self.name),
        }
    }
}

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.expect("the test's database answers")
}

/// Whether a statement names a table of the records database where SQL expects a table.
fn concerns_records(sql: &str) -> bool {
    let words: Vec<_> = sql.split(|at: char| !at.is_alphanumeric() && at != '_').collect();
    words.windows(2).any(|pair| {
        ["FROM", "JOIN", "INTO", "UPDATE", "TABLE"].contains(&pair[0]) && RECORD_TABLES.contains(&pair[1])
    })
}

fn server_url() -> String {
    std::env::var("SYNCLINE_TEST_DATABASE_URL")
        .expect("SYNCLINE_TEST_DATABASE_URL is not set; run the tests with `make test`, or some of them with `scripts/test-postgres cargo nextest run -E 'test(records)'`")
}

/// The URL of another database on the same server.
pub(super) fn sibling(server_url: &str, name: &str) -> String {
    let server = server_url.rsplit_once('/').map_or(server_url, |(server, _)| server);
    format!("{server}/{name}")
}

/// Returns the name of a database with every table. The first test on a server creates it, because copying it takes a
/// tenth of the time of the migrations.
async fn template(server_url: &str) -> sqlx::Result<String> {
    let name = format!("syncline_template_{}", checksum());
    let mut conn = PgConnection::connect(server_url).await?;
    let exists = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)";
    if sqlx::query_scalar(exists).bind(&name).fetch_one(&mut conn).await? {
        conn.close().await?;
        return Ok(name);
    }
    // It is renamed when it is complete, because an interrupted test may have left a partial one.
    sqlx::query("SELECT pg_advisory_lock($1)").bind(TEMPLATE_LOCK).execute(&mut conn).await?;
    if !sqlx::query_scalar::<_, bool>(exists).bind(&name).fetch_one(&mut conn).await? {
        let unfinished = format!("{name}_unfinished");
        execute(server_url, format!("DROP DATABASE IF EXISTS {unfinished}")).await?;
        execute(server_url, format!("CREATE DATABASE {unfinished}")).await?;
        let mut inside = PgConnection::connect(&sibling(server_url, &unfinished)).await?;
        MIGRATIONS.run(&mut inside).await.expect("the migrations run");
        inside.close().await?;
        execute(server_url, format!("ALTER DATABASE {unfinished} RENAME TO {name}")).await?;
    }
    // This releases the lock.
    conn.close().await?;
    Ok(name)
}

/// Identifies the migrations in the names of templates.
pub(super) fn checksum() -> String {
    let mut migrations = blake3::Hasher::new();
    for migration in MIGRATIONS.iter() {
        migrations.update(&migration.checksum);
    }
    migrations.finalize().to_hex()[..16].to_owned()
}

pub(super) async fn execute(url: &str, sql: String) -> sqlx::Result<()> {
    let options: PgConnectOptions = url.parse()?;
    let mut conn = options.connect().await?;
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut conn).await?;
    conn.close().await
}
