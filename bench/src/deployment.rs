//! Measures how much slower an action is while its host compiles large bundles.

use std::cell::Cell;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use crate::Bench;
use crate::load::{Load, Requests, describe};
use crate::report::{Report, Target};
use crate::stage::{INTEGRATION, Stage, deploy};

/// The action in TypeScript. It contains a JavaScript engine, so it is the largest guest of the benchmarks.
const LARGE_COMPONENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/functions/typescript/build/echo.wasm");
/// A bundle with only that component.
const CONFIG: &str = r#"
name = "large"

[integrations.large]
provider = "unauthenticated"
component = "large.wasm"

[integrations.large.actions.echo]
input = "json"
output = "json"
"#;

pub async fn measure(bench: &Bench) -> Result<Report> {
    let stage = Stage::set(bench, "deployment").await?;
    let body = json!({ "action_name": "echo", "input": { "message": "hello", "number": 1 } }).to_string();
    let action = Requests {
        url: stage.host.url.clone(),
        integration: INTEGRATION,
        method: "POST",
        targets: vec!["/action/trigger".to_owned()],
        headers: Vec::new(),
        body: Some(body),
    };
    let (mut quiet, mut during) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        quiet.push(action.load(bench, 1).await?);
        let is_loaded = Cell::new(false);
        let load = async {
            let loaded = action.load(bench, 1).await;
            is_loaded.set(true);
            loaded
        };
        let deployments = async {
            // Waits for the last deployment, so that the next round starts on an idle host.
            while !is_loaded.get() {
                let project = build(bench).await?;
                deploy(&bench.syncline, &project.path().join("build/bundle.tar"), &stage.host).await?;
            }
            anyhow::Ok(())
        };
        let (loaded, deployed) = tokio::join!(load, deployments);
        deployed?;
        during.push(loaded?);
    }
    let wasm_mb = std::fs::metadata(LARGE_COMPONENT)?.len() as f64 / 1e6;
    let about = format!(
        "the action `echo` over 1 connection, alone and while bundles of {wasm_mb:.1} MB are deployed one after the other"
    );
    let mut report = Report::new("deployment", about);
    describe(report.row("alone"), &quiet);
    describe(report.row("during deployments"), &during);
    let column = |loads: &[Load], value: fn(&Load) -> f64| -> Vec<f64> { loads.iter().map(value).collect() };
    for (percentile, value, target) in [
        ("p50", (|load| load.p50_ms) as fn(&Load) -> f64, Target::None),
        ("p99", |load| load.p99_ms, Target::AtMost(1.5)),
    ] {
        let what = format!("{percentile} during deployments, of {percentile} alone");
        report.ratio(what, &column(&during, value), &column(&quiet, value), target);
    }
    stage.strike(bench).await?;
    Ok(report)
}

/// Builds a bundle that no host has compiled yet: a unique custom section changes the digest of the component.
async fn build(bench: &Bench) -> Result<TempDir> {
    let project = tempfile::tempdir_in(&bench.results)?;
    std::fs::write(project.path().join("syncline.toml"), CONFIG)?;
    let mut wasm = std::fs::read(LARGE_COMPONENT)?;
    let unique = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos().to_le_bytes();
    // A custom section: id, length, length of the name, name, content.
    wasm.extend([0, 18, 1, b'n']);
    wasm.extend(unique);
    std::fs::write(project.path().join("large.wasm"), wasm)?;
    let built = Command::new(&bench.syncline).arg("build").arg(project.path()).output().await?;
    ensure!(built.status.success(), "building failed: {}", String::from_utf8_lossy(&built.stderr));
    Ok(project)
}
