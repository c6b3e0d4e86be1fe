//! Deletion tracking for full syncs, without rewriting a record that did not change.
//!
//! While a generation lives, what a run saves unchanged is noted as a bitmap of positions; what it adds or
//! changes moves behind the generation's start by itself. What is neither, at the end, is gone at the provider.

use roaring::RoaringTreemap;
use sqlx::PgConnection;

use super::write::delete_positions;
use crate::dead_letters;
use crate::streams::{Generation, Held, LockedStream, StreamKey};

/// How many positions are read or deleted by one statement.
const PAGE: i64 = 10_000;

/// Begins to watch what is saved, forgetting what an earlier full sync saw, unless that is held.
pub async fn begin_generation(
    conn: &mut PgConnection,
    stream: &mut LockedStream,
    number: i64,
) -> sqlx::Result<()> {
    stream.generation = None;
    forget_seen(conn, stream).await?;
    stream.generation = Some(Generation { number, start_position: stream.last_position });
    stream.live_before = stream.live_count;
    Ok(())
}

/// Stops watching: everything is known, also what an earlier run had held back.
pub async fn end_generation(conn: &mut PgConnection, stream: &mut LockedStream) -> sqlx::Result<()> {
    stream.generation = None;
    stream.held = None;
    forget_seen(conn, stream).await
}

/// Keeps what the generation has seen, and goes on noting what is saved, so that what it has not seen can be deleted
/// later. It takes the place of what an earlier run has held back.
pub async fn hold_generation(
    conn: &mut PgConnection,
    stream: &mut LockedStream,
    fence: i64,
) -> sqlx::Result<()> {
    stream.held = stream.generation.take().map(|generation| Held::Waiting { fence, generation });
    forget_seen(conn, stream).await
}

/// Notes that the run saved these records and they had not changed.
pub async fn mark_seen(
    conn: &mut PgConnection,
    stream: &LockedStream,
    unchanged: &RoaringTreemap,
) -> sqlx::Result<()> {
    if unchanged.is_empty() || (stream.generation.is_none() && stream.held.is_none()) {
        return Ok(());
    }
    let mut positions = Vec::with_capacity(unchanged.serialized_size());
    unchanged.serialize_into(&mut positions).expect("writing to memory does not fail");
    for generation in stream.generation.iter().chain(&stream.held_generation()) {
        sqlx::query!(
            r#"
            INSERT INTO seen_positions (connection_pk, stream_no, generation, part, positions)
            SELECT $1, $2, $3, coalesce(max(part), 0) + 1, $4
            FROM seen_positions WHERE connection_pk = $1 AND stream_no = $2 AND generation = $3
            "#,
            stream.key.connection.0,
            stream.key.number,
            generation.number,
            positions,
        )
        .execute(&mut *conn)
        .await?;
    }
    Ok(())
}

/// What the end of a full sync found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unseen {
    Deleted(u64),
    /// So many of the records that were live when it began were not seen that it looks like a mistake: nothing was deleted.
    Held {
        unseen: u64,
        live: u64,
    },
}

/// Deletes the live records that the generation has not seen, unless `may_delete` refuses their number.
pub async fn delete_unseen(
    conn: &mut PgConnection,
    stream: &mut LockedStream,
    may_delete: impl FnOnce(u64, u64) -> bool,
) -> sqlx::Result<Unseen> {
    let Some(generation) = stream.generation else { return Ok(Unseen::Deleted(0)) };
    let seen = load_seen(conn, stream.key, generation).await?;
    let unseen = list_unseen(conn, stream.key, generation, &seen).await?;
    let live = stream.live_before.max(0).cast_unsigned();
    if !unseen.is_empty() && !may_delete(unseen.len() as u64, live) {
        return Ok(Unseen::Held { unseen: unseen.len() as u64, live });
    }
    Ok(Unseen::Deleted(delete_pages(conn, stream, &unseen).await?))
}

/// Deletes the live records that a held attempt has not seen, and that nobody has saved since. Gives how many, also if
/// that was done before. `None`: it holds nothing back any more.
pub async fn delete_held(
    conn: &mut PgConnection,
    stream: &mut LockedStream,
    fence: i64,
) -> sqlx::Result<Option<u64>> {
    match stream.held {
        Some(Held::Waiting { fence: held, generation }) if held == fence => {
            let seen = load_seen(conn, stream.key, generation).await?;
            let unseen = list_unseen(conn, stream.key, generation, &seen).await?;
            let deleted = delete_pages(conn, stream, &unseen).await?;
            stream.held = Some(Held::Approved { fence, deleted: deleted.cast_signed() });
            forget_seen(conn, stream).await?;
            Ok(Some(deleted))
        }
        Some(Held::Approved { fence: held, deleted }) if held == fence => Ok(Some(deleted.cast_unsigned())),
        _ => Ok(None),
    }
}

async fn delete_pages(
    conn: &mut PgConnection,
    stream: &mut LockedStream,
    positions: &[i64],
) -> sqlx::Result<u64> {
    let mut deleted = 0;
    for page in positions.chunks(PAGE as usize) {
        deleted += delete_positions(conn, stream, page).await?;
    }
    Ok(deleted)
}

async fn load_seen(
    conn: &mut PgConnection,
    key: StreamKey,
    generation: Generation,
) -> sqlx::Result<RoaringTreemap> {
    let parts = sqlx::query_scalar!(
        "SELECT positions FROM seen_positions WHERE connection_pk = $1 AND stream_no = $2 AND generation = $3",
        key.connection.0,
        key.number,
        generation.number,
    )
    .fetch_all(conn)
    .await?;
    let mut seen = RoaringTreemap::new();
    for part in parts {
        seen |= RoaringTreemap::deserialize_from(part.as_slice())
            .map_err(|error| sqlx::Error::Decode(error.into()))?;
    }
    Ok(seen)
}

async fn list_unseen(
    conn: &mut PgConnection,
    key: StreamKey,
    generation: Generation,
    seen: &RoaringTreemap,
) -> sqlx::Result<Vec<i64>> {
    let mut unseen = Vec::new();
    let mut after = 0;
    loop {
        let page = sqlx::query!(
            r#"
            SELECT position, deleted_at IS NULL AS "is_live!" FROM records
            WHERE connection_pk = $1 AND stream_no = $2 AND position > $3 AND position <= $4
            ORDER BY position LIMIT $5
            "#,
            key.connection.0,
            key.number,
            after,
            generation.start_position,
            PAGE,
        )
        .fetch_all(&mut *conn)
        .await?;
        let Some(last) = page.last() else { return Ok(unseen) };
        after = last.position;
        let missing = page.iter().filter(|row| row.is_live && !seen.contains(row.position.cast_unsigned()));
        unseen.extend(missing.map(|row| row.position));
    }
}

/// Removes every record of the stream, tombstones and dead letters too. Its positions go on where they were.
pub async fn delete_all(conn: &mut PgConnection, stream: &mut LockedStream) -> sqlx::Result<()> {
    sqlx::query!(
        "DELETE FROM records WHERE connection_pk = $1 AND stream_no = $2",
        stream.key.connection.0,
        stream.key.number,
    )
    .execute(&mut *conn)
    .await?;
    dead_letters::delete_all(conn, stream.key).await?;
    stream.dead_letters = 0;
    stream.live_count = 0;
    stream.total_count = 0;
    stream.generation = None;
    stream.held = None;
    forget_seen(conn, stream).await
}

/// Forgets what was seen by generations that the stream no longer has.
async fn forget_seen(conn: &mut PgConnection, stream: &LockedStream) -> sqlx::Result<()> {
    let kept: Vec<i64> = stream
        .generation
        .iter()
        .chain(&stream.held_generation())
        .map(|generation| generation.number)
        .collect();
    sqlx::query!(
        "DELETE FROM seen_positions WHERE connection_pk = $1 AND stream_no = $2 AND generation <> ALL($3)",
        stream.key.connection.0,
        stream.key.number,
        &kept,
    )
    .execute(conn)
    .await?;
    Ok(())
}
