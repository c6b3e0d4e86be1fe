//! Measures how fast pages of records are read. The baselines are the SQL statement alone, and the same bytes from
//! memory.

use anyhow::{Context, Result};
use serde::Deserialize;
use sqlx::Row;

use crate::Bench;
use crate::bare::BareServer;
use crate::load::{Load, Requests, Statements, describe, over};
use crate::report::{Report, Target};
use crate::stage::{INTEGRATION, Stage};

pub const PAGE_RECORDS: u64 = 100;
/// The maximum page size of the API.
const LIST_RECORDS: u64 = 500;
/// The settings of the host's own sessions.
const PLANNER: &str = "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_hashjoin=off \
     -c enable_mergejoin=off -c enable_bitmapscan=off -c enable_sort=off -c jit=off";

pub async fn measure(bench: &Bench) -> Result<Report> {
    let mut stage = Stage::set(bench, "read").await?;
    let records = bench.scale.records;
    stage.sync(records, "a").await?;

    let targets = list_pages(&stage).await?;
    let middle = stage.get(&targets[targets.len() / 2]).await?;
    let host = Requests {
        url: stage.host.url.clone(),
        integration: INTEGRATION,
        method: "GET",
        targets,
        body: None,
        headers: Vec::new(),
    };
    let statements = Statements {
        database_url: stage.database.url.clone(),
        options: PLANNER,
        script: concat!(env!("CARGO_MANIFEST_DIR"), "/page.sql"),
        variables: vec![
            ("connection", stage.connection_pk),
            ("stream", stream_number(&stage).await?),
            ("pages", (records / PAGE_RECORDS).cast_signed()),
            // One more than the page size, as in the host, which detects a next page in this way.
            ("limit", PAGE_RECORDS.cast_signed() + 1),
        ],
    };
    let server = BareServer::start(middle.len()).await?;
    let bare = Requests { url: server.url.clone(), targets: vec!["/page".to_owned()], ..host.clone() };

    let about = format!(
        "pages of {PAGE_RECORDS} of {records} records, {} bytes each, each page at most once",
        middle.len()
    );
    let mut report = Report::new("read", about);
    for connections in [1, 16, 64] {
        let over = over(connections);
        let (mut hosts, mut sql, mut bares) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..bench.scale.rounds {
            hosts.push(host.load(bench, connections).await?);
            sql.push(statements.load(bench, connections).await?);
            bares.push(bare.load(bench, connections).await?);
        }
        describe(report.row(format!("GET /records, {over}")), &hosts);
        describe(report.row(format!("its statement in pgbench, {over}")), &sql);
        describe(report.row(format!("the same bytes from memory, {over}")), &bares);
        let [hosts, sql, bares] = [hosts, sql, bares].map(|loads| per_second(&loads));
        let mut ratio = |what, of, to, target| {
            report.ratio(format!("requests/s of {what}, {over}"), of, to, target);
        };
        ratio("the host, of the bytes from memory", &hosts, &bares, Target::None);
        ratio("pgbench, of the bytes from memory", &sql, &bares, Target::None);
        ratio("the host, of pgbench", &hosts, &sql, Target::AtLeast(0.75));
    }
    stage.strike(bench).await?;
    Ok(report)
}

fn per_second(loads: &[Load]) -> Vec<f64> {
    loads.iter().map(|load| load.per_second).collect()
}

/// Returns the requests that read every page once.
pub async fn list_pages(stage: &Stage) -> Result<Vec<String>> {
    let first = |limit: u64| format!("/records?model=Number&limit={limit}");
    let after = |limit: u64, cursor: &str| format!("{}&cursor={cursor}", first(limit));
    let mut pages = vec![first(PAGE_RECORDS)];
    let mut next = Some(first(LIST_RECORDS));
    while let Some(path) = next {
        let list: RecordList =
            serde_json::from_slice(&stage.get(&path).await?).context("could not parse a page of records")?;
        let ends = list.records.iter().skip(PAGE_RECORDS as usize - 1).step_by(PAGE_RECORDS as usize);
        pages.extend(ends.map(|record| after(PAGE_RECORDS, &record.metadata.cursor)));
        next = list.next_cursor.map(|cursor| after(LIST_RECORDS, &cursor));
    }
    // No page follows the last record.
    pages.pop();
    Ok(pages)
}

#[derive(Deserialize)]
struct RecordList {
    records: Vec<Record>,
    next_cursor: Option<String>,
}

#[derive(Deserialize)]
struct Record {
    #[serde(rename = "_service_metadata")]
    metadata: RecordMetadata,
}

#[derive(Deserialize)]
struct RecordMetadata {
    cursor: String,
}

pub async fn stream_number(stage: &Stage) -> Result<i64> {
    let number =
        sqlx::query("SELECT stream_no::bigint FROM streams WHERE connection_pk = $1 AND model = 'Number'")
            .bind(stage.connection_pk)
            .fetch_one(&mut stage.database.connect().await?)
            .await?;
    Ok(number.get(0))
}

#[cfg(test)]
mod tests {
    fn words(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_statement_is_the_hosts() {
        let script = include_str!("../page.sql");
        let mut statement =
            script.lines().filter(|line| !line.starts_with('\\')).collect::<Vec<_>>().join("\n");
        for (number, name) in [":connection", ":stream", ":after", ":limit"].into_iter().enumerate() {
            statement = statement.replace(name, &format!("${}", number + 1));
        }
        let host = include_str!("../../host/crates/store/src/records/read.rs");
        assert!(words(host).contains(words(&statement).trim_end_matches(';')), "{statement}");
    }
}
