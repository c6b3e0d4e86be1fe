//! Claims due schedules for hosts, fairly between integrations, and parks schedules whose connection has reached its
//! concurrency limit.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::hosts::interval;
use crate::recordings::{self, RecordingOrder};
use syncline_types::functions::RecordedRuns;
use syncline_types::ids::{ConnectionPk, EnvironmentPk, FunctionName, IntegrationPk, SchedulePk, Variant};

/// The advisory lock that serializes claims, so that concurrency limits are counted exactly.
const CLAIM_LOCK: i64 = 0x636c_6169_6d73;
/// The number of additional schedules that a claim considers, in order to skip schedules of busy connections.
const LOOK_AHEAD: i64 = 32;

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
    /// Consecutive failed runs.
    pub failures: i32,
    pub resets: bool,
    pub empties_cache: bool,
    /// The start of the first attempt since the last reported success, by the database's clock.
    pub unreported_since: DateTime<Utc>,
    /// The time of the claim, by the database's clock, which also decides when schedules are due.
    pub claimed_at: DateTime<Utc>,
    /// When the latest successful run began. No other run of the schedule can succeed while this one is in progress.
    pub last_success_at: Option<DateTime<Utc>>,
    /// Whether to record the run.
    pub recording: Option<RecordingOrder>,
}

/// Why a run was started.
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

/// An integration with schedules that are due now or later.
#[derive(Debug, Clone, Copy)]
pub struct WaitingIntegration {
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    /// The time until its first schedule is due, by the database's clock. Zero if it is due.
    pub due_in: Duration,
}

/// A host's request to claim schedules of one integration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimRequest {
    pub integration: IntegrationPk,
    /// Maximum number of schedules to claim.
    pub quota: usize,
    /// The integration's concurrency limit across all hosts.
    pub most: Option<u32>,
    /// The concurrency limit of one connection.
    pub most_of_connection: u32,
}

/// The result of a claim.
#[derive(Debug, Default)]
pub struct Claimed {
    pub claims: Vec<Claim>,
    /// The number of schedules that were parked because their connections have reached their concurrency limit.
    pub parked: u64,
}

/// Lists all integrations with waiting schedules. The cost depends on the number of integrations, not on the number of
/// their schedules.
pub async fn list_waiting(conn: &mut PgConnection) -> sqlx::Result<Vec<WaitingIntegration>> {
    let rows = sqlx::query!(
        r#"
        WITH RECURSIVE waiting AS (
            (
                SELECT integration_pk, environment_pk, due_at FROM schedules
                WHERE run_id IS NULL AND due_at IS NOT NULL AND NOT awaits_permit
                ORDER BY integration_pk, due_at LIMIT 1
            )
            UNION ALL
            SELECT next.integration_pk, next.environment_pk, next.due_at
            FROM waiting CROSS JOIN LATERAL (
                SELECT s.integration_pk, s.environment_pk, s.due_at FROM schedules s
                WHERE s.run_id IS NULL AND s.due_at IS NOT NULL AND NOT s.awaits_permit
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
    let waiting = rows.into_iter().map(|row| WaitingIntegration {
        environment: EnvironmentPk(row.environment_pk),
        integration: IntegrationPk(row.integration_pk),
        due_in: Duration::try_from_secs_f64(row.due_in).unwrap_or_default(),
    });
    Ok(waiting.collect())
}

/// Claims due schedules for `owner`, longest due first, and creates a run for each. Schedules whose connection has
/// reached its concurrency limit are parked, so that later claims do not consider them again. The claim's lock is held
/// until the transaction ends.
pub async fn claim_due(
    conn: &mut PgConnection,
    owner: Uuid,
    lease: Duration,
    wanted: &[ClaimRequest],
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
                SELECT pk, integration_pk, connection_pk, due_at, due_reason, reset_requested,
                       empty_cache_requested, unreported_since
                FROM schedules
                WHERE integration_pk = wanted.integration AND run_id IS NULL AND NOT awaits_permit
                  AND due_at <= now()
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
            UPDATE schedules s SET awaits_permit = true
            FROM placed WHERE s.pk = placed.pk AND NOT placed.has_room
            RETURNING s.pk
        ), claimed AS (
            UPDATE schedules s
            SET run_id = gen_random_uuid(), run_owner = $1, lease_expires_at = now() + $2,
                fence = nextval('run_fences'), due_at = NULL, due_reason = 'schedule', reset_requested = false,
                empty_cache_requested = false, run_resets = picked.reset_requested,
                run_empties_cache = picked.empty_cache_requested, cancel_requested = false,
                is_interrupted = false,
                unreported_since = coalesce(picked.unreported_since, now())
            FROM picked
            WHERE s.pk = picked.pk AND picked.place <= picked.quota
            RETURNING s.pk, s.run_id, s.environment_pk, s.integration_pk, s.connection_pk, s.sync_name, s.variant,
                      s.frequency_override, picked.due_reason, picked.due_at, s.fence, s.failures, s.run_resets, s.run_empties_cache,
                      s.unreported_since,
                      s.last_success_at, s.recorded_runs, s.recording_days
        ), opened AS (
            INSERT INTO runs (id, environment_pk, integration_pk, connection_pk, schedule_pk, kind, function_name, variant,
                              trigger, attempt, fence, owner, state, started_at, due_at)
            SELECT run_id, environment_pk, integration_pk, connection_pk, pk, 'sync', sync_name, variant,
                   due_reason, failures + 1, fence, $1, 'running', now(), due_at
            FROM claimed
        )
        SELECT steps.aside AS "aside!", claimed.pk AS "pk?", run_id, environment_pk AS "environment_pk?",
               integration_pk AS "integration_pk?", connection_pk AS "connection_pk?", sync_name AS "sync_name?",
               variant AS "variant?", frequency_override, due_reason AS "due_reason?: DueReason",
               fence AS "fence?", failures AS "failures?", run_resets AS "run_resets?",
               run_empties_cache AS "run_empties_cache?", unreported_since, now() AS "claimed_at!",
               last_success_at, recorded_runs AS "recorded_runs: RecordedRuns", recording_days
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
            claimed_at: row.claimed_at,
            last_success_at: row.last_success_at,
            recording: recordings::order_of(row.recorded_runs, row.recording_days),
        })
    });
    Ok(Claimed { claims: claims.collect(), parked })
}

/// Unparks one schedule for each connection that has parked schedules and no run in progress. The end of a run unparks
/// a schedule, too. This function covers runs that ended in another way or while schedules were being parked.
pub async fn wake_idle(conn: &mut PgConnection) -> sqlx::Result<u64> {
    let unparked = sqlx::query!(
        r#"
        WITH RECURSIVE parked AS (
            (
                SELECT connection_pk, integration_pk, pk FROM schedules
                WHERE awaits_permit ORDER BY connection_pk, due_at LIMIT 1
            )
            UNION ALL
            SELECT next.connection_pk, next.integration_pk, next.pk
            FROM parked CROSS JOIN LATERAL (
                SELECT s.connection_pk, s.integration_pk, s.pk FROM schedules s
                WHERE s.awaits_permit AND s.connection_pk > parked.connection_pk
                ORDER BY s.connection_pk, s.due_at LIMIT 1
            ) AS next
        )
        UPDATE schedules s SET awaits_permit = false
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

fn column<T>(wanted: &[ClaimRequest], value: impl Fn(&ClaimRequest) -> T) -> Vec<T> {
    wanted.iter().map(value).collect()
}
