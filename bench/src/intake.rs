//! Measures how many provider webhooks a host can receive, and whether acknowledged webhooks are lost when the host
//! is killed. The baseline is single inserts of the same rows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use hmac::{Hmac, KeyInit, Mac};
use hyper::Method;
use serde_json::{Value, json};
use sha2::Sha256;
use sqlx::Row;

use crate::Bench;
use crate::bare::BareServer;
use crate::database::Database;
use crate::host::{Host, SECRET_KEY};
use crate::http;
use crate::load::{Load, Requests, Statements, describe, over};
use crate::report::{Report, Target};

const NAME: &str = "bench_intake";
/// The same tables for the baseline.
const BASELINE_NAME: &str = "bench_intake_baseline";
/// A provider that accepts webhooks with GitHub's signature scheme.
const PROVIDER: &str = "unauthenticated";
const SECRET: &str = "only-for-benchmarks";
const BODY_BYTES: usize = 1_000;
/// Number of senders when the host is killed.
const SENDERS: usize = 32;

pub async fn measure(bench: &Bench) -> Result<Report> {
    let database = bench.server.create_database(NAME).await?;
    let mut host = Host::start(bench, &database).await?;
    let baseline = bench.server.create_database(BASELINE_NAME).await?;
    baseline.migrate().await?;
    let path = integrate(&host).await?;
    let body = json!({ "text": "x".repeat(BODY_BYTES - 11) }).to_string();
    let signature = sign(&body);
    let webhook = Requests {
        url: host.url.clone(),
        integration: crate::stage::INTEGRATION,
        method: "POST",
        targets: vec![path.clone()],
        body: Some(body.clone()),
        headers: vec![("X-Hub-Signature-256", signature.clone()), ("X-Event-Type", "benchmark".to_owned())],
    };
    let server = BareServer::start(0).await?;
    let echo = Requests { url: server.url.clone(), targets: vec!["/echo".to_owned()], ..webhook.clone() };
    let inserts = Statements {
        database_url: baseline.url.clone(),
        options: "",
        script: concat!(env!("CARGO_MANIFEST_DIR"), "/intake.sql"),
        variables: vec![("size", BODY_BYTES as i64)],
    };

    let about = format!(
        "signed webhooks of {} bytes for no connection, which are processed concurrently",
        body.len()
    );
    let mut report = Report::new("intake", about);
    for connections in [16, 64] {
        let over = over(connections);
        let (mut taken, mut inserted, mut echoed) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..bench.scale.rounds {
            database.settle().await?;
            taken.push(webhook.load(bench, connections).await?);
            inserted.push(inserts.load(bench, connections).await?);
            echoed.push(echo.load(bench, connections).await?);
        }
        describe(report.row(format!("webhooks, {over}")), &taken);
        describe(report.row(format!("single inserts, {over}")), &inserted);
        describe(report.row(format!("an echo without a host, {over}")), &echoed);
        let rates = |loads: &[Load]| -> Vec<f64> { loads.iter().map(|load| load.per_second).collect() };
        report.check(format!("webhooks/s, {over}"), &rates(&taken), Target::None);
        let target = if connections == 16 { Target::AtLeast(1.0) } else { Target::None };
        report.ratio(format!("of single inserts/s, {over}"), &rates(&taken), &rates(&inserted), target);
    }
    let (answered, lost) = kill_under_load(bench, &database, &mut host, &path).await?;
    report.check(
        format!("lost of {answered} webhooks acknowledged before a kill -9"),
        &[lost as f64],
        Target::AtMost(0.0),
    );
    bench.server.drop_database(BASELINE_NAME).await?;
    bench.server.drop_database(NAME).await?;
    Ok(report)
}

/// Creates the integration and returns the path of its webhook URL.
async fn integrate(host: &Host) -> Result<String> {
    let integration =
        json!({ "provider": PROVIDER, "unique_key": PROVIDER, "custom": { "webhook_secret": SECRET } });
    host.post("/integrations", &integration).await?;
    let authorization = format!("Bearer {SECRET_KEY}");
    let url = format!("{}/integrations/{PROVIDER}?include=webhook", host.url);
    let shown = http::send(Method::GET, &url, &[("authorization", &authorization)], "").await?;
    let shown: Value = serde_json::from_slice(&shown)?;
    let url = shown["data"]["webhook_url"].as_str().context("the integration has no webhook URL")?;
    Ok(url.trim_start_matches(&host.url).to_owned())
}

fn sign(body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).expect("HMAC takes a key of any length");
    mac.update(body.as_bytes());
    let digits: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256={digits}")
}

/// Kills the host while it receives webhooks with unique ids. Returns how many it had acknowledged, and how many of
/// these are not in the database.
async fn kill_under_load(
    bench: &Bench,
    database: &Database,
    host: &mut Host,
    path: &str,
) -> Result<(usize, i64)> {
    let next = Arc::new(AtomicU64::new(0));
    let body = r#"{"text":"the last"}"#;
    let senders: Vec<_> = (0..SENDERS)
        .map(|_| {
            let (next, url, signature) = (Arc::clone(&next), format!("{}{path}", host.url), sign(body));
            tokio::spawn(async move {
                let mut answered = Vec::new();
                loop {
                    let id = format!("last-{}", next.fetch_add(1, Ordering::Relaxed));
                    let headers = [
                        ("content-type", "application/json"),
                        ("x-hub-signature-256", &*signature),
                        ("x-event-id", &*id),
                    ];
                    // Stop at the first request without a response.
                    if http::send(Method::POST, &url, &headers, body).await.is_err() {
                        return answered;
                    }
                    answered.push(id);
                }
            })
        })
        .collect();
    tokio::time::sleep(bench.scale.load).await;
    host.kill().await?;
    let mut answered = Vec::new();
    for sender in senders {
        answered.extend(sender.await?);
    }
    ensure!(!answered.is_empty(), "no webhook was acknowledged before the host was killed");
    let lost = sqlx::query(
        "SELECT count(*) FROM unnest($1::text[]) AS answered (id)
         WHERE NOT EXISTS (SELECT FROM inbound_webhooks r WHERE r.delivery_id = answered.id)",
    )
    .bind(&answered)
    .fetch_one(&mut database.connect().await?)
    .await?;
    Ok((answered.len(), lost.get(0)))
}
