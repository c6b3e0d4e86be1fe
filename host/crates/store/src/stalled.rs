//! Ends transactions of stopped hosts that block others.
//!
//! `idle_in_transaction_session_timeout` ends a transaction between two statements, but not within one. A host that
//! was frozen, or whose machine is gone, may still owe the data of a `COPY`, or not read a result. A server that waits
//! for its client reacts neither to a statement timeout nor to a cancellation, but only to the termination of the
//! session.

use std::time::Duration;

use sqlx::PgConnection;

use super::hosts::interval;

/// Terminates sessions of hosts that have been silent for `patience` while they block another host's statement. As
/// when a host is killed, uncommitted changes are lost. Returns the number of sessions.
pub async fn end_stalled(conn: &mut PgConnection, patience: Duration) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"
        WITH waiting AS MATERIALIZED (
            SELECT pid FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = $2 AND wait_event_type = 'Lock'
              AND query_start < clock_timestamp() - $1::interval
        )
        SELECT count(*) FILTER (WHERE pg_terminate_backend(holder.pid)) AS "ended!"
        FROM pg_stat_activity holder
        WHERE holder.pid IN (SELECT unnest(pg_blocking_pids(waiting.pid)) FROM waiting)
          AND holder.usename = current_user AND holder.application_name = $2
          AND holder.wait_event_type = 'Client' AND holder.state_change < clock_timestamp() - $1::interval
        "#,
        interval(patience),
        super::APPLICATION_NAME,
    )
    .fetch_one(conn)
    .await
}
