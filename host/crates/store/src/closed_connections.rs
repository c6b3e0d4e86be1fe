//! Marks deleted connections in the records database, so that nothing is written for them, and deletes their records.
//!
//! The fencing token of a deleted connection's syncs keeps their runs from writing. Writers without a token, and runs
//! that are about to begin, hold a lock that closing the connection waits for, and check whether it was closed.

use sqlx::PgConnection;

use super::dead_letters;
use super::streams::StreamKey;
use syncline_types::ids::ConnectionPk;

/// Locks a connection against being closed until the transaction ends. Returns `false` if it is closed.
pub async fn hold_open(conn: &mut PgConnection, connection: ConnectionPk) -> sqlx::Result<bool> {
    sqlx::query!(
        r#"SELECT pg_advisory_xact_lock_shared(hashtextextended('closed_connections', $1))::text AS "none?""#,
        connection.0,
    )
    .fetch_one(&mut *conn)
    .await?;
    // A separate statement, so that it sees what was committed while it waited for the lock.
    let closed = sqlx::query_scalar!(
        r#"SELECT true AS "closed!" FROM closed_connections WHERE connection_pk = $1"#,
        connection.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(closed.is_none())
}

/// Closes connections. Waits for writes in progress. Later writes find a fencing token that is higher than theirs.
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

/// Deletes up to `limit` records of a closed connection or, once a stream is empty, the stream. Returns `true` if
/// there may be more.
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

/// Removes the mark, once nothing can write for the connection any more.
pub async fn forget(conn: &mut PgConnection, connection: ConnectionPk) -> sqlx::Result<()> {
    sqlx::query!("DELETE FROM closed_connections WHERE connection_pk = $1", connection.0)
        .execute(conn)
        .await?;
    Ok(())
}
