//! Tracks deletions of full syncs without rewriting unchanged records.
//!
//! While a generation is in progress, the positions of unchanged saved records are stored as bitmaps. Added and
//! changed records move to positions after the generation's start. Live records that are neither have been deleted at
//! the provider.

use chrono::{DateTime, Utc};
use roaring::RoaringTreemap;
use sqlx::PgConnection;

use super::write::delete_positions;
use crate::dead_letters;
use crate::streams::{Generation, Held, LockedStream, StreamKey};

/// The number of positions that one statement reads or deletes.
const PAGE_SIZE: i64 = 10_000;

/// Begins a generation. Drops the positions that an earlier full sync has seen, unless they are held for approval.
pub async fn begin_generation(
    conn: &mut PgConnection,
    stream: &mut LockedStream,
    number: i64,
) -> sqlx::Result<()> {
    stream.generation = None;
    delete_obsolete_seen(conn, stream).await?;
    stream.generation = Some(Generation { number, start_position: stream.last_position });
    stream.live_before = stream.live_count;
    Ok(())
}

/// Ends the generation and drops everything that was tracked, including held deletions of an earlier run. Keeps the
/// outcome of an approval, because the host that has deleted the records may not have reported it yet.
pub async fn end_generation(conn: &mut PgConnection, stream: &mut LockedStream) -> sqlx::Result<()> {
    stream.generation = None;
    stream.held = stream.held.filter(|held| matches!(held, Held::Approved { .. }));
    delete_obsolete_seen(conn, stream).await
}

/// Holds the generation's deletions for approval, and continues to track saved records for it. Replaces held deletions
/// of an earlier run.
pub async fn hold_generation(
    conn: &mut PgConnection,
    stream: &mut LockedStream,
    fence: i64,
) -> sqlx::Result<()> {
    stream.held = stream.generation.take().map(|generation| Held::Waiting { fence, generation });
    delete_obsolete_seen(conn, stream).await
}

/// Tracks that the run has saved these unchanged records.
pub async fn mark_seen(
    conn: &mut PgConnection,
    stream: &LockedStream,
    unchanged: &RoaringTreemap,
) -> sqlx::Result<()> {
    if unchanged.is_empty() || (stream.generation.is_none() && stream.held_generation().is_none()) {
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

/// The result of a full sync's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unseen {
    Deleted(u64),
    /// Suspiciously many of the records that were live at its start were not seen. Nothing was deleted.
    Held {
        unseen: u64,
        live: u64,
    },
}

/// Deletes the live records that the generation has not seen, unless `may_delete` rejects their number.
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

/// Deletes the live records that a held attempt has not seen and that were not saved since. Returns their number, and the
/// time from which readers see the deletions, also if they were deleted before. Returns `None` if the attempt's deletions
/// are no longer held.
pub async fn delete_held(
    conn: &mut PgConnection,
    stream: &mut LockedStream,
    fence: i64,
) -> sqlx::Result<Option<(u64, DateTime<Utc>)>> {
    match stream.held {
        Some(Held::Waiting { fence: held, generation }) if held == fence => {
            let seen = load_seen(conn, stream.key, generation).await?;
            let unseen = list_unseen(conn, stream.key, generation, &seen).await?;
            let before = stream.last_position;
            let deleted = delete_pages(conn, stream, &unseen).await?;
            stream.held = Some(Held::Approved { fence, deleted: deleted.cast_signed(), before });
            delete_obsolete_seen(conn, stream).await?;
            Ok(Some((deleted, stream.now)))
        }
        Some(Held::Approved { fence: held, deleted, before }) if held == fence => {
            let since = first_change_after(conn, stream.key, before).await?;
            Ok(Some((deleted.cast_unsigned(), since.unwrap_or(stream.now))))
        }
        _ => Ok(None),
    }
}

/// Returns the time of the first record that was changed after a position.
async fn first_change_after(
    conn: &mut PgConnection,
    key: StreamKey,
    position: i64,
) -> sqlx::Result<Option<DateTime<Utc>>> {
    sqlx::query_scalar!(
        r#"
        SELECT last_modified_at FROM records WHERE connection_pk = $1 AND stream_no = $2 AND position > $3
        ORDER BY position LIMIT 1
        "#,
        key.connection.0,
        key.number,
        position,
    )
    .fetch_optional(conn)
    .await
}

async fn delete_pages(
    conn: &mut PgConnection,
    stream: &mut LockedStream,
    positions: &[i64],
) -> sqlx::Result<u64> {
    let mut deleted = 0;
    for page in positions.chunks(PAGE_SIZE as usize) {
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
            PAGE_SIZE,
        )
        .fetch_all(&mut *conn)
        .await?;
        let Some(last) = page.last() else { return Ok(unseen) };
        after = last.position;
        let missing = page.iter().filter(|row| row.is_live && !seen.contains(row.position.cast_unsigned()));
        unseen.extend(missing.map(|row| row.position));
    }
}

/// Deletes all records of the stream, including tombstones and dead letters. Positions continue from the last one.
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
    delete_obsolete_seen(conn, stream).await
}

/// Deletes the seen positions of generations that the stream no longer has.
async fn delete_obsolete_seen(conn: &mut PgConnection, stream: &LockedStream) -> sqlx::Result<()> {
    let current_generations: Vec<i64> = stream
        .generation
        .iter()
        .chain(&stream.held_generation())
        .map(|generation| generation.number)
        .collect();
    sqlx::query!(
        "DELETE FROM seen_positions WHERE connection_pk = $1 AND stream_no = $2 AND generation <> ALL($3)",
        stream.key.connection.0,
        stream.key.number,
        &current_generations,
    )
    .execute(conn)
    .await?;
    Ok(())
}
