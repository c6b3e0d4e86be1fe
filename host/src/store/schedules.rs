//! Schedules: when a sync of a connection and variant is due, and who runs it.
//!
//! A host claims what is due and holds it under a lease. Every claim raises the fence; what a host writes about
//! a run carries owner and fence, so one that lost its lease changes nothing any more.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::hosts::interval;
use crate::ids::{
    ConnectionId, ConnectionPk, EnvironmentPk, FunctionName, IntegrationPk, SchedulePk, Variant,
};

/// Why a run takes place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::Type, serde::Serialize)]
#[sqlx(type_name = "text", rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub enum DueReason {
    Schedule,
    Trigger,
    Start,
    Retry,
}

impl DueReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Trigger => "trigger",
            Self::Start => "start",
            Self::Retry => "retry",
        }
    }
}

/// A schedule that this host has claimed.
#[derive(Debug, Clone)]
pub struct Claim {
    pub schedule: SchedulePk,
    pub run_id: Uuid,
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub connection: ConnectionPk,
    pub sync: FunctionName,
    pub variant: Variant,
    pub frequency_override: Option<String>,
    pub reason: DueReason,
    pub fence: i64,
    /// Failed runs since the last success.
    pub failures: i32,
    pub resets: bool,
    pub empties_cache: bool,
    /// The last attempt did not succeed: what it saved is counted with what this one saves.
    pub continues: bool,
    /// The start of the first attempt after the last success, by the database's clock.
    pub unreported_since: DateTime<Utc>,
    /// When the latest run began that succeeded. Nobody else's can succeed while this one is on.
    pub last_success_at: Option<DateTime<Utc>>,
}

/// Makes the schedules that are missing for the integration's connections, or for one of them. Those that start
/// by themselves are due at once.
pub async fn create_missing(
    conn: &mut PgConnection,
    integration: IntegrationPk,
    connection: Option<ConnectionPk>,
    sync: &FunctionName,
    auto_start: bool,
) -> sqlx::Result<u64> {
    let made = sqlx::query!(
        r#"
        INSERT INTO schedules
            (environment_pk, integration_pk, connection_pk, sync_name, variant, state, due_at, due_reason)
        SELECT environment_pk, integration_pk, pk, $3, 'base',
               CASE WHEN $4 THEN 'running' ELSE 'paused' END, CASE WHEN $4 THEN now() END, 'schedule'
        FROM connections
        WHERE integration_pk = $1 AND ($2::bigint IS NULL OR pk = $2)
        ON CONFLICT ON CONSTRAINT schedules_sync DO NOTHING
        "#,
        integration.0,
        connection.map(|connection| connection.0),
        sync.as_str(),
        auto_start,
    )
    .execute(conn)
    .await?;
    Ok(made.rows_affected())
}

/// A further instance of a sync.
#[derive(Debug)]
pub struct NewVariant<'a> {
    pub connection: ConnectionPk,
    pub sync: &'a FunctionName,
    pub variant: &'a Variant,
    pub auto_start: bool,
    /// How many instances there may be with it.
    pub most: i64,
}

/// Makes a variant's schedule and gives its id. `None`: there is one of that name, or there are too many.
pub async fn create_variant(conn: &mut PgConnection, new: &NewVariant<'_>) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!(
        r#"
        INSERT INTO schedules
            (environment_pk, integration_pk, connection_pk, sync_name, variant, state, due_at, due_reason)
        SELECT environment_pk, integration_pk, pk, $2, $3,
               CASE WHEN $4 THEN 'running' ELSE 'paused' END, CASE WHEN $4 THEN now() END, 'schedule'
        FROM connections
        WHERE pk = $1 AND $5 > (SELECT count(*) FROM schedules WHERE connection_pk = $1 AND sync_name = $2)
        ON CONFLICT ON CONSTRAINT schedules_sync DO NOTHING
        RETURNING id
        "#,
        new.connection.0,
        new.sync.as_str(),
        new.variant.as_str(),
        new.auto_start,
        new.most,
    )
    .fetch_optional(conn)
    .await
}

/// The id of a sync's schedule for one connection and variant.
pub async fn find_variant(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
) -> sqlx::Result<Option<Uuid>> {
    sqlx::query_scalar!(
        "SELECT id FROM schedules WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3",
        connection.0,
        sync.as_str(),
        variant.as_str(),
    )
    .fetch_optional(conn)
    .await
}

/// Ends a variant's schedule and cancels its run, before its records go. `false`: there is none.
pub async fn retire_variant(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
) -> sqlx::Result<bool> {
    let retired = sqlx::query!(
        r#"
        WITH found AS (
            SELECT pk, run_id FROM schedules
            WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3 FOR UPDATE
        ), retired AS (
            UPDATE schedules s
            SET state = 'paused', due_at = NULL, next_run_at = NULL, run_id = NULL, run_owner = NULL,
                lease_expires_at = NULL
            FROM found WHERE s.pk = found.pk
        ), cancelled AS (
            UPDATE runs SET state = 'cancelled', finished_at = now()
            FROM found WHERE runs.id = found.run_id AND runs.state = 'running'
        )
        SELECT pg_notify('syncline', 'cancel') FROM found
        "#,
        connection.0,
        sync.as_str(),
        variant.as_str(),
    )
    .fetch_all(conn)
    .await?;
    Ok(!retired.is_empty())
}

pub async fn delete_variant(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
) -> sqlx::Result<()> {
    sqlx::query!(
        "DELETE FROM schedules WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3",
        connection.0,
        sync.as_str(),
        variant.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Overrides the frequency of one schedule, or returns to the default with `None`. What waits for its regular slot
/// waits for `next` instead; what is due already, or was asked for, stays so. `false`: there is no such schedule.
pub async fn set_frequency(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
    frequency: Option<&str>,
    next: DateTime<Utc>,
) -> sqlx::Result<bool> {
    let changed = sqlx::query!(
        r#"
        UPDATE schedules
        SET frequency_override = $4,
            next_run_at = CASE WHEN state = 'running' THEN $5::timestamptz END,
            due_at = CASE WHEN run_id IS NULL AND due_reason = 'schedule' AND due_at > now() THEN $5::timestamptz ELSE due_at END
        WHERE connection_pk = $1 AND sync_name = $2 AND variant = $3
        "#,
        connection.0,
        sync.as_str(),
        variant.as_str(),
        frequency,
        next,
    )
    .execute(conn)
    .await?;
    Ok(changed.rows_affected() == 1)
}

/// The frequency that a schedule has in place of the default.
pub async fn frequency_override(
    conn: &mut PgConnection,
    schedule: SchedulePk,
) -> sqlx::Result<Option<String>> {
    let row = sqlx::query_scalar!("SELECT frequency_override FROM schedules WHERE pk = $1", schedule.0)
        .fetch_optional(conn)
        .await?;
    Ok(row.flatten())
}

/// Removes the schedules of a sync that is no longer deployed.
pub async fn remove_sync(
    conn: &mut PgConnection,
    integration: IntegrationPk,
    sync: &FunctionName,
) -> sqlx::Result<u64> {
    let removed = sqlx::query!(
        "DELETE FROM schedules WHERE integration_pk = $1 AND sync_name = $2",
        integration.0,
        sync.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(removed.rows_affected())
}

/// Moves the next regular slot of schedules that follow the default frequency and wait for it.
pub async fn replan(
    conn: &mut PgConnection,
    integration: IntegrationPk,
    sync: &FunctionName,
    next: DateTime<Utc>,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE schedules SET next_run_at = $3, due_at = $3
        WHERE integration_pk = $1 AND sync_name = $2 AND frequency_override IS NULL AND state = 'running'
          AND run_id IS NULL AND due_reason = 'schedule'
        "#,
        integration.0,
        sync.as_str(),
        next,
    )
    .execute(conn)
    .await?;
    Ok(())
}

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
    fn name_lists(&self) -> (Vec<String>, Vec<String>) {
        let syncs = self.syncs.as_deref().unwrap_or_default();
        syncs.iter().map(|(name, variant)| (name.to_string(), variant.to_string())).unzip()
    }
}

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
    let (names, variants) = target.name_lists();
    let changed = sqlx::query!(
        r#"
        UPDATE schedules
        SET due_at = now(), due_reason = 'trigger',
            reset_wanted = reset_wanted OR $6, empty_cache_wanted = empty_cache_wanted OR ($6 AND $7),
            cancel_wanted = cancel_wanted OR (run_id IS NOT NULL AND $6)
        WHERE integration_pk = $1 AND ($2::bigint IS NULL OR connection_pk = $2)
          AND ($3 OR (sync_name, variant) IN (SELECT * FROM unnest($4::text[], $5::text[])))
        "#,
        target.integration.0,
        target.connection.map(|connection| connection.0),
        target.syncs.is_none(),
        &names,
        &variants,
        options.reset,
        options.empty_cache,
    )
    .execute(&mut *conn)
    .await?
    .rows_affected();
    if options.reset {
        sqlx::query!("SELECT pg_notify('syncline', $1)", "cancel").fetch_one(&mut *conn).await?;
    }
    notify_due(conn).await?;
    Ok(changed)
}

/// Starts what is paused, with a run at once. Gives the number of schedules that the target names.
pub async fn start(conn: &mut PgConnection, target: &Target) -> sqlx::Result<u64> {
    let (names, variants) = target.name_lists();
    let changed = sqlx::query!(
        r#"
        UPDATE schedules
        SET state = 'running',
            due_at = CASE WHEN state = 'paused' THEN now() ELSE due_at END,
            due_reason = CASE WHEN state = 'paused' THEN 'start' ELSE due_reason END
        WHERE integration_pk = $1 AND ($2::bigint IS NULL OR connection_pk = $2)
          AND ($3 OR (sync_name, variant) IN (SELECT * FROM unnest($4::text[], $5::text[])))
        "#,
        target.integration.0,
        target.connection.map(|connection| connection.0),
        target.syncs.is_none(),
        &names,
        &variants,
    )
    .execute(&mut *conn)
    .await?
    .rows_affected();
    notify_due(conn).await?;
    Ok(changed)
}

/// Pauses; a run in progress completes, and a run that was triggered still takes place. Gives the number of
/// schedules that the target names.
pub async fn pause(conn: &mut PgConnection, target: &Target) -> sqlx::Result<u64> {
    let (names, variants) = target.name_lists();
    let changed = sqlx::query!(
        r#"
        UPDATE schedules
        SET state = 'paused', next_run_at = NULL, due_at = CASE WHEN due_reason = 'trigger' THEN due_at END
        WHERE integration_pk = $1 AND ($2::bigint IS NULL OR connection_pk = $2)
          AND ($3 OR (sync_name, variant) IN (SELECT * FROM unnest($4::text[], $5::text[])))
        "#,
        target.integration.0,
        target.connection.map(|connection| connection.0),
        target.syncs.is_none(),
        &names,
        &variants,
    )
    .execute(conn)
    .await?;
    Ok(changed.rows_affected())
}

/// Lets every host look for due work at once instead of at its next turn.
pub async fn notify_due(conn: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("SELECT pg_notify('syncline', 'due')").fetch_one(conn).await?;
    Ok(())
}

/// Claims up to `limit` due schedules for `owner` and opens a run for each.
pub async fn claim_due(
    conn: &mut PgConnection,
    owner: Uuid,
    lease: Duration,
    limit: i64,
) -> sqlx::Result<Vec<Claim>> {
    let rows = sqlx::query!(
        r#"
        WITH due AS (
            SELECT pk, due_reason, reset_wanted, empty_cache_wanted, unreported_since,
                   gen_random_uuid() AS new_run_id
            FROM schedules
            WHERE run_id IS NULL AND due_at <= now()
            ORDER BY due_at
            LIMIT $3
            FOR UPDATE SKIP LOCKED
        ), claimed AS (
            UPDATE schedules s
            SET run_id = due.new_run_id, run_owner = $1, lease_expires_at = now() + $2, fence = nextval('run_fences'),
                due_at = NULL, due_reason = 'schedule', reset_wanted = false, empty_cache_wanted = false,
                run_resets = due.reset_wanted, run_empties_cache = due.empty_cache_wanted, cancel_wanted = false,
                unreported_since = coalesce(due.unreported_since, now())
            FROM due
            WHERE s.pk = due.pk
            RETURNING s.pk, s.run_id, s.environment_pk, s.integration_pk, s.connection_pk, s.sync_name, s.variant,
                      s.frequency_override, due.due_reason, s.fence, s.failures, s.run_resets, s.run_empties_cache,
                      due.unreported_since IS NOT NULL AS continues, s.unreported_since,
                      s.last_success_at
        ), opened AS (
            INSERT INTO runs (id, environment_pk, integration_pk, connection_pk, schedule_pk, kind, function_name, variant,
                              trigger, attempt, fence, owner, state, started_at)
            SELECT run_id, environment_pk, integration_pk, connection_pk, pk, 'sync', sync_name, variant,
                   due_reason, failures + 1, fence, $1, 'running', now()
            FROM claimed
        )
        SELECT pk AS "pk!", run_id AS "run_id!", environment_pk AS "environment_pk!",
               integration_pk AS "integration_pk!", connection_pk AS "connection_pk!", sync_name AS "sync_name!",
               variant AS "variant!", frequency_override, due_reason AS "due_reason!: DueReason",
               fence AS "fence!", failures AS "failures!", run_resets AS "run_resets!",
               run_empties_cache AS "run_empties_cache!", continues AS "continues!",
               unreported_since AS "unreported_since!", last_success_at
        FROM claimed
        "#,
        owner,
        interval(lease),
        limit,
    )
    .fetch_all(conn)
    .await?;
    let claims = rows.into_iter().map(|row| Claim {
        schedule: SchedulePk(row.pk),
        run_id: row.run_id,
        environment: EnvironmentPk(row.environment_pk),
        integration: IntegrationPk(row.integration_pk),
        connection: ConnectionPk(row.connection_pk),
        sync: FunctionName::from_stored(row.sync_name),
        variant: Variant::from_stored(row.variant),
        frequency_override: row.frequency_override,
        reason: row.due_reason,
        fence: row.fence,
        failures: row.failures,
        resets: row.run_resets,
        empties_cache: row.run_empties_cache,
        continues: row.continues,
        unreported_since: row.unreported_since,
        last_success_at: row.last_success_at,
    });
    Ok(claims.collect())
}

/// How long it is until the next schedule becomes due, by the database's clock; none if none will.
pub async fn time_to_next(conn: &mut PgConnection) -> sqlx::Result<Option<Duration>> {
    let seconds = sqlx::query_scalar!(
        r#"
        SELECT extract(epoch FROM due_at - clock_timestamp())::double precision AS "seconds!" FROM schedules
        WHERE run_id IS NULL AND due_at IS NOT NULL
        ORDER BY due_at LIMIT 1
        "#
    )
    .fetch_optional(conn)
    .await?;
    Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()))
}

/// A run whose lease was renewed.
#[derive(Debug, Clone, Copy)]
pub struct Renewed {
    pub run_id: Uuid,
    pub cancel_wanted: bool,
}

/// Renews the leases of these runs, as far as `owner` still holds them. A run that is not in the answer is no longer
/// its.
pub async fn renew_leases(
    conn: &mut PgConnection,
    owner: Uuid,
    lease: Duration,
    runs: &[Uuid],
) -> sqlx::Result<Vec<Renewed>> {
    sqlx::query_as!(
        Renewed,
        r#"
        UPDATE schedules SET lease_expires_at = now() + $2
        WHERE run_owner = $1 AND run_id = ANY($3) AND lease_expires_at > now()
        RETURNING run_id AS "run_id!", cancel_wanted
        "#,
        owner,
        interval(lease),
        runs,
    )
    .fetch_all(conn)
    .await
}

/// Notes that the run has done the reset that it was claimed with, so that a successor does not repeat it.
pub async fn note_reset_done(conn: &mut PgConnection, claim: &Claim) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE schedules SET run_resets = false, run_empties_cache = false
        WHERE pk = $1 AND run_id = $2 AND fence = $3
        "#,
        claim.schedule.0,
        claim.run_id,
        claim.fence,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// What comes after a run.
#[derive(Debug, Clone, Copy)]
pub struct Next {
    /// The next regular slot.
    pub slot: Option<DateTime<Utc>>,
    /// When to try again before that, if the run failed.
    pub retry_at: Option<DateTime<Utc>>,
    pub end: RunEnd,
}

/// What a run leaves to the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    Succeeded,
    Failed,
    /// It gave its work back unfinished: what it was asked to reset and has not, the next one does.
    HandedBack,
    /// There was nothing to run.
    Dropped,
}

/// Ends the hold on a schedule. `false`: it was no longer held by this run.
pub async fn release(conn: &mut PgConnection, claim: &Claim, owner: Uuid, next: &Next) -> sqlx::Result<bool> {
    let released = sqlx::query!(
        r#"
        UPDATE schedules
        SET run_id = NULL, run_owner = NULL, lease_expires_at = NULL, cancel_wanted = false,
            reset_wanted = reset_wanted OR ($7 AND run_resets),
            empty_cache_wanted = empty_cache_wanted OR ($7 AND run_empties_cache),
            run_resets = false, run_empties_cache = false,
            failures = CASE WHEN $7 THEN failures WHEN $6 THEN failures + 1 ELSE 0 END,
            unreported_since = CASE WHEN NOT $9 THEN unreported_since END,
            last_success_at = CASE WHEN $9 THEN (SELECT started_at FROM runs WHERE id = $2) ELSE last_success_at END,
            next_run_at = CASE WHEN state = 'running' THEN $4::timestamptz END,
            due_reason = CASE WHEN due_at IS NULL AND $5::timestamptz IS NOT NULL THEN 'retry' ELSE due_reason END,
            due_at = coalesce(due_at, CASE WHEN $7 THEN now() WHEN state = 'running' THEN coalesce($5, $4::timestamptz) END)
        WHERE pk = $1 AND run_id = $2 AND run_owner = $3 AND fence = $8
        "#,
        claim.schedule.0,
        claim.run_id,
        owner,
        next.slot,
        next.retry_at,
        next.end == RunEnd::Failed,
        next.end == RunEnd::HandedBack,
        claim.fence,
        next.end == RunEnd::Succeeded,
    )
    .execute(&mut *conn)
    .await?;
    Ok(released.rows_affected() > 0)
}

/// Takes back what hosts held that are gone: their leases have run out. The runs are closed as lost and the
/// schedules are due again. Gives the number of runs.
pub async fn take_back_lost(conn: &mut PgConnection) -> sqlx::Result<u64> {
    let lost = sqlx::query!(
        r#"
        WITH lost AS (
            SELECT pk, run_id, fence FROM schedules
            WHERE run_id IS NOT NULL AND lease_expires_at < now()
            FOR UPDATE SKIP LOCKED
        ), closed AS (
            UPDATE runs r
            SET state = 'lost', finished_at = now(), error_code = 'host_lost',
                error_message = 'the host that ran this sync stopped responding; the sync continues from its checkpoint'
            FROM lost
            WHERE r.id = lost.run_id AND r.state = 'running'
        )
        UPDATE schedules s
        SET run_id = NULL, run_owner = NULL, lease_expires_at = NULL, cancel_wanted = false,
            reset_wanted = s.reset_wanted OR s.run_resets,
            empty_cache_wanted = s.empty_cache_wanted OR s.run_empties_cache,
            run_resets = false, run_empties_cache = false,
            failures = s.failures + 1,
            -- A sync that takes its host down with it must not take one after another without a pause.
            due_at = coalesce(s.due_at, now() + CASE WHEN s.failures = 0 THEN interval '0'
                ELSE least(interval '10 seconds' * power(2, least(s.failures, 10)), interval '10 minutes') END),
            due_reason = CASE WHEN s.due_at IS NULL THEN 'retry' ELSE s.due_reason END
        FROM lost
        WHERE s.pk = lost.pk
        "#,
    )
    .execute(conn)
    .await?;
    Ok(lost.rows_affected())
}

/// A schedule with its latest runs, for `GET /sync/status`.
#[derive(Debug, Clone)]
pub struct ScheduleStatus {
    pub id: Uuid,
    pub connection: ConnectionPk,
    pub connection_id: ConnectionId,
    pub sync: FunctionName,
    pub variant: Variant,
    pub is_paused: bool,
    /// Also while an attempt that was interrupted is about to be followed by the next.
    pub is_running: bool,
    /// The latest attempt was lost with its host, or stopped.
    pub is_interrupted: bool,
    pub frequency_override: Option<String>,
    pub next_run_at: Option<DateTime<Utc>>,
    pub latest: Option<LatestRun>,
    pub has_succeeded: bool,
}

/// The latest run that came to its end, well or not. One that was stopped or lost is followed by another.
#[derive(Debug, Clone)]
pub struct LatestRun {
    pub state: String,
    pub finished_at: Option<DateTime<Utc>>,
    pub counts: Option<Value>,
}

pub async fn list_status(conn: &mut PgConnection, target: &Target) -> sqlx::Result<Vec<ScheduleStatus>> {
    let (names, variants) = target.name_lists();
    let rows = sqlx::query!(
        r#"
        SELECT s.id, s.connection_pk, c.connection_id, s.sync_name, s.variant, s.state = 'paused' AS "is_paused!",
               s.run_id IS NOT NULL OR (coalesce(newest.state IN ('lost', 'cancelled'), false)
                   AND coalesce(s.due_at <= now(), false)) AS "is_running!",
               coalesce(newest.state IN ('lost', 'cancelled'), false) AS "is_interrupted!", s.frequency_override,
               coalesce(s.next_run_at, CASE WHEN s.state = 'running' THEN s.due_at END) AS next_run_at,
               latest.state AS "run_state?", latest.finished_at AS "finished_at?", latest.counts AS "counts?",
               s.last_success_at IS NOT NULL AS "has_succeeded!"
        FROM schedules s
        JOIN connections c ON c.pk = s.connection_pk
        LEFT JOIN LATERAL (
            SELECT state FROM runs WHERE schedule_pk = s.pk ORDER BY started_at DESC LIMIT 1
        ) AS newest ON true
        LEFT JOIN LATERAL (
            SELECT state, finished_at, counts FROM runs
            WHERE schedule_pk = s.pk AND state IN ('success', 'error')
            ORDER BY started_at DESC LIMIT 1
        ) AS latest ON true
        WHERE s.integration_pk = $1 AND ($2::bigint IS NULL OR s.connection_pk = $2)
          AND ($3 OR (s.sync_name, s.variant) IN (SELECT * FROM unnest($4::text[], $5::text[])))
        ORDER BY s.connection_pk, s.sync_name, s.variant
        "#,
        target.integration.0,
        target.connection.map(|connection| connection.0),
        target.syncs.is_none(),
        &names,
        &variants,
    )
    .fetch_all(conn)
    .await?;
    let statuses = rows.into_iter().map(|row| ScheduleStatus {
        id: row.id,
        connection: ConnectionPk(row.connection_pk),
        connection_id: ConnectionId::from_stored(row.connection_id),
        sync: FunctionName::from_stored(row.sync_name),
        variant: Variant::from_stored(row.variant),
        is_paused: row.is_paused,
        is_running: row.is_running,
        is_interrupted: row.is_interrupted,
        frequency_override: row.frequency_override,
        next_run_at: row.next_run_at,
        latest: row.run_state.map(|state| LatestRun {
            state,
            finished_at: row.finished_at,
            counts: row.counts,
        }),
        has_succeeded: row.has_succeeded,
    });
    Ok(statuses.collect())
}
