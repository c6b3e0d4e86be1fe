//! Leases of claimed schedules: renews and releases them, and takes them back from lost hosts.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::claims::Claim;
use crate::hosts::interval;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::SchedulePk;

/// A run whose lease was renewed.
#[derive(Debug, Clone, Copy)]
pub struct Renewed {
    pub run_id: Uuid,
    pub cancel_wanted: bool,
}

/// Renews the leases of those of these runs that `owner` still holds, including expired leases that were not taken
/// back. A run that is missing from the result is no longer held by `owner`.
pub async fn renew_leases(
    conn: &mut PgConnection,
    owner: Uuid,
    lease: Duration,
    held: &[(SchedulePk, Uuid)],
) -> sqlx::Result<Vec<Renewed>> {
    sqlx::query_as!(
        Renewed,
        r#"
        UPDATE schedules s SET lease_expires_at = now() + $2
        FROM unnest($3::bigint[], $4::uuid[]) AS held (pk, run_id)
        WHERE s.pk = held.pk AND s.run_id = held.run_id AND s.run_owner = $1
        RETURNING s.run_id AS "run_id!", s.cancel_requested AS cancel_wanted
        "#,
        owner,
        interval(lease),
        &held.iter().map(|(schedule, _)| schedule.0).collect::<Vec<_>>(),
        &held.iter().map(|(_, run)| *run).collect::<Vec<_>>(),
    )
    .fetch_all(conn)
    .await
}

/// Records that the run has applied its requested reset, so that its successor does not repeat it.
pub async fn note_reset_done(conn: &mut PgConnection, claim: &Claim) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE schedules SET run_resets = false, run_empties_cache = false
        WHERE pk = $1 AND run_id = $2 AND fence = $3
        "#,
        claim.schedule.0,
        claim.run_id,
        claim.fence,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// When a sync runs next, and how its run ended.
#[derive(Debug, Clone, Copy)]
pub struct NextRun {
    /// The next regular slot.
    pub slot: Option<DateTime<Utc>>,
    /// When to retry before that slot, if the run failed or could not begin on this host.
    pub retry_at: Option<DateTime<Utc>>,
    pub end: RunEnd,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    Succeeded,
    Failed,
    /// The run stopped early and another run continues its work.
    HandedBack,
    /// There was nothing to run.
    Dropped,
}

/// Releases a schedule and makes one schedule due that waited for the same connection. Returns `false` if this run no
/// longer held the schedule.
pub async fn release(
    conn: &mut PgConnection,
    claim: &Claim,
    owner: Uuid,
    next: &NextRun,
) -> sqlx::Result<bool> {
    let released = sqlx::query!(
        r#"
        WITH unparked AS (
            -- It queues behind the schedules that are already due.
            UPDATE schedules SET awaits_permit = false, due_at = now()
            WHERE pk = (
                SELECT pk FROM schedules WHERE connection_pk = $10 AND awaits_permit
                ORDER BY due_at LIMIT 1
                FOR UPDATE SKIP LOCKED
            )
        )
        UPDATE schedules
        SET run_id = NULL, run_owner = NULL, lease_expires_at = NULL, cancel_requested = false,
            -- A requested reset that this run did not apply is left to the next run.
            reset_requested = reset_requested OR run_resets,
            empty_cache_requested = empty_cache_requested OR run_empties_cache,
            run_resets = false, run_empties_cache = false,
            failures = CASE WHEN $7 THEN failures WHEN $6 THEN failures + 1 ELSE 0 END,
            is_interrupted = $7,
            unreported_since = CASE WHEN NOT $9 THEN unreported_since END,
            last_success_at = CASE WHEN $9 THEN (SELECT started_at FROM runs WHERE id = $2) ELSE last_success_at END,
            next_run_at = CASE WHEN state = 'running' THEN $4::timestamptz END,
            due_reason = CASE WHEN due_at IS NULL AND $5::timestamptz IS NOT NULL THEN 'retry' ELSE due_reason END,
            due_at = coalesce(due_at, CASE WHEN $7 THEN coalesce($5, now()) WHEN state = 'running' THEN coalesce($5, $4::timestamptz) END)
        WHERE pk = $1 AND run_id = $2 AND run_owner = $3 AND fence = $8
        "#,
        claim.schedule.0,
        claim.run_id,
        owner,
        next.slot,
        next.retry_at,
        next.end == RunEnd::Failed,
        next.end == RunEnd::HandedBack,
        claim.fence,
        next.end == RunEnd::Succeeded,
        claim.connection.0,
    )
    .execute(&mut *conn)
    .await?;
    Ok(released.rows_affected() > 0)
}

/// Takes back the schedules whose leases have expired. Closes their runs as lost and makes the schedules due again.
/// Returns the number of runs.
pub async fn take_back_lost(conn: &mut PgConnection) -> sqlx::Result<u64> {
    let lost = sqlx::query!(
        r#"
        WITH lost AS (
            SELECT pk, run_id, fence FROM schedules
            WHERE run_id IS NOT NULL AND lease_expires_at < now()
            FOR UPDATE SKIP LOCKED
        ), closed AS (
            UPDATE runs r
            SET state = 'lost', finished_at = now(), error_code = $1,
                error_message = 'the host that ran this sync stopped responding; the sync continues from its checkpoint'
            FROM lost
            WHERE r.id = lost.run_id AND r.state = 'running'
        )
        UPDATE schedules s
        SET run_id = NULL, run_owner = NULL, lease_expires_at = NULL, cancel_requested = false,
            reset_requested = s.reset_requested OR s.run_resets,
            empty_cache_requested = s.empty_cache_requested OR s.run_empties_cache,
            run_resets = false, run_empties_cache = false,
            is_interrupted = true, failures = s.failures + 1,
            -- A sync that crashes its host must not crash one host after another without a pause.
            due_at = coalesce(s.due_at, now() + CASE WHEN s.failures = 0 THEN interval '0'
                ELSE least(interval '10 seconds' * power(2, least(s.failures, 10)), interval '10 minutes') END),
            due_reason = CASE WHEN s.due_at IS NULL THEN 'retry' ELSE s.due_reason END
        FROM lost
        WHERE s.pk = lost.pk
        "#,
        ErrorCode::HostLost.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(lost.rows_affected())
}
