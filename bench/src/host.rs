//! A host in a separate process.

use std::fs::File;
use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hyper::Method;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::Bench;
use crate::database::Database;
use crate::http;
use crate::machine::field;

/// The secret key of the default environment. The host listens only on this machine, and only during the benchmark.
pub const SECRET_KEY: &str = "only-for-benchmarks-on-loopback";

const LONGEST_START: Duration = Duration::from_secs(30);
const LONGEST_STOP: Duration = Duration::from_secs(10);

pub struct Host {
    pub url: String,
    /// Time from the start of the process until `/ready` succeeded.
    pub ready_after: Duration,
    process: Child,
}

impl Host {
    /// Starts a host and waits until it is ready.
    pub async fn start(bench: &Bench, database: &Database) -> Result<Self> {
        Self::start_with(bench, database, &[]).await
    }

    /// Like [`start`](Self::start), with additional settings.
    pub async fn start_with(
        bench: &Bench,
        database: &Database,
        variables: &[(&str, String)],
    ) -> Result<Self> {
        let listen = free_address()?;
        let log_path = bench.results.join("host.log");
        let log = File::options().create(true).append(true).open(&log_path)?;
        let started = Instant::now();
        let process = Command::new(&bench.syncline)
            .arg("serve")
            .env_clear() // Without the settings of the user.
            .env("DATABASE_URL", &database.url)
            .env("SYNCLINE_SECRET_KEY", SECRET_KEY)
            .env("SYNCLINE_LISTEN", &listen)
            .env("SYNCLINE_DATA_DIR", bench.results.join("data"))
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("could not start the host's binary")?;
        let mut host = Self { url: format!("http://{listen}"), ready_after: Duration::ZERO, process };
        while host.get("/ready").await.is_err() {
            if let Some(status) = host.process.try_wait()? {
                bail!("the host exited with {status}; see {}", log_path.display());
            }
            if started.elapsed() > LONGEST_START {
                bail!("the host was not ready within {LONGEST_START:?}; see {}", log_path.display());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        host.ready_after = started.elapsed();
        Ok(host)
    }

    pub async fn get(&self, path: &str) -> Result<bytes::Bytes> {
        http::send(Method::GET, &format!("{}{path}", self.url), &[], "").await
    }

    /// Calls the API with the environment's secret key.
    pub async fn post(&self, path: &str, body: &serde_json::Value) -> Result<bytes::Bytes> {
        let authorization = format!("Bearer {SECRET_KEY}");
        let headers = [("authorization", authorization.as_str()), ("content-type", "application/json")];
        http::send(Method::POST, &format!("{}{path}", self.url), &headers, body.to_string()).await
    }

    /// Returns the resident memory of the process in MB, including shared pages.
    pub fn resident_mb(&self) -> Result<f64> {
        let id = self.process.id().context("the host has exited")?;
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let resident = field(&status, "VmRSS").and_then(|text| text.strip_suffix(" kB"));
        let kilobytes: f64 =
            resident.context("/proc does not contain the memory use of the host")?.parse()?;
        Ok(kilobytes / 1024.0)
    }

    /// Kills the host.
    pub async fn kill(&mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }

    /// Asks the host to stop and waits until it has exited.
    pub async fn stop(&mut self) -> Result<()> {
        let id = self.process.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        kill_process(id.context("the host has exited unexpectedly")?, Signal::TERM)?;
        let stopped = tokio::time::timeout(LONGEST_STOP, self.process.wait()).await;
        stopped.with_context(|| format!("the host did not stop within {LONGEST_STOP:?}"))??;
        Ok(())
    }
}

/// Returns an address that was free a moment ago.
pub fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
