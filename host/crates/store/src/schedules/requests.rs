//! What clients ask for: a run now, a start, a pause.

use sqlx::PgConnection;

use super::{notify_cancel, notify_due};
use syncline_types::ids::{ConnectionPk, FunctionName, IntegrationPk, Variant};

/// Which schedules a request is about.
#[derive(Debug)]
pub struct Target {
    pub whose: ScheduleScope,
    /// `None`: every sync and variant.
    pub syncs: Option<Vec<(FunctionName, Variant)>>,
}

/// Whose schedules: of every connection of an integration, or of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleScope {
    Integration(IntegrationPk),
    Connection(ConnectionPk),
}

impl Target {
    /// The names and variants as two lists for SQL, empty ones for "every".
    pub(super) fn name_lists(&self) -> (Vec<String>, Vec<String>) {
        let syncs = self.syncs.as_deref().unwrap_or_default();
        syncs.iter().map(|(name, variant)| (name.to_string(), variant.to_string())).unzip()
    }
}

/// A statement about those of the schedules `s` that `$whose` names and that have these names, which are in its
/// parameters up to `$4`.
macro_rules! query_named {
    ($statement:literal, $whose:literal, $pk:expr, $target:expr $(, $parameter:expr)*) => {{
        let (names, variants) = $target.name_lists();
        sqlx::query!(
            $statement
                + " WHERE "
                + $whose
                + r#" AND s.retired_at IS NULL
          AND ($2 OR (s.sync_name, s.variant) IN (SELECT * FROM unnest($3::text[], $4::text[])))
        "#,
            $pk,
            $target.syncs.is_none(),
            &names,
            &variants,
            $($parameter),*
        )
    }};
}
pub(super) use query_named;

/// Carries a statement about the schedules `s` of a target out, and takes of its result what `$then` does. One about a
/// connection does not name the integration too: there may be a hundred thousand others in that index.
macro_rules! query_target {
    ($statement:literal, $target:expr $(, $parameter:expr)*; $query:ident => $then:expr) => {
        match $target.whose {
            ScheduleScope::Integration(pk) => {
                let $query = query_named!($statement, "s.integration_pk = $1", pk.0, $target $(, $parameter)*);
                $then
            }
            ScheduleScope::Connection(pk) => {
                let $query = query_named!($statement, "s.connection_pk = $1", pk.0, $target $(, $parameter)*);
                $then
            }
        }
    };
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
        SET due_at = now(), due_reason = 'trigger', awaits_permit = false,
            reset_requested = reset_requested OR $5,
            empty_cache_requested = empty_cache_requested OR ($5 AND $6),
            cancel_requested = cancel_requested OR (run_id IS NOT NULL AND $5)"#,
        target, options.reset, options.empty_cache;
        query => query.execute(&mut *conn).await?.rows_affected()
    );
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
        SET state = 'running', awaits_permit = false,
            due_at = CASE WHEN state = 'paused' THEN now() ELSE due_at END,
            due_reason = CASE WHEN state = 'paused' THEN 'start' ELSE due_reason END"#,
        target;
        query => query.execute(&mut *conn).await?.rows_affected()
    );
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
            awaits_permit = awaits_permit AND (due_reason = 'trigger' OR is_interrupted)"#,
        target;
        query => query.execute(&mut *conn).await?.rows_affected()
    );
    Ok(changed)
}
