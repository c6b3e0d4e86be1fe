//! Claims due deliveries under a lease, and stores the results of their attempts.
//!
//! `next_attempt_at` is when a delivery is due. While a host sends it, this is when other hosts may claim it: a claim
//! moves it beyond the longest duration of an attempt. Writes about an attempt check owner and attempt number, so a
//! host that was suspended for longer cannot change anything.

use std::time::Duration;

use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::hosts::interval;
use syncline_types::ids::EnvironmentPk;

/// A receiver with due deliveries: one URL of one environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueEndpoint {
    pub endpoint: Uuid,
    pub environment: EnvironmentPk,
}

/// A delivery that this host has claimed.
#[derive(Debug, Clone)]
pub struct Claimed {
    pub pk: i64,
    pub id: Uuid,
    pub message_id: Uuid,
    pub environment: EnvironmentPk,
    pub endpoint: Uuid,
    pub url: String,
    pub body: String,
    /// The provider's headers of a forwarded webhook, as an object of strings.
    pub headers: Value,
    /// The number of this attempt, counted from 1.
    pub attempt: i32,
    /// The number of this attempt since the delivery or its latest redelivery was requested.
    pub attempt_of_round: i32,
    /// The time until the delivery is given up.
    pub left: Duration,
}

/// The result of one attempt.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub status: Option<i32>,
    pub error: Option<String>,
    pub duration: Duration,
}

/// What happens to a delivery after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Delivered,
    /// It is tried again after this time.
    Retry(Duration),
    /// It is given up.
    Failed,
}

/// Lists all receivers with due deliveries. The cost depends on the number of receivers, not on the number of their
/// deliveries.
pub async fn list_due(conn: &mut PgConnection) -> sqlx::Result<Vec<DueEndpoint>> {
    let rows = sqlx::query!(
        r#"
        WITH RECURSIVE waiting AS (
            (SELECT endpoint FROM outbound_webhook_deliveries WHERE state = 'pending' ORDER BY endpoint LIMIT 1)
            UNION ALL
            SELECT (
                SELECT d.endpoint FROM outbound_webhook_deliveries d
                WHERE d.state = 'pending' AND d.endpoint > waiting.endpoint
                ORDER BY d.endpoint LIMIT 1
            )
            FROM waiting WHERE waiting.endpoint IS NOT NULL
        )
        SELECT waiting.endpoint AS "endpoint!", first.environment_pk AS "environment_pk!"
        FROM waiting CROSS JOIN LATERAL (
            SELECT d.environment_pk, d.next_attempt_at FROM outbound_webhook_deliveries d
            WHERE d.state = 'pending' AND d.endpoint = waiting.endpoint
            ORDER BY d.next_attempt_at LIMIT 1
        ) AS first
        WHERE first.next_attempt_at <= now()
          AND EXISTS (SELECT FROM outbound_webhook_deliveries WHERE state = 'pending' AND next_attempt_at <= now())
        "#
    )
    .fetch_all(conn)
    .await?;
    let due = rows
        .into_iter()
        .map(|row| DueEndpoint { endpoint: row.endpoint, environment: EnvironmentPk(row.environment_pk) });
    Ok(due.collect())
}

/// Returns the time until the next delivery is due, by the database's clock, or `None` if none is pending.
pub async fn time_to_next(conn: &mut PgConnection) -> sqlx::Result<Option<Duration>> {
    let seconds = sqlx::query_scalar!(
        r#"
        SELECT extract(epoch FROM next_attempt_at - clock_timestamp())::double precision AS "seconds!"
        FROM outbound_webhook_deliveries WHERE state = 'pending' ORDER BY next_attempt_at LIMIT 1
        "#
    )
    .fetch_optional(conn)
    .await?;
    Ok(seconds.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()))
}

/// Claims due deliveries, longest due first, up to the given number for each receiver. An attempt of a lost host is
/// logged as such.
pub async fn claim(
    conn: &mut PgConnection,
    owner: Uuid,
    lease: Duration,
    wanted: &[(Uuid, usize)],
) -> sqlx::Result<Vec<Claimed>> {
    let endpoints: Vec<Uuid> = wanted.iter().map(|(endpoint, _)| *endpoint).collect();
    let quotas: Vec<i64> = wanted.iter().map(|(_, quota)| *quota as i64).collect();
    let rows = sqlx::query!(
        r#"
        WITH due AS (
            SELECT d.pk, d.owner, d.attempts
            FROM unnest($1::uuid[], $2::bigint[]) AS wanted (endpoint, quota)
            CROSS JOIN LATERAL (
                SELECT pk, owner, attempts FROM outbound_webhook_deliveries
                WHERE state = 'pending' AND endpoint = wanted.endpoint AND next_attempt_at <= now()
                ORDER BY next_attempt_at
                LIMIT wanted.quota
                FOR UPDATE SKIP LOCKED
            ) AS d
        ), lost AS (
            INSERT INTO outbound_webhook_attempts (delivery_pk, number, error, duration_ms)
            SELECT pk, attempts, 'the host stopped before the receiver''s answer was noted', 0
            FROM due WHERE owner IS NOT NULL
            ON CONFLICT DO NOTHING
        )
        UPDATE outbound_webhook_deliveries d
        SET owner = $3, attempts = d.attempts + 1, next_attempt_at = now() + $4
        FROM due
        WHERE d.pk = due.pk
        RETURNING d.pk, d.id, d.message_id, d.environment_pk, d.endpoint AS "endpoint!", d.url, d.body, d.headers, d.attempts,
                  d.attempts_before, extract(epoch FROM d.expires_at - now())::double precision AS "left!"
        "#,
        &endpoints,
        &quotas,
        owner,
        interval(lease),
    )
    .fetch_all(conn)
    .await?;
    let claimed = rows.into_iter().map(|row| Claimed {
        pk: row.pk,
        id: row.id,
        message_id: row.message_id,
        environment: EnvironmentPk(row.environment_pk),
        endpoint: row.endpoint,
        url: row.url,
        body: row.body,
        headers: row.headers,
        attempt: row.attempts,
        attempt_of_round: row.attempts - row.attempts_before,
        left: Duration::try_from_secs_f64(row.left).unwrap_or_default(),
    });
    Ok(claimed.collect())
}

/// Stores an attempt and its consequence. Returns `false` if another host owns the delivery now.
pub async fn finish(
    conn: &mut PgConnection,
    owner: Uuid,
    delivery: &Claimed,
    attempt: &Attempt,
    verdict: Verdict,
) -> sqlx::Result<bool> {
    let (state, retry_after) = match verdict {
        Verdict::Delivered => ("delivered", None),
        Verdict::Retry(after) => ("pending", Some(interval(after))),
        Verdict::Failed => ("failed", None),
    };
    let inserted = sqlx::query!(
        r#"
        WITH finished AS (
            UPDATE outbound_webhook_deliveries
            SET state = $4, owner = NULL, next_attempt_at = now() + $5,
                finished_at = CASE WHEN $4 <> 'pending' THEN now() END
            WHERE pk = $1 AND owner = $2 AND attempts = $3 AND state = 'pending'
            RETURNING pk
        )
        INSERT INTO outbound_webhook_attempts (delivery_pk, number, at, status, error, duration_ms)
        SELECT pk, $3, now() - $8::integer * interval '1 millisecond', $6, $7, $8 FROM finished
        "#,
        delivery.pk,
        owner,
        delivery.attempt,
        state,
        retry_after,
        attempt.status,
        attempt.error,
        i32::try_from(attempt.duration.as_millis()).unwrap_or(i32::MAX),
    )
    .execute(conn)
    .await?;
    Ok(inserted.rows_affected() > 0)
}

/// Stores that a URL has answered 410. No further deliveries to it are created until a client sets it again.
pub async fn note_gone(conn: &mut PgConnection, environment: EnvironmentPk, url: &str) -> sqlx::Result<()> {
    sqlx::query!(
        "INSERT INTO outbound_webhook_gone_urls (environment_pk, url) VALUES ($1, $2) ON CONFLICT DO NOTHING",
        environment.0,
        url,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Cancels pending deliveries to URLs that have answered 410. Returns their number.
pub async fn cancel_gone(conn: &mut PgConnection, limit: i64) -> sqlx::Result<u64> {
    let cancelled = sqlx::query!(
        r#"
        WITH unwanted AS (
            SELECT d.pk FROM outbound_webhook_gone_urls g
            CROSS JOIN LATERAL (
                SELECT pk FROM outbound_webhook_deliveries
                WHERE state = 'pending' AND owner IS NULL
                  AND endpoint = md5(g.environment_pk::text || ' ' || g.url)::uuid
                LIMIT $1
                FOR UPDATE SKIP LOCKED
            ) AS d
            LIMIT $1
        )
        UPDATE outbound_webhook_deliveries d
        SET state = 'cancelled', finished_at = now(), next_attempt_at = NULL
        FROM unwanted WHERE d.pk = unwanted.pk
        "#,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(cancelled.rows_affected())
}

/// Gives up pending deliveries that have expired. Returns their number.
pub async fn give_up_expired(conn: &mut PgConnection, limit: i64) -> sqlx::Result<u64> {
    let expired = sqlx::query!(
        r#"
        WITH expired AS (
            SELECT pk FROM outbound_webhook_deliveries
            WHERE state = 'pending' AND next_attempt_at <= now() AND expires_at < now()
            ORDER BY next_attempt_at
            LIMIT $1
            FOR UPDATE SKIP LOCKED
        )
        UPDATE outbound_webhook_deliveries d
        SET state = 'failed', finished_at = now(), next_attempt_at = NULL, owner = NULL
        FROM expired WHERE d.pk = expired.pk
        "#,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(expired.rows_affected())
}

/// Deletes deliveries that finished longer ago than `older_than`, with their attempts. Returns their number.
pub async fn delete_old(conn: &mut PgConnection, older_than: Duration, limit: i64) -> sqlx::Result<u64> {
    let deleted = sqlx::query!(
        r#"
        WITH old AS (
            SELECT pk FROM outbound_webhook_deliveries
            WHERE finished_at < now() - $1::interval
            ORDER BY finished_at
            LIMIT $2
            FOR UPDATE SKIP LOCKED
        )
        DELETE FROM outbound_webhook_deliveries d USING old WHERE d.pk = old.pk
        "#,
        interval(older_than),
        limit,
    )
    .execute(conn)
    .await?;
    Ok(deleted.rows_affected())
}
