//! Fills a database with connections, their syncs, and runs, without a host.

use anyhow::{Result, ensure};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::database::Database;

pub(super) const CONNECTIONS: u64 = 10_000;
const INTEGRATIONS: u64 = 20;
/// Number of runs that one statement adds.
const FILL_ROWS: u64 = 1_000_000;

/// Adds integrations, connections and `runs` runs, spread over 90 days. Copies the sealed values of the stage's only
/// connection, because only the host can seal values.
pub(super) async fn fill(database: &Database, runs: u64) -> Result<()> {
    let mut conn = database.connect().await?;
    execute(
        &mut conn,
        &format!(
            "INSERT INTO integrations (id, environment_pk, unique_key, provider)
             SELECT gen_random_uuid(), environment_pk, 'integration-' || number, provider
             FROM (SELECT environment_pk, provider FROM integrations ORDER BY pk LIMIT 1) AS one,
                  generate_series(0, {INTEGRATIONS} - 1) AS number;
             INSERT INTO connections (id, environment_pk, integration_pk, connection_id, sealed_credentials, tags,
                                      created_at)
             SELECT gen_random_uuid(), c.environment_pk, i.pk, 'customer-' || number, c.sealed_credentials,
                    jsonb_build_object('plan', CASE WHEN number % 1000 = 0 THEN 'rare' ELSE 'common' END),
                    now() - ({CONNECTIONS} - number) * interval '10 minutes'
             FROM (SELECT environment_pk, sealed_credentials FROM connections ORDER BY pk LIMIT 1) AS c,
                  generate_series(0, {CONNECTIONS} - 1) AS number
             JOIN integrations i ON i.unique_key = 'integration-' || number % {INTEGRATIONS};
             INSERT INTO connection_errors (environment_pk, connection_pk, type, subject, log_id, code, message)
             SELECT environment_pk, pk, 'auth', '', gen_random_uuid(), 'invalid_credentials', 'The token was revoked.'
             FROM connections WHERE connection_id LIKE '%13';
             INSERT INTO schedules (environment_pk, integration_pk, connection_pk, sync_name, variant, state,
                                    due_reason)
             SELECT environment_pk, integration_pk, pk, 'function-0', 'base', 'paused', 'schedule'
             FROM connections WHERE connection_id LIKE 'customer-%';
             CREATE TABLE bench_connections AS
             SELECT row_number() OVER (ORDER BY c.pk) - 1 AS number, c.environment_pk, c.integration_pk, c.pk,
                    s.pk AS schedule_pk
             FROM connections c JOIN schedules s ON s.connection_pk = c.pk AND s.sync_name = 'function-0';
             ALTER TABLE bench_connections ADD PRIMARY KEY (number)"
        ),
    )
    .await?;
    add_runs(&mut conn, runs).await?;
    add_statistics(&mut conn).await?;
    execute(&mut conn, "DROP TABLE bench_connections").await?;
    let count: i64 = sqlx::query_scalar("SELECT count(*) FROM runs").fetch_one(&mut conn).await?;
    ensure!(count.cast_unsigned() >= runs, "there are {count} runs instead of {runs}");
    Ok(())
}

/// Adds runs without their indexes, which are built afterwards, and without counting them one by one.
async fn add_runs(conn: &mut PgConnection, runs: u64) -> Result<()> {
    let indexes: Vec<(String, String)> = sqlx::query_as(
        "SELECT indexname::text, indexdef FROM pg_indexes WHERE tablename = 'runs' AND indexname <> 'runs_pkey'",
    )
    .fetch_all(&mut *conn)
    .await?;
    execute(conn, "ALTER TABLE runs DISABLE TRIGGER runs_queue_inserted").await?;
    for (name, _) in &indexes {
        execute(conn, &format!("DROP INDEX {name}")).await?;
    }
    let mut added = 0;
    while added < runs {
        let rows = FILL_ROWS.min(runs - added);
        execute(
            conn,
            &format!(
                "INSERT INTO runs (id, environment_pk, integration_pk, connection_pk, schedule_pk, kind, function_name,
                                   variant, trigger, attempt, owner, state, error_code, error_message, counts, cpu_us,
                                   peak_memory_bytes, requests, sent_bytes, received_bytes, records, started_at,
                                   finished_at)
                 SELECT numbered.id, c.environment_pk, c.integration_pk, c.pk,
                        CASE WHEN g % 10 < 8 THEN c.schedule_pk END, CASE WHEN g % 10 < 8 THEN 'sync' ELSE 'action' END,
                        'function-' || CASE WHEN g % 10 < 8 THEN 0 ELSE g % 5 END, 'base',
                        CASE WHEN g % 10 < 8 THEN 'schedule' ELSE 'api' END, 1, numbered.id,
                        CASE WHEN g % 1000 = 0 THEN 'error' ELSE 'success' END,
                        CASE WHEN g % 1000 = 0 THEN 'script_http_error' END,
                        CASE WHEN g % 1000 = 0 THEN 'the provider answered with status 500' END,
                        '{{\"Contact\": {{\"added\": 1, \"updated\": 2, \"deleted\": 0}}}}', 1500, 4000000, 3, 200, 9000, 3,
                        times.started_at, times.started_at + interval '1 second'
                 FROM generate_series({added}, {added} + {rows} - 1) AS g
                 CROSS JOIN LATERAL (SELECT lpad(to_hex(g), 32, '0')::uuid AS id) AS numbered
                 CROSS JOIN LATERAL (SELECT now() - interval '90 days' * ({runs} - g) / {runs} AS started_at) AS times
                 JOIN bench_connections c ON c.number = g % {CONNECTIONS}"
            ),
        )
        .await?;
        added += rows;
    }
    for (_, definition) in &indexes {
        execute(conn, definition).await?;
    }
    execute(conn, "ALTER TABLE runs ENABLE TRIGGER runs_queue_inserted").await
}

/// Adds the statistics that the host would have counted, with the same histogram everywhere.
async fn add_statistics(conn: &mut PgConnection) -> Result<()> {
    execute(
        conn,
        "INSERT INTO run_statistics
             (environment_pk, hours, starts_at, integration_pk, kind, succeeded, failed, cancelled, lost, records_saved,
              records_changed, backoff_ms, duration_ms, durations, queue_delay_ms, queue_delays)
         SELECT i.environment_pk, hours, at, i.pk, kind, 100 * hours, hours, 0, 0, 300 * hours, 300 * hours, 0,
                100000 * hours, array_fill(hours::bigint, ARRAY[60]), 1000 * hours, array_fill(hours::bigint, ARRAY[40])
         FROM integrations i, unnest(ARRAY['sync', 'action']) AS kind, unnest(ARRAY[1, 6, 24]) AS hours,
              generate_series(date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' - interval '89 days',
                              now(), hours * interval '1 hour') AS at
         WHERE i.unique_key LIKE 'integration-%'",
    )
    .await
}

async fn execute(conn: &mut PgConnection, statements: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(statements.to_owned())).execute(conn).await?;
    Ok(())
}
