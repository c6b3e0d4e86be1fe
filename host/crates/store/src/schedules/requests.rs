//! Requests of clients: to trigger, start and pause syncs.

use sqlx::PgConnection;

use super::{notify_cancel, notify_due};
use syncline_types::ids::{ConnectionPk, FunctionName, IntegrationPk, Variant};

/// The schedules that a request applies to.
#[derive(Debug)]
pub struct Target {
    pub whose: ScheduleScope,
    /// `None` means all syncs and variants.
    pub syncs: Option<Vec<(FunctionName, Variant)>>,
}

/// The schedules of all connections of an integration, or of one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleScope {
    Integration(IntegrationPk),
    Connection(ConnectionPk),
}

impl Target {
    /// Returns names and variants as two lists for SQL. Empty lists mean all.
    pub(super) fn name_lists(&self) -> (Vec<String>, Vec<String>) {
        let syncs = self.syncs.as_deref().unwrap_or_default();
        syncs.iter().map(|(name, variant)| (name.to_string(), variant.to_string())).unzip()
    }
}

/// A query about the schedules `s` that belong to `$whose` and have the target's names. It uses the parameters up to
/// `$4`.
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

/// Runs a query about the schedules `s` of a target, and evaluates `$then` with it. The query for a connection does
/// not filter by integration: the planner could choose that index, which may contain a hundred thousand other
/// schedules.
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

/// The options of a trigger.
#[derive(Debug, Clone, Copy, Default)]
pub struct TriggerOptions {
    /// Whether to clear the checkpoint, after cancelling the run in progress.
    pub reset: bool,
    /// Whether to clear the records too. Requires `reset`.
    pub empty_cache: bool,
}

/// Requests one run as soon as possible. After a run in progress, one more run follows, however often it is requested.
/// Returns the number of schedules.
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

/// Starts paused schedules and makes them due at once. Returns the number of schedules in the target.
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

/// Pauses schedules. A run in progress or a triggered run still completes. So does an interrupted run that waits for
/// its next attempt. Returns the number of schedules in the target.
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
