//! Reads a stream in the order of positions, and prunes payloads.

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt;
use sqlx::PgConnection;

use super::LastAction;
use super::sealed::open;
use crate::pages::{Page, PageLimit};
use crate::streams::{self, StreamKey};
use syncline_crypto::PayloadKeys;

/// A stored record.
#[derive(Debug, Clone)]
pub struct StoredRecord {
    pub position: i64,
    pub last_action: LastAction,
    pub first_seen_at: DateTime<Utc>,
    pub last_modified_at: DateTime<Utc>,
    pub deleted_at: Option<DateTime<Utc>>,
    pub pruned_at: Option<DateTime<Utc>>,
    pub content: Content,
}

/// The payload, which is a JSON object that contains the id. After pruning, only the id is left.
#[derive(Debug, Clone)]
pub enum Content {
    Payload(String),
    Pruned { external_id: String },
}

/// A set of last actions. If none is set, all actions match.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ActionSet {
    pub added: bool,
    pub updated: bool,
    pub deleted: bool,
}

impl ActionSet {
    fn is_everything(self) -> bool {
        self.added == self.updated && self.updated == self.deleted
    }

    fn to_numbers(self) -> Vec<i16> {
        [
            (self.added, LastAction::Added),
            (self.updated, LastAction::Updated),
            (self.deleted, LastAction::Deleted),
        ]
        .into_iter()
        .filter(|(wanted, _)| *wanted)
        .map(|(_, action)| action as i16)
        .collect()
    }
}

/// Which records of a stream to read.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only records after this position.
    pub after: i64,
    /// Only records that were modified at this time or later.
    pub modified_since: Option<DateTime<Utc>>,
    pub actions: ActionSet,
}

macro_rules! stored_record {
    ($row:ident, $stream:expr, $keys:expr) => {
        Ok(StoredRecord {
            position: $row.position,
            last_action: $row.last_action,
            first_seen_at: $row.first_seen_at,
            last_modified_at: $row.last_modified_at,
            deleted_at: $row.deleted_at,
            pruned_at: $row.pruned_at,
            content: match ($row.payload, $row.payload_ciphertext) {
                (Some(payload), _) => Content::Payload(payload),
                (None, Some(sealed)) => {
                    let id = $row.id_without_payload.unwrap_or_default();
                    Content::Payload(open($keys, $stream, &id, $row.payload_key, &sealed)?)
                }
                (None, None) => Content::Pruned { external_id: $row.id_without_payload.unwrap_or_default() },
            },
        })
    };
}

impl StoredRecord {
    /// The size of the payload in bytes.
    fn bytes(&self) -> usize {
        match &self.content {
            Content::Payload(payload) => payload.len(),
            Content::Pruned { external_id } => external_id.len(),
        }
    }
}

/// Returns the next records in the order of positions.
pub async fn page(
    conn: &mut PgConnection,
    key: StreamKey,
    keys: &PayloadKeys,
    filter: &Filter,
    limit: PageLimit,
) -> sqlx::Result<Page<StoredRecord>> {
    let mut after = filter.after;
    if let Some(since) = filter.modified_since {
        after = after.max(position_at(conn, key, since).await?);
    }
    if filter.actions.is_everything() {
        let rows = sqlx::query!(
            r#"
            SELECT position, last_action AS "last_action: LastAction", first_seen_at, last_modified_at, deleted_at,
                   pruned_at, payload, CASE WHEN payload IS NULL THEN external_id END AS id_without_payload,
                   payload_key, payload_ciphertext
            FROM records
            WHERE connection_pk = $1 AND stream_no = $2 AND position > $3
            ORDER BY position LIMIT $4
            "#,
            key.connection.0,
            key.number,
            after,
            limit.rows,
        )
        .try_map(|row| stored_record!(row, key, keys))
        .fetch(conn);
        return Page::read(rows, limit.bytes, StoredRecord::bytes).await;
    }
    if !filter.actions.added {
        return page_of_changed(conn, key, keys, after, filter.actions, limit).await;
    }
    let rows = sqlx::query!(
        r#"
        SELECT position, last_action AS "last_action: LastAction", first_seen_at, last_modified_at, deleted_at,
               pruned_at, payload, CASE WHEN payload IS NULL THEN external_id END AS id_without_payload,
                   payload_key, payload_ciphertext
        FROM records
        WHERE connection_pk = $1 AND stream_no = $2 AND position > $3 AND last_action = ANY($5)
        ORDER BY position LIMIT $4
        "#,
        key.connection.0,
        key.number,
        after,
        limit.rows,
        &filter.actions.to_numbers(),
    )
    .try_map(|row| stored_record!(row, key, keys))
    .fetch(conn);
    Page::read(rows, limit.bytes, StoredRecord::bytes).await
}

/// Like [`page`], for updated or deleted records only. Their index contains no added records, so a stream whose
/// records were only added is not scanned. The query names the index's order and a range of one action, so that
/// Postgres uses that index.
async fn page_of_changed(
    conn: &mut PgConnection,
    key: StreamKey,
    keys: &PayloadKeys,
    after: i64,
    actions: ActionSet,
    limit: PageLimit,
) -> sqlx::Result<Page<StoredRecord>> {
    let rows = sqlx::query!(
        r#"
        SELECT changed.position AS "position!", changed.last_action AS "last_action!: LastAction",
               changed.first_seen_at AS "first_seen_at!", changed.last_modified_at AS "last_modified_at!",
               changed.deleted_at, changed.pruned_at, changed.payload,
               CASE WHEN changed.payload IS NULL THEN changed.external_id END AS id_without_payload,
               changed.payload_key, changed.payload_ciphertext
        FROM unnest($5::smallint[]) AS wanted (action)
        CROSS JOIN LATERAL (
            SELECT * FROM records
            WHERE connection_pk = $1 AND stream_no = $2 AND last_action > 0
              AND last_action >= wanted.action AND last_action <= wanted.action AND position > $3
            ORDER BY last_action, position LIMIT $4
        ) AS changed
        ORDER BY changed.position LIMIT $4
        "#,
        key.connection.0,
        key.number,
        after,
        limit.rows,
        &actions.to_numbers(),
    )
    .try_map(|row| stored_record!(row, key, keys))
    .fetch(conn);
    Page::read(rows, limit.bytes, StoredRecord::bytes).await
}

/// Returns the next of the records with these ids, in the order of positions.
pub async fn page_by_ids(
    conn: &mut PgConnection,
    key: StreamKey,
    keys: &PayloadKeys,
    filter: &Filter,
    ids: &[String],
    limit: PageLimit,
) -> sqlx::Result<Page<StoredRecord>> {
    let actions = (!filter.actions.is_everything()).then(|| filter.actions.to_numbers());
    let rows = sqlx::query!(
        r#"
        SELECT named.position AS "position!", named.last_action AS "last_action!: LastAction",
               named.first_seen_at AS "first_seen_at!", named.last_modified_at AS "last_modified_at!",
               named.deleted_at, named.pruned_at, named.payload,
               CASE WHEN named.payload IS NULL THEN named.external_id END AS id_without_payload,
               named.payload_key, named.payload_ciphertext
        FROM (SELECT DISTINCT id FROM unnest($3::text[]) AS asked (id)) AS wanted
        CROSS JOIN LATERAL (
            SELECT * FROM records
            WHERE connection_pk = $1 AND stream_no = $2 AND external_id >= wanted.id AND external_id <= wanted.id
            ORDER BY external_id LIMIT 1
        ) AS named
        WHERE named.position > $4
          AND ($5::timestamptz IS NULL OR named.last_modified_at >= $5)
          AND ($6::smallint[] IS NULL OR named.last_action = ANY($6))
        ORDER BY named.position LIMIT $7
        "#,
        key.connection.0,
        key.number,
        ids,
        filter.after,
        filter.modified_since,
        actions.as_deref(),
        limit.rows,
    )
    .try_map(|row| stored_record!(row, key, keys))
    .fetch(conn);
    Page::read(rows, limit.bytes, StoredRecord::bytes).await
}

/// Returns the last position before all records that were modified at `since` or later.
///
/// Modification times grow with positions, so a binary search over the index of positions suffices.
pub async fn position_at(conn: &mut PgConnection, key: StreamKey, since: DateTime<Utc>) -> sqlx::Result<i64> {
    let last = streams::head(conn, key).await?;
    let (mut before, mut at_or_after) = (0, last + 1);
    while at_or_after - before > 1 {
        let middle = before + (at_or_after - before) / 2;
        let found = sqlx::query!(
            r#"
            SELECT position, last_modified_at FROM records
            WHERE connection_pk = $1 AND stream_no = $2 AND position >= $3
            ORDER BY position LIMIT 1
            "#,
            key.connection.0,
            key.number,
            middle,
        )
        .fetch_optional(&mut *conn)
        .await?;
        match found {
            Some(record) if record.last_modified_at < since => before = record.position,
            _ => at_or_after = middle,
        }
    }
    Ok(before)
}

/// Returns the payloads of live records by id, or `None` if they have more than `max_bytes` together.
pub async fn find_payloads(
    conn: &mut PgConnection,
    key: StreamKey,
    keys: &PayloadKeys,
    ids: &[&str],
    max_bytes: usize,
) -> sqlx::Result<Option<Vec<(String, String)>>> {
    let mut rows = sqlx::query!(
        r#"
        SELECT r.external_id, r.payload, r.payload_key, r.payload_ciphertext
        FROM unnest($3::text[]) AS wanted (id)
        CROSS JOIN LATERAL (
            SELECT external_id, payload, payload_key, payload_ciphertext, deleted_at
            FROM records
            WHERE connection_pk = $1 AND stream_no = $2 AND external_id >= wanted.id AND external_id <= wanted.id
            ORDER BY external_id LIMIT 1
        ) AS r
        WHERE r.deleted_at IS NULL
        "#,
        key.connection.0,
        key.number,
        ids as &[&str],
    )
    .fetch(conn);
    let mut found = Vec::new();
    let mut bytes = 0;
    while let Some(row) = rows.try_next().await? {
        let payload = match (row.payload, row.payload_ciphertext) {
            (Some(payload), _) => payload,
            (None, Some(sealed)) => open(keys, key, &row.external_id, row.payload_key, &sealed)?,
            (None, None) => continue,
        };
        bytes += payload.len();
        if bytes > max_bytes {
            return Ok(None);
        }
        found.push((row.external_id, payload));
    }
    Ok(Some(found))
}

/// The records after one position, up to and including another.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    pub after: i64,
    pub until: i64,
}

/// The result of pruning.
#[derive(Debug, Clone, Copy)]
pub struct Pruned {
    pub count: u64,
    /// The position of the last pruned record.
    pub last: Option<i64>,
}

/// Prunes up to `limit` payloads of a locked stream, oldest first. Positions and times do not change.
pub async fn prune(conn: &mut PgConnection, key: StreamKey, span: Span, limit: i64) -> sqlx::Result<Pruned> {
    let pruned = sqlx::query!(
        r#"
        WITH pruned AS (
            INSERT INTO records AS r (connection_pk, stream_no, last_action, position, first_seen_at,
                                      last_modified_at, payload_hash, external_id, pruned_at)
            SELECT connection_pk, stream_no, last_action, position, first_seen_at, last_modified_at, payload_hash,
                   external_id, now()
            FROM (
                SELECT * FROM records
                WHERE connection_pk = $1 AND stream_no = $2 AND position > $3 AND position <= $4
                  AND num_nonnulls(payload, payload_ciphertext) > 0
                ORDER BY position LIMIT $5
                FOR NO KEY UPDATE
            ) AS oldest
            ON CONFLICT (connection_pk, stream_no, external_id) DO UPDATE
            SET payload = NULL, payload_ciphertext = NULL, pruned_at = excluded.pruned_at
            RETURNING position
        )
        SELECT count(*) AS "count!", max(position) AS last FROM pruned
        "#,
        key.connection.0,
        key.number,
        span.after,
        span.until,
        limit,
    )
    .fetch_one(conn)
    .await?;
    Ok(Pruned { count: pruned.count.cast_unsigned(), last: pruned.last })
}

/// Whether any record in the span still has a payload.
pub async fn has_payload(conn: &mut PgConnection, key: StreamKey, span: Span) -> sqlx::Result<bool> {
    let found = sqlx::query_scalar!(
        r#"
        SELECT true AS "found!" FROM records
        WHERE connection_pk = $1 AND stream_no = $2 AND position > $3 AND position <= $4
          AND num_nonnulls(payload, payload_ciphertext) > 0
        ORDER BY position LIMIT 1
        "#,
        key.connection.0,
        key.number,
        span.after,
        span.until,
    )
    .fetch_optional(conn)
    .await?;
    Ok(found.is_some())
}
