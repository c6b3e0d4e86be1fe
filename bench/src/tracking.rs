//! Measures the cost of tracking deletions in a full sync without changes.

use anyhow::{Result, ensure};

use crate::Bench;
use crate::report::{Report, Target};
use crate::stage::{Counts, INTEGRATION, Stage, TRACKING_INTEGRATION};

pub async fn measure(bench: &Bench) -> Result<Report> {
    let records = bench.scale.records / 2;
    let mut with = Vec::new();
    let mut without = Vec::new();
    for _ in 0..bench.scale.rounds {
        with.push(unchanged_run(bench, TRACKING_INTEGRATION, records).await?);
        without.push(unchanged_run(bench, INTEGRATION, records).await?);
    }
    let mut report = Report::new("tracking", format!("a full sync over {records} unchanged records"));
    report.row("with deletion tracking").metric("seconds", with.clone());
    report.row("without").metric("seconds", without.clone());
    report.ratio("seconds with, of without", &with, &without, Target::AtMost(1.5));
    Ok(report)
}

/// Returns the seconds of the sync.
async fn unchanged_run(bench: &Bench, integration: &'static str, records: u64) -> Result<f64> {
    let mut stage = Stage::set_for(bench, "tracking", integration).await?;
    stage.sync(records, "a").await?;
    let run = stage.sync(records, "a").await?;
    ensure!(
        run.counts == Counts::default(),
        "the run reported changes although nothing has changed: {:?}",
        run.counts
    );
    stage.strike(bench).await?;
    Ok(run.seconds)
}
