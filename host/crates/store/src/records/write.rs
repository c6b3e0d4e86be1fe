//! Saves and deletes records in a stream that the caller has locked.
//!
//! Because of the lock, no other transaction can add the same record. So a batch first looks up existing records, and
//! then inserts new ones with one `COPY`, without conflict handling.
//!
//! A new partition has no statistics, so both indexes look equally good to the planner, and it may read the whole
//! stream. Therefore single rows are selected by a range of one value in the order of the intended index, and rows are
//! changed through the index of a conflict.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use roaring::RoaringTreemap;
use sqlx::PgConnection;
use uuid::Uuid;

use super::LastAction;
use super::sealed::{SealedPayload, is_hash_of};
use crate::RecordsTransaction;
use crate::streams::{LockedStream, StreamKey};
use syncline_crypto::{PayloadKey, PayloadKeys};

/// A record to save, not encrypted. Its payload contains the id and no metadata.
#[derive(Debug, Clone)]
pub struct IncomingRecord<'a> {
    pub external_id: Cow<'a, str>,
    pub payload_hash: [u8; 16],
    pub payload: Cow<'a, str>,
}

impl IncomingRecord<'_> {
    pub fn into_owned(self) -> IncomingRecord<'static> {
        IncomingRecord {
            external_id: Cow::Owned(self.external_id.into_owned()),
            payload: Cow::Owned(self.payload.into_owned()),
            payload_hash: self.payload_hash,
        }
    }
}

/// The result of a save.
#[derive(Debug, Default)]
pub struct Saved {
    pub added: u64,
    pub updated: u64,
    /// Positions of the unchanged records.
    pub unchanged_positions: RoaringTreemap,
    /// The oldest modification time of the records that were replaced.
    pub replaced_since: Option<DateTime<Utc>>,
}

/// The result of a deletion.
#[derive(Debug, Default)]
pub struct Deleted {
    /// The number of records that were live.
    pub count: u64,
    /// The oldest modification time of the deleted records.
    pub since: Option<DateTime<Utc>>,
}

/// Adds new records and replaces changed ones. Ids in `batch` must be unique.
///
/// A pruned record with the same payload stays pruned unless `restore_pruned` is set. If the model's encryption
/// setting has changed since, an unchanged record is stored again in place, encrypted or not. Readers do not see that
/// as a change.
pub async fn save<'b>(
    tx: &mut RecordsTransaction,
    stream: &mut LockedStream,
    batch: &'b [IncomingRecord<'_>],
    keys: &PayloadKeys,
    restore_pruned: bool,
) -> sqlx::Result<Saved> {
    let mut saved = Saved::default();
    let existing = if stream.total_count == 0 {
        HashMap::new()
    } else {
        let ids: Vec<&str> = batch.iter().map(|record| record.external_id.as_ref()).collect();
        find_existing(tx, stream.key, &ids).await?
    };

    let wanted_key =
        keys.sealing().map_err(|error| sqlx::Error::Decode(error.into()))?.map(PayloadKey::number);
    let to_stored = |record: &'b IncomingRecord<'_>| {
        SealedPayload::new(keys, &record.external_id, &record.payload_hash, &record.payload)
    };
    let mut added = CopyRows::with_capacity(batch);
    let mut replaced = Replacements::default();
    let mut converted = Replacements::default();
    for record in batch {
        let old = existing.get(record.external_id.as_ref());
        let (action, is_new) = match old {
            None => {
                stream.live_count += 1;
                stream.total_count += 1;
                (LastAction::Added, true)
            }
            Some(old) if old.is_deleted => {
                stream.live_count += 1;
                (LastAction::Added, false)
            }
            Some(old)
                if !(old.is_pruned && restore_pruned)
                    && is_hash_of(keys, old.key, old.payload_hash.as_bytes(), &record.payload_hash)? =>
            {
                if old.key != wanted_key {
                    let mut stored = to_stored(record)?;
                    if old.is_pruned {
                        (stored.payload, stored.sealed) = (None, None);
                    }
                    // The action is not written for records that stay in place, so any value works.
                    converted.push(old.position, LastAction::Added, &record.external_id, stored);
                }
                saved.unchanged_positions.insert(old.position.cast_unsigned());
                continue;
            }
            Some(_) => (LastAction::Updated, false),
        };
        match action {
            LastAction::Added => saved.added += 1,
            _ => saved.updated += 1,
        }
        saved.replaced_since = earliest(saved.replaced_since, old.map(|old| old.last_modified_at));
        stream.last_position += 1;
        if is_new {
            added.push(stream, action, &record.external_id, &to_stored(record)?);
        } else {
            replaced.push(stream.last_position, action, &record.external_id, to_stored(record)?);
        }
    }

    converted.write_in_place(tx, stream).await?;
    replaced.write(tx, stream).await?;
    if !added.is_empty() {
        added.copy(tx).await?;
    }
    Ok(saved)
}

/// Marks these records as deleted. They keep their last payload.
pub async fn delete(
    conn: &mut PgConnection,
    stream: &mut LockedStream,
    ids: &[&str],
) -> sqlx::Result<Deleted> {
    let existing = find_existing(conn, stream.key, ids).await?;
    let live = existing.values().filter(|old| !old.is_deleted);
    let since = live.clone().map(|old| old.last_modified_at).min();
    let mut positions: Vec<i64> = live.map(|old| old.position).collect();
    positions.sort_unstable();
    Ok(Deleted { count: delete_positions(conn, stream, &positions).await?, since })
}

fn earliest(one: Option<DateTime<Utc>>, other: Option<DateTime<Utc>>) -> Option<DateTime<Utc>> {
    one.into_iter().chain(other).min()
}

/// Returns the positions of the existing ones of these records.
pub async fn positions(
    conn: &mut PgConnection,
    key: StreamKey,
    ids: &[&str],
) -> sqlx::Result<RoaringTreemap> {
    let existing = find_existing(conn, key, ids).await?;
    Ok(existing.into_values().map(|old| old.position.cast_unsigned()).collect())
}

/// Returns the ids of those records that are live and pruned.
pub async fn list_pruned(
    conn: &mut PgConnection,
    key: StreamKey,
    ids: &[&str],
) -> sqlx::Result<HashSet<String>> {
    let existing = find_existing(conn, key, ids).await?;
    Ok(existing.into_iter().filter(|(_, old)| old.is_pruned && !old.is_deleted).map(|(id, _)| id).collect())
}

/// Marks the live records at these positions as deleted and moves them to the end of the stream.
pub(super) async fn delete_positions(
    conn: &mut PgConnection,
    stream: &mut LockedStream,
    positions: &[i64],
) -> sqlx::Result<u64> {
    if positions.is_empty() {
        return Ok(0);
    }
    let moved_to: Vec<i64> = (stream.last_position + 1..).take(positions.len()).collect();
    let deleted = sqlx::query!(
        r#"
        INSERT INTO records (connection_pk, stream_no, last_action, position, first_seen_at, last_modified_at,
                             deleted_at, payload_hash, external_id)
        SELECT $1, $2, $6, moved.new_position, r.first_seen_at, $5, $5, r.payload_hash, r.external_id
        FROM unnest($3::bigint[], $4::bigint[]) AS moved (old_position, new_position)
        CROSS JOIN LATERAL (
            SELECT first_seen_at, payload_hash, external_id
            FROM records
            WHERE connection_pk = $1 AND stream_no = $2
              AND position >= moved.old_position AND position <= moved.old_position
            ORDER BY position LIMIT 1
        ) AS r
        ON CONFLICT (connection_pk, stream_no, external_id) DO UPDATE
        SET position = excluded.position, last_action = excluded.last_action,
            deleted_at = excluded.deleted_at, last_modified_at = excluded.last_modified_at
        "#,
        stream.key.connection.0,
        stream.key.number,
        positions,
        &moved_to,
        stream.now,
        LastAction::Deleted as i16,
    )
    .execute(conn)
    .await?
    .rows_affected();
    stream.last_position += positions.len() as i64;
    stream.live_count -= deleted as i64;
    Ok(deleted)
}

struct Existing {
    position: i64,
    payload_hash: Uuid,
    key: Option<i32>,
    last_modified_at: DateTime<Utc>,
    is_deleted: bool,
    is_pruned: bool,
}

async fn find_existing(
    conn: &mut PgConnection,
    key: StreamKey,
    ids: &[&str],
) -> sqlx::Result<HashMap<String, Existing>> {
    let rows = sqlx::query!(
        r#"
        SELECT r.external_id, r.position, r.payload_hash, r.payload_key, r.last_modified_at,
               r.deleted_at IS NOT NULL AS "is_deleted!", r.pruned_at IS NOT NULL AS "is_pruned!"
        FROM unnest($3::text[]) AS wanted (id)
        CROSS JOIN LATERAL (
            SELECT external_id, position, payload_hash, payload_key, last_modified_at, deleted_at, pruned_at
            FROM records
            WHERE connection_pk = $1 AND stream_no = $2 AND external_id >= wanted.id AND external_id <= wanted.id
            ORDER BY external_id LIMIT 1
        ) AS r
        "#,
        key.connection.0,
        key.number,
        ids as &[&str],
    )
    .fetch_all(conn)
    .await?;
    let existing = rows.into_iter().map(|row| {
        let old = Existing {
            position: row.position,
            payload_hash: row.payload_hash,
            key: row.payload_key,
            last_modified_at: row.last_modified_at,
            is_deleted: row.is_deleted,
            is_pruned: row.is_pruned,
        };
        (row.external_id, old)
    });
    Ok(existing.collect())
}

/// Records that replace existing ones, with one list for each column.
#[derive(Default)]
struct Replacements<'r> {
    positions: Vec<i64>,
    actions: Vec<i16>,
    hashes: Vec<Uuid>,
    external_ids: Vec<&'r str>,
    payloads: Vec<Option<&'r str>>,
    keys: Vec<Option<i32>>,
    sealed: Vec<Option<Vec<u8>>>,
}

/// Writes replacements. Existing records get the new payloads and hashes, and the changes in `$changes`.
macro_rules! replace {
    ($replacements:expr, $conn:expr, $stream:expr, $changes:literal) => {
        sqlx::query!(
            r#"
            INSERT INTO records (connection_pk, stream_no, last_action, position, first_seen_at, last_modified_at,
                                 payload_hash, external_id, payload, payload_key, payload_ciphertext)
            SELECT $1, $2, last_action, position, $3, $3, payload_hash, external_id, payload, payload_key,
                   payload_ciphertext
            FROM unnest($4::smallint[], $5::bigint[], $6::uuid[], $7::text[], $8::text[], $9::int[], $10::bytea[])
                AS replacement (last_action, position, payload_hash, external_id, payload, payload_key, payload_ciphertext)
            ON CONFLICT (connection_pk, stream_no, external_id) DO UPDATE
            SET payload_hash = excluded.payload_hash, payload = excluded.payload,
                payload_key = excluded.payload_key, payload_ciphertext = excluded.payload_ciphertext"#
                + $changes,
            $stream.key.connection.0,
            $stream.key.number,
            $stream.now,
            &$replacements.actions,
            &$replacements.positions,
            &$replacements.hashes,
            &$replacements.external_ids as &[&str],
            &$replacements.payloads as &[Option<&str>],
            &$replacements.keys as &[Option<i32>],
            &$replacements.sealed as &[Option<Vec<u8>>],
        )
        .execute($conn)
        .await
    };
}

impl<'r> Replacements<'r> {
    fn push(&mut self, position: i64, action: LastAction, external_id: &'r str, stored: SealedPayload<'r>) {
        self.positions.push(position);
        self.actions.push(action as i16);
        self.hashes.push(Uuid::from_bytes(stored.hash));
        self.external_ids.push(external_id);
        self.payloads.push(stored.payload);
        self.keys.push(stored.key);
        self.sealed.push(stored.sealed);
    }

    async fn write(self, conn: &mut PgConnection, stream: &LockedStream) -> sqlx::Result<()> {
        if !self.positions.is_empty() {
            replace!(
                self,
                conn,
                stream,
                r#",
                last_action = excluded.last_action, position = excluded.position,
                last_modified_at = excluded.last_modified_at, deleted_at = NULL, pruned_at = NULL"#
            )?;
        }
        Ok(())
    }

    /// Changes only how payloads and hashes are stored.
    async fn write_in_place(self, conn: &mut PgConnection, stream: &LockedStream) -> sqlx::Result<()> {
        if !self.positions.is_empty() {
            replace!(self, conn, stream, "")?;
        }
        Ok(())
    }
}

/// Rows in the binary format of `COPY`: <https://www.postgresql.org/docs/current/sql-copy.html>, "Binary Format".
struct CopyRows(Vec<u8>);

impl CopyRows {
    const STATEMENT: &'static str = "COPY records (connection_pk, stream_no, last_action, position, first_seen_at, \
         last_modified_at, payload_hash, external_id, payload, payload_key, payload_ciphertext) FROM STDIN (FORMAT binary)";
    const COLUMNS: i16 = 11;
    const SIGNATURE: &'static [u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
    const END: [u8; 2] = (-1_i16).to_be_bytes();
    /// The size of a row without its texts.
    const FIXED_BYTES: usize = 2 + 11 * 4 + 8 + 4 + 2 + 8 + 8 + 8 + 16;

    fn with_capacity(batch: &[IncomingRecord<'_>]) -> Self {
        let texts: usize = batch.iter().map(|record| record.external_id.len() + record.payload.len()).sum();
        let mut bytes =
            Vec::with_capacity(Self::SIGNATURE.len() + texts + batch.len() * Self::FIXED_BYTES + 2);
        bytes.extend_from_slice(Self::SIGNATURE);
        Self(bytes)
    }

    fn is_empty(&self) -> bool {
        self.0.len() == Self::SIGNATURE.len()
    }

    fn push(
        &mut self,
        stream: &LockedStream,
        action: LastAction,
        external_id: &str,
        stored: &SealedPayload<'_>,
    ) {
        self.0.extend_from_slice(&Self::COLUMNS.to_be_bytes());
        self.field(&stream.key.connection.0.to_be_bytes());
        self.field(&stream.key.number.to_be_bytes());
        self.field(&(action as i16).to_be_bytes());
        self.field(&stream.last_position.to_be_bytes());
        let now = postgres_microseconds(stream.now).to_be_bytes();
        self.field(&now); // first seen
        self.field(&now); // last modified
        self.field(&stored.hash);
        self.field(external_id.as_bytes());
        self.field_or_null(stored.payload.map(str::as_bytes));
        self.field_or_null(stored.key.map(i32::to_be_bytes).as_ref().map(<[u8; 4]>::as_slice));
        self.field_or_null(stored.sealed.as_deref());
    }

    fn field_or_null(&mut self, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => self.field(bytes),
            None => self.0.extend_from_slice(&(-1_i32).to_be_bytes()),
        }
    }

    fn field(&mut self, bytes: &[u8]) {
        let length = i32::try_from(bytes.len()).expect("a batch is limited to far less than 2 GB");
        self.0.extend_from_slice(&length.to_be_bytes());
        self.0.extend_from_slice(bytes);
    }

    async fn copy(mut self, tx: &mut RecordsTransaction) -> sqlx::Result<u64> {
        self.0.extend_from_slice(&Self::END);
        tx.tx.copy_in(Self::STATEMENT, self.0).await
    }
}

/// Converts to Postgres' binary format: microseconds since 2000-01-01T00:00:00Z.
fn postgres_microseconds(time: DateTime<Utc>) -> i64 {
    const UNIX_SECONDS_AT_2000: i64 = 946_684_800;
    time.timestamp_micros() - UNIX_SECONDS_AT_2000 * 1_000_000
}
