//! Measures the memory of runs that wait for a slow provider.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::Bench;
use crate::host::Host;
use crate::report::{Report, Target};
use crate::stage::deploy;

const NAME: &str = "bench_density";
const LONGEST_WAIT: Duration = Duration::from_secs(120);

pub async fn measure(bench: &Bench) -> Result<Report> {
    let count = if bench.is_quick { 100 } else { 1_000 };
    let provider = SlowProvider::start().await?;
    let folder = tempfile::tempdir_in(&bench.results)?;
    let database = bench.server.create_database(NAME).await?;
    let variables = [
        ("SYNCLINE_PROVIDERS_DIR", folder.path().display().to_string()),
        ("SYNCLINE_EGRESS_ALLOW", provider.address.clone()),
        ("SYNCLINE_MAX_SYNCS", count.to_string()),
    ];
    std::fs::write(folder.path().join("unauthenticated.toml"), provider.file())?;
    let mut host = Host::start_with(bench, &database, &variables).await?;
    deploy(&bench.syncline, &bench.hostile, &host).await?;
    let idle = host.resident_mb()?;
    // The sync `commit-raw` fetches the URL in its connection's metadata.
    let began = Instant::now();
    for number in 0..count {
        let connection = json!({
            "provider_config_key": "hostile", "connection_id": format!("c{number}"), "credentials": { "type": "NONE" },
            "metadata": { "fetches": ["/slow"], "steps": 0 },
        });
        host.post("/connections", &connection).await?;
    }
    while provider.waiting.load(Ordering::Relaxed) < count {
        ensure!(
            began.elapsed() < LONGEST_WAIT,
            "only {} of {count} runs are waiting",
            provider.waiting.load(Ordering::Relaxed)
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let seconds = began.elapsed().as_secs_f64();
    let resident = host.resident_mb()?;
    drop(provider);
    host.stop().await?;
    bench.server.drop_database(NAME).await?;

    let mut report =
        Report::new("density", format!("{count} concurrent runs of a Rust guest that wait for the provider"));
    report.row("no run").metric("resident MB", vec![idle]);
    report
        .row(format!("{count} runs"))
        .metric("resident MB", vec![resident])
        .metric("seconds to connect and start", vec![seconds]);
    report.check(format!("resident MB with {count} runs waiting"), &[resident], Target::AtMost(250.0));
    report.check("KB per run", &[(resident - idle) * 1024.0 / count as f64], Target::None);
    Ok(report)
}

/// Accepts requests and does not respond.
struct SlowProvider {
    address: String,
    waiting: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl SlowProvider {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let waiting = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&waiting);
        let task = tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = [0; 4096];
                if stream.read(&mut head).await.is_ok_and(|read| read > 0) {
                    count.fetch_add(1, Ordering::Relaxed);
                    held.push(stream);
                }
            }
        });
        Ok(Self { address, waiting, task })
    }

    /// Returns the provider file for this address.
    fn file(&self) -> String {
        format!(
            r#"
            name = "unauthenticated"
            display_name = "The benchmark's own"
            auth_mode = "NONE"
            docs = "https://example.com"
            [source]
            address = "https://example.com"
            checked_at = "2026-01-01"
            [proxy]
            base_url = "http://{}"
            "#,
            self.address
        )
    }
}

impl Drop for SlowProvider {
    fn drop(&mut self) {
        self.task.abort();
    }
}
