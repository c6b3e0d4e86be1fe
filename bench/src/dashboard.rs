//! Measures pages and lists of an environment with 10,000 connections and 10,000,000 runs, compared with `GET /health`
//! of the same host.

mod pages;
mod seed;

use std::time::Instant;

use anyhow::{Result, ensure};

use crate::Bench;
use crate::dashboard::pages::{PAGES, sign_in};
use crate::host::Host;
use crate::http::Session;
use crate::report::{Report, Target};
use crate::stage::Stage;

const REQUESTS: usize = 200;
const WARM_UP: usize = 10;
/// Half of the requests for the slowest page may take this long.
const MOST_MS: f64 = 50.0;

/// The results of the requests for one page, a value per round.
#[derive(Default)]
struct Measured {
    p50_ms: Vec<f64>,
    p95_ms: Vec<f64>,
    kilobytes: Vec<f64>,
}

pub async fn measure(bench: &Bench) -> Result<Report> {
    let runs = bench.scale.records * 50;
    let mut stage = Stage::set(bench, "dashboard").await?;
    stage.host.stop().await?;
    seed::fill(&stage.database, runs).await?;
    // The runs are spread over 90 days, and the host must not delete them.
    let retention = [("SYNCLINE_RUN_RETENTION_DAYS", "365".to_owned())];
    stage.host = Host::start_with(bench, &stage.database, &retention).await?;
    stage.database.settle().await?;

    let headers = sign_in(&stage.database).await?;
    let mut session = Session::open(&stage.host.url).await?;
    let mut health = Measured::default();
    let mut pages: Vec<Measured> = PAGES.iter().map(|_| Measured::default()).collect();
    // In turns, because a shared machine can be twice as fast a minute later.
    for _ in 0..bench.scale.rounds {
        health.request(&mut session, "/health", &headers).await?;
        for (page, measured) in PAGES.iter().zip(&mut pages) {
            measured.request(&mut session, page.path, &headers).await?;
        }
    }

    let about = format!(
        "pages of {} connections and {runs} runs, {REQUESTS} requests one after the other",
        seed::CONNECTIONS
    );
    let mut report = Report::new("dashboard", about);
    health.describe(&mut report, "`GET /health`");
    for (page, measured) in PAGES.iter().zip(&pages) {
        measured.describe(&mut report, page.name);
    }
    for (page, measured) in PAGES.iter().zip(&pages) {
        report.ratio(
            format!("p50, {} of `/health`", page.name),
            &measured.p50_ms,
            &health.p50_ms,
            Target::None,
        );
    }
    let slowest: Vec<f64> = (0..bench.scale.rounds)
        .map(|round| pages.iter().map(|page| page.p50_ms[round]).fold(0.0, f64::max))
        .collect();
    report.check("p50 of the slowest page, in ms", &slowest, Target::AtMost(MOST_MS));
    stage.strike(bench).await?;
    Ok(report)
}

impl Measured {
    /// Requests a page repeatedly and adds a round.
    async fn request(
        &mut self,
        session: &mut Session,
        path: &str,
        headers: &[(&'static str, String)],
    ) -> Result<()> {
        let mut times_ms = Vec::with_capacity(REQUESTS);
        let mut bytes = 0;
        for number in 0..WARM_UP + REQUESTS {
            let began = Instant::now();
            let body = session.get(path, headers).await?;
            let elapsed = began.elapsed();
            if number >= WARM_UP {
                times_ms.push(elapsed.as_secs_f64() * 1e3);
                bytes += body.len();
            }
        }
        ensure!(bytes > 0, "{path} is empty");
        times_ms.sort_by(f64::total_cmp);
        self.p50_ms.push(times_ms[REQUESTS / 2]);
        self.p95_ms.push(times_ms[REQUESTS * 95 / 100]);
        self.kilobytes.push(bytes as f64 / REQUESTS as f64 / 1e3);
        Ok(())
    }

    fn describe(&self, report: &mut Report, what: &str) {
        report
            .row(what)
            .metric("p50 ms", self.p50_ms.clone())
            .metric("p95 ms", self.p95_ms.clone())
            .metric("kB", self.kilobytes.clone());
    }
}
