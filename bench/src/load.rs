//! Load generators: wrk for HTTP and pgbench for SQL. Both repeat a list of requests, and their results have the
//! same form.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use tokio::process::Command;

use crate::Bench;
use crate::report::Row;
use crate::stage::client_headers;

/// wrk and pgbench share the machine with the measured program, and more threads would take its cores.
const THREADS: u32 = 2;

/// The results of one load test.
pub struct Load {
    pub per_second: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
}

/// Requests that are sent in turn.
#[derive(Clone)]
pub struct Requests {
    pub url: String,
    /// The integration of the connection that the requests are for.
    pub integration: &'static str,
    pub method: &'static str,
    /// Paths with their queries.
    pub targets: Vec<String>,
    pub body: Option<String>,
    /// Headers in addition to those of every client.
    pub headers: Vec<(&'static str, String)>,
}

/// The output of `load.lua`.
#[derive(Deserialize)]
struct WrkResult {
    requests: u64,
    seconds: f64,
    p50_us: u64,
    p99_us: u64,
    bad_statuses: u64,
    broken: u64,
}

impl Requests {
    /// Sends the requests over this number of connections, as a client of the stage's connection.
    pub async fn load(&self, bench: &Bench, connections: u32) -> Result<Load> {
        let targets = bench.results.join("targets");
        tokio::fs::write(&targets, self.targets.join("\n") + "\n").await?;
        let mut wrk = Command::new("wrk");
        wrk.args(["--threads", &connections.min(THREADS).to_string()])
            .args(["--connections", &connections.to_string()])
            .args(["--duration", &format!("{}s", bench.scale.load.as_secs())])
            .args(["--header", "Content-Type: application/json"]);
        for (name, value) in client_headers(self.integration).into_iter().chain(self.headers.clone()) {
            wrk.args(["--header", &format!("{name}: {value}")]);
        }
        wrk.args([
            "--script",
            concat!(env!("CARGO_MANIFEST_DIR"), "/load.lua"),
            &self.url,
            "--",
            self.method,
        ])
        .arg(&targets)
        .args(&self.body);
        let output = run(wrk, bench.scale.load).await?;
        let line = output.lines().rfind(|line| line.starts_with('{')).context("wrk printed no result")?;
        let result: WrkResult = serde_json::from_str(line)?;
        ensure!(
            result.requests > 0 && result.bad_statuses == 0 && result.broken == 0,
            "{} at {} failed: of {} requests, {} returned an error status and {} broke off",
            self.method,
            self.url,
            result.requests,
            result.bad_statuses,
            result.broken
        );
        Ok(Load {
            per_second: result.requests as f64 / result.seconds,
            p50_ms: result.p50_us as f64 / 1e3,
            p99_ms: result.p99_us as f64 / 1e3,
        })
    }
}

/// A pgbench script with its variables.
pub struct Statements {
    pub database_url: String,
    /// Settings of the session, in the form of `PGOPTIONS`.
    pub options: &'static str,
    pub script: &'static str,
    pub variables: Vec<(&'static str, i64)>,
}

impl Statements {
    /// Runs the script over this number of connections.
    pub async fn load(&self, bench: &Bench, connections: u32) -> Result<Load> {
        let directory = tempfile::tempdir_in(&bench.results)?;
        let mut pgbench = Command::new("pgbench");
        pgbench
            .env("PGOPTIONS", self.options)
            .args(["--no-vacuum", "--protocol", "prepared"])
            .args(["--client", &connections.to_string(), "--jobs", &connections.min(THREADS).to_string()])
            .args(["--time", &bench.scale.load.as_secs().to_string()])
            .args(["--log", "--log-prefix"])
            .arg(directory.path().join("log"))
            .args(["--file", self.script]);
        for (name, value) in &self.variables {
            pgbench.args(["--define", &format!("{name}={value}")]);
        }
        pgbench.arg(&self.database_url);
        let output = run(pgbench, bench.scale.load).await?;
        let per_second =
            output.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok());
        let mut latencies_us = read_latencies(directory.path())?;
        latencies_us.sort_unstable();
        let percentile_ms = |percent: usize| -> Result<f64> {
            let at = latencies_us.len() * percent / 100;
            Ok(*latencies_us.get(at).context("pgbench logged no transaction")? as f64 / 1e3)
        };
        Ok(Load {
            per_second: per_second.context("pgbench printed no rate")?,
            p50_ms: percentile_ms(50)?,
            p99_ms: percentile_ms(99)?,
        })
    }
}

/// Returns the number of connections as text.
pub fn over(connections: u32) -> String {
    match connections {
        1 => "1 connection".to_owned(),
        several => format!("{several} connections"),
    }
}

/// Adds the three usual metrics of load tests.
pub fn describe(row: &mut Row, loads: &[Load]) {
    let column = |value: fn(&Load) -> f64| loads.iter().map(value).collect();
    row.metric("requests/s", column(|load| load.per_second))
        .metric("p50 ms", column(|load| load.p50_ms))
        .metric("p99 ms", column(|load| load.p99_ms));
}

/// Parses the third field of each line, which is the duration of the transaction.
fn read_latencies(directory: &Path) -> Result<Vec<u64>> {
    let mut latencies_us = Vec::new();
    for log in std::fs::read_dir(directory)? {
        let text = std::fs::read_to_string(log?.path())?;
        let thirds = text.lines().filter_map(|line| line.split(' ').nth(2)?.parse::<u64>().ok());
        latencies_us.extend(thirds);
    }
    Ok(latencies_us)
}

/// Runs a load generator until it exits, which it does shortly after `load`.
async fn run(mut generator: Command, load: Duration) -> Result<String> {
    let name = generator.as_std().get_program().to_string_lossy().into_owned();
    generator.stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(load + Duration::from_secs(30), generator.output())
        .await
        .with_context(|| format!("{name} did not exit in time"))?
        .with_context(|| format!("could not start {name}"))?;
    if !output.status.success() {
        bail!("{name} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?)
}
