//! The status of schedules, for clients.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::requests::{ScheduleScope, Target, query_named, query_target};
use syncline_types::functions::RunState;
use syncline_types::ids::{ConnectionId, ConnectionPk, FunctionName, SchedulePk, Variant};

/// A schedule with its latest runs, for `GET /sync/status`.
#[derive(Debug, Clone)]
pub struct ScheduleStatus {
    pub id: Uuid,
    pub connection: ConnectionPk,
    pub connection_id: ConnectionId,
    pub sync: FunctionName,
    pub variant: Variant,
    pub is_paused: bool,
    /// Also true between an interrupted attempt and the next one.
    pub is_running: bool,
    /// Whether the latest attempt was lost with its host or stopped.
    pub is_interrupted: bool,
    pub frequency_override: Option<String>,
    /// When the schedule is due next. During a run, this is the slot of that run.
    pub next_run_at: Option<DateTime<Utc>>,
    /// When the retry of the latest run is due. `None` during it, and if it is not retried.
    pub retry_at: Option<DateTime<Utc>>,
    /// When the latest attempt began.
    pub started_at: Option<DateTime<Utc>>,
    /// The current time of the database's clock.
    pub now: DateTime<Utc>,
    pub latest: Option<LatestRun>,
    pub has_succeeded: bool,
}

/// The latest run that succeeded or failed. Runs that were stopped or lost do not count, because another attempt
/// follows.
#[derive(Debug, Clone)]
pub struct LatestRun {
    pub state: RunState,
    pub finished_at: Option<DateTime<Utc>>,
    pub counts: Option<Value>,
    pub id: Uuid,
    /// `None` if it succeeded.
    pub error: Option<SyncRunError>,
}

/// The error of a run, for clients.
#[derive(Debug, Clone)]
pub struct SyncRunError {
    /// The text of an error code. A newer host may have stored a code that this one does not know.
    pub code: String,
    pub message: String,
}

/// Lists the syncs and variants of a target that at least one connection has.
pub async fn list_variants(
    conn: &mut PgConnection,
    target: &Target,
) -> sqlx::Result<Vec<(FunctionName, Variant)>> {
    Ok(query_target!(
        "SELECT DISTINCT s.sync_name, s.variant FROM schedules s",
        target;
        query => query
            .map(|row| (FunctionName::from_stored(row.sync_name), Variant::from_stored(row.variant)))
            .fetch_all(&mut *conn)
            .await?
    ))
}

/// Calls the macro `$query` with the statement that selects the status of the schedules `s`, and with `$rest`.
macro_rules! with_status {
    ($query:ident, $($rest:tt)*) => {
        $query!(
            r#"
        SELECT s.pk, s.id, s.connection_pk, c.connection_id, s.sync_name, s.variant, s.state = 'paused' AS "is_paused!",
               s.run_id IS NOT NULL OR (coalesce(newest.state IN ('lost', 'cancelled'), false)
                   AND coalesce(s.due_at <= now(), false)) AS "is_running!",
               coalesce(newest.state IN ('lost', 'cancelled'), false) AS "is_interrupted!", s.frequency_override,
               coalesce(s.next_run_at, CASE WHEN s.state = 'running' THEN s.due_at END) AS next_run_at,
               CASE WHEN s.due_reason = 'retry' AND s.state = 'running' AND s.run_id IS NULL
                   THEN s.due_at END AS retry_at,
               latest.state AS "run_state?: RunState", latest.finished_at AS "finished_at?", latest.counts AS "counts?",
               latest.id AS "run_id?", latest.error_code AS "error_code?", latest.error_message AS "error_message?",
               s.last_success_at IS NOT NULL AS "has_succeeded!", newest.started_at AS "started_at?", now() AS "now!"
        FROM schedules s
        JOIN connections c ON c.pk = s.connection_pk
        LEFT JOIN LATERAL (
            SELECT state, started_at FROM runs WHERE schedule_pk = s.pk ORDER BY started_at DESC LIMIT 1
        ) AS newest ON true
        LEFT JOIN LATERAL (
            SELECT id, state, finished_at, counts, error_code, error_message FROM runs
            WHERE schedule_pk = s.pk AND state IN ('success', 'error')
            ORDER BY started_at DESC LIMIT 1
        ) AS latest ON true"#,
            $($rest)*
        )
    };
}

/// Builds a status from a row of that statement.
macro_rules! schedule_status {
    ($row:expr) => {
        ScheduleStatus {
            id: $row.id,
            connection: ConnectionPk($row.connection_pk),
            connection_id: ConnectionId::from_stored($row.connection_id),
            sync: FunctionName::from_stored($row.sync_name),
            variant: Variant::from_stored($row.variant),
            is_paused: $row.is_paused,
            is_running: $row.is_running,
            is_interrupted: $row.is_interrupted,
            frequency_override: $row.frequency_override,
            next_run_at: $row.next_run_at,
            retry_at: $row.retry_at,
            started_at: $row.started_at,
            now: $row.now,
            latest: $row.run_state.zip($row.run_id).map(|(state, id)| LatestRun {
                state,
                finished_at: $row.finished_at,
                counts: $row.counts,
                id,
                error: $row
                    .error_code
                    .map(|code| SyncRunError { code, message: $row.error_message.unwrap_or_default() }),
            }),
            has_succeeded: $row.has_succeeded,
        }
    };
}

/// Lists the status of a target's schedules, ordered by connection, sync and variant.
pub async fn list_status(conn: &mut PgConnection, target: &Target) -> sqlx::Result<Vec<ScheduleStatus>> {
    let mut statuses: Vec<_> = with_status!(
        query_target,
        target;
        query => query.map(|row| schedule_status!(row)).fetch_all(&mut *conn).await?
    );
    // Sorted here, because with `ORDER BY` Postgres would scan all connections in that order.
    statuses.sort_by(|a, b| (a.connection, &a.sync, &a.variant).cmp(&(b.connection, &b.sync, &b.variant)));
    Ok(statuses)
}

/// Lists the status of up to `limit` schedules of a target after the row number `after`, ordered by row number.
pub async fn list_status_after(
    conn: &mut PgConnection,
    target: &Target,
    after: SchedulePk,
    limit: usize,
) -> sqlx::Result<Vec<(SchedulePk, ScheduleStatus)>> {
    let mut pks: Vec<_> = query_target!(
        "SELECT s.pk FROM schedules s",
        target;
        query => query.map(|row| SchedulePk(row.pk)).fetch_all(&mut *conn).await?
    );
    // Sorted and cut here, because with `ORDER BY` Postgres would scan all schedules in that order.
    pks.retain(|pk| *pk > after);
    pks.sort_unstable();
    pks.truncate(limit);
    let mut statuses = list_status_of(conn, &pks).await?;
    statuses.sort_by_key(|(pk, _)| *pk);
    Ok(statuses)
}

macro_rules! query_by_pk {
    ($statement:literal, $pks:expr) => {
        sqlx::query!($statement + " WHERE s.pk = ANY($1)", $pks)
    };
}

/// Lists the status of these schedules, in no particular order.
pub(super) async fn list_status_of(
    conn: &mut PgConnection,
    schedules: &[SchedulePk],
) -> sqlx::Result<Vec<(SchedulePk, ScheduleStatus)>> {
    let pks: Vec<i64> = schedules.iter().map(|schedule| schedule.0).collect();
    with_status!(query_by_pk, &pks)
        .map(|row| (SchedulePk(row.pk), schedule_status!(row)))
        .fetch_all(conn)
        .await
}
