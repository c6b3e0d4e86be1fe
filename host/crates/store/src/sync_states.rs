//! The state of a sync: its checkpoint, and the fencing token of the attempt that may write.
//!
//! Each attempt stores its fencing token when it begins, and checks it with every write. If a host was suspended and
//! its attempt continues after a successor has begun, the stored token is higher and the attempt cannot write.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;

use syncline_types::ids::{ConnectionPk, FunctionName, Variant};

/// An attempt at a sync, with the values that identify its writes.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub connection: ConnectionPk,
    pub sync: FunctionName,
    pub variant: Variant,
    pub fence: i64,
}

/// The state from which an attempt continues.
#[derive(Debug)]
pub struct Begun {
    pub checkpoint: Option<String>,
    /// Whether pruned payloads are restored, because no run has completed since a reset.
    pub restores_pruned: bool,
    /// The counts of earlier attempts that were not reported yet.
    pub counts: Value,
    /// The number of consecutive earlier attempts that were interrupted before they made any progress.
    pub idle_attempts: i32,
    /// When the first unreported attempt began, by the clock of the database with the records.
    pub row_began_at: DateTime<Utc>,
    /// Whether a full run has begun and not completed. Only syncs with `full_every` store it.
    pub full_in_progress: bool,
    pub last_full_at: Option<DateTime<Utc>>,
    /// When the attempt began, by the same clock.
    pub now: DateTime<Utc>,
}

/// Stores the attempt's fencing token and returns the state to continue from. `unreported_since` identifies the series
/// of unreported attempts, whose counts continue. Returns `None` if a later attempt has begun already.
pub async fn begin(
    conn: &mut PgConnection,
    attempt: &Attempt,
    resets: bool,
    unreported_since: DateTime<Utc>,
) -> sqlx::Result<Option<Begun>> {
    sqlx::query_as!(
        Begun,
        r#"
        INSERT INTO sync_states
            (connection_pk, sync_name, variant, fence, restores_pruned, unreported_since, first_attempt_at,
             lacks_progress, last_run_at)
        VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp(), true, now())
        ON CONFLICT (connection_pk, sync_name, variant) DO UPDATE
        SET fence = excluded.fence, last_run_at = excluded.last_run_at, unreported_since = excluded.unreported_since,
            counts = CASE WHEN sync_states.unreported_since = excluded.unreported_since
                THEN sync_states.counts ELSE '{}' END,
            first_attempt_at = CASE WHEN sync_states.unreported_since = excluded.unreported_since
                THEN coalesce(sync_states.first_attempt_at, excluded.unreported_since)
                ELSE excluded.first_attempt_at END,
            restores_pruned = sync_states.restores_pruned OR excluded.restores_pruned,
            -- The same since: it continues what the attempt before has begun.
            attempts_without_progress =
                CASE WHEN sync_states.unreported_since = excluded.unreported_since AND NOT $5
                THEN sync_states.attempts_without_progress + sync_states.lacks_progress::integer ELSE 0 END,
            lacks_progress = true
        WHERE sync_states.fence < excluded.fence
        RETURNING checkpoint, restores_pruned, counts, attempts_without_progress AS idle_attempts,
                  first_attempt_at AS "row_began_at!", full_in_progress, last_full_at, last_run_at AS "now!"
        "#,
        attempt.connection.0,
        attempt.sync.as_str(),
        attempt.variant.as_str(),
        attempt.fence,
        resets,
        unreported_since,
    )
    .fetch_optional(conn)
    .await
}

/// Stores that a full run begins, which starts without a checkpoint.
pub async fn begin_full(conn: &mut PgConnection, attempt: &Attempt) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE sync_states SET full_in_progress = true, checkpoint = NULL
        WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 AND fence = $4
        "#,
        attempt.connection.0,
        attempt.sync.as_str(),
        attempt.variant.as_str(),
        attempt.fence,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Stores that a full run has ended. If it has completed, the time until the next one begins.
pub async fn end_full(conn: &mut PgConnection, attempt: &Attempt, completed: bool) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE sync_states SET full_in_progress = false
        WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 AND fence = $4
        "#,
        attempt.connection.0,
        attempt.sync.as_str(),
        attempt.variant.as_str(),
        attempt.fence,
    )
    .execute(&mut *conn)
    .await?;
    if completed {
        // A separate statement, because Citus accepts no clock in a `CASE`.
        sqlx::query!(
            r#"
            UPDATE sync_states SET last_full_at = now()
            WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 AND fence = $4
            "#,
            attempt.connection.0,
            attempt.sync.as_str(),
            attempt.variant.as_str(),
            attempt.fence,
        )
        .execute(conn)
        .await?;
    }
    Ok(())
}

/// Stores that a run has completed, so that payloads that are pruned from now on stay pruned.
pub async fn note_restored(conn: &mut PgConnection, attempt: &Attempt) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE sync_states SET restores_pruned = false
        WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 AND fence = $4 AND restores_pruned
        "#,
        attempt.connection.0,
        attempt.sync.as_str(),
        attempt.variant.as_str(),
        attempt.fence,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Locks the state until the transaction ends, if the attempt may still write. Returns the counts so far.
pub async fn lock(conn: &mut PgConnection, attempt: &Attempt) -> sqlx::Result<Option<Value>> {
    sqlx::query_scalar!(
        r#"
        SELECT counts FROM sync_states
        WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 AND fence = $4
        FOR NO KEY UPDATE
        "#,
        attempt.connection.0,
        attempt.sync.as_str(),
        attempt.variant.as_str(),
        attempt.fence,
    )
    .fetch_optional(conn)
    .await
}

/// Whether an attempt that holds the lock has made no progress so far.
pub async fn is_idle(conn: &mut PgConnection, attempt: &Attempt) -> sqlx::Result<bool> {
    let idle = sqlx::query_scalar!(
        r#"
        SELECT lacks_progress FROM sync_states
        WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 AND fence = $4
        "#,
        attempt.connection.0,
        attempt.sync.as_str(),
        attempt.variant.as_str(),
        attempt.fence,
    );
    Ok(idle.fetch_optional(conn).await?.unwrap_or(false))
}

/// Stores that an attempt does not count as interrupted, and how many attempts before it still do.
pub async fn settle(conn: &mut PgConnection, attempt: &Attempt, idle_attempts: i32) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE sync_states SET lacks_progress = false, attempts_without_progress = $5
        WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 AND fence = $4 AND lacks_progress
        "#,
        attempt.connection.0,
        attempt.sync.as_str(),
        attempt.variant.as_str(),
        attempt.fence,
        idle_attempts,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// What a commit does to the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointChange {
    Keep,
    Clear,
    Set(String),
}

/// Stores the checkpoint and counts of an attempt that holds the lock. A changed checkpoint counts as progress.
pub async fn store(
    conn: &mut PgConnection,
    attempt: &Attempt,
    checkpoint: &CheckpointChange,
    counts: &Value,
    makes_progress: bool,
) -> sqlx::Result<()> {
    let (keep, text) = match checkpoint {
        CheckpointChange::Keep => (true, None),
        CheckpointChange::Clear => (false, None),
        CheckpointChange::Set(text) => (false, Some(text.as_str())),
    };
    sqlx::query!(
        r#"
        UPDATE sync_states
        SET checkpoint = CASE WHEN $5 THEN checkpoint ELSE $6 END, counts = $7,
            lacks_progress = lacks_progress AND NOT $8 AND ($5 OR checkpoint IS NOT DISTINCT FROM $6),
            attempts_without_progress = CASE WHEN NOT $8 AND ($5 OR checkpoint IS NOT DISTINCT FROM $6)
                THEN attempts_without_progress ELSE 0 END,
            -- Once an hour is enough, and an index need not be written with every commit.
            last_run_at = greatest(last_run_at, date_trunc('hour', now()))
        WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 AND fence = $4
        "#,
        attempt.connection.0,
        attempt.sync.as_str(),
        attempt.variant.as_str(),
        attempt.fence,
        keep,
        text,
        counts,
        makes_progress,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Raises the fencing token to `fence` and clears the checkpoint, so that attempts with lower tokens can neither write
/// nor begin. Returns `false`, and changes nothing, if an attempt with a higher token has begun.
pub async fn fence_off(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
    fence: i64,
) -> sqlx::Result<bool> {
    // Inserts a missing row, too: an attempt may have been claimed that has not begun yet.
    let fenced = sqlx::query!(
        r#"
        INSERT INTO sync_states (connection_pk, sync_name, variant, fence) VALUES ($1, $2, $3, $4)
        ON CONFLICT (connection_pk, sync_name, variant) DO UPDATE
        SET fence = excluded.fence, checkpoint = NULL, counts = '{}', restores_pruned = false
        WHERE sync_states.fence < excluded.fence
        "#,
        connection.0,
        sync.as_str(),
        variant.as_str(),
        fence,
    )
    .execute(conn)
    .await?;
    Ok(fenced.rows_affected() > 0)
}

/// Returns the checkpoint of a sync.
pub async fn checkpoint(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
) -> sqlx::Result<Option<String>> {
    let row = sqlx::query_scalar!(
        "SELECT checkpoint FROM sync_states WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3",
        connection.0,
        sync.as_str(),
        variant.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.flatten())
}

/// Returns the checkpoints of all syncs of these connections, for `GET /sync/status`.
pub async fn checkpoints(
    conn: &mut PgConnection,
    connections: &[ConnectionPk],
) -> sqlx::Result<HashMap<(ConnectionPk, FunctionName, Variant), String>> {
    let pks: Vec<i64> = connections.iter().map(|pk| pk.0).collect();
    let rows = sqlx::query!(
        r#"
        SELECT connection_pk, sync_name, variant, checkpoint AS "checkpoint!"
        FROM sync_states
        WHERE connection_pk = ANY($1) AND checkpoint IS NOT NULL
        "#,
        &pks,
    )
    .fetch_all(conn)
    .await?;
    let checkpoints = rows.into_iter().map(|row| {
        let (sync, variant) = (FunctionName::from_stored(row.sync_name), Variant::from_stored(row.variant));
        ((ConnectionPk(row.connection_pk), sync, variant), row.checkpoint)
    });
    Ok(checkpoints.collect())
}
