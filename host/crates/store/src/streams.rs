//! Streams: all records of one model, connection and variant.
//!
//! A writer locks the stream's row until it commits. So positions become visible in order, and a reader that follows a
//! cursor never misses a record.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use syncline_types::ids::{ConnectionPk, FunctionName, ModelName, Variant};

/// The key of a stream in the tables of the records database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamKey {
    pub connection: ConnectionPk,
    pub number: i32,
}

/// A stream that this transaction has locked for writing.
#[derive(Debug)]
pub struct LockedStream {
    pub key: StreamKey,
    pub model: ModelName,
    pub variant: Variant,
    pub last_position: i64,
    /// The modification time of everything that this transaction writes: the database's clock after the lock was
    /// taken, but never earlier than the last modification.
    pub now: DateTime<Utc>,
    pub live_count: i64,
    pub total_count: i64,
    pub generation: Option<Generation>,
    /// The number of live records when the generation began.
    pub live_before: i64,
    /// The number of dead letters.
    pub dead_letters: i64,
    pub held: Option<Held>,
}

/// A full sync that tracks which records it saves, so that the others can be deleted at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation {
    /// The fencing token of the attempt that began the generation.
    pub number: i64,
    /// Records after this position were added or changed since the generation began.
    pub start_position: i64,
}

impl Generation {
    fn read(number: Option<i64>, start_position: Option<i64>) -> Option<Self> {
        let (number, start_position) = number.zip(start_position)?;
        Some(Self { number, start_position })
    }
}

/// Deletions of a full sync that are held, because there are too many to delete without approval. They are held until
/// a later run completes. `fence` is the attempt's fencing token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// The generation continues: records that are saved meanwhile count as seen.
    Waiting { fence: i64, generation: Generation },
    /// The records are deleted. This is kept until a later run holds deletions, so that an interrupted approval can be
    /// finished.
    Approved {
        fence: i64,
        deleted: i64,
        /// The position before the deleted records.
        before: i64,
    },
}

impl Held {
    pub fn fence(self) -> i64 {
        match self {
            Self::Waiting { fence, .. } | Self::Approved { fence, .. } => fence,
        }
    }

    /// The position in the column `held_start`.
    fn start(self) -> i64 {
        match self {
            Self::Waiting { generation, .. } => generation.start_position,
            Self::Approved { before, .. } => before,
        }
    }

    fn read(
        fence: Option<i64>,
        generation: Option<i64>,
        start: Option<i64>,
        deleted: Option<i64>,
    ) -> Option<Self> {
        let (fence, start_position) = (fence?, start?);
        Some(match generation {
            Some(number) => Self::Waiting { fence, generation: Generation { number, start_position } },
            None => Self::Approved { fence, deleted: deleted.unwrap_or_default(), before: start_position },
        })
    }
}

impl LockedStream {
    /// Returns the generation whose deletions wait for approval, if there is one.
    pub fn held_generation(&self) -> Option<Generation> {
        match self.held {
            Some(Held::Waiting { generation, .. }) => Some(generation),
            Some(Held::Approved { .. }) | None => None,
        }
    }
}

/// Finds a stream. Returns `None` until a record was saved to it.
pub async fn find(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    model: &ModelName,
    variant: &Variant,
) -> sqlx::Result<Option<StreamKey>> {
    let number = sqlx::query_scalar!(
        "SELECT stream_no FROM streams WHERE connection_pk = $1 AND model = $2 AND variant = $3",
        connection.0,
        model.as_str(),
        variant.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(number.map(|number| StreamKey { connection, number }))
}

/// Locks the streams of these models, ordered by number, so that writers cannot deadlock. Creates missing streams, for
/// `sync` if a sync is writing. The lock does not conflict with foreign keys.
pub async fn lock(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    wanted: &[(ModelName, Variant)],
    sync: Option<&FunctionName>,
) -> sqlx::Result<Vec<LockedStream>> {
    let models: Vec<String> = wanted.iter().map(|(model, _)| model.to_string()).collect();
    let variants: Vec<String> = wanted.iter().map(|(_, variant)| variant.to_string()).collect();
    let locked = lock_existing(conn, connection, wanted, &models, &variants).await?;
    if locked.len() == wanted.len() {
        return Ok(locked);
    }
    create_missing(conn, connection, &models, &variants, sync).await?;
    lock_existing(conn, connection, wanted, &models, &variants).await
}

/// Locks the existing ones of the wanted streams, and all others with a wanted model and a wanted variant. Statements of
/// this shape, with one table and without subqueries, are planned only once on Citus.
async fn lock_existing(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    wanted: &[(ModelName, Variant)],
    models: &[String],
    variants: &[String],
) -> sqlx::Result<Vec<LockedStream>> {
    let rows = sqlx::query!(
        r#"
        SELECT stream_no, model, variant, last_position, live_count, total_count, generation, generation_start,
               coalesce(generation_live, live_count) AS "live_before!", dead_letters, held_fence, held_generation,
               held_start, held_deleted, nullif(last_modified_at, '-infinity') AS last_modified_at
        FROM streams
        WHERE connection_pk = $1 AND model = ANY($2) AND variant = ANY($3)
        ORDER BY stream_no
        FOR NO KEY UPDATE
        "#,
        connection.0,
        models,
        variants,
    )
    .fetch_all(&mut *conn)
    .await?;
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    // The clock is read outside the locking statement. Inside, it would be read before the lock was acquired.
    let clock = sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#).fetch_one(conn).await?;
    let streams = rows.into_iter().map(|row| LockedStream {
        key: StreamKey { connection, number: row.stream_no },
        model: ModelName::from_stored(row.model),
        variant: Variant::from_stored(row.variant),
        last_position: row.last_position,
        now: row.last_modified_at.map_or(clock, |last| last.max(clock)),
        live_count: row.live_count,
        total_count: row.total_count,
        dead_letters: row.dead_letters,
        generation: Generation::read(row.generation, row.generation_start),
        live_before: row.live_before,
        held: Held::read(row.held_fence, row.held_generation, row.held_start, row.held_deleted),
    });
    let is_wanted = |stream: &LockedStream| {
        wanted.iter().any(|(model, variant)| *model == stream.model && *variant == stream.variant)
    };
    Ok(streams.filter(is_wanted).collect())
}

async fn create_missing(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    models: &[String],
    variants: &[String],
    sync: Option<&FunctionName>,
) -> sqlx::Result<()> {
    // Two writers may choose the same stream number. The second one tries again. The number of inserted rows cannot tell
    // the difference, because Citus also counts a row that `ON CONFLICT DO NOTHING` has skipped.
    for (model, variant) in models.iter().zip(variants) {
        loop {
            sqlx::query!(
                r#"
                INSERT INTO streams (connection_pk, stream_no, model, variant, sync_name)
                SELECT $1, coalesce(max(stream_no), 0) + 1, $2, $3, $4 FROM streams WHERE connection_pk = $1
                ON CONFLICT DO NOTHING
                "#,
                connection.0,
                model,
                variant,
                sync.map(FunctionName::as_str),
            )
            .execute(&mut *conn)
            .await?;
            let exists = sqlx::query_scalar!(
                r#"SELECT true AS "exists!" FROM streams WHERE connection_pk = $1 AND model = $2 AND variant = $3"#,
                connection.0,
                model,
                variant,
            )
            .fetch_optional(&mut *conn)
            .await?;
            if exists.is_some() {
                break;
            }
        }
    }
    Ok(())
}

/// Assigns streams to the sync that now declares their models, if that has changed after a deployment. Locks all
/// streams of the sync first, in the order of all writers, because the caller may lock the others later.
pub async fn assign(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    models: &[String],
    variant: &Variant,
    sync: &FunctionName,
) -> sqlx::Result<()> {
    let is_changed = sqlx::query_scalar!(
        r#"
        SELECT true AS "is_changed!" FROM streams
        WHERE connection_pk = $1 AND variant = $3 AND model = ANY($2) AND sync_name IS DISTINCT FROM $4
        LIMIT 1
        "#,
        connection.0,
        models,
        variant.as_str(),
        sync.as_str(),
    )
    .fetch_optional(&mut *conn)
    .await?;
    if is_changed.is_none() {
        return Ok(());
    }
    sqlx::query!(
        r#"
        WITH locked AS MATERIALIZED (
            SELECT stream_no, sync_name FROM streams
            WHERE connection_pk = $1 AND variant = $3 AND (model = ANY($2) OR sync_name = $4)
            ORDER BY stream_no
            FOR NO KEY UPDATE
        )
        UPDATE streams s SET sync_name = $4
        FROM locked
        WHERE s.connection_pk = $1 AND s.stream_no = locked.stream_no AND locked.sync_name IS DISTINCT FROM $4
        "#,
        connection.0,
        models,
        variant.as_str(),
        sync.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Locks a stream, so that its records do not change until the transaction ends. Returns the position up to which all
/// payloads are pruned.
pub async fn lock_for_pruning(conn: &mut PgConnection, key: StreamKey) -> sqlx::Result<i64> {
    let pruned_through = sqlx::query_scalar!(
        "SELECT pruned_through FROM streams WHERE connection_pk = $1 AND stream_no = $2 FOR NO KEY UPDATE",
        key.connection.0,
        key.number,
    )
    .fetch_optional(conn)
    .await?;
    Ok(pruned_through.unwrap_or(0))
}

/// Stores the position up to which all payloads of a locked stream are pruned.
pub async fn note_pruned(conn: &mut PgConnection, key: StreamKey, through: i64) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE streams
        SET pruned_through = greatest(pruned_through, $3),
            oldest_payload_at = (
                SELECT last_modified_at FROM records
                WHERE connection_pk = $1 AND stream_no = $2 AND position > $3
                ORDER BY position LIMIT 1
            )
        WHERE connection_pk = $1 AND stream_no = $2
        "#,
        key.connection.0,
        key.number,
        through,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Stores the stream's last position, counts and generations after this transaction's writes.
pub async fn store_head(conn: &mut PgConnection, stream: &LockedStream) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE streams
        SET last_position = $3, last_modified_at = $4, live_count = $5, total_count = $6,
            generation = $7, generation_start = $8, oldest_payload_at = coalesce(oldest_payload_at, $4), dead_letters = $9,
            held_fence = $10, held_generation = $11, held_start = $12, held_deleted = $13, generation_live = $14
        WHERE connection_pk = $1 AND stream_no = $2
        "#,
        stream.key.connection.0,
        stream.key.number,
        stream.last_position,
        stream.now,
        stream.live_count,
        stream.total_count,
        stream.generation.map(|generation| generation.number),
        stream.generation.map(|generation| generation.start_position),
        stream.dead_letters,
        stream.held.map(Held::fence),
        stream.held_generation().map(|generation| generation.number),
        stream.held.map(Held::start),
        match stream.held {
            Some(Held::Approved { deleted, .. }) => Some(deleted),
            _ => None,
        },
        stream.generation.map(|_| stream.live_before),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Lists the streams of one variant of a sync: those of the models that it declares, and those that it wrote to in an
/// earlier deployment.
pub async fn list_of_sync(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
    declared: &[String],
) -> sqlx::Result<Vec<(ModelName, Variant)>> {
    let models = sqlx::query_scalar!(
        r#"
        SELECT model FROM streams
        WHERE connection_pk = $1 AND variant = $2 AND (sync_name = $3 OR model = ANY($4))
        "#,
        connection.0,
        variant.as_str(),
        sync.as_str(),
        declared,
    )
    .fetch_all(conn)
    .await?;
    Ok(models.into_iter().map(|model| (ModelName::from_stored(model), variant.clone())).collect())
}

/// Lists the streams of these models that have a generation in progress or deletions that wait for approval.
pub async fn list_watched(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    models: &[String],
    variant: &Variant,
) -> sqlx::Result<Vec<(ModelName, Variant)>> {
    let watched = sqlx::query_scalar!(
        r#"
        SELECT model FROM streams
        WHERE connection_pk = $1 AND model = ANY($2) AND variant = $3 AND num_nonnulls(generation, held_generation) > 0
        "#,
        connection.0,
        models,
        variant.as_str(),
    )
    .fetch_all(conn)
    .await?;
    Ok(watched.into_iter().map(|model| (ModelName::from_stored(model), variant.clone())).collect())
}

/// Lists the streams of a connection whose deletions an attempt has held.
pub async fn list_held(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    fence: i64,
) -> sqlx::Result<Vec<(ModelName, Variant)>> {
    let rows = sqlx::query!(
        "SELECT model, variant FROM streams WHERE connection_pk = $1 AND held_fence = $2 ORDER BY stream_no",
        connection.0,
        fence,
    )
    .fetch_all(conn)
    .await?;
    let name = |model, variant| (ModelName::from_stored(model), Variant::from_stored(variant));
    Ok(rows.into_iter().map(|row| name(row.model, row.variant)).collect())
}

/// A stream and how many records it has.
#[derive(Debug, Clone)]
pub struct StreamSummary {
    pub model: ModelName,
    pub variant: Variant,
    /// The sync that saves the records. `None` if only other functions have saved some.
    pub sync: Option<FunctionName>,
    /// The number of records that are not deleted.
    pub live: i64,
    pub deleted: i64,
    pub dead_letters: i64,
    /// `None` if no record was saved yet.
    pub last_modified_at: Option<DateTime<Utc>>,
}

/// Lists up to `limit` streams of a connection, sorted by model and variant.
pub async fn list(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    limit: i64,
) -> sqlx::Result<Vec<StreamSummary>> {
    let rows = sqlx::query!(
        r#"
        SELECT model, variant, sync_name, live_count, total_count, dead_letters,
               nullif(last_modified_at, '-infinity') AS last_modified_at
        FROM streams
        WHERE connection_pk = $1 ORDER BY model, variant LIMIT $2
        "#,
        connection.0,
        limit,
    )
    .fetch_all(conn)
    .await?;
    let summaries = rows.into_iter().map(|row| StreamSummary {
        model: ModelName::from_stored(row.model),
        variant: Variant::from_stored(row.variant),
        sync: row.sync_name.map(FunctionName::from_stored),
        live: row.live_count,
        deleted: row.total_count - row.live_count,
        dead_letters: row.dead_letters,
        last_modified_at: row.last_modified_at,
    });
    Ok(summaries.collect())
}

/// Returns the number of live records in each stream of these connections.
pub async fn live_counts(
    conn: &mut PgConnection,
    connections: &[ConnectionPk],
) -> sqlx::Result<HashMap<(ConnectionPk, ModelName, Variant), i64>> {
    let pks: Vec<i64> = connections.iter().map(|pk| pk.0).collect();
    let rows = sqlx::query!(
        r#"
        SELECT connection_pk, model, variant, live_count FROM streams WHERE connection_pk = ANY($1)
        "#,
        &pks,
    )
    .fetch_all(conn)
    .await?;
    let counts = rows.into_iter().map(|row| {
        let variant = Variant::from_stored(row.variant);
        ((ConnectionPk(row.connection_pk), ModelName::from_stored(row.model), variant), row.live_count)
    });
    Ok(counts.collect())
}

/// Returns the last assigned position. All records up to it are visible.
pub async fn head(conn: &mut PgConnection, key: StreamKey) -> sqlx::Result<i64> {
    let head = sqlx::query_scalar!(
        "SELECT last_position FROM streams WHERE connection_pk = $1 AND stream_no = $2",
        key.connection.0,
        key.number,
    )
    .fetch_optional(conn)
    .await?;
    Ok(head.unwrap_or(0))
}

/// Returns, for each of these connections with streams, the sum of their last positions. It grows with every change.
pub async fn sums_of_positions(
    conn: &mut PgConnection,
    connections: &[ConnectionPk],
) -> sqlx::Result<Vec<(ConnectionPk, i64)>> {
    let pks: Vec<i64> = connections.iter().map(|pk| pk.0).collect();
    let rows = sqlx::query!(
        r#"
        SELECT connection_pk AS pk, sum(last_position)::bigint AS "positions!"
        FROM streams WHERE connection_pk = ANY($1)
        GROUP BY connection_pk
        "#,
        &pks,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (ConnectionPk(row.pk), row.positions)).collect())
}

/// Whether the connection has a stream of this model, in any variant.
pub async fn has_model(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    model: &ModelName,
) -> sqlx::Result<bool> {
    let found = sqlx::query_scalar!(
        r#"SELECT true AS "found!" FROM streams WHERE connection_pk = $1 AND model = $2 LIMIT 1"#,
        connection.0,
        model.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(found.is_some())
}
