//! What the sender reads and writes: deliveries that are due, taken under a lease, and what came of them.
//!
//! `next_attempt_at` says when a delivery is due, and while a host sends it, when others may take it: claiming moves
//! it behind the longest time that an attempt takes. What is written about an attempt carries its owner and number,
//! so that a host which was away for longer changes nothing any more.

use std::time::Duration;

use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::hosts::interval;
use syncline_types::ids::EnvironmentPk;

/// A receiver, the URL of one environment, that has something due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DueEndpoint {
    pub endpoint: Uuid,
    pub environment: EnvironmentPk,
}

/// A delivery that this host may attempt.
#[derive(Debug, Clone)]
pub struct Claimed {
    pub pk: i64,
    pub id: Uuid,
    pub message_id: Uuid,
    pub environment: EnvironmentPk,
    pub endpoint: Uuid,
    pub url: String,
    pub body: String,
    /// A provider's own headers, for what is forwarded: an object of texts.
    pub headers: Value,
    /// The number of this attempt, from 1.
    pub attempt: i32,
    /// As `attempt`, since the delivery or its redelivery was asked for.
    pub attempt_of_round: i32,
    /// What is left until the delivery is given up.
    pub left: Duration,
}

/// What was seen of one attempt.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub status: Option<i32>,
    pub error: Option<String>,
    pub duration: Duration,
}

/// What becomes of a delivery after an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Delivered,
    /// Tried again after this time.
    Retry(Duration),
    /// A dead letter.
    Failed,
}

/// All receivers that have something due. The cost depends on their number, not on how much waits for each.
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

/// How long it is until something becomes due, by the database's clock; none if nothing waits.
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

/// Takes up to so many due deliveries of each of these receivers, the longest due first. An attempt whose host did
/// not come back is noted as such.
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

/// Notes an attempt and what follows from it. `false`: somebody else has the delivery by now.
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
    let noted = sqlx::query!(
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
    Ok(noted.rows_affected() > 0)
}

/// Notes that a URL is gone: nothing is written for it any more until it is set anew.
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

/// Cancels some of what still waits for URLs that are gone. Gives how many.
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

/// Gives up some of what has waited for too long without its turn. Gives how many.
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

/// Deletes some of what ended longer ago than that, with its attempts. Gives how many.
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
