//! What clients ask for: a run now, a start, a pause.

use sqlx::PgConnection;

use super::{notify_cancel, notify_due};
use crate::ids::{ConnectionPk, FunctionName, IntegrationPk, Variant};

/// Which schedules a request is about.
#[derive(Debug)]
pub struct Target {
    pub integration: IntegrationPk,
    /// `None`: every connection of the integration.
    pub connection: Option<ConnectionPk>,
    /// `None`: every sync and variant.
    pub syncs: Option<Vec<(FunctionName, Variant)>>,
}

impl Target {
    /// The names and variants as two lists for SQL, empty ones for "every".
    pub(super) fn name_lists(&self) -> (Vec<String>, Vec<String>) {
        let syncs = self.syncs.as_deref().unwrap_or_default();
        syncs.iter().map(|(name, variant)| (name.to_string(), variant.to_string())).unzip()
    }
}

/// A statement about the schedules `s` of a target, which is in its parameters up to `$5`.
macro_rules! query_target {
    ($statement:literal, $target:expr $(, $parameter:expr)* $(,)?) => {{
        let (names, variants) = $target.name_lists();
        sqlx::query!(
            $statement
                + r#"
        WHERE s.integration_pk = $1 AND ($2::bigint IS NULL OR s.connection_pk = $2) AND s.retired_at IS NULL
          AND ($3 OR (s.sync_name, s.variant) IN (SELECT * FROM unnest($4::text[], $5::text[])))
        "#,
            $target.integration.0,
            $target.connection.map(|connection| connection.0),
            $target.syncs.is_none(),
            &names,
            &variants,
            $($parameter),*
        )
    }};
}
pub(super) use query_target;

/// What a trigger also does.
#[derive(Debug, Clone, Copy, Default)]
pub struct TriggerOptions {
    /// Clear the checkpoint, after cancelling the run in progress.
    pub reset: bool,
    /// With `reset`: clear the records as well.
    pub empty_cache: bool,
}

/// Asks for one run at once; one more follows a run in progress, however often this is asked. Gives the number
/// of schedules.
pub async fn trigger(conn: &mut PgConnection, target: &Target, options: TriggerOptions) -> sqlx::Result<u64> {
    let changed = query_target!(
        r#"
        UPDATE schedules s
        SET due_at = now(), due_reason = 'trigger', is_parked = false,
            reset_wanted = reset_wanted OR $6, empty_cache_wanted = empty_cache_wanted OR ($6 AND $7),
            cancel_wanted = cancel_wanted OR (run_id IS NOT NULL AND $6)"#,
        target,
        options.reset,
        options.empty_cache,
    )
    .execute(&mut *conn)
    .await?
    .rows_affected();
    if options.reset {
        notify_cancel(conn).await?;
    }
    notify_due(conn).await?;
    Ok(changed)
}

/// Starts what is paused, with a run at once. Gives the number of schedules that the target names.
pub async fn start(conn: &mut PgConnection, target: &Target) -> sqlx::Result<u64> {
    let changed = query_target!(
        r#"
        UPDATE schedules s
        SET state = 'running', is_parked = false,
            due_at = CASE WHEN state = 'paused' THEN now() ELSE due_at END,
            due_reason = CASE WHEN state = 'paused' THEN 'start' ELSE due_reason END"#,
        target,
    )
    .execute(&mut *conn)
    .await?
    .rows_affected();
    notify_due(conn).await?;
    Ok(changed)
}

/// Pauses; a run in progress completes, also one that was interrupted and waits for its next attempt, and a run that was
/// triggered still takes place. Gives the number of
/// schedules that the target names.
pub async fn pause(conn: &mut PgConnection, target: &Target) -> sqlx::Result<u64> {
    let changed = query_target!(
        r#"
        UPDATE schedules s
        SET state = 'paused', next_run_at = NULL,
            due_at = CASE WHEN due_reason = 'trigger' OR is_interrupted THEN due_at END,
            is_parked = is_parked AND (due_reason = 'trigger' OR is_interrupted)"#,
        target,
    )
    .execute(conn)
    .await?;
    Ok(changed.rows_affected())
}
