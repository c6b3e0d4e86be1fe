//! Measures the cost of finding and starting due syncs, with few and with many schedules. Also measures the delay
//! of runs at the rate that the machine sustains.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::Bench;
use crate::host::Host;
use crate::report::{Report, Target};
use crate::stage::Stage;

/// Number of schedules of a connection, as of an account with a few syncs.
const OF_A_CONNECTION: u64 = 10;
/// Number of finished runs before a measurement starts.
const WARM_UP: u64 = 200;
/// Duration of the delay measurement at each rate.
const WINDOW: Duration = Duration::from_secs(15);
/// Fractions of the rate at which a backlog is processed. They are tried until one is sustained.
const SHARES: [f64; 5] = [0.9, 0.8, 0.7, 0.6, 0.5];
const LONGEST_WAIT: Duration = Duration::from_secs(120);

pub async fn measure(bench: &Bench) -> Result<Report> {
    let (few, many, scheduled) =
        if bench.is_quick { (1_000, 50_000, 50_000) } else { (1_000, 1_000_000, 100_000) };
    let about = "runs of a sync without work, on one host; every schedule is due at the start";
    let mut report = Report::new("scheduler", about.to_owned());
    let mut stage = Stage::set(bench, "scheduler").await?;
    let mut observer = stage.database.connect().await?;

    let mut small = Vec::new();
    for _ in 0..bench.scale.rounds {
        small.extend(work_off(bench, &mut stage, &mut observer, few, 1).await?);
    }
    let rounds = bench.scale.rounds as u64;
    let large = work_off(bench, &mut stage, &mut observer, many, rounds).await?;
    let per_second = |ms: &[f64]| ms.iter().map(|ms| 1e3 / ms).collect();
    for (count, ms) in [(few, &small), (many, &large)] {
        let row = report.row(format!("{count} schedules, all due"));
        row.metric("ms per run", ms.clone()).metric("runs/s", per_second(ms));
    }
    report.check(
        format!("runs/s with {few} schedules"),
        &small.iter().map(|ms| 1e3 / ms).collect::<Vec<_>>(),
        Target::AtLeast(2_000.0),
    );
    report.ratio(
        format!("cost of a run with {many} schedules, of {few}"),
        &large,
        &small,
        Target::AtMost(1.3),
    );

    let backlog_rate = 1e3 / small.iter().copied().fold(f64::INFINITY, f64::min);
    fill(bench, &mut stage, &mut observer, scheduled, "now() + interval '1 day'").await?;
    let mut first = 0;
    for (number, share) in SHARES.into_iter().enumerate() {
        let rate = backlog_rate * share;
        let late = lateness(&mut observer, first, rate).await?;
        first += late.runs;
        let row = report.row(format!("{scheduled} schedules, {rate:.0} due each second"));
        row.metric("late p50 s", vec![late.p50]).metric("late p99 s", vec![late.p99]);
        if late.p99 <= 1.0 || number + 1 == SHARES.len() {
            let what = format!("seconds late, p99, at {rate:.0} runs/s with {scheduled} schedules");
            report.check(what, &[late.p99], Target::AtMost(1.0));
            break;
        }
    }
    drop(observer);
    stage.strike(bench).await?;
    Ok(report)
}

/// Replaces all schedules by this number while the host is stopped, and starts it again.
async fn fill(
    bench: &Bench,
    stage: &mut Stage,
    observer: &mut PgConnection,
    count: u64,
    due_at: &str,
) -> Result<()> {
    stage.host.stop().await?;
    let connections = count.div_ceil(OF_A_CONNECTION);
    let statements = format!(
        "DELETE FROM schedules;
         TRUNCATE runs CASCADE;
         INSERT INTO connections (id, environment_pk, integration_pk, connection_id, sealed_credentials, metadata)
         SELECT gen_random_uuid(), environment_pk, integration_pk, 'copy-' || number, sealed_credentials, metadata
         FROM connections, generate_series(1, {connections}) AS number
         WHERE pk = {original}
         ON CONFLICT DO NOTHING;
         INSERT INTO schedules (environment_pk, integration_pk, connection_pk, sync_name, variant, state, due_at,
                                due_reason)
         SELECT environment_pk, integration_pk, pk, 'numbers', 'v' || number, 'running', {due_at}, 'schedule'
         FROM (SELECT * FROM connections WHERE connection_id LIKE 'copy-%' ORDER BY pk LIMIT {connections}) AS copies,
              generate_series(1, {OF_A_CONNECTION}) AS number;
         VACUUM ANALYZE schedules",
        original = stage.connection_pk,
    );
    for statement in statements.split(';') {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *observer).await?;
    }
    stage.database.settle().await?;
    // All schedules of a connection are due at the same time here, which the limit is not meant for.
    let variables = [("SYNCLINE_MAX_SYNCS_PER_CONNECTION", "1000".to_owned())];
    stage.host = Host::start_with(bench, &stage.database, &variables).await?;
    Ok(())
}

/// Returns the milliseconds per run while a backlog is processed, for several sections of it.
async fn work_off(
    bench: &Bench,
    stage: &mut Stage,
    observer: &mut PgConnection,
    count: u64,
    stretches: u64,
) -> Result<Vec<f64>> {
    let stretch = if bench.is_quick { 300 } else { 800 };
    fill(bench, stage, observer, count, "now() - interval '1 hour'").await?;
    let wanted = WARM_UP + stretches * stretch;
    ensure!(wanted <= count, "the backlog is too short to be measured");
    wait_for_runs(observer, wanted).await?;
    let mut ms = Vec::new();
    for number in 0..stretches {
        let times = sqlx::query(
            "SELECT extract(epoch FROM max(finished_at) - min(finished_at))::float8 FROM (
                 SELECT finished_at FROM runs WHERE finished_at IS NOT NULL ORDER BY finished_at LIMIT $1 OFFSET $2
             ) AS stretch",
        )
        .bind(stretch.cast_signed())
        .bind((WARM_UP + number * stretch).cast_signed())
        .fetch_one(&mut *observer)
        .await?;
        ms.push(times.get::<f64, _>(0) * 1e3 / stretch as f64);
    }
    Ok(ms)
}

struct Lateness {
    runs: u64,
    p50: f64,
    p99: f64,
}

/// Makes this number of schedules due in each second, evenly, starting after the first `first` of them.
async fn lateness(observer: &mut PgConnection, first: u64, rate: f64) -> Result<Lateness> {
    let runs = (rate * WINDOW.as_secs_f64()) as u64;
    ensure!(
        first + runs <= count_schedules(observer).await?,
        "there are too few schedules for {rate:.0} runs/s"
    );
    let planned = format!(
        "DROP TABLE IF EXISTS bench_due;
         CREATE TABLE bench_due AS
         SELECT pk, now() + interval '3 seconds' + row_number() OVER (ORDER BY pk) * interval '1 second' / {rate} AS due_at
         FROM (SELECT pk FROM schedules ORDER BY pk LIMIT {runs} OFFSET {first}) AS chosen;
         CREATE UNIQUE INDEX ON bench_due (pk);
         UPDATE schedules s SET due_at = bench_due.due_at FROM bench_due WHERE s.pk = bench_due.pk;
         NOTIFY syncline, 'due'"
    );
    let before = count_runs(observer).await?;
    for statement in planned.split(';') {
        sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut *observer).await?;
    }
    wait_for_runs(observer, before + runs).await?;
    let late = sqlx::query(
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY late), percentile_cont(0.99) WITHIN GROUP (ORDER BY late)
         FROM (
             SELECT extract(epoch FROM r.started_at - d.due_at)::float8 AS late
             FROM bench_due d JOIN runs r ON r.schedule_pk = d.pk
         ) AS begun",
    )
    .fetch_one(&mut *observer)
    .await?;
    Ok(Lateness { runs, p50: late.get(0), p99: late.get(1) })
}

async fn wait_for_runs(observer: &mut PgConnection, wanted: u64) -> Result<()> {
    let began = Instant::now();
    while count_runs(&mut *observer).await? < wanted {
        ensure!(began.elapsed() < LONGEST_WAIT, "not all runs finished within {LONGEST_WAIT:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let failed =
        sqlx::query("SELECT error_message FROM runs WHERE state <> 'success' AND finished_at IS NOT NULL");
    if let Some(run) = failed.fetch_optional(observer).await? {
        bail!("a run failed: {:?}", run.get::<Option<String>, _>(0));
    }
    Ok(())
}

async fn count_runs(observer: &mut PgConnection) -> Result<u64> {
    let count =
        sqlx::query("SELECT count(*) FROM runs WHERE finished_at IS NOT NULL").fetch_one(observer).await?;
    u64::try_from(count.get::<i64, _>(0)).context("a count is not negative")
}

async fn count_schedules(observer: &mut PgConnection) -> Result<u64> {
    let count = sqlx::query("SELECT count(*) FROM schedules").fetch_one(observer).await?;
    u64::try_from(count.get::<i64, _>(0)).context("a count is not negative")
}
