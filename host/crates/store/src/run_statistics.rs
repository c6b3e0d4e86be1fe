//! Statistics of ended runs, by period, integration and kind of function.
//!
//! A trigger of `runs` queues each run in `ended_runs` when it ends. A host takes the queued runs and adds them to
//! `run_statistics` in one transaction, so each run counts exactly once.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use sqlx::PgConnection;

use crate::hosts::interval;
use syncline_types::functions::{FunctionKind, RunState};
use syncline_types::ids::{EnvironmentPk, IntegrationKey, IntegrationPk};

/// The advisory lock of the host that counts. Several hosts at once would wait for each other's rows.
const COUNTING_LOCK: i64 = 0x636f_756e_7473;

/// A run that has ended and was not counted before.
#[derive(Debug, Clone)]
pub struct EndedRun {
    pub environment: EnvironmentPk,
    /// 0 if the run had no integration.
    pub integration: IntegrationPk,
    pub kind: FunctionKind,
    pub state: RunState,
    pub started_at: DateTime<Utc>,
    pub finished_at: DateTime<Utc>,
    /// When it could have started, if it waited in a queue.
    pub due_at: Option<DateTime<Utc>>,
    pub records_saved: i64,
    pub records_changed: i64,
    pub backoff_ms: i64,
}

/// The runs that ended in one period, of one integration and kind. Also what a batch adds to them.
#[derive(Debug, Clone, Serialize)]
pub struct PeriodStatistics {
    #[serde(rename = "environment_pk")]
    pub environment: EnvironmentPk,
    /// The length of the period: 1, 6 or 24.
    pub hours: i16,
    pub starts_at: DateTime<Utc>,
    #[serde(rename = "integration_pk")]
    pub integration: IntegrationPk,
    pub kind: FunctionKind,
    pub succeeded: i64,
    pub failed: i64,
    pub cancelled: i64,
    pub lost: i64,
    pub records_saved: i64,
    pub records_changed: i64,
    pub backoff_ms: i64,
    pub duration_ms: i64,
    /// The number of runs in each bucket of a histogram.
    pub durations: Vec<i64>,
    pub queue_delay_ms: i64,
    pub queue_delays: Vec<i64>,
}

/// Acquires the right to count until the transaction ends. Returns `false` if another host is counting.
pub async fn try_lock(conn: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"SELECT pg_try_advisory_xact_lock($1) AS "is_ours!""#, COUNTING_LOCK)
        .fetch_one(conn)
        .await
}

/// Takes up to `limit` runs out of the queue, the longest queued first.
pub async fn take_ended(conn: &mut PgConnection, limit: i64) -> sqlx::Result<Vec<EndedRun>> {
    let rows = sqlx::query!(
        r#"
        WITH oldest AS (SELECT pk FROM ended_runs ORDER BY pk LIMIT $1)
        DELETE FROM ended_runs r USING oldest WHERE r.pk = oldest.pk
        RETURNING r.environment_pk, r.integration_pk, r.kind AS "kind: FunctionKind", r.state AS "state: RunState",
                  r.started_at, r.finished_at, r.due_at, r.records_saved, r.records_changed, r.backoff_ms
        "#,
        limit,
    )
    .fetch_all(conn)
    .await?;
    let ended = rows.into_iter().map(|row| EndedRun {
        environment: EnvironmentPk(row.environment_pk),
        integration: IntegrationPk(row.integration_pk.unwrap_or_default()),
        kind: row.kind,
        state: row.state,
        started_at: row.started_at,
        finished_at: row.finished_at,
        due_at: row.due_at,
        records_saved: row.records_saved,
        records_changed: row.records_changed,
        backoff_ms: row.backoff_ms,
    });
    Ok(ended.collect())
}

/// Adds runs to the stored statistics. Skips those of deleted environments. `added` must not contain the same period,
/// integration and kind twice.
pub async fn add(conn: &mut PgConnection, added: &[PeriodStatistics]) -> sqlx::Result<()> {
    let added = serde_json::to_value(added).map_err(|error| sqlx::Error::Encode(error.into()))?;
    sqlx::query!(
        r#"
        INSERT INTO run_statistics AS kept
            (environment_pk, hours, starts_at, integration_pk, kind, succeeded, failed, cancelled, lost, records_saved,
             records_changed, backoff_ms, duration_ms, durations, queue_delay_ms, queue_delays)
        SELECT e.pk, a.hours, a.starts_at, a.integration_pk, a.kind, a.succeeded, a.failed, a.cancelled, a.lost,
               a.records_saved, a.records_changed, a.backoff_ms, a.duration_ms, a.durations, a.queue_delay_ms,
               a.queue_delays
        FROM jsonb_to_recordset($1::jsonb) AS a (
            environment_pk bigint, hours smallint, starts_at timestamptz, integration_pk bigint, kind text,
            succeeded bigint, failed bigint, cancelled bigint, lost bigint, records_saved bigint,
            records_changed bigint, backoff_ms bigint, duration_ms bigint, durations bigint[], queue_delay_ms bigint,
            queue_delays bigint[]
        )
        JOIN environments e ON e.pk = a.environment_pk
        ON CONFLICT (environment_pk, hours, starts_at, integration_pk, kind) DO UPDATE
        SET succeeded = kept.succeeded + excluded.succeeded, failed = kept.failed + excluded.failed,
            cancelled = kept.cancelled + excluded.cancelled, lost = kept.lost + excluded.lost,
            records_saved = kept.records_saved + excluded.records_saved,
            records_changed = kept.records_changed + excluded.records_changed,
            backoff_ms = kept.backoff_ms + excluded.backoff_ms,
            duration_ms = kept.duration_ms + excluded.duration_ms,
            durations = add_histograms(kept.durations, excluded.durations),
            queue_delay_ms = kept.queue_delay_ms + excluded.queue_delay_ms,
            queue_delays = add_histograms(kept.queue_delays, excluded.queue_delays)
        "#,
        added,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Lists the statistics of the periods with this length that start at `since` or later, oldest first.
pub async fn list(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    hours: i16,
    since: DateTime<Utc>,
    integration: Option<IntegrationPk>,
) -> sqlx::Result<Vec<PeriodStatistics>> {
    sqlx::query_as!(
        PeriodStatistics,
        r#"
        SELECT environment_pk AS "environment: EnvironmentPk", hours, starts_at,
               integration_pk AS "integration: IntegrationPk", kind AS "kind: FunctionKind", succeeded, failed, cancelled, lost, records_saved, records_changed,
               backoff_ms, duration_ms, durations, queue_delay_ms, queue_delays
        FROM run_statistics
        WHERE environment_pk = $1 AND hours = $2 AND starts_at >= $3
          AND ($4::bigint IS NULL OR integration_pk = $4)
        ORDER BY starts_at
        "#,
        environment.0,
        hours,
        since,
        integration.map(|integration| integration.0),
    )
    .fetch_all(conn)
    .await
}

/// Returns the keys of those of these integrations that exist.
pub async fn integration_keys(
    conn: &mut PgConnection,
    integrations: &[IntegrationPk],
) -> sqlx::Result<Vec<(IntegrationPk, IntegrationKey)>> {
    let pks: Vec<i64> = integrations.iter().map(|integration| integration.0).collect();
    let rows = sqlx::query!("SELECT pk, unique_key FROM integrations WHERE pk = ANY($1)", &pks)
        .fetch_all(conn)
        .await?;
    let keys = rows.into_iter();
    Ok(keys.map(|row| (IntegrationPk(row.pk), IntegrationKey::from_stored(row.unique_key))).collect())
}

/// Deletes up to `limit` periods that began longer ago than `age`. Returns their number.
pub async fn delete_old(conn: &mut PgConnection, age: Duration, limit: i64) -> sqlx::Result<u64> {
    let deleted = sqlx::query!(
        r#"
        WITH old AS (
            SELECT environment_pk, hours, starts_at, integration_pk, kind FROM run_statistics
            WHERE starts_at < now() - $1::interval
            ORDER BY starts_at LIMIT $2
        )
        DELETE FROM run_statistics s USING old
        WHERE s.environment_pk = old.environment_pk AND s.hours = old.hours AND s.starts_at = old.starts_at
          AND s.integration_pk = old.integration_pk AND s.kind = old.kind
        "#,
        interval(age),
        limit,
    )
    .execute(conn)
    .await?;
    Ok(deleted.rows_affected())
}
