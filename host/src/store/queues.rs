//! How much waits for a host, for those who watch. What is counted is counted up to a number, so that a long queue does
//! not make it slow to look.

use sqlx::PgConnection;

use crate::metrics::Queues;

pub async fn look(conn: &mut PgConnection) -> sqlx::Result<Queues> {
    sqlx::query_as!(
        Queues,
        r#"
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
            ) AS due) AS "webhooks_due!"
        "#
    )
    .fetch_one(conn)
    .await
}
