//! Jobs: queued executions of functions, and the results of requests with an `Idempotency-Key`.
//!
//! A host claims queued jobs and owns them under a lease. Every claim has a new fencing token. All writes about an
//! attempt check owner and token, so a host that has lost its lease cannot change anything.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::enums;
use super::hosts::interval;
use syncline_types::functions::FunctionKind;
pub use syncline_types::functions::JobState;
use syncline_types::ids::{
    ConnectionId, ConnectionPk, EnvironmentPk, FunctionName, IntegrationKey, IntegrationPk,
};

/// The class of the advisory locks that order the jobs of a connection.
const ORDER_LOCKS: i32 = 0x6a6f_6273;

/// A job to store.
#[derive(Debug)]
pub struct NewJob<'a> {
    pub id: Uuid,
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub connection: ConnectionPk,
    pub integration_key: &'a IntegrationKey,
    pub connection_id: &'a ConnectionId,
    pub kind: FunctionKind,
    pub function: &'a FunctionName,
    pub is_ordered: bool,
    pub max_retries: i32,
    pub sealed_input: Option<&'a [u8]>,
    pub key: Option<NewKey<'a>>,
    pub webhook: Option<JobWebhook>,
}

/// The inbound webhook that a webhook function handles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobWebhook {
    pub id: Uuid,
    /// The indexes of the events that the function receives. `None` means all events.
    pub items: Option<Vec<i32>>,
}

/// An `Idempotency-Key`, with the request that a repeated request must equal.
#[derive(Debug, Clone, Copy)]
pub struct NewKey<'a> {
    pub key: &'a str,
    pub sealed_request: &'a [u8],
}

/// A host's ownership of a running job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobLease {
    pub pk: i64,
    pub fence: i64,
}

/// A job that this host has claimed.
#[derive(Debug, Clone)]
pub struct JobClaim {
    pub hold: JobLease,
    pub id: Uuid,
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub connection: ConnectionPk,
    pub integration_key: IntegrationKey,
    pub connection_id: ConnectionId,
    pub kind: FunctionKind,
    pub function: FunctionName,
    pub is_ordered: bool,
    pub max_retries: i32,
    pub failures: i32,
    pub losses: i32,
    pub webhook: Option<JobWebhook>,
    pub created_at: DateTime<Utc>,
    /// When the job could start.
    pub due_at: DateTime<Utc>,
}

/// Stores a job that any host can claim. Returns `false` if the `Idempotency-Key` is taken.
pub async fn enqueue(conn: &mut PgConnection, new: &NewJob<'_>) -> sqlx::Result<bool> {
    if new.is_ordered {
        // The lock makes job numbers follow the order of commits, so a host that sees a job also sees all earlier
        // ones.
        sqlx::query!("SELECT pg_advisory_xact_lock($1, hashint8($2))", ORDER_LOCKS, new.connection.0)
            .fetch_one(&mut *conn)
            .await?;
    }
    let inserted = sqlx::query!(
        r#"
        WITH made AS (
            INSERT INTO function_jobs
                (id, environment_pk, integration_pk, connection_pk, integration_key, connection_id, kind,
                 function_name, state, is_async, is_ordered, max_retries, sealed_input, idempotency_key,
                 sealed_request, webhook_id, webhook_items)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'queued', true, $9, $10, $11, $12, $13, $14, $15)
            ON CONFLICT (connection_pk, function_name, idempotency_key) WHERE idempotency_key IS NOT NULL
                DO NOTHING
            RETURNING pk
        )
        SELECT pg_notify('syncline', 'jobs') FROM made
        "#,
        new.id,
        new.environment.0,
        new.integration.0,
        new.connection.0,
        new.integration_key.as_str(),
        new.connection_id.as_str(),
        new.kind.as_str(),
        new.function.as_str(),
        new.is_ordered,
        new.max_retries,
        new.sealed_input,
        new.key.map(|key| key.key),
        new.key.map(|key| key.sealed_request),
        new.webhook.as_ref().map(|webhook| webhook.id),
        new.webhook.as_ref().and_then(|webhook| webhook.items.as_deref()),
    )
    .fetch_optional(conn)
    .await?;
    Ok(inserted.is_some())
}

/// Stores a job that `owner` runs at once for a waiting request. Returns `None` if the `Idempotency-Key` is taken.
pub async fn begin(
    conn: &mut PgConnection,
    new: &NewJob<'_>,
    owner: Uuid,
    lease: Duration,
    retention: Duration,
) -> sqlx::Result<Option<JobLease>> {
    sqlx::query_as!(
        JobLease,
        r#"
        INSERT INTO function_jobs
            (id, environment_pk, integration_pk, connection_pk, integration_key, connection_id, kind, function_name,
             state, is_async, is_ordered, max_retries, idempotency_key, sealed_request, owner, lease_expires_at,
             fence, expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'running', false, false, 0, $9, $10, $11, now() + $12,
                nextval('run_fences'), now() + $13)
        ON CONFLICT (connection_pk, function_name, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
        RETURNING pk, fence
        "#,
        new.id,
        new.environment.0,
        new.integration.0,
        new.connection.0,
        new.integration_key.as_str(),
        new.connection_id.as_str(),
        new.kind.as_str(),
        new.function.as_str(),
        new.key.map(|key| key.key),
        new.key.map(|key| key.sealed_request),
        owner,
        interval(lease),
        interval(retention),
    )
    .fetch_optional(conn)
    .await
}

/// The job with an `Idempotency-Key`.
#[derive(Debug)]
pub struct KeyedJob {
    pub pk: i64,
    pub id: Uuid,
    pub fence: i64,
    pub is_async: bool,
    pub state: JobState,
    pub sealed_request: Option<Vec<u8>>,
    pub sealed_result: Option<Vec<u8>>,
    /// Whether the host that ran the job for a waiting request was lost.
    pub is_abandoned: bool,
}

/// Finds the job with an `Idempotency-Key`. An expired job is deleted first.
pub async fn find_keyed(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    function: &FunctionName,
    key: &str,
) -> sqlx::Result<Option<KeyedJob>> {
    sqlx::query!(
        r#"
        DELETE FROM function_jobs
        WHERE connection_pk = $1 AND function_name = $2 AND idempotency_key = $3 AND expires_at < now()
          AND (state <> 'running' OR lease_expires_at < now())
        "#,
        connection.0,
        function.as_str(),
        key,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query_as!(
        KeyedJob,
        r#"
        SELECT pk, id, fence, is_async, state AS "state: JobState", sealed_request, sealed_result,
               NOT is_async AND state = 'running' AND lease_expires_at < now() AS "is_abandoned!"
        FROM function_jobs
        WHERE connection_pk = $1 AND function_name = $2 AND idempotency_key = $3
        "#,
        connection.0,
        function.as_str(),
        key,
    )
    .fetch_optional(conn)
    .await
}

/// Takes over a job that a lost host ran for a waiting request. Returns `None` if another host has already taken it
/// over.
pub async fn take_over(
    conn: &mut PgConnection,
    abandoned: JobLease,
    owner: Uuid,
    lease: Duration,
) -> sqlx::Result<Option<JobLease>> {
    sqlx::query_as!(
        JobLease,
        r#"
        UPDATE function_jobs
        SET owner = $3, lease_expires_at = now() + $4, fence = nextval('run_fences'), losses = losses + 1
        WHERE pk = $1 AND fence = $2 AND state = 'running'
        RETURNING pk, fence
        "#,
        abandoned.pk,
        abandoned.fence,
        owner,
        interval(lease),
    )
    .fetch_optional(conn)
    .await
}

/// Lists the connections after `after` that have queued jobs, due or not, in ascending order. Returns at most `limit`.
pub async fn list_waiting(
    conn: &mut PgConnection,
    after: ConnectionPk,
    limit: i32,
) -> sqlx::Result<Vec<ConnectionPk>> {
    let waiting = sqlx::query_scalar!(
        r#"
        WITH RECURSIVE waiting AS (
            (SELECT connection_pk, 1 AS turn FROM function_jobs
             WHERE state = 'queued' AND connection_pk > $1 ORDER BY connection_pk LIMIT 1)
            UNION ALL
            SELECT next.connection_pk, turn + 1
            FROM waiting CROSS JOIN LATERAL (
                SELECT connection_pk FROM function_jobs
                WHERE state = 'queued' AND connection_pk > waiting.connection_pk ORDER BY connection_pk LIMIT 1
            ) AS next
            WHERE turn < $2
        )
        SELECT connection_pk AS "connection_pk!" FROM waiting
        "#,
        after.0,
        limit,
    )
    .fetch_all(conn)
    .await?;
    Ok(waiting.into_iter().map(ConnectionPk).collect())
}

/// Claims up to `limit` queued jobs for `owner`, at most one of each connection.
pub async fn claim(
    conn: &mut PgConnection,
    owner: Uuid,
    lease: Duration,
    connections: &[i64],
    limit: i64,
) -> sqlx::Result<Vec<JobClaim>> {
    let rows = sqlx::query!(
        r#"
        WITH picked AS (
            SELECT job.pk
            FROM unnest($3::bigint[]) AS waiting (connection_pk)
            CROSS JOIN LATERAL (
                SELECT min(pk) AS first_in_order FROM function_jobs
                WHERE connection_pk = waiting.connection_pk AND is_ordered AND state IN ('queued', 'running')
                OFFSET 0
            ) AS line
            CROSS JOIN LATERAL (
                SELECT pk FROM function_jobs
                WHERE connection_pk = waiting.connection_pk AND state = 'queued' AND due_at <= now()
                  AND (NOT is_ordered OR pk = line.first_in_order)
                ORDER BY pk
                LIMIT 1
                FOR UPDATE SKIP LOCKED
            ) AS job
            LIMIT $4
        )
        UPDATE function_jobs j
        SET state = 'running', owner = $1, lease_expires_at = now() + $2, fence = nextval('run_fences')
        FROM picked
        WHERE j.pk = picked.pk
        RETURNING j.pk, j.fence, j.id, j.environment_pk, j.integration_pk, j.connection_pk, j.integration_key,
                  j.connection_id, j.kind, j.function_name, j.is_ordered, j.max_retries, j.failures, j.losses,
                  j.webhook_id, j.webhook_items, j.created_at, j.due_at
        "#,
        owner,
        interval(lease),
        connections,
        limit,
    )
    .fetch_all(conn)
    .await?;
    let claims = rows.into_iter().map(|row| {
        Ok(JobClaim {
            hold: JobLease { pk: row.pk, fence: row.fence },
            id: row.id,
            environment: EnvironmentPk(row.environment_pk),
            integration: IntegrationPk(row.integration_pk),
            connection: ConnectionPk(row.connection_pk),
            integration_key: IntegrationKey::from_stored(row.integration_key),
            connection_id: ConnectionId::from_stored(row.connection_id),
            kind: enums::parse("kind", &row.kind)?,
            function: FunctionName::from_stored(row.function_name),
            is_ordered: row.is_ordered,
            max_retries: row.max_retries,
            failures: row.failures,
            losses: row.losses,
            webhook: row.webhook_id.map(|id| JobWebhook { id, items: row.webhook_items }),
            created_at: row.created_at,
            due_at: row.due_at,
        })
    });
    claims.collect()
}

/// Returns the encrypted input of a job.
pub async fn load_input(conn: &mut PgConnection, pk: i64) -> sqlx::Result<Option<Vec<u8>>> {
    let row = sqlx::query_scalar!("SELECT sealed_input FROM function_jobs WHERE pk = $1", pk);
    Ok(row.fetch_optional(conn).await?.flatten())
}

/// Renews the leases of the jobs that `owner` still holds, and returns them. This includes jobs with an expired lease
/// that no other host has claimed.
pub async fn renew_leases(
    conn: &mut PgConnection,
    owner: Uuid,
    lease: Duration,
    jobs: &[i64],
) -> sqlx::Result<Vec<JobLease>> {
    sqlx::query_as!(
        JobLease,
        r#"
        UPDATE function_jobs SET lease_expires_at = now() + $2
        WHERE pk = ANY($3) AND owner = $1 AND state = 'running'
        RETURNING pk, fence
        "#,
        owner,
        interval(lease),
        jobs,
    )
    .fetch_all(conn)
    .await
}

/// Queues the jobs of lost hosts again, with growing delays. Returns the number of jobs.
pub async fn take_back_lost(conn: &mut PgConnection) -> sqlx::Result<u64> {
    let lost = sqlx::query!(
        r#"
        WITH lost AS (
            SELECT pk FROM function_jobs
            WHERE state = 'running' AND lease_expires_at < now() AND is_async
            FOR UPDATE SKIP LOCKED
        )
        UPDATE function_jobs j
        SET state = 'queued', owner = NULL, lease_expires_at = NULL, losses = losses + 1,
            -- A function that takes its host down with it must not take one after another without a pause.
            due_at = now() + CASE WHEN losses = 0 THEN interval '0'
                ELSE least(interval '10 seconds' * power(2, least(losses, 10)), interval '10 minutes') END
        FROM lost
        WHERE j.pk = lost.pk
        "#,
    )
    .execute(conn)
    .await?;
    Ok(lost.rows_affected())
}

/// The result of writing the end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    Now,
    /// An earlier try had written it, but its answer was lost.
    Before,
    /// This attempt no longer owned the job.
    NotOurs,
}

/// Stores the result of a job.
pub async fn finish(
    conn: &mut PgConnection,
    hold: JobLease,
    owner: Uuid,
    state: JobState,
    sealed_result: &[u8],
    retention: Duration,
) -> sqlx::Result<Written> {
    let finished = sqlx::query!(
        r#"
        UPDATE function_jobs
        SET state = $4, sealed_result = $5, sealed_input = NULL, owner = NULL, lease_expires_at = NULL,
            expires_at = now() + $6
        WHERE pk = $1 AND fence = $2 AND owner = $3 AND state = 'running'
        "#,
        hold.pk,
        hold.fence,
        owner,
        state.as_str(),
        sealed_result,
        interval(retention),
    )
    .execute(&mut *conn)
    .await?;
    if finished.rows_affected() > 0 {
        return Ok(Written::Now);
    }
    // Only the owner of a job finishes it, so no other host did so with this fencing token.
    let is_over = sqlx::query_scalar!(
        r#"SELECT state IN ('success', 'error') AS "is_over!" FROM function_jobs WHERE pk = $1 AND fence = $2"#,
        hold.pk,
        hold.fence,
    )
    .fetch_optional(conn)
    .await?;
    Ok(if is_over == Some(true) { Written::Before } else { Written::NotOurs })
}

/// Queues a failed job again. `failures` is the number of earlier failures.
pub async fn retry_after(
    conn: &mut PgConnection,
    hold: JobLease,
    owner: Uuid,
    failures: i32,
    wait: Duration,
) -> sqlx::Result<Written> {
    let queued = sqlx::query!(
        r#"
        UPDATE function_jobs
        SET state = 'queued', owner = NULL, lease_expires_at = NULL, failures = $5 + 1, due_at = now() + $4
        WHERE pk = $1 AND fence = $2 AND owner = $3 AND state = 'running'
        "#,
        hold.pk,
        hold.fence,
        owner,
        interval(wait),
        failures,
    )
    .execute(&mut *conn)
    .await?;
    if queued.rows_affected() > 0 {
        return Ok(Written::Now);
    }
    // A job that was taken back as lost is queued with the same fencing token, but has no additional failure.
    let is_queued = sqlx::query_scalar!(
        r#"
        SELECT state = 'queued' AND failures > $3 AS "is_queued!" FROM function_jobs WHERE pk = $1 AND fence = $2
        "#,
        hold.pk,
        hold.fence,
        failures,
    )
    .fetch_optional(conn)
    .await?;
    Ok(if is_queued == Some(true) { Written::Before } else { Written::NotOurs })
}

/// Releases an unfinished job. An asynchronous job is queued again. Other jobs wait for a repeated request.
pub async fn release(conn: &mut PgConnection, hold: JobLease, owner: Uuid) -> sqlx::Result<Written> {
    let released = sqlx::query!(
        r#"
        WITH given AS (
            UPDATE function_jobs
            SET state = CASE WHEN is_async THEN 'queued' ELSE state END, due_at = now(), owner = NULL,
                lease_expires_at = CASE WHEN NOT is_async THEN now() END
            WHERE pk = $1 AND fence = $2 AND owner = $3 AND state = 'running'
            RETURNING pk
        )
        SELECT pg_notify('syncline', 'jobs') FROM given
        "#,
        hold.pk,
        hold.fence,
        owner,
    )
    .fetch_optional(&mut *conn)
    .await?;
    if released.is_some() {
        return Ok(Written::Now);
    }
    // Only a release leaves a job without an owner while its fencing token is unchanged.
    let is_free = sqlx::query_scalar!(
        r#"
        SELECT state = 'running' AND owner IS NULL AS "is_free!" FROM function_jobs WHERE pk = $1 AND fence = $2
        "#,
        hold.pk,
        hold.fence,
    )
    .fetch_optional(conn)
    .await?;
    Ok(if is_free == Some(true) { Written::Before } else { Written::NotOurs })
}

/// Returns how many of these jobs have not finished.
pub async fn count_unfinished(conn: &mut PgConnection, jobs: &[Uuid]) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"SELECT count(*) AS "count!" FROM function_jobs WHERE id = ANY($1) AND state IN ('queued', 'running')"#,
        jobs,
    )
    .fetch_one(conn)
    .await
}

/// The state and the result of an asynchronous action.
#[derive(Debug)]
pub struct JobStatus {
    pub state: JobState,
    pub sealed_result: Option<Vec<u8>>,
}

pub async fn find_action(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    id: Uuid,
) -> sqlx::Result<Option<JobStatus>> {
    sqlx::query_as!(
        JobStatus,
        r#"
        SELECT state AS "state: JobState", sealed_result FROM function_jobs
        WHERE id = $1 AND environment_pk = $2 AND kind = 'action' AND is_async
          AND (expires_at IS NULL OR expires_at > now())
        "#,
        id,
        environment.0,
    )
    .fetch_optional(conn)
    .await
}

/// Deletes expired jobs. Returns their number.
pub async fn delete_expired(conn: &mut PgConnection, limit: i64) -> sqlx::Result<u64> {
    let deleted = sqlx::query!(
        r#"
        DELETE FROM function_jobs WHERE pk IN (
            SELECT pk FROM function_jobs
            WHERE expires_at < now() AND (state <> 'running' OR lease_expires_at < now())
            ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED
        )
        "#,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(deleted.rows_affected())
}
