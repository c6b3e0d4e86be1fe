//! Measures the memory of an idle host, and the time until it is ready.

use std::time::Duration;

use anyhow::Result;

use crate::Bench;
use crate::host::Host;
use crate::report::{Report, Target};
use crate::stage::Stage;

const STARTS: usize = 5;
const EMPTY_STARTS: usize = 3;
/// The time after which a host has completed its startup work.
const IDLE: Duration = Duration::from_secs(5);

pub async fn measure(bench: &Bench) -> Result<Report> {
    let mut empty = Vec::new();
    for _ in 0..EMPTY_STARTS {
        let database = bench.server.create_database("bench_empty").await?;
        let mut host = Host::start(bench, &database).await?;
        empty.push(host.ready_after.as_secs_f64());
        host.stop().await?;
    }
    bench.server.drop_database("bench_empty").await?;

    let mut stage = Stage::set(bench, "footprint").await?;
    let mut migrated = Vec::new();
    for _ in 0..STARTS {
        stage.restart_host(bench).await?;
        migrated.push(stage.host.ready_after.as_secs_f64());
    }
    tokio::time::sleep(IDLE).await;
    let idle = [stage.host.resident_mb()?];
    stage.strike(bench).await?;

    let about = "one host without its Postgres; `bench/functions` is deployed, except in the empty database";
    let mut report = Report::new("footprint", about.to_owned());
    report.check("seconds until ready, existing tables", &migrated, Target::AtMost(0.5));
    report.check("seconds until ready, empty database", &empty, Target::AtMost(3.0));
    report.check("resident MB when idle", &idle, Target::AtMost(40.0));
    report.row("start, existing tables").metric("seconds until ready", migrated);
    report.row("start, empty database").metric("seconds until ready", empty);
    report.row(format!("idle for {} s", IDLE.as_secs())).metric("resident MB", idle.to_vec());
    Ok(report)
}
