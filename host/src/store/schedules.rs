//! Schedules: when a sync of a connection and variant is due, and who runs it.
//!
//! A host claims what is due and holds it under a lease. Every claim raises the fence; what a host writes about
//! a run carries owner and fence, so one that lost its lease changes nothing any more.
//!
//! What waits is kept by integration (`schedules_waiting`), so that hosts can give each its turn. A schedule that is
//! due while its connection has enough runs on is parked and out of the way until one of them ends.

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
                lease_expires_at = NULL, is_parked = false
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

/// A fence above those of all claims so far.
pub async fn next_fence(conn: &mut PgConnection) -> sqlx::Result<i64> {
    sqlx::query_scalar!(r#"SELECT nextval('run_fences') AS "fence!""#).fetch_one(conn).await
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
        UPDATE schedules SET next_run_at = $3, due_at = $3, is_parked = false
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
        SET due_at = now(), due_reason = 'trigger', is_parked = false,
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
        SET state = 'running', is_parked = false,
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
        SET state = 'paused', next_run_at = NULL, due_at = CASE WHEN due_reason = 'trigger' THEN due_at END,
            is_parked = is_parked AND due_reason = 'trigger'
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

/// An integration that has schedules waiting for their time or their turn.
#[derive(Debug, Clone, Copy)]
pub struct Waiting {
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    /// How long it is until its first one is due, by the database's clock. Zero: it is.
    pub due_in: Duration,
}

/// All integrations that have something waiting. The cost depends on their number, not on how much waits for each.
pub async fn list_waiting(conn: &mut PgConnection) -> sqlx::Result<Vec<Waiting>> {
    let rows = sqlx::query!(
        r#"
        WITH RECURSIVE waiting AS (
            (
                SELECT integration_pk, environment_pk, due_at FROM schedules
                WHERE run_id IS NULL AND due_at IS NOT NULL AND NOT is_parked
                ORDER BY integration_pk, due_at LIMIT 1
            )
            UNION ALL
            SELECT next.integration_pk, next.environment_pk, next.due_at
            FROM waiting CROSS JOIN LATERAL (
                SELECT s.integration_pk, s.environment_pk, s.due_at FROM schedules s
                WHERE s.run_id IS NULL AND s.due_at IS NOT NULL AND NOT s.is_parked
                  AND s.integration_pk > waiting.integration_pk
                ORDER BY s.integration_pk, s.due_at LIMIT 1
            ) AS next
        )
        SELECT integration_pk AS "integration_pk!", environment_pk AS "environment_pk!",
               extract(epoch FROM due_at - now())::double precision AS "due_in!"
        FROM waiting
        "#
    )
    .fetch_all(conn)
    .await?;
    let waiting = rows.into_iter().map(|row| Waiting {
        environment: EnvironmentPk(row.environment_pk),
        integration: IntegrationPk(row.integration_pk),
        due_in: Duration::try_from_secs_f64(row.due_in).unwrap_or_default(),
    });
    Ok(waiting.collect())
}

/// What a host would like to run of one integration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    pub integration: IntegrationPk,
    /// So many at most.
    pub quota: usize,
    /// How many runs of the integration there may be over all hosts.
    pub most: Option<u32>,
    /// And of one of its connections.
    pub most_of_connection: u32,
}

/// What a claim has come to.
#[derive(Debug, Default)]
pub struct Claimed {
    pub claims: Vec<Claim>,
    /// Schedules that had to step aside, since their connections have enough runs on.
    pub parked: u64,
}

/// The advisory lock under which hosts claim, one after the other: only so are the limits counted exactly.
const CLAIM_LOCK: i64 = 0x636c_6169_6d73;
/// How many more schedules a claim looks at than it wants, to get past those whose connections are busy.
const LOOK_AHEAD: i64 = 32;

/// Claims due schedules for `owner`, the longest due first, and opens a run for each. What its connection has no room
/// for is parked, so that it is passed over once and not by every claim. Ends with the transaction that it is in.
pub async fn claim_due(
    conn: &mut PgConnection,
    owner: Uuid,
    lease: Duration,
    wanted: &[Wanted],
) -> sqlx::Result<Claimed> {
    sqlx::query!("SELECT pg_advisory_xact_lock($1)", CLAIM_LOCK).fetch_one(&mut *conn).await?;
    let rows = sqlx::query!(
        r#"
        WITH wanted AS (
            SELECT w.integration, w.most_of_connection,
                   CASE WHEN w.most IS NULL THEN w.quota ELSE least(w.quota, w.most - busy.runs) END AS quota
            FROM unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
                AS w (integration, quota, most, most_of_connection)
            CROSS JOIN LATERAL (
                SELECT count(*) AS runs FROM schedules
                WHERE w.most IS NOT NULL AND integration_pk = w.integration AND run_id IS NOT NULL
            ) AS busy
        ), due AS (
            SELECT s.*, wanted.quota, wanted.most_of_connection
            FROM wanted CROSS JOIN LATERAL (
                SELECT pk, integration_pk, connection_pk, due_at, due_reason, reset_wanted, empty_cache_wanted,
                       unreported_since
                FROM schedules
                WHERE integration_pk = wanted.integration AND run_id IS NULL AND NOT is_parked AND due_at <= now()
                ORDER BY due_at
                LIMIT CASE WHEN wanted.quota > 0 THEN wanted.quota + $7 ELSE 0 END
                FOR UPDATE SKIP LOCKED
            ) AS s
        ), placed AS (
            SELECT due.*, busy.runs + row_number() OVER (PARTITION BY due.connection_pk ORDER BY due.due_at, due.pk)
                          <= due.most_of_connection AS has_room
            FROM due CROSS JOIN LATERAL (
                SELECT count(*) AS runs FROM schedules r
                WHERE r.integration_pk = due.integration_pk AND r.connection_pk = due.connection_pk
                  AND r.run_id IS NOT NULL
            ) AS busy
        ), picked AS (
            SELECT placed.*, row_number() OVER (PARTITION BY integration_pk ORDER BY due_at, pk) AS place
            FROM placed WHERE has_room
        ), parked AS (
            UPDATE schedules s SET is_parked = true
            FROM placed WHERE s.pk = placed.pk AND NOT placed.has_room
            RETURNING s.pk
        ), claimed AS (
            UPDATE schedules s
            SET run_id = gen_random_uuid(), run_owner = $1, lease_expires_at = now() + $2,
                fence = nextval('run_fences'), due_at = NULL, due_reason = 'schedule', reset_wanted = false,
                empty_cache_wanted = false, run_resets = picked.reset_wanted,
                run_empties_cache = picked.empty_cache_wanted, cancel_wanted = false,
                unreported_since = coalesce(picked.unreported_since, now())
            FROM picked
            WHERE s.pk = picked.pk AND picked.place <= picked.quota
            RETURNING s.pk, s.run_id, s.environment_pk, s.integration_pk, s.connection_pk, s.sync_name, s.variant,
                      s.frequency_override, picked.due_reason, s.fence, s.failures, s.run_resets, s.run_empties_cache,
                      s.unreported_since,
                      s.last_success_at
        ), opened AS (
            INSERT INTO runs (id, environment_pk, integration_pk, connection_pk, schedule_pk, kind, function_name, variant,
                              trigger, attempt, fence, owner, state, started_at)
            SELECT run_id, environment_pk, integration_pk, connection_pk, pk, 'sync', sync_name, variant,
                   due_reason, failures + 1, fence, $1, 'running', now()
            FROM claimed
        )
        SELECT steps.aside AS "aside!", claimed.pk AS "pk?", run_id, environment_pk AS "environment_pk?",
               integration_pk AS "integration_pk?", connection_pk AS "connection_pk?", sync_name AS "sync_name?",
               variant AS "variant?", frequency_override, due_reason AS "due_reason?: DueReason",
               fence AS "fence?", failures AS "failures?", run_resets AS "run_resets?",
               run_empties_cache AS "run_empties_cache?", unreported_since,
               last_success_at
        FROM (SELECT count(*) AS aside FROM parked) AS steps LEFT JOIN claimed ON true
        "#,
        owner,
        interval(lease),
        &column(wanted, |wanted| wanted.integration.0),
        &column(wanted, |wanted| wanted.quota as i64),
        &column(wanted, |wanted| wanted.most.map(i64::from)) as &[Option<i64>],
        &column(wanted, |wanted| i64::from(wanted.most_of_connection)),
        LOOK_AHEAD,
    )
    .fetch_all(conn)
    .await?;
    let parked = rows.first().map_or(0, |row| row.aside.cast_unsigned());
    let claims = rows.into_iter().filter_map(|row| {
        Some(Claim {
            schedule: SchedulePk(row.pk?),
            run_id: row.run_id?,
            environment: EnvironmentPk(row.environment_pk?),
            integration: IntegrationPk(row.integration_pk?),
            connection: ConnectionPk(row.connection_pk?),
            sync: FunctionName::from_stored(row.sync_name?),
            variant: Variant::from_stored(row.variant?),
            frequency_override: row.frequency_override,
            reason: row.due_reason?,
            fence: row.fence?,
            failures: row.failures?,
            resets: row.run_resets?,
            empties_cache: row.run_empties_cache?,
            unreported_since: row.unreported_since?,
            last_success_at: row.last_success_at,
        })
    });
    Ok(Claimed { claims: claims.collect(), parked })
}

/// Lets a schedule of each connection go on that has some parked and no run on. The end of a run does so too; this is
/// for those that ended in another way, or while the others were being parked.
pub async fn unpark_idle(conn: &mut PgConnection) -> sqlx::Result<u64> {
    let unparked = sqlx::query!(
        r#"
        WITH RECURSIVE parked AS (
            (
                SELECT connection_pk, integration_pk, pk FROM schedules
                WHERE is_parked ORDER BY connection_pk, due_at LIMIT 1
            )
            UNION ALL
            SELECT next.connection_pk, next.integration_pk, next.pk
            FROM parked CROSS JOIN LATERAL (
                SELECT s.connection_pk, s.integration_pk, s.pk FROM schedules s
                WHERE s.is_parked AND s.connection_pk > parked.connection_pk
                ORDER BY s.connection_pk, s.due_at LIMIT 1
            ) AS next
        )
        UPDATE schedules s SET is_parked = false
        FROM parked
        WHERE s.pk = parked.pk AND NOT EXISTS (
            SELECT FROM schedules r
            WHERE r.integration_pk = parked.integration_pk AND r.connection_pk = parked.connection_pk
              AND r.run_id IS NOT NULL
        )
        "#
    )
    .execute(conn)
    .await?;
    Ok(unparked.rows_affected())
}

fn column<T>(wanted: &[Wanted], value: impl Fn(&Wanted) -> T) -> Vec<T> {
    wanted.iter().map(value).collect()
}

/// A run whose lease was renewed.
#[derive(Debug, Clone, Copy)]
pub struct Renewed {
    pub run_id: Uuid,
    pub cancel_wanted: bool,
}

/// Renews the leases of these runs, as far as `owner` still holds them: also one that has run out, if nobody has taken it
/// back. A run that is not in the answer is no longer its.
pub async fn renew_leases(
    conn: &mut PgConnection,
    owner: Uuid,
    lease: Duration,
    held: &[(SchedulePk, Uuid)],
) -> sqlx::Result<Vec<Renewed>> {
    sqlx::query_as!(
        Renewed,
        r#"
        UPDATE schedules s SET lease_expires_at = now() + $2
        FROM unnest($3::bigint[], $4::uuid[]) AS held (pk, run_id)
        WHERE s.pk = held.pk AND s.run_id = held.run_id AND s.run_owner = $1
        RETURNING s.run_id AS "run_id!", s.cancel_wanted
        "#,
        owner,
        interval(lease),
        &held.iter().map(|(schedule, _)| schedule.0).collect::<Vec<_>>(),
        &held.iter().map(|(_, run)| *run).collect::<Vec<_>>(),
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

/// Ends the hold on a schedule, and lets one go on that waited for its connection. `false`: it was no longer held by
/// this run.
pub async fn release(conn: &mut PgConnection, claim: &Claim, owner: Uuid, next: &Next) -> sqlx::Result<bool> {
    let released = sqlx::query!(
        r#"
        WITH unparked AS (
            -- It takes its place behind what has been due for longer than it has had a turn.
            UPDATE schedules SET is_parked = false, due_at = now()
            WHERE pk = (
                SELECT pk FROM schedules WHERE connection_pk = $10 AND is_parked
                ORDER BY due_at LIMIT 1
                FOR UPDATE SKIP LOCKED
            )
        )
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
        claim.connection.0,
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
