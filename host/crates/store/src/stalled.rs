//! Transactions that others wait for, while the server waits for a host that is silent.
//!
//! `idle_in_transaction_session_timeout` ends a transaction between two statements, but not within one: a host that
//! was frozen, or whose machine is gone, may owe the data of a `COPY`, or not read what it asked for. Neither a
//! statement's time-out nor a cancellation is heard by a server that waits for its client. An end is.

use std::time::Duration;

use sqlx::PgConnection;

use super::hosts::interval;

/// Ends the transactions of hosts that were silent for `patience` while another host's statement waits for them. It is
/// as if their host had been killed: what they have not committed is gone. Gives their number.
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
