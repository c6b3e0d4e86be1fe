//! Measures how fast records are saved, from the guest to Postgres. The baseline is `COPY` of the same rows into
//! the same tables.
//!
//! `ANALYZE` is not run: the first sync of a connection finds no statistics and must be fast nevertheless.

use std::time::Instant;

use anyhow::{Result, ensure};
use futures_util::TryStreamExt;
use sqlx::{PgConnection, Row};

use crate::Bench;
use crate::database::Database;
use crate::report::{Report, Target};
use crate::stage::{BATCH_RECORDS, Counts, RECORD_BYTES, Run, Stage};

/// Name of the database of the baseline.
const BASELINE: &str = "bench_baseline";
/// Number of bytes that are passed to the connection at a time.
const COPY_CHUNK_BYTES: usize = 256 << 10;

pub async fn measure(bench: &Bench) -> Result<Report> {
    let records = bench.scale.records;
    let mut rounds = Vec::new();
    for _ in 0..bench.scale.rounds {
        rounds.push(Round::measure(bench, records).await?);
    }
    let rate = |seconds: fn(&Round) -> f64| -> Vec<f64> {
        rounds.iter().map(|round| records as f64 / seconds(round)).collect()
    };

    let mut report = Report::new(
        "ingest",
        format!("{records} records of {RECORD_BYTES} bytes, committed {BATCH_RECORDS} at a time, new tables"),
    );
    let copy = rate(|round| round.copy_text.min(round.copy_binary));
    report.row("COPY, all rows at once, text").metric("records/s", rate(|round| round.copy_text));
    report.row("COPY, all rows at once, binary").metric("records/s", rate(|round| round.copy_binary));
    report
        .row("COPY, one transaction per batch, binary")
        .metric("records/s", rate(|round| round.copy_batches));
    let new = rate(|round| round.new.seconds);
    let unchanged = rate(|round| round.unchanged.seconds);
    let changed = rate(|round| round.changed.seconds);
    for (what, own, from_trigger) in [
        ("sync, records are new", &new, rate(|round| round.new.seconds_from_trigger)),
        ("sync, records are unchanged", &unchanged, rate(|round| round.unchanged.seconds_from_trigger)),
        ("sync, every record has changed", &changed, rate(|round| round.changed.seconds_from_trigger)),
    ] {
        report.row(what).metric("records/s", own.clone()).metric("records/s from the trigger", from_trigger);
    }
    report.ratio("new, of the faster COPY of all rows", &new, &copy, Target::None);
    let batches = rate(|round| round.copy_batches);
    report.ratio("new, of COPY in the same batches", &new, &batches, Target::AtLeast(0.75));
    report.ratio("unchanged, of new", &unchanged, &new, Target::AtLeast(2.5));
    report.ratio("changed, of new", &changed, &new, Target::AtLeast(0.8));
    let (vacuums, analyses) =
        rounds.iter().fold((0, 0), |sum, round| (sum.0 + round.autovacuums.0, sum.1 + round.autovacuums.1));
    report.note(format!(
        "in these {} rounds autovacuum vacuumed record tables {vacuums} times and analysed them {analyses} \
         times",
        rounds.len()
    ));
    Ok(report)
}

/// Results of a round. Times are in seconds.
struct Round {
    copy_text: f64,
    copy_binary: f64,
    copy_batches: f64,
    new: Run,
    unchanged: Run,
    changed: Run,
    autovacuums: (i64, i64),
}

impl Round {
    async fn measure(bench: &Bench, records: u64) -> Result<Self> {
        let mut stage = Stage::set(bench, "ingest").await?;
        let new = stage.sync(records, "a").await?;
        expect(&new, Counts { added: records, ..Counts::default() })?;

        let database = bench.server.create_database(BASELINE).await?;
        database.migrate().await?;
        let mut baseline = Baseline {
            stage: &stage,
            source: stage.database.connect().await?,
            target: database.connect().await?,
            database,
        };
        let whole = baseline.export("text", 0, records).await?;
        let copy_text = baseline.copy("text", &[whole]).await?;
        let whole = baseline.export("binary", 0, records).await?;
        let copy_binary = baseline.copy("binary", &[whole]).await?;
        let mut batches = Vec::new();
        for first in (0..records).step_by(BATCH_RECORDS as usize) {
            batches.push(baseline.export("binary", first, BATCH_RECORDS).await?);
        }
        let copy_batches = baseline.copy("binary", &batches).await?;
        drop(baseline);
        bench.server.drop_database(BASELINE).await?;

        let unchanged = stage.sync(records, "a").await?;
        expect(&unchanged, Counts::default())?;
        let changed = stage.sync(records, "b").await?;
        expect(&changed, Counts { updated: records, ..Counts::default() })?;
        let autovacuums = stage.database.autovacuums().await?;
        stage.strike(bench).await?;
        Ok(Self { copy_text, copy_binary, copy_batches, new, unchanged, changed, autovacuums })
    }
}

/// A run with unexpected counts is an error and not a result.
fn expect(run: &Run, counts: Counts) -> Result<()> {
    ensure!(run.counts == counts, "the run reported {:?}, expected {counts:?}", run.counts);
    Ok(())
}

/// The baseline: the same tables in a separate database.
struct Baseline<'s> {
    stage: &'s Stage,
    source: PgConnection,
    database: Database,
    target: PgConnection,
}

impl Baseline<'_> {
    /// Returns some of the rows that the host wrote, in the format of `COPY`.
    async fn export(&mut self, format: &str, first: u64, count: u64) -> Result<Vec<u8>> {
        let statement = format!(
            "COPY (SELECT * FROM records
                   WHERE connection_pk = {} AND position > {first} AND position <= {}
                   ORDER BY position)
             TO STDOUT (FORMAT {format})",
            self.stage.connection_pk,
            first + count
        );
        let mut rows = Vec::new();
        let mut chunks = self.source.copy_out_raw(&statement).await?;
        while let Some(chunk) = chunks.try_next().await? {
            rows.extend_from_slice(&chunk);
        }
        Ok(rows)
    }

    /// Copies each part in a separate transaction into the emptied table of the baseline. Returns the seconds.
    async fn copy(&mut self, format: &str, parts: &[Vec<u8>]) -> Result<f64> {
        sqlx::raw_sql("TRUNCATE records").execute(&mut self.target).await?;
        self.database.settle().await?;
        let statement = format!("COPY records FROM STDIN (FORMAT {format})");
        let begun = Instant::now();
        let mut copied = 0;
        for part in parts {
            let mut copy = self.target.copy_in_raw(&statement).await?;
            for chunk in part.chunks(COPY_CHUNK_BYTES) {
                copy.send(chunk).await?;
            }
            copied += copy.finish().await?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let rows = sqlx::query("SELECT count(*) FROM records WHERE connection_pk = $1")
            .bind(self.stage.connection_pk)
            .fetch_one(&mut self.source)
            .await?
            .get::<i64, _>(0);
        ensure!(rows.cast_unsigned() == copied, "the host has {rows} rows and COPY wrote {copied}");
        Ok(seconds)
    }
}
