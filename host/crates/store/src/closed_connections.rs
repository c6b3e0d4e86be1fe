//! What is kept of a deleted connection among syncs' output: that nothing may be written for it, and what is still to
//! be removed.
//!
//! A sync that has begun is kept from writing by its fence. Whatever writes without one, or is about to begin, holds
//! a lock that the closing of the connection waits for, and looks whether it was closed.

use sqlx::PgConnection;

use super::dead_letters;
use super::streams::StreamKey;
use syncline_types::ids::ConnectionPk;

/// Whether something may be written for the connection until the transaction ends.
pub async fn hold_open(conn: &mut PgConnection, connection: ConnectionPk) -> sqlx::Result<bool> {
    sqlx::query!(
        r#"SELECT pg_advisory_xact_lock_shared(hashtextextended('closed_connections', $1))::text AS "none?""#,
        connection.0,
    )
    .fetch_one(&mut *conn)
    .await?;
    // A statement of its own: it has to see what was committed while the lock was waited for.
    let closed = sqlx::query_scalar!(
        r#"SELECT true AS "closed!" FROM closed_connections WHERE connection_pk = $1"#,
        connection.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(closed.is_none())
}

/// Lets nothing more be written for these connections: what is on is waited for, and every later write finds a fence
/// that is higher than its own.
pub async fn close(conn: &mut PgConnection, connections: &[ConnectionPk]) -> sqlx::Result<()> {
    let connections: Vec<i64> = connections.iter().map(|connection| connection.0).collect();
    sqlx::query!(
        r#"
        SELECT pg_advisory_xact_lock(hashtextextended('closed_connections', pk))::text AS "none?"
        FROM unnest($1::bigint[]) AS pk
        "#,
        &connections,
    )
    .fetch_all(&mut *conn)
    .await?;
    sqlx::query!(
        "INSERT INTO closed_connections (connection_pk) SELECT unnest($1::bigint[]) ON CONFLICT DO NOTHING",
        &connections,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!(
        "UPDATE sync_states SET fence = 9223372036854775807 WHERE connection_pk = ANY($1)",
        &connections,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Removes up to `limit` records of a closed connection, then the streams that had them. `true`: there may be more.
pub async fn remove_batch(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    limit: i64,
) -> sqlx::Result<bool> {
    let stream = sqlx::query_scalar!(
        "SELECT stream_no FROM streams WHERE connection_pk = $1 ORDER BY stream_no LIMIT 1",
        connection.0,
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(stream) = stream else {
        sqlx::query!("DELETE FROM sync_states WHERE connection_pk = $1", connection.0).execute(conn).await?;
        return Ok(false);
    };
    let last = sqlx::query_scalar!(
        r#"
        SELECT max(position) FROM (
            SELECT position FROM records WHERE connection_pk = $1 AND stream_no = $2 ORDER BY position LIMIT $3
        ) AS batch
        "#,
        connection.0,
        stream,
        limit,
    )
    .fetch_one(&mut *conn)
    .await?;
    match last {
        Some(last) => {
            sqlx::query!(
                "DELETE FROM records WHERE connection_pk = $1 AND stream_no = $2 AND position <= $3",
                connection.0,
                stream,
                last,
            )
            .execute(conn)
            .await?;
        }
        None => {
            sqlx::query!(
                "DELETE FROM seen_positions WHERE connection_pk = $1 AND stream_no = $2",
                connection.0,
                stream,
            )
            .execute(&mut *conn)
            .await?;
            dead_letters::delete_all(conn, StreamKey { connection, number: stream }).await?;
            sqlx::query!(
                "DELETE FROM streams WHERE connection_pk = $1 AND stream_no = $2",
                connection.0,
                stream,
            )
            .execute(conn)
            .await?;
        }
    }
    Ok(true)
}

/// Nothing that could write for it is left.
pub async fn forget(conn: &mut PgConnection, connection: ConnectionPk) -> sqlx::Result<()> {
    sqlx::query!("DELETE FROM closed_connections WHERE connection_pk = $1", connection.0)
        .execute(conn)
        .await?;
    Ok(())
}
