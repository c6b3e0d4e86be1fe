//! Where a sync stands: its checkpoint, and the fence of the attempt that may write.
//!
//! Each attempt raises the fence when it begins and shows it with every write. An attempt whose host was
//! paused and comes back after its successor began finds a higher fence and can write nothing.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;

use syncline_types::ids::{ConnectionPk, FunctionName, Variant};

/// One attempt at a sync, as its writes identify themselves.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub connection: ConnectionPk,
    pub sync: FunctionName,
    pub variant: Variant,
    pub fence: i64,
}

/// What an attempt continues from.
#[derive(Debug)]
pub struct Begun {
    pub checkpoint: Option<String>,
    /// Since a reset no run has come to its end: pruned payloads are brought back.
    pub restores_pruned: bool,
    /// What earlier attempts have counted that was not told yet.
    pub counts: Value,
    /// How many attempts before this one, without a break, were interrupted before they had made any headway.
    pub idle_attempts: i32,
    /// When the first of these attempts began that were not told, by the clock that records' times are from.
    pub row_began_at: DateTime<Utc>,
}

/// Raises the fence and gives what to continue from. What was counted stays if the attempts that counted it were not told
/// either: `unreported_since` is the start of the first of them. `None`: a later attempt has begun already.
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
             lacks_progress)
        VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp(), true)
        ON CONFLICT (connection_pk, sync_name, variant) DO UPDATE
        SET fence = excluded.fence, last_run_at = now(), unreported_since = excluded.unreported_since,
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
                  first_attempt_at AS "row_began_at!"
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

/// Notes that a run came to its end: payloads that are pruned from now on stay so.
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

/// Locks the state until the transaction ends, if the attempt may still write. Gives what it has counted so far.
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

/// Whether an attempt that holds the lock has made no headway so far.
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

/// Notes that an attempt is not to be counted among those that were interrupted, and how many before it still are.
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

/// Stores checkpoint and counts of an attempt that holds the lock. Another checkpoint is headway by itself.
pub async fn store(
    conn: &mut PgConnection,
    attempt: &Attempt,
    checkpoint: &CheckpointChange,
    counts: &Value,
    makes_headway: bool,
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
            -- Now and then is enough, and an index need not be written with every commit.
            last_run_at = CASE WHEN last_run_at < now() - interval '1 hour' THEN now() ELSE last_run_at END
        WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 AND fence = $4
        "#,
        attempt.connection.0,
        attempt.sync.as_str(),
        attempt.variant.as_str(),
        attempt.fence,
        keep,
        text,
        counts,
        makes_headway,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Raises the fence to `fence` and forgets the checkpoint: attempts below it can neither write nor begin any more.
/// `false`: an attempt above it has begun, and nothing was done.
pub async fn fence_off(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
    fence: i64,
) -> sqlx::Result<bool> {
    // Also where there is no row yet: an attempt may have been claimed and have yet to begin.
    let fence_off = sqlx::query!(
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
    Ok(fence_off.rows_affected() > 0)
}

/// The checkpoint of a sync.
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

/// The checkpoints of all syncs of these connections, as `GET /sync/status` shows them.
pub async fn checkpoints(
    conn: &mut PgConnection,
    connections: &[ConnectionPk],
) -> sqlx::Result<HashMap<(ConnectionPk, FunctionName, Variant), String>> {
    let pks: Vec<i64> = connections.iter().map(|pk| pk.0).collect();
    let rows = sqlx::query!(
        r#"
        SELECT s.connection_pk AS "connection_pk!", s.sync_name AS "sync_name!", s.variant AS "variant!",
               s.checkpoint AS "checkpoint!"
        FROM unnest($1::bigint[]) AS asked (pk)
        CROSS JOIN LATERAL (
            SELECT * FROM sync_states WHERE connection_pk = asked.pk AND checkpoint IS NOT NULL
        ) AS s
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
