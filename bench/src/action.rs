//! Measures the latency of an action in Rust and in TypeScript. The baselines are a route of the same host that
//! does nothing, and a server that only echoes.

use anyhow::Result;
use serde_json::json;

use crate::Bench;
use crate::bare::BareServer;
use crate::load::{Load, Requests, describe, over};
use crate::report::{Report, Target};
use crate::stage::{INTEGRATION, Stage, TYPESCRIPT_INTEGRATION};

pub async fn measure(bench: &Bench) -> Result<Report> {
    let stage = Stage::set(bench, "action").await?;
    stage.connect(TYPESCRIPT_INTEGRATION).await?;
    let server = BareServer::start(0).await?;
    let body = json!({ "action_name": "echo", "input": { "message": "hello", "number": 1 } }).to_string();
    let request = |url: &str, integration, method, target: &str, body| Requests {
        url: url.to_owned(),
        integration,
        method,
        targets: vec![target.to_owned()],
        body,
        headers: Vec::new(),
    };
    let action =
        |integration| request(&stage.host.url, integration, "POST", "/action/trigger", Some(body.clone()));
    let (rust, typescript) = (action(INTEGRATION), action(TYPESCRIPT_INTEGRATION));
    let health = request(&stage.host.url, INTEGRATION, "GET", "/health", None);
    let echo = request(&server.url, INTEGRATION, "POST", "/echo", Some(body.clone()));

    let mut report =
        Report::new("action", format!("the action `echo` of the minimal example, {} bytes", body.len()));
    for connections in [1, 16] {
        let over = over(connections);
        let (mut rusts, mut typescripts) = (Vec::new(), Vec::new());
        let (mut healths, mut echoes) = (Vec::new(), Vec::new());
        for _ in 0..bench.scale.rounds {
            rusts.push(rust.load(bench, connections).await?);
            typescripts.push(typescript.load(bench, connections).await?);
            healths.push(health.load(bench, connections).await?);
            echoes.push(echo.load(bench, connections).await?);
        }
        describe(report.row(format!("the action in Rust, {over}")), &rusts);
        describe(report.row(format!("the action in TypeScript, {over}")), &typescripts);
        describe(report.row(format!("GET /health, {over}")), &healths);
        describe(report.row(format!("an echo without a host, {over}")), &echoes);
        let [rusts, typescripts, healths, echoes] =
            [rusts, typescripts, healths, echoes].map(|loads| p50(&loads));
        report.ratio(format!("p50 in Rust, of GET /health, {over}"), &rusts, &healths, Target::AtMost(2.0));
        let target = Target::AtMost(6.0);
        report.ratio(format!("p50 in TypeScript, of GET /health, {over}"), &typescripts, &healths, target);
        report.ratio(format!("p50 in Rust, of the echo, {over}"), &rusts, &echoes, Target::None);
    }
    stage.strike(bench).await?;
    Ok(report)
}

fn p50(loads: &[Load]) -> Vec<f64> {
    loads.iter().map(|load| load.p50_ms).collect()
}
