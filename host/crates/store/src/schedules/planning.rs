//! Creates and removes schedules and computes their regular slots after deployments, new connections and changed
//! frequencies.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::notify_cancel;
use crate::hosts::interval;
use crate::runs;
use syncline_types::ids::{ConnectionPk, FunctionName, IntegrationPk, SchedulePk, Variant};

/// Creates the missing schedules of a sync for the connections of `$whose`. Schedules that start automatically are due
/// at once. A connection that is being validated gets its schedules after the validation.
macro_rules! insert_missing {
    ($whose:literal, $pk:expr, $sync:expr, $auto_start:expr) => {
        sqlx::query!(
            r#"
        INSERT INTO schedules
            (environment_pk, integration_pk, connection_pk, sync_name, variant, state, due_at, due_reason)
        SELECT environment_pk, integration_pk, pk, $2, 'base',
               CASE WHEN $3 THEN 'running' ELSE 'paused' END, CASE WHEN $3 THEN now() END, 'schedule'
        FROM connections
        WHERE "#
                + $whose
                + r#" AND validating_since IS NULL
        -- One that is deleted meanwhile is passed over then, and not missed by the foreign key.
        FOR KEY SHARE
        ON CONFLICT ON CONSTRAINT schedules_sync DO NOTHING
        "#,
            $pk,
            $sync.as_str(),
            $auto_start,
        )
    };
}

/// Creates the missing schedules of a sync for the integration's connections.
pub async fn create_missing(
    conn: &mut PgConnection,
    integration: IntegrationPk,
    sync: &FunctionName,
    auto_start: bool,
) -> sqlx::Result<()> {
    insert_missing!("integration_pk = $1", integration.0, sync, auto_start).execute(conn).await?;
    Ok(())
}

/// Creates the schedule of a sync for one connection if it is missing.
pub async fn create_missing_of_connection(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    auto_start: bool,
) -> sqlx::Result<()> {
    insert_missing!("pk = $1", connection.0, sync, auto_start).execute(conn).await?;
    Ok(())
}

/// Deletes the schedules of a sync that is no longer deployed, and cancels its runs.
pub async fn remove_sync(
    conn: &mut PgConnection,
    integration: IntegrationPk,
    sync: &FunctionName,
) -> sqlx::Result<()> {
    let removed = sqlx::query_scalar!(
        "DELETE FROM schedules WHERE integration_pk = $1 AND sync_name = $2 RETURNING run_id",
        integration.0,
        sync.as_str(),
    )
    .fetch_all(&mut *conn)
    .await?;
    let cancelled_runs: Vec<Uuid> = removed.into_iter().flatten().collect();
    if !cancelled_runs.is_empty() {
        // A separate statement, so that it sees runs that were claimed while the deletion waited for locks.
        runs::cancel(conn, &cancelled_runs, "the sync is no longer deployed").await?;
        notify_cancel(conn).await?;
    }
    Ok(())
}

/// Moves the next regular slot of schedules that use the default frequency and wait for that slot. Each moves to
/// `next` plus a random part of `jitter`. Schedules that are already due do not move.
pub async fn replan(
    conn: &mut PgConnection,
    integration: IntegrationPk,
    sync: &FunctionName,
    next: DateTime<Utc>,
    jitter: Duration,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE schedules s SET next_run_at = slot.at, due_at = slot.at
        FROM (
            SELECT pk, $3::timestamptz + random() * $4::interval AS at FROM schedules
            WHERE integration_pk = $1 AND sync_name = $2 AND frequency_override IS NULL AND state = 'running'
              AND run_id IS NULL AND due_reason = 'schedule' AND due_at > now()
            FOR NO KEY UPDATE
        ) AS slot
        WHERE s.pk = slot.pk
        "#,
        integration.0,
        sync.as_str(),
        next,
        interval(jitter),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// The values from which a schedule's next slot is computed, in addition to its default frequency.
#[derive(Debug)]
pub struct Planning {
    pub frequency_override: Option<String>,
    /// When the latest run began, if there is one.
    pub started_at: Option<DateTime<Utc>>,
    /// The current time of the database's clock, which decides when schedules are due.
    pub now: DateTime<Utc>,
}

/// Returns the values from which a schedule's next slot is computed, and locks the schedule until the transaction
/// ends. Returns `None` if it does not exist.
pub async fn hold_planning(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
) -> sqlx::Result<Option<Planning>> {
    sqlx::query_as!(
        Planning,
        r#"
        SELECT s.frequency_override, clock_timestamp() AS "now!",
               coalesce((SELECT max(started_at) FROM runs WHERE schedule_pk = s.pk), s.last_success_at) AS started_at
        FROM schedules s
        WHERE s.connection_pk = $1 AND s.sync_name = $2 AND s.variant = $3 AND s.retired_at IS NULL
        FOR NO KEY UPDATE
        "#,
        connection.0,
        sync.as_str(),
        variant.as_str(),
    )
    .fetch_optional(conn)
    .await
}

/// Overrides the frequency of one schedule, or restores the default with `None`. A schedule that waits for its regular
/// slot moves to `next`. A schedule that is due or was triggered does not move.
pub async fn set_frequency(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
    frequency: Option<&str>,
    next: DateTime<Utc>,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE schedules
        SET frequency_override = $4,
            next_run_at = CASE WHEN state = 'running' THEN $5::timestamptz END,
            due_at = CASE WHEN run_id IS NULL AND due_reason = 'schedule' AND due_at > now() THEN $5::timestamptz ELSE due_at END
        WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 AND retired_at IS NULL
        "#,
        connection.0,
        sync.as_str(),
        variant.as_str(),
        frequency,
        next,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Returns the overridden frequency of a schedule, and the current time of the database's clock.
pub async fn frequency_override(
    conn: &mut PgConnection,
    schedule: SchedulePk,
) -> sqlx::Result<(Option<String>, DateTime<Utc>)> {
    let row = sqlx::query!(
        r#"
        SELECT (SELECT frequency_override FROM schedules WHERE pk = $1) AS frequency, clock_timestamp() AS "now!"
        "#,
        schedule.0,
    )
    .fetch_one(conn)
    .await?;
    Ok((row.frequency, row.now))
}

/// Returns the current time of the database's clock, which decides when schedules are due. The clocks of hosts may
/// differ.
pub async fn now(conn: &mut PgConnection) -> sqlx::Result<DateTime<Utc>> {
    sqlx::query_scalar!(r#"SELECT clock_timestamp() AS "now!""#).fetch_one(conn).await
}
