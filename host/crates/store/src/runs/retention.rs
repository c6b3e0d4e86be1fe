//! Closes the runs of lost hosts and deletes old runs.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::RunPosition;
use crate::hosts::interval;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::EnvironmentPk;

/// Closes the runs without a schedule whose hosts have sent no heartbeat for `silent_for`. Returns their number.
pub async fn close_lost(conn: &mut PgConnection, silent_for: Duration) -> sqlx::Result<u64> {
    let closed = sqlx::query!(
        r#"
        UPDATE runs
        SET state = 'lost', finished_at = now(), error_code = $2,
            error_message = 'the host that ran this function stopped responding'
        WHERE state = 'running' AND schedule_pk IS NULL
          AND NOT EXISTS (SELECT FROM hosts WHERE hosts.id = runs.owner AND last_heartbeat_at > now() - $1::interval)
        "#,
        interval(silent_for),
        ErrorCode::HostLost.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(closed.rows_affected())
}

/// Closes the runs of syncs that no schedule holds any more. Returns their number. Skips runs of deleted connections,
/// which the deletion closes.
pub async fn close_orphans(conn: &mut PgConnection) -> sqlx::Result<u64> {
    let closed = sqlx::query!(
        r#"
        UPDATE runs r
        SET state = 'cancelled', finished_at = now(), error_code = $1,
            error_message = 'the sync or the variant that this run was of is gone'
        WHERE state = 'running' AND schedule_pk IS NOT NULL
          AND NOT EXISTS (SELECT FROM schedules s WHERE s.pk = r.schedule_pk AND s.run_id = r.id)
          AND NOT EXISTS (SELECT FROM deleted_connections d WHERE d.connection_pk = r.connection_pk)
        "#,
        ErrorCode::ScriptCancelled.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(closed.rows_affected())
}

/// Deletes up to `limit` finished runs of the environment that began longer ago than `age`, with their logs, oldest
/// first. Keeps the latest run of each schedule and the latest that succeeded or failed, which determine the status of
/// the sync. Returns the last run that was examined, or `None` if no old run is left after `behind`.
pub async fn delete_old(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    age: Duration,
    behind: Option<RunPosition>,
    limit: i64,
) -> sqlx::Result<Option<RunPosition>> {
    let last = sqlx::query!(
        r#"
        WITH old AS (
            SELECT r.id, r.started_at
            FROM unnest(ARRAY['success', 'error', 'cancelled', 'lost']) AS over (state)
            CROSS JOIN LATERAL (
                SELECT id, started_at FROM runs
                WHERE environment_pk = $1 AND state = over.state AND started_at < now() - $2::interval
                  AND (started_at, id) > (coalesce($3, '-infinity'::timestamptz), coalesce($4, '00000000-0000-0000-0000-000000000000'::uuid))
                ORDER BY started_at, id LIMIT $5
            ) AS r
            ORDER BY r.started_at, r.id LIMIT $5
        ), deleted AS (
            DELETE FROM runs r USING old
            WHERE r.id = old.id AND (
                r.schedule_pk IS NULL
                OR NOT EXISTS (SELECT FROM schedules s WHERE s.pk = r.schedule_pk)
                OR EXISTS (
                    SELECT FROM runs newer
                    WHERE newer.schedule_pk = r.schedule_pk AND newer.started_at > r.started_at
                      AND newer.state IN ('success', 'error')
                )
            )
        )
        SELECT started_at AS "started_at!", id AS "id!" FROM old ORDER BY started_at DESC, id DESC LIMIT 1
        "#,
        environment.0,
        interval(age),
        behind.map(|position| position.started_at) as Option<DateTime<Utc>>,
        behind.map(|position| position.id) as Option<Uuid>,
        limit,
    )
    .fetch_optional(conn)
    .await?;
    Ok(last.map(|row| RunPosition { started_at: row.started_at, id: row.id }))
}
