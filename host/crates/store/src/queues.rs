//! Measures the lengths of queues for metrics. Counts stop at 10,000, so that long queues stay cheap to measure. Each
//! query reads the index whose order it names.

use sqlx::PgConnection;

use syncline_telemetry::metrics::Queues;

pub async fn look(conn: &mut PgConnection) -> sqlx::Result<Queues> {
    sqlx::query_as!(
        Queues,
        r#"
        WITH RECURSIVE taken_in AS (
            (SELECT integration_pk FROM inbound_webhooks ORDER BY integration_pk LIMIT 1)
            UNION ALL
            SELECT next.integration_pk FROM taken_in CROSS JOIN LATERAL (
                SELECT integration_pk FROM inbound_webhooks WHERE integration_pk > taken_in.integration_pk
                ORDER BY integration_pk LIMIT 1
            ) AS next
        ), received AS (
            SELECT r.since FROM taken_in CROSS JOIN LATERAL (
                -- What is replayed waits since then.
                SELECT CASE WHEN replays > 0 THEN due_at ELSE received_at END AS since FROM inbound_webhooks
                WHERE integration_pk = taken_in.integration_pk AND state = 'received' ORDER BY id LIMIT 10000
            ) AS r
            LIMIT 10000
        ), waiting AS (
            (
                SELECT integration_pk, due_at FROM schedules
                WHERE run_id IS NULL AND due_at IS NOT NULL AND NOT awaits_permit
                ORDER BY integration_pk, due_at LIMIT 1
            )
            UNION ALL
            -- The first of each integration is its longest due.
            SELECT next.integration_pk, next.due_at FROM waiting CROSS JOIN LATERAL (
                SELECT s.integration_pk, s.due_at FROM schedules s
                WHERE s.run_id IS NULL AND s.due_at IS NOT NULL AND NOT s.awaits_permit
                  AND s.integration_pk > waiting.integration_pk
                ORDER BY s.integration_pk, s.due_at LIMIT 1
            ) AS next
        ), parked AS (
            SELECT due_at FROM schedules WHERE awaits_permit ORDER BY connection_pk, due_at LIMIT 10000
        )
        SELECT
            (SELECT count(*) FROM (
                SELECT FROM waiting CROSS JOIN LATERAL (
                    SELECT FROM schedules s
                    WHERE s.integration_pk = waiting.integration_pk AND s.run_id IS NULL AND NOT s.awaits_permit
                      AND s.due_at <= now()
                    ORDER BY s.due_at LIMIT 10000
                ) AS of_integration
                UNION ALL
                SELECT FROM parked
                LIMIT 10000
            ) AS due) AS "schedules_due!",
            coalesce((
                SELECT extract(epoch FROM greatest(now() - min(due_at), interval '0'))::double precision
                FROM (SELECT due_at FROM waiting UNION ALL SELECT due_at FROM parked) AS longest
            ), 0) AS "lateness_seconds!",
            (SELECT count(*) FROM (
                SELECT FROM function_jobs WHERE state = 'queued' ORDER BY connection_pk, pk LIMIT 10000
            ) AS queued) AS "jobs_queued!",
            (SELECT count(*) FROM (
                SELECT FROM outbound_webhook_deliveries WHERE state = 'pending' AND next_attempt_at <= now()
                ORDER BY next_attempt_at LIMIT 10000
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
