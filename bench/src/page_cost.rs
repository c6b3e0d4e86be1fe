//! Measures the cost of a page of records in a large table, compared with a small one.

use anyhow::{Result, ensure};
use sqlx::Row;

use crate::Bench;
use crate::load::{Load, Requests, describe};
use crate::read::{PAGE_RECORDS, list_pages, stream_number};
use crate::report::{Report, Target};
use crate::stage::{INTEGRATION, Stage};

const FEW: u64 = 10_000;
/// Number of rows that one statement adds.
const FILL_ROWS: u64 = 500_000;

pub async fn measure(bench: &Bench) -> Result<Report> {
    let many = bench.scale.records * 50;
    let mut small = Stage::set(bench, "page_cost_small").await?;
    small.sync(FEW, "a").await?;
    let mut large = Stage::set(bench, "page_cost_large").await?;
    large.sync(FEW, "a").await?;
    grow(&large, many).await?;
    let pages = [pages_of(&small).await?, pages_of(&large).await?];
    large.database.settle().await?;
    // In turns, because a shared machine can be twice as fast a minute later.
    let (mut of_small, mut of_large) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        of_small.push(pages[0].load(bench, 1).await?);
        of_large.push(pages[1].load(bench, 1).await?);
    }

    let about = format!("a page of {PAGE_RECORDS} records, any of a stream, at 1 connection");
    let mut report = Report::new("page-cost", about);
    describe(report.row(format!("{FEW} records")), &of_small);
    describe(report.row(format!("{many} records")), &of_large);
    let p50 = |loads: &[Load]| -> Vec<f64> { loads.iter().map(|load| load.p50_ms).collect() };
    report.ratio("p50, large of small", &p50(&of_large), &p50(&of_small), Target::AtMost(1.3));
    small.strike(bench).await?;
    large.strike(bench).await?;
    Ok(report)
}

async fn pages_of(stage: &Stage) -> Result<Requests> {
    Ok(Requests {
        url: stage.host.url.clone(),
        integration: INTEGRATION,
        method: "GET",
        targets: list_pages(stage).await?,
        body: None,
        headers: Vec::new(),
    })
}

/// Extends the stream to this length with rows like the ones that the host wrote. `ANALYZE` is not run.
async fn grow(stage: &Stage, records: u64) -> Result<()> {
    let stream = stream_number(stage).await?;
    let mut conn = stage.database.connect().await?;
    let columns: Vec<String> = sqlx::query_scalar(
        "SELECT column_name::text FROM information_schema.columns
         WHERE table_schema = 'public' AND table_name = 'records'
           AND column_name NOT IN ('position', 'external_id') AND is_generated = 'NEVER'",
    )
    .fetch_all(&mut conn)
    .await?;
    let columns = columns.join(", ");
    let mut last = FEW;
    while last < records {
        let rows = FILL_ROWS.min(records - last);
        let fill = format!(
            "INSERT INTO records (position, external_id, {columns})
             SELECT {last} + g, 'filled-' || ({last} + g), {columns}
             FROM (SELECT {columns} FROM records WHERE connection_pk = {connection} AND stream_no = {stream}
                   ORDER BY position LIMIT 1) AS one, generate_series(1, {rows}) AS g",
            connection = stage.connection_pk,
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(fill)).execute(&mut conn).await?;
        last += rows;
    }
    let grown =
        sqlx::query("UPDATE streams SET last_position = $3 WHERE connection_pk = $1 AND stream_no = $2")
            .bind(stage.connection_pk)
            .bind(stream)
            .bind(last.cast_signed())
            .execute(&mut conn)
            .await?;
    ensure!(grown.rows_affected() == 1, "the stream does not exist");
    let count = sqlx::query("SELECT count(*) FROM records WHERE connection_pk = $1")
        .bind(stage.connection_pk)
        .fetch_one(&mut conn)
        .await?
        .get::<i64, _>(0);
    ensure!(count.cast_unsigned() == records, "the stream has {count} records instead of {records}");
    Ok(())
}
