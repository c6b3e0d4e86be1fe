//! Records databases on a Citus cluster, for `make test-citus`.

use std::process::Command;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::database::{TEMPLATE_LOCK, checksum, execute, sibling};
use super::{ENCRYPTION_KEY, TestDatabase};

/// A records database on a cluster: one database of the same name on each node. All are dropped with this value.
pub struct ClusterDatabase {
    /// The URLs of a database on each node, the coordinator first.
    nodes: Vec<String>,
    name: String,
}

impl ClusterDatabase {
    /// Creates a database with distributed tables, as copies of a template on each node. This takes a fraction of the
    /// time of creating and distributing the tables.
    pub async fn create() -> Self {
        let nodes = nodes().await;
        let template = template(&nodes).await;
        let db = Self::create_from(nodes, &template).await;
        for node in &db.nodes {
            // Postgres stores settings of roles in a database outside of it, so a copy has none.
            let copy_settings = format!(
                "INSERT INTO pg_db_role_setting
                 SELECT target.oid, setrole, setconfig
                 FROM pg_db_role_setting JOIN pg_database source ON source.oid = setdatabase, pg_database target
                 WHERE source.datname = '{template}' AND target.datname = '{}'",
                db.name
            );
            execute(node, copy_settings).await.expect("a superuser can copy settings");
        }
        db
    }

    /// Creates a database without tables, with the extension and all nodes.
    pub async fn create_empty() -> Self {
        let db = Self::create_from(nodes().await, "template1").await;
        db.add_nodes().await;
        db
    }

    async fn create_from(nodes: Vec<String>, template: &str) -> Self {
        let db = Self { nodes, name: format!("syncline_it_{}", uuid::Uuid::new_v4().simple()) };
        for node in &db.nodes {
            let create = format!("CREATE DATABASE {} TEMPLATE {template}", db.name);
            execute(node, create).await.expect("a database can be created on each node");
        }
        db
    }

    async fn add_nodes(&self) {
        for node in &self.nodes {
            execute(&sibling(node, &self.name), "CREATE EXTENSION citus".to_owned())
                .await
                .expect("it is installed");
        }
        let cluster = "SELECT format('SELECT citus_set_coordinator_host(%L, %s)', nodename, nodeport)
                       FROM pg_dist_node WHERE groupid = 0
                       UNION ALL
                       SELECT format('SELECT citus_add_node(%L, %s)', nodename, nodeport)
                       FROM pg_dist_node WHERE groupid <> 0";
        for statement in texts(&self.nodes[0], cluster).await {
            execute(&self.url(), statement).await.expect("a node can be added");
        }
    }

    /// The URL of the database on the coordinator.
    pub fn url(&self) -> String {
        sibling(&self.nodes[0], &self.name)
    }

    /// Runs a query on the coordinator that returns any number of texts.
    pub async fn texts(&self, sql: &str) -> Vec<String> {
        texts(&self.url(), sql).await
    }

    /// The URL of the database on each worker.
    pub fn worker_urls(&self) -> Vec<String> {
        self.nodes[1..].iter().map(|node| sibling(node, &self.name)).collect()
    }
}

impl Drop for ClusterDatabase {
    fn drop(&mut self) {
        let nodes = self.nodes.clone();
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        // The test's own runtime may be shutting down.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                for node in &nodes {
                    execute(node, statement.clone()).await?;
                }
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            })
        });
        if !matches!(dropping.join(), Ok(Ok(()))) {
            eprintln!("the database {} was not dropped on each node", self.name);
        }
    }
}

/// The URL of a database on the coordinator, if the tests are to keep records on a cluster.
pub fn cluster_url() -> Option<String> {
    std::env::var("SYNCLINE_TEST_CITUS_URL").ok().filter(|url| !url.is_empty())
}

/// Returns the URLs of all nodes, the coordinator first.
async fn nodes() -> Vec<String> {
    let coordinator =
        cluster_url().expect("SYNCLINE_TEST_CITUS_URL is set; run these tests with `make test-citus`");
    let workers = "SELECT nodename || ':' || nodeport FROM pg_dist_node WHERE groupid <> 0 ORDER BY nodeid";
    let (server, database) = coordinator.rsplit_once('/').expect("the URL names a database");
    let (scheme, place) = server.split_once("://").expect("the URL has a scheme");
    let user = place.rsplit_once('@').map_or("", |(user, _)| user);
    let urls = texts(&coordinator, workers).await.into_iter();
    let mut nodes: Vec<_> = urls.map(|address| format!("{scheme}://{user}@{address}/{database}")).collect();
    assert!(!nodes.is_empty(), "the cluster has workers in the database `{database}`");
    nodes.insert(0, coordinator);
    nodes
}

/// Returns the name of a database with distributed tables on all nodes. The first test on a cluster creates it.
async fn template(nodes: &[String]) -> String {
    let name = format!("syncline_cluster_{}", checksum());
    let mut conn = PgConnection::connect(&nodes[0]).await.expect("the coordinator answers");
    sqlx::query("SELECT pg_advisory_lock($1)").bind(TEMPLATE_LOCK).execute(&mut conn).await.expect("a lock");
    let exists = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)";
    let exists = sqlx::query_scalar::<_, bool>(exists).bind(&name).fetch_one(&mut conn).await;
    if !exists.expect("the query is executed") {
        let first = ClusterDatabase::create_empty().await;
        distribute(&TestDatabase::create_control().await, &first.url());
        // Each copy is bound to its own control database.
        execute(&first.url(), "TRUNCATE database_role".to_owned()).await.expect("the table exists");
        // The coordinator last, because the template is complete when it has the final name there.
        for node in nodes.iter().rev() {
            // Also closes the connections of the extension, which otherwise keep the database from being copied.
            for statement in [
                format!("ALTER DATABASE {} ALLOW_CONNECTIONS false", first.name),
                format!(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{}'",
                    first.name
                ),
                format!("DROP DATABASE IF EXISTS {name}"),
                format!("ALTER DATABASE {} RENAME TO {name}", first.name),
            ] {
                execute(node, statement).await.expect("the template can be completed");
            }
        }
    }
    // This releases the lock.
    conn.close().await.expect("the connection can be closed");
    name
}

/// Distributes a records database with the command for operators.
fn distribute(control: &TestDatabase, records_url: &str) {
    let done = Command::new(env!("CARGO_BIN_EXE_syncline"))
        .args(["records", "distribute", "--yes", "--shards", "4"])
        .env("DATABASE_URL", control.url())
        .env("SYNCLINE_RECORDS_DATABASE_URL", records_url)
        .env("SYNCLINE_ENCRYPTION_KEY", ENCRYPTION_KEY)
        .output()
        .expect("the built program can be started");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

async fn texts(url: &str, sql: &str) -> Vec<String> {
    let mut conn = PgConnection::connect(url).await.expect("the node answers");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&mut conn).await.expect("the query gives text")
}
