//! Retention of records, in small steps. Each step is a short transaction, which the caller begins.
//!
//! Indexes of streams and syncs find what is due. So the cost of a step depends on what is due, not on the number of
//! stored records.

use std::time::Duration;

use sqlx::PgConnection;

use super::dead_letters;
use super::hosts::interval;
use super::records::{self, Span};
use super::streams::{self, StreamKey};
use syncline_types::ids::{ConnectionPk, FunctionName, Variant};

/// The number of rows that a step tries to lock, in the order of their age. Other transactions may have locked them.
///
/// The rows are found without a lock and then locked by their keys, because Citus locks rows of one connection at a
/// time.
const CANDIDATES: i64 = 20;

/// Locks retention until the transaction ends, so that only one host works on it. Returns `false` if another host
/// does.
pub async fn try_lock(conn: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar!(r#"SELECT pg_try_advisory_xact_lock(hashtextextended('retention', 0)) AS "taken!""#)
        .fetch_one(conn)
        .await
}

/// Prunes payloads of the stream with the oldest payload that were modified longer ago than `age`. Examines up to
/// `limit` records. Returns the number of payloads, or `None` if there is no such stream. Skips streams that are being
/// written to.
pub async fn prune_step(conn: &mut PgConnection, age: Duration, limit: i64) -> sqlx::Result<Option<u64>> {
    let Some((key, pruned_through)) = lock_prunable(conn, age).await? else { return Ok(None) };
    // Modification times grow with positions, so the oldest records come first.
    let old_until = sqlx::query_scalar!(
        r#"
        SELECT max(position) FILTER (WHERE last_modified_at < now() - $4::interval)
        FROM (
            SELECT position, last_modified_at FROM records
            WHERE connection_pk = $1 AND stream_no = $2 AND position > $3
            ORDER BY position LIMIT $5
        ) AS next
        "#,
        key.connection.0,
        key.number,
        pruned_through,
        interval(age),
        limit,
    )
    .fetch_one(&mut *conn)
    .await?;
    let mut pruned = 0;
    if let Some(until) = old_until {
        let span = Span { after: pruned_through, until };
        pruned = records::prune(conn, key, span, limit).await?.count;
    }
    streams::note_pruned(conn, key, old_until.unwrap_or(pruned_through)).await?;
    Ok(Some(pruned))
}

/// Deletes up to `limit` records of the sync that has not run for the longest time, if that is longer than `age`.
/// Clears its checkpoint, so that its next run fetches everything. Returns the number of records, or `None` if there
/// is no such sync. Skips syncs that are being written to.
pub async fn delete_step(conn: &mut PgConnection, age: Duration, limit: i64) -> sqlx::Result<Option<u64>> {
    let Some((connection, name, variant)) = lock_unused(conn, age).await? else { return Ok(None) };
    let Some(key) = lock_stream_with_records(conn, connection, &name, &variant).await? else {
        delete_state(conn, connection, &name, &variant).await?;
        return Ok(Some(0));
    };
    clear_checkpoint(conn, connection, &name, &variant).await?;
    delete_oldest(conn, key, limit).await.map(Some)
}

/// Deletes up to `limit` dead letters of one stream that have not arrived again for longer than `age`. Returns their
/// number, or `None` if there are none. Skips streams that are being written to.
pub async fn drop_letters_step(
    conn: &mut PgConnection,
    age: Duration,
    limit: i64,
) -> sqlx::Result<Option<u64>> {
    let Some(key) = lock_with_old_letters(conn, age).await? else { return Ok(None) };
    let dropped = sqlx::query!(
        r#"
        DELETE FROM dead_letters
        WHERE connection_pk = $1 AND stream_no = $2 AND letter_key IN (
            SELECT letter_key FROM dead_letters
            WHERE connection_pk = $1 AND stream_no = $2 AND last_seen_at < now() - $3::interval
            LIMIT $4
        )
        "#,
        key.connection.0,
        key.number,
        interval(age),
        limit,
    )
    .execute(&mut *conn)
    .await?
    .rows_affected();
    sqlx::query!(
        "UPDATE streams SET dead_letters = dead_letters - $3 WHERE connection_pk = $1 AND stream_no = $2",
        key.connection.0,
        key.number,
        dropped.cast_signed(),
    )
    .execute(conn)
    .await?;
    Ok(Some(dropped))
}

/// Locks the stream with the oldest payload, if it is older than `age`. Returns the position up to which its payloads
/// are pruned.
async fn lock_prunable(conn: &mut PgConnection, age: Duration) -> sqlx::Result<Option<(StreamKey, i64)>> {
    let found = sqlx::query!(
        r#"
        SELECT connection_pk, stream_no FROM streams
        WHERE oldest_payload_at < now() - $1::interval
        ORDER BY oldest_payload_at LIMIT $2
        "#,
        interval(age),
        CANDIDATES,
    )
    .fetch_all(&mut *conn)
    .await?;
    for stream in found {
        let pruned_through = sqlx::query_scalar!(
            r#"
            SELECT pruned_through FROM streams
            WHERE connection_pk = $1 AND stream_no = $2 AND oldest_payload_at < now() - $3::interval
            FOR NO KEY UPDATE SKIP LOCKED
            "#,
            stream.connection_pk,
            stream.stream_no,
            interval(age),
        )
        .fetch_optional(&mut *conn)
        .await?;
        if let Some(pruned_through) = pruned_through {
            let connection = ConnectionPk(stream.connection_pk);
            return Ok(Some((StreamKey { connection, number: stream.stream_no }, pruned_through)));
        }
    }
    Ok(None)
}

/// Locks the sync that has not run for the longest time, if that is longer than `age`.
async fn lock_unused(
    conn: &mut PgConnection,
    age: Duration,
) -> sqlx::Result<Option<(ConnectionPk, FunctionName, Variant)>> {
    let found = sqlx::query!(
        r#"
        SELECT connection_pk, sync_name, variant FROM sync_states
        WHERE last_run_at < now() - $1::interval
        ORDER BY last_run_at LIMIT $2
        "#,
        interval(age),
        CANDIDATES,
    )
    .fetch_all(&mut *conn)
    .await?;
    for sync in found {
        let locked = sqlx::query_scalar!(
            r#"
            SELECT true AS "locked!" FROM sync_states
            WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 AND last_run_at < now() - $4::interval
            FOR UPDATE SKIP LOCKED
            "#,
            sync.connection_pk,
            sync.sync_name,
            sync.variant,
            interval(age),
        )
        .fetch_optional(&mut *conn)
        .await?;
        if locked.is_some() {
            let connection = ConnectionPk(sync.connection_pk);
            let name = FunctionName::from_stored(sync.sync_name);
            return Ok(Some((connection, name, Variant::from_stored(sync.variant))));
        }
    }
    Ok(None)
}

/// Locks the stream with the dead letter that has not arrived again for the longest time, if that is longer than `age`.
async fn lock_with_old_letters(conn: &mut PgConnection, age: Duration) -> sqlx::Result<Option<StreamKey>> {
    let mut found = sqlx::query!(
        r#"
        SELECT connection_pk, stream_no FROM dead_letters
        WHERE last_seen_at < now() - $1::interval
        ORDER BY last_seen_at LIMIT $2
        "#,
        interval(age),
        CANDIDATES,
    )
    .map(|row| StreamKey { connection: ConnectionPk(row.connection_pk), number: row.stream_no })
    .fetch_all(&mut *conn)
    .await?;
    found.dedup();
    for key in found {
        let locked = sqlx::query_scalar!(
            r#"
            SELECT true AS "locked!" FROM streams
            WHERE connection_pk = $1 AND stream_no = $2 FOR NO KEY UPDATE SKIP LOCKED
            "#,
            key.connection.0,
            key.number,
        )
        .fetch_optional(&mut *conn)
        .await?;
        if locked.is_some() {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

async fn lock_stream_with_records(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
) -> sqlx::Result<Option<StreamKey>> {
    let number = sqlx::query_scalar!(
        r#"
        SELECT stream_no FROM streams
        WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 AND (total_count > 0 OR dead_letters > 0)
        ORDER BY stream_no LIMIT 1
        FOR NO KEY UPDATE
        "#,
        connection.0,
        sync.as_str(),
        variant.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(number.map(|number| StreamKey { connection, number }))
}

async fn clear_checkpoint(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE sync_states SET checkpoint = NULL, counts = '{}', restores_pruned = false
        WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3
        "#,
        connection.0,
        sync.as_str(),
        variant.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Deletes the state of a sync without records. Its streams stay, because their positions must not start again at the
/// beginning.
async fn delete_state(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
) -> sqlx::Result<()> {
    sqlx::query!(
        "DELETE FROM sync_states WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3",
        connection.0,
        sync.as_str(),
        variant.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Deletes the oldest records of a locked stream, and the positions that full syncs have seen.
async fn delete_oldest(conn: &mut PgConnection, key: StreamKey, limit: i64) -> sqlx::Result<u64> {
    let deleted = sqlx::query!(
        r#"
        WITH oldest AS (
            SELECT max(position) AS until FROM (
                SELECT position FROM records WHERE connection_pk = $1 AND stream_no = $2 ORDER BY position LIMIT $3
            ) AS batch
        ), deleted AS (
            DELETE FROM records
            WHERE connection_pk = $1 AND stream_no = $2 AND position <= (SELECT until FROM oldest)
            RETURNING deleted_at
        )
        SELECT count(*) AS "total!", count(*) FILTER (WHERE deleted_at IS NULL) AS "live!" FROM deleted
        "#,
        key.connection.0,
        key.number,
        limit,
    )
    .fetch_one(&mut *conn)
    .await?;
    sqlx::query!(
        "DELETE FROM seen_positions WHERE connection_pk = $1 AND stream_no = $2",
        key.connection.0,
        key.number,
    )
    .execute(&mut *conn)
    .await?;
    dead_letters::delete_all(conn, key).await?;
    // If no record was left, the counts are set to 0 even if they were wrong, so that this does not repeat forever.
    sqlx::query!(
        r#"
        UPDATE streams
        SET dead_letters = 0, live_count = CASE WHEN $3::bigint = 0 THEN 0 ELSE live_count - $4 END,
            total_count = CASE WHEN $3 = 0 THEN 0 ELSE total_count - $3 END,
            generation = NULL, generation_start = NULL,
            -- What a held run has seen is not known any more: nobody may approve its deletions by what is left of it.
            held_fence = NULL, held_generation = NULL, held_start = NULL, held_deleted = NULL
        WHERE connection_pk = $1 AND stream_no = $2
        "#,
        key.connection.0,
        key.number,
        deleted.total,
        deleted.live,
    )
    .execute(conn)
    .await?;
    Ok(deleted.total.cast_unsigned())
}
