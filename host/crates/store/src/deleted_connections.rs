//! Deleted connections whose records still exist. The records are deleted in small batches.

use std::time::Duration;

use sqlx::PgConnection;

use super::hosts::interval;
use syncline_types::ids::ConnectionPk;

/// Stores the connections that this transaction deletes, and notifies all hosts.
pub async fn note(conn: &mut PgConnection, connections: &[ConnectionPk]) -> sqlx::Result<()> {
    sqlx::query!(
        "INSERT INTO deleted_connections (connection_pk) SELECT unnest($1::bigint[])",
        &numbers(connections),
    )
    .execute(&mut *conn)
    .await?;
    for payload in ["deletions", "cancel"] {
        sqlx::query!("SELECT pg_notify('syncline', $1)", payload).fetch_one(&mut *conn).await?;
    }
    Ok(())
}

/// A deleted connection whose records this host is removing.
#[derive(Debug, Clone, Copy)]
pub struct Deleted {
    pub connection: ConnectionPk,
    /// The time since the deletion, by the clock of the database.
    pub age: Duration,
}

/// Claims the connection that has waited longest, for the duration `hold`.
pub async fn claim(conn: &mut PgConnection, hold: Duration) -> sqlx::Result<Option<Deleted>> {
    let row = sqlx::query!(
        r#"
        UPDATE deleted_connections SET purge_due_at = now() + $1
        WHERE connection_pk = (
            SELECT connection_pk FROM deleted_connections
            WHERE purge_due_at <= now() ORDER BY purge_due_at LIMIT 1
            FOR UPDATE SKIP LOCKED
        )
        RETURNING connection_pk, extract(epoch FROM now() - deleted_at)::double precision AS "age_seconds!"
        "#,
        interval(hold),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| Deleted {
        connection: ConnectionPk(row.connection_pk),
        age: Duration::try_from_secs_f64(row.age_seconds).unwrap_or_default(),
    }))
}

/// Releases a claimed connection, to be claimed again after `wait`.
pub async fn postpone(conn: &mut PgConnection, connection: ConnectionPk, wait: Duration) -> sqlx::Result<()> {
    sqlx::query!(
        "UPDATE deleted_connections SET purge_due_at = now() + $2 WHERE connection_pk = $1",
        connection.0,
        interval(wait),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Removes a connection whose cleanup is complete.
pub async fn forget(conn: &mut PgConnection, connection: ConnectionPk) -> sqlx::Result<()> {
    sqlx::query!("DELETE FROM deleted_connections WHERE connection_pk = $1", connection.0)
        .execute(conn)
        .await?;
    Ok(())
}

fn numbers(connections: &[ConnectionPk]) -> Vec<i64> {
    connections.iter().map(|connection| connection.0).collect()
}
