//! Measures the latency of an action in Rust, TypeScript and Python. The baselines are a route of the same host that
//! does nothing, and a server that only echoes.

use anyhow::Result;
use serde_json::json;

use crate::Bench;
use crate::bare::BareServer;
use crate::load::{Load, Requests, describe, over};
use crate::report::{Report, Target};
use crate::stage::{INTEGRATION, PYTHON_INTEGRATION, Stage, TYPESCRIPT_INTEGRATION, deploy};

/// The numbers of connections over which each action is called.
const CONNECTIONS: [u32; 2] = [1, 16];

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
    let [rust, typescript, python] = [INTEGRATION, TYPESCRIPT_INTEGRATION, PYTHON_INTEGRATION].map(action);
    let health = request(&stage.host.url, INTEGRATION, "GET", "/health", None);
    let echo = request(&server.url, INTEGRATION, "POST", "/echo", Some(body.clone()));

    let mut report =
        Report::new("action", format!("the action `echo` of the minimal example, {} bytes", body.len()));
    for connections in CONNECTIONS {
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
        let (in_rust, in_typescript) = if connections == 1 { (1.2, 2.5) } else { (2.5, 6.0) };
        for (language, times, target) in [
            ("Rust", &rusts, Target::AtMost(in_rust)),
            ("TypeScript", &typescripts, Target::AtMost(in_typescript)),
        ] {
            report.ratio(format!("p50 in {language}, of GET /health, {over}"), times, &healths, target);
        }
        report.ratio(format!("p50 in Rust, of the echo, {over}"), &rusts, &echoes, Target::None);
    }
    // Deployed last, so that the interpreter's large component does not affect the other languages.
    deploy(&bench.syncline, &bench.python, &stage.host).await?;
    stage.connect(PYTHON_INTEGRATION).await?;
    for connections in CONNECTIONS {
        let over = over(connections);
        let (mut pythons, mut healths) = (Vec::new(), Vec::new());
        for _ in 0..bench.scale.rounds {
            pythons.push(python.load(bench, connections).await?);
            healths.push(health.load(bench, connections).await?);
        }
        describe(report.row(format!("the action in Python, {over}")), &pythons);
        describe(report.row(format!("GET /health next to Python, {over}")), &healths);
        let what = format!("p50 in Python, of GET /health, {over}");
        report.ratio(what, &p50(&pythons), &p50(&healths), Target::None);
    }
    stage.strike(bench).await?;
    Ok(report)
}

fn p50(loads: &[Load]) -> Vec<f64> {
    loads.iter().map(|load| load.p50_ms).collect()
}
