//! Recordings of runs, and which runs of a sync to record.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::schedules::Claim;
use syncline_types::functions::RecordedRuns;
use syncline_types::ids::{ConnectionPk, EnvironmentPk, FunctionName, Variant};

/// Which runs of a sync to record, and for how long to keep their recordings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingOrder {
    pub runs: RecordedRuns,
    pub days: i32,
}

impl RecordingOrder {
    pub const DEFAULT_DAYS: i32 = 7;
    pub const MAX_DAYS: i32 = 30;
}

/// A recording to store.
#[derive(Debug)]
pub struct NewRecording {
    pub sealed: Vec<u8>,
    pub order: RecordingOrder,
}

/// Returns the order of one schedule.
pub async fn order(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
) -> sqlx::Result<Option<RecordingOrder>> {
    let row = sqlx::query!(
        r#"
        SELECT recorded_runs AS "runs: RecordedRuns", recording_days AS days FROM schedules
        WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3
        "#,
        connection.0,
        sync.as_str(),
        variant.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.and_then(|row| order_of(row.runs, row.days)))
}

/// Sets or removes the order of one schedule. Returns the former order, or `None` if there is no such schedule.
pub async fn set_order(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
    order: Option<RecordingOrder>,
) -> sqlx::Result<Option<Option<RecordingOrder>>> {
    let former = sqlx::query!(
        r#"
        WITH former AS (
            SELECT pk, recorded_runs, recording_days FROM schedules
            WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 AND retired_at IS NULL
            FOR NO KEY UPDATE
        )
        UPDATE schedules s SET recorded_runs = $4, recording_days = $5
        FROM former
        WHERE s.pk = former.pk
        RETURNING former.recorded_runs AS "runs: RecordedRuns", former.recording_days AS days
        "#,
        connection.0,
        sync.as_str(),
        variant.as_str(),
        order.map(|order| order.runs) as Option<RecordedRuns>,
        order.map(|order| order.days),
    )
    .fetch_optional(conn)
    .await?;
    Ok(former.map(|row| order_of(row.runs, row.days)))
}

/// The order that two columns of a schedule contain.
pub(crate) fn order_of(runs: Option<RecordedRuns>, days: Option<i32>) -> Option<RecordingOrder> {
    Some(RecordingOrder { runs: runs?, days: days? })
}

/// Stores the recording of a run, unless its connection is being deleted. An order for the next failed run is
/// completed.
pub async fn insert(conn: &mut PgConnection, claim: &Claim, recording: &NewRecording) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        INSERT INTO recordings (run_id, environment_pk, connection_pk, sealed_recording, expires_at)
        SELECT $1, $2, pk, $4, now() + make_interval(days => $5) FROM connections WHERE pk = $3
        "#,
        claim.run_id,
        claim.environment.0,
        claim.connection.0,
        recording.sealed,
        recording.order.days,
    )
    .execute(&mut *conn)
    .await?;
    if recording.order.runs == RecordedRuns::NextFailedRun {
        sqlx::query!(
            r#"
            UPDATE schedules SET recorded_runs = NULL, recording_days = NULL
            WHERE pk = $1 AND recorded_runs = 'next_failed_run'
            "#,
            claim.schedule.0,
        )
        .execute(conn)
        .await?;
    }
    Ok(())
}

/// Returns the sealed recording of a run.
pub async fn find(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    run: Uuid,
) -> sqlx::Result<Option<Vec<u8>>> {
    sqlx::query_scalar!(
        r#"
        SELECT sealed_recording FROM recordings
        WHERE run_id = $1 AND environment_pk = $2 AND expires_at > now()
        "#,
        run,
        environment.0,
    )
    .fetch_optional(conn)
    .await
}

/// Returns when the recording of a run expires.
pub async fn expires_at(conn: &mut PgConnection, run: Uuid) -> sqlx::Result<Option<DateTime<Utc>>> {
    sqlx::query_scalar!("SELECT expires_at FROM recordings WHERE run_id = $1 AND expires_at > now()", run)
        .fetch_optional(conn)
        .await
}

/// Deletes up to `limit` recordings that have expired. Returns their number.
pub async fn delete_expired(conn: &mut PgConnection, limit: i64) -> sqlx::Result<u64> {
    let deleted = sqlx::query!(
        r#"
        DELETE FROM recordings WHERE run_id IN (
            SELECT run_id FROM recordings WHERE expires_at <= now() ORDER BY expires_at LIMIT $1
            FOR UPDATE SKIP LOCKED
        )
        "#,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(deleted.rows_affected())
}
