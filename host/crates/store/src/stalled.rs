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

/// Like [`end_stalled`], for a records database on Citus. There, locks are on the workers, so the coordinator does not
/// see which sessions block each other. Reads the locks of all nodes only if a statement takes unusually long.
pub async fn end_stalled_on_citus(conn: &mut PgConnection, patience: Duration) -> sqlx::Result<i64> {
    if !has_slow_statement(conn, patience).await? {
        return Ok(0);
    }
    // The statement is not checked at compile time, because only Citus has its views.
    //
    // A session of the coordinator also waits for a `Client` while a worker executes its statement. So all parts of a
    // transaction must wait for their clients: on the coordinator for the host, on workers for the coordinator.
    let ended = sqlx::query_scalar(
        "WITH activity AS MATERIALIZED (
             SELECT global_pid, is_worker_query, usename, application_name, query_start, state_change,
                    coalesce(state = 'active' AND wait_event_type IS DISTINCT FROM 'Client', false) AS is_working
             FROM citus_stat_activity
             WHERE datname = current_database()
         ), blocked AS MATERIALIZED (
             SELECT DISTINCT lock.blocking_gpid AS holder
             FROM citus_lock_waits lock
             JOIN activity waiting ON waiting.global_pid = lock.waiting_gpid
             WHERE NOT waiting.is_worker_query AND waiting.application_name = $2
               AND waiting.query_start < clock_timestamp() - $1
         )
         SELECT count(*) FILTER (WHERE pg_terminate_backend(holder.global_pid))
         FROM activity holder
         JOIN blocked ON blocked.holder = holder.global_pid
         WHERE NOT holder.is_worker_query AND holder.usename = current_user AND holder.application_name = $2
           AND holder.state_change < clock_timestamp() - $1
           AND NOT EXISTS (
               SELECT FROM activity part WHERE part.global_pid = holder.global_pid AND part.is_working
           )",
    );
    ended.bind(interval(patience)).bind(super::APPLICATION_NAME).fetch_one(conn).await
}

/// Whether another session of a host has executed its statement for longer than `patience`.
async fn has_slow_statement(conn: &mut PgConnection, patience: Duration) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"
        SELECT EXISTS (
            SELECT FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = $2 AND state = 'active'
              AND pid <> pg_backend_pid() AND query_start < clock_timestamp() - $1::interval
        ) AS "has_slow_statement!"
        "#,
        interval(patience),
        super::APPLICATION_NAME,
    )
    .fetch_one(conn)
    .await
}
