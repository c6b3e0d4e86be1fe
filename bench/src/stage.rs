//! A host with the functions of `bench/functions` on a separate database, and one connection for each integration
//! that a benchmark uses.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::{PgConnection, Row};
use tokio::process::Command;

use crate::Bench;
use crate::database::Database;
use crate::host::{Host, SECRET_KEY};
use crate::http;

pub const BATCH_RECORDS: u64 = 1_000;
pub const RECORD_BYTES: u64 = 400;

pub const INTEGRATION: &str = "minimal";
/// Like [`INTEGRATION`], with a full sync that tracks deletions.
pub const TRACKING_INTEGRATION: &str = "tracking";
/// Contains only the action, in TypeScript.
pub const TYPESCRIPT_INTEGRATION: &str = "typescript";
/// Contains only the action, in Python. It is in a separate bundle, which only `action` deploys.
pub const PYTHON_INTEGRATION: &str = "python";
const SYNC: &str = "numbers";
pub const CONNECTION: &str = "bench";
const LONGEST_RUN: Duration = Duration::from_secs(120);

pub struct Stage {
    pub host: Host,
    pub database: Database,
    /// Row number of the connection in the record tables.
    pub connection_pk: i64,
    integration: &'static str,
    database_name: String,
    observer: PgConnection,
}

/// A successful run of a sync.
pub struct Run {
    /// From the times in the table of runs.
    pub seconds: f64,
    /// From before the trigger until the end of the run was seen.
    pub seconds_from_trigger: f64,
    pub counts: Counts,
}

/// The record counts of a run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct Counts {
    pub added: u64,
    pub updated: u64,
    pub deleted: u64,
}

struct EndedRun {
    id: String,
    seconds: f64,
    counts: Counts,
}

impl Stage {
    /// Starts a host with an empty database. `name` distinguishes the database from those of other stages.
    pub async fn set(bench: &Bench, name: &str) -> Result<Self> {
        Self::set_for(bench, name, INTEGRATION).await
    }

    /// Like [`set`](Self::set), with the connection to another integration.
    pub async fn set_for(bench: &Bench, name: &str, integration: &'static str) -> Result<Self> {
        let database_name = format!("bench_{name}");
        let database = bench.server.create_database(&database_name).await?;
        let host = Host::start(bench, &database).await?;
        deploy(&bench.syncline, &bench.bundle, &host).await?;
        let connection_pk = import_connection(&host, integration, 0, "").await?;
        let observer = database.connect().await?;
        let mut stage = Self { host, database, connection_pk, integration, database_name, observer };
        // A new connection is synced at once. Its metadata asks for no records.
        stage.wait_for_run_after(None).await?;
        Ok(stage)
    }

    /// Triggers a run that saves the records 0 to `count`. Another salt changes all of them.
    pub async fn sync(&mut self, count: u64, salt: &str) -> Result<Run> {
        import_connection(&self.host, self.integration, count, salt).await?;
        let last = self.last_ended_run().await?.map(|run| run.id);
        self.database.settle().await?;
        let triggered = Instant::now();
        let requested =
            json!({ "provider_config_key": self.integration, "connection_id": CONNECTION, "syncs": [SYNC] });
        self.host.post("/sync/trigger", &requested).await?;
        let run = self.wait_for_run_after(last).await?;
        let seconds_from_trigger = triggered.elapsed().as_secs_f64();
        Ok(Run { seconds: run.seconds, seconds_from_trigger, counts: run.counts })
    }

    /// Creates a connection to another integration, which only has actions.
    pub async fn connect(&self, integration: &str) -> Result<()> {
        import_connection(&self.host, integration, 0, "").await?;
        Ok(())
    }

    /// Sends a request like a client of the connection.
    pub async fn get(&self, path: &str) -> Result<bytes::Bytes> {
        let headers = client_headers(self.integration);
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        http::send(Method::GET, &format!("{}{path}", self.host.url), &headers, "").await
    }

    /// Restarts the host on the same database.
    pub async fn restart_host(&mut self, bench: &Bench) -> Result<()> {
        self.host.stop().await?;
        self.host = Host::start(bench, &self.database).await?;
        Ok(())
    }

    /// Stops the host and drops the database.
    pub async fn strike(mut self, bench: &Bench) -> Result<()> {
        self.host.stop().await?;
        drop(self.observer);
        bench.server.drop_database(&self.database_name).await
    }

    async fn wait_for_run_after(&mut self, last: Option<String>) -> Result<EndedRun> {
        let begun = Instant::now();
        while begun.elapsed() < LONGEST_RUN {
            match self.last_ended_run().await? {
                Some(run) if Some(&run.id) != last.as_ref() => return Ok(run),
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        bail!("no run of the sync finished within {LONGEST_RUN:?}")
    }

    async fn last_ended_run(&mut self) -> Result<Option<EndedRun>> {
        let run = sqlx::query(
            "SELECT id::text, extract(epoch FROM finished_at - started_at)::float8, counts::text,
                    CASE WHEN state <> 'success' THEN concat_ws(': ', state, error_code, error_message) END
             FROM runs WHERE connection_pk = $1 AND kind = 'sync' AND finished_at IS NOT NULL
             ORDER BY started_at DESC LIMIT 1",
        )
        .bind(self.connection_pk)
        .fetch_optional(&mut self.observer)
        .await?;
        let Some(run) = run else { return Ok(None) };
        if let Some(problem) = run.get::<Option<String>, _>(3) {
            bail!("the run of the sync failed: {problem}");
        }
        let counts = match run.get::<Option<String>, _>(2) {
            None => Counts::default(),
            Some(text) => {
                let by_model: Value = serde_json::from_str(&text)?;
                by_model.get("Number").map(Counts::deserialize).transpose()?.unwrap_or_default()
            }
        };
        Ok(Some(EndedRun { id: run.get(0), seconds: run.get(1), counts }))
    }
}

/// The headers that a client of the connection sends.
pub fn client_headers(integration: &str) -> [(&'static str, String); 3] {
    [
        ("Authorization", format!("Bearer {SECRET_KEY}")),
        ("Connection-Id", CONNECTION.to_owned()),
        ("Provider-Config-Key", integration.to_owned()),
    ]
}

/// Deploys a bundle with the command-line client.
pub async fn deploy(syncline: &Path, bundle: &Path, host: &Host) -> Result<()> {
    let deploy = Command::new(syncline)
        .args(["deploy", "--yes", "--bundle"])
        .arg(bundle)
        .env("SYNCLINE_URL", &host.url)
        .env("SYNCLINE_SECRET_KEY", SECRET_KEY)
        .output()
        .await?;
    ensure!(deploy.status.success(), "deploying failed: {}", String::from_utf8_lossy(&deploy.stderr));
    Ok(())
}

/// Creates the connection or replaces the metadata of an existing one. Returns its row number.
async fn import_connection(host: &Host, integration: &str, count: u64, salt: &str) -> Result<i64> {
    let connection = json!({
        "provider_config_key": integration,
        "connection_id": CONNECTION,
        "credentials": { "type": "NONE" },
        "metadata": { "count": count, "batch": BATCH_RECORDS, "size_bytes": RECORD_BYTES, "salt": salt },
    });
    let imported: Value = serde_json::from_slice(&host.post("/connections", &connection).await?)?;
    imported["id"].as_i64().context("the imported connection has no id")
}
