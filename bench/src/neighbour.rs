//! Measures how much slower a well-behaved function is while others misbehave on the same host.

use std::time::Duration;

use anyhow::Result;
use hyper::Method;
use serde_json::{Value, json};

use crate::Bench;
use crate::host::SECRET_KEY;
use crate::http;
use crate::load::{Requests, describe};
use crate::report::{Report, Target};
use crate::stage::{INTEGRATION, Stage, deploy};

/// Functions that repeat one misbehaviour: use the CPU, allocate memory, log, recurse.
const HOSTILE: [&str; 4] = ["spin", "allocate", "log-flood", "recurse"];
const CONNECTION: &str = "hostile";

pub async fn measure(bench: &Bench) -> Result<Report> {
    let stage = Stage::set(bench, "neighbour").await?;
    deploy(&bench.syncline, &bench.hostile, &stage.host).await?;
    let connection = json!({
        "provider_config_key": "hostile", "connection_id": CONNECTION, "credentials": { "type": "NONE" },
        "metadata": { "steps": 0 },
    });
    stage.host.post("/connections", &connection).await?;
    let body = json!({ "action_name": "echo", "input": { "message": "hello", "number": 1 } }).to_string();
    let action = Requests {
        url: stage.host.url.clone(),
        integration: INTEGRATION,
        method: "POST",
        targets: vec!["/action/trigger".to_owned()],
        headers: Vec::new(),
        body: Some(body),
    };
    let (mut alone, mut with_hostile) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        alone.push(action.load(bench, 1).await?);
        let hostile: Vec<_> =
            HOSTILE.iter().map(|name| tokio::spawn(misbehave(stage.host.url.clone(), name))).collect();
        tokio::time::sleep(Duration::from_millis(300)).await;
        with_hostile.push(action.load(bench, 1).await?);
        for task in hostile {
            task.abort();
        }
        // A caller that stops waiting cancels its action.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let about = format!("the action `echo` over 1 connection, alone and next to {}", HOSTILE.join(", "));
    let mut report = Report::new("neighbour", about);
    describe(report.row("alone"), &alone);
    describe(report.row("next to hostile functions"), &with_hostile);
    let p99 = |loads: &[crate::load::Load]| -> Vec<f64> { loads.iter().map(|load| load.p99_ms).collect() };
    let p50 = |loads: &[crate::load::Load]| -> Vec<f64> { loads.iter().map(|load| load.p50_ms).collect() };
    report.ratio(
        "p99 next to hostile functions, of p99 alone",
        &p99(&with_hostile),
        &p99(&alone),
        Target::AtMost(2.0),
    );
    report.ratio(
        "p50 next to hostile functions, of p50 alone",
        &p50(&with_hostile),
        &p50(&alone),
        Target::None,
    );
    stage.strike(bench).await?;
    Ok(report)
}

/// Calls an action that fails, repeatedly. The responses do not matter.
async fn misbehave(url: String, action: &'static str) {
    let headers = [
        ("authorization", format!("Bearer {SECRET_KEY}")),
        ("content-type", "application/json".to_owned()),
        ("connection-id", CONNECTION.to_owned()),
        ("provider-config-key", "hostile".to_owned()),
    ];
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let body = json!({ "action_name": action, "input": Value::Null }).to_string();
    loop {
        let _answer =
            http::send(Method::POST, &format!("{url}/action/trigger"), &headers, body.clone()).await;
    }
}
