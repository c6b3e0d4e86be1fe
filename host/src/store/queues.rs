//! How much waits for a host, for those who watch. What is counted is counted up to a number, so that a long queue does
//! not make it slow to look.

use sqlx::PgConnection;

use crate::metrics::Queues;

pub async fn look(conn: &mut PgConnection) -> sqlx::Result<Queues> {
    sqlx::query_as!(
        Queues,
        r#"
        WITH RECURSIVE taken_in AS (
            (SELECT integration_pk FROM received_webhooks ORDER BY integration_pk LIMIT 1)
            UNION ALL
            SELECT next.integration_pk FROM taken_in CROSS JOIN LATERAL (
                SELECT integration_pk FROM received_webhooks WHERE integration_pk > taken_in.integration_pk
                ORDER BY integration_pk LIMIT 1
            ) AS next
        ), received AS (
            SELECT r.since FROM taken_in CROSS JOIN LATERAL (
                -- What is replayed waits since then.
                SELECT CASE WHEN replays > 0 THEN due_at ELSE received_at END AS since FROM received_webhooks
                WHERE integration_pk = taken_in.integration_pk AND state = 'received' ORDER BY id LIMIT 10000
            ) AS r
            LIMIT 10000
        )
        SELECT
            (SELECT count(*) FROM (
                SELECT FROM schedules WHERE run_id IS NULL AND due_at <= now() LIMIT 10000
            ) AS due) AS "schedules_due!",
            coalesce((
                SELECT extract(epoch FROM greatest(now() - due_at, interval '0'))::double precision FROM schedules
                WHERE run_id IS NULL AND due_at IS NOT NULL ORDER BY due_at LIMIT 1
            ), 0) AS "lateness_seconds!",
            (SELECT count(*) FROM (
                SELECT FROM function_jobs WHERE state = 'queued' LIMIT 10000
            ) AS queued) AS "jobs_queued!",
            (SELECT count(*) FROM (
                SELECT FROM webhook_deliveries WHERE state = 'pending' AND next_attempt_at <= now() LIMIT 10000
            ) AS due) AS "webhooks_due!",
            (SELECT count(*) FROM received) AS "received_webhooks!",
            coalesce((
                SELECT extract(epoch FROM greatest(now() - min(since), interval '0'))::double precision FROM received
            ), 0) AS "received_webhooks_age_seconds!"
        "#
    )
    .fetch_one(conn)
    .await
}
