//! How fast an action answers, beside a route of the same host that does nothing and a server that only echoes.

use anyhow::Result;
use serde_json::json;

use crate::Bench;
use crate::bare::BareServer;
use crate::load::{Load, Requests, describe, over};
use crate::report::{Report, Target};
use crate::stage::Stage;

pub async fn measure(bench: &Bench) -> Result<Report> {
    let stage = Stage::set(bench, "action").await?;
    let server = BareServer::start(0).await?;
    let body = json!({ "action_name": "echo", "input": { "message": "hello", "number": 1 } }).to_string();
    let request = |url: &str, method, target: &str, body| Requests {
        url: url.to_owned(),
        method,
        targets: vec![target.to_owned()],
        body,
        headers: Vec::new(),
    };
    let action = request(&stage.host.url, "POST", "/action/trigger", Some(body.clone()));
    let health = request(&stage.host.url, "GET", "/health", None);
    let echo = request(&server.url, "POST", "/echo", Some(body.clone()));

    let mut report =
        Report::new("action", format!("the action `echo` of the minimal example, {} bytes", body.len()));
    for connections in [1, 16] {
        let over = over(connections);
        let (mut actions, mut healths, mut echoes) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..bench.scale.rounds {
            actions.push(action.load(bench, connections).await?);
            healths.push(health.load(bench, connections).await?);
            echoes.push(echo.load(bench, connections).await?);
        }
        describe(report.row(format!("POST /action/trigger, {over}")), &actions);
        describe(report.row(format!("GET /health, {over}")), &healths);
        describe(report.row(format!("an echo without a host, {over}")), &echoes);
        let p50 = |loads: &[Load]| -> Vec<f64> { loads.iter().map(|load| load.p50_ms).collect() };
        let actions = p50(&actions);
        let target = Target::AtMost(3.0);
        report.ratio(format!("p50, of GET /health, {over}"), &actions, &p50(&healths), target);
        report.ratio(format!("p50, of the echo, {over}"), &actions, &p50(&echoes), Target::None);
    }
    stage.strike(bench).await?;
    Ok(report)
}
