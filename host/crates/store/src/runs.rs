//! Runs: executions of functions, with their logs.

mod held;
mod list;
mod retention;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

pub use self::held::{HeldRun, approve, begin_approval, end_approval, find_held, take_over_approval};
pub use self::list::{
    Filter, LineFilter, LoggedLine, LoggedRun, RunPosition, Scope, find, list, list_last_lines, list_lines,
    list_of_sync,
};
pub use self::retention::{close_lost, close_orphans, delete_old};

use syncline_types::error_code::ErrorCode;
pub use syncline_types::functions::RunState;
use syncline_types::functions::{FunctionKind, RunTrigger};
use syncline_types::ids::{ConnectionPk, EnvironmentPk, FunctionName, IntegrationPk};

/// The result of a run.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub state: RunState,
    pub error: Option<RunError>,
    pub counts: Option<Value>,
    pub usage: Usage,
    pub figures: ProgressCounts,
}

/// Why a run failed, as the API shows it.
#[derive(Debug, Clone)]
pub struct RunError {
    pub code: ErrorCode,
    pub message: String,
    pub details: Option<Value>,
}

/// The resources that a run used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub cpu_us: i64,
    pub peak_memory_bytes: i64,
    pub requests: i64,
}

/// The figures of a run, which change while it is running.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProgressCounts {
    /// The bytes in the bodies of its requests to providers.
    pub sent_bytes: i64,
    pub received_bytes: i64,
    pub records: i64,
    /// How long its requests have waited because of rate limits, in total.
    pub backoff_ms: i64,
    pub progress: Option<Progress>,
}

/// The progress that the function reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub done: i64,
    pub total: Option<i64>,
}

/// A run of a function that has no schedule, as it begins.
#[derive(Debug, Clone)]
pub struct RunStart {
    pub id: Uuid,
    /// The job of which this run is an attempt.
    pub job: Option<Uuid>,
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub connection: ConnectionPk,
    pub kind: FunctionKind,
    pub function: FunctionName,
    /// `api`, `lifecycle` or `webhook`.
    pub trigger: RunTrigger,
    /// 1 for the first.
    pub attempt: i32,
    pub owner: Uuid,
    /// When the run could have begun, if it waited in a queue.
    pub due_at: Option<DateTime<Utc>>,
    pub started_at: DateTime<Utc>,
}

/// A run of a function that has no schedule, after it has ended.
#[derive(Debug, Clone)]
pub struct FinishedRun {
    pub start: RunStart,
    pub finished_at: DateTime<Utc>,
    pub outcome: Outcome,
    pub log: Vec<LogLine>,
}

/// A line of a run's log.
#[derive(Debug, Clone)]
pub struct LogLine {
    pub line: i32,
    pub at: DateTime<Utc>,
    pub level: &'static str,
    pub message: String,
    pub fields: Option<Value>,
}

/// Closes a run that `owner` holds with the fencing token `fence`. Returns `false` if a successor has closed it.
pub async fn close(
    conn: &mut PgConnection,
    run: Uuid,
    owner: Uuid,
    fence: i64,
    outcome: &Outcome,
) -> sqlx::Result<bool> {
    let error = outcome.error.as_ref();
    let figures = &outcome.figures;
    let closed = sqlx::query!(
        r#"
        UPDATE runs
        SET state = $4, error_code = $5, error_message = $6, error_details = $7, counts = $8, cpu_us = $9,
            peak_memory_bytes = $10, requests = $11, sent_bytes = $12, received_bytes = $13, records = $14,
            progress_done = $15, progress_total = $16, backoff_ms = $17, finished_at = now()
        WHERE id = $1 AND owner = $2 AND fence = $3 AND state = 'running'
        "#,
        run,
        owner,
        fence,
        outcome.state.as_str(),
        error.map(|error| error.code.as_str()),
        error.map(|error| error.message.as_str()),
        error.and_then(|error| error.details.as_ref()),
        outcome.counts,
        outcome.usage.cpu_us,
        outcome.usage.peak_memory_bytes,
        outcome.usage.requests,
        figures.sent_bytes,
        figures.received_bytes,
        figures.records,
        figures.progress.map(|progress| progress.done),
        figures.progress.and_then(|progress| progress.total),
        figures.backoff_ms,
    )
    .execute(conn)
    .await?;
    Ok(closed.rows_affected() > 0)
}

/// Cancels those of these runs that are running, because their sync or variant was deleted.
pub async fn cancel(conn: &mut PgConnection, runs: &[Uuid], reason: &str) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE runs
        SET state = 'cancelled', finished_at = now(), error_code = $3, error_message = $2
        WHERE id = ANY($1) AND state = 'running'
        "#,
        runs,
        reason,
        ErrorCode::ScriptCancelled.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Closes the running runs of deleted connections.
pub async fn cancel_orphans(conn: &mut PgConnection, connections: &[ConnectionPk]) -> sqlx::Result<()> {
    let connections: Vec<i64> = connections.iter().map(|connection| connection.0).collect();
    sqlx::query!(
        r#"
        UPDATE runs
        SET state = 'cancelled', finished_at = now(), error_code = $2, error_message = 'the connection was deleted'
        WHERE connection_pk = ANY($1) AND state = 'running'
        "#,
        &connections,
        ErrorCode::ScriptCancelled.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

fn column<R, T>(rows: &[R], value: impl Fn(&R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

/// Inserts the rows of runs that have begun. Existing rows stay unchanged.
pub async fn open(conn: &mut PgConnection, runs: &[RunStart]) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        INSERT INTO runs (id, environment_pk, integration_pk, connection_pk, kind, function_name, variant, trigger,
                          attempt, owner, state, started_at, job_id, due_at)
        SELECT began.id, e.pk, began.integration_pk, began.connection_pk, began.kind, began.function_name, 'base',
               began.trigger, began.attempt, began.owner, 'running', began.started_at, began.job_id,
               began.due_at
        FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[],
                    $8::int[], $9::uuid[], $10::timestamptz[], $11::uuid[], $12::timestamptz[])
            AS began (id, environment_pk, integration_pk, connection_pk, kind, function_name, trigger, attempt,
                      owner, started_at, job_id, due_at)
        JOIN environments e ON e.pk = began.environment_pk
        ON CONFLICT (id) DO NOTHING
        "#,
        &column(runs, |run| run.id),
        &column(runs, |run| run.environment.0),
        &column(runs, |run| run.integration.0),
        &column(runs, |run| run.connection.0),
        &column(runs, |run| run.kind.to_string()),
        &column(runs, |run| run.function.to_string()),
        &column(runs, |run| run.trigger.to_string()),
        &column(runs, |run| run.attempt),
        &column(runs, |run| run.owner),
        &column(runs, |run| run.started_at),
        &column(runs, |run| run.job) as &[Option<Uuid>],
        &column(runs, |run| run.due_at) as &[Option<DateTime<Utc>>],
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Inserts or updates the rows of finished runs, with their logs. Skips runs of deleted environments.
pub async fn write_finished(conn: &mut PgConnection, runs: &[FinishedRun]) -> sqlx::Result<()> {
    let error = |run: &FinishedRun, text: fn(&RunError) -> String| run.outcome.error.as_ref().map(text);
    sqlx::query!(
        r#"
        INSERT INTO runs (id, environment_pk, integration_pk, connection_pk, kind, function_name, variant, trigger,
                          attempt, owner, state, error_code, error_message, error_details, counts, cpu_us,
                          peak_memory_bytes, requests, sent_bytes, received_bytes, records, progress_done,
                          progress_total, started_at, finished_at, job_id, due_at, backoff_ms)
        SELECT over.id, e.pk, over.integration_pk, over.connection_pk, over.kind, over.function_name, 'base',
               over.trigger, over.attempt, over.owner, over.state, over.error_code, over.error_message,
               over.error_details, over.counts, over.cpu_us, over.peak_memory_bytes, over.requests, over.sent_bytes,
               over.received_bytes, over.records, over.progress_done, over.progress_total, over.started_at,
               over.finished_at, over.job_id, over.due_at, over.backoff_ms
        FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[], $7::text[],
                    $8::int[], $9::uuid[], $10::text[], $11::text[], $12::text[], $13::jsonb[], $14::jsonb[],
                    $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[], $20::bigint[],
                    $21::bigint[], $22::bigint[], $23::timestamptz[], $24::timestamptz[], $25::uuid[],
                    $26::timestamptz[], $27::bigint[])
            AS over (id, environment_pk, integration_pk, connection_pk, kind, function_name, trigger, attempt, owner,
                     state, error_code, error_message, error_details, counts, cpu_us, peak_memory_bytes, requests,
                     sent_bytes, received_bytes, records, progress_done, progress_total, started_at, finished_at,
                     job_id, due_at, backoff_ms)
        JOIN environments e ON e.pk = over.environment_pk
        ON CONFLICT (id) DO UPDATE
        SET state = excluded.state, error_code = excluded.error_code, error_message = excluded.error_message,
            error_details = excluded.error_details, counts = excluded.counts, cpu_us = excluded.cpu_us,
            peak_memory_bytes = excluded.peak_memory_bytes, requests = excluded.requests,
            sent_bytes = excluded.sent_bytes, received_bytes = excluded.received_bytes, records = excluded.records,
            progress_done = excluded.progress_done, progress_total = excluded.progress_total,
            finished_at = excluded.finished_at, backoff_ms = excluded.backoff_ms
        "#,
        &column(runs, |run| run.start.id),
        &column(runs, |run| run.start.environment.0),
        &column(runs, |run| run.start.integration.0),
        &column(runs, |run| run.start.connection.0),
        &column(runs, |run| run.start.kind.to_string()),
        &column(runs, |run| run.start.function.to_string()),
        &column(runs, |run| run.start.trigger.to_string()),
        &column(runs, |run| run.start.attempt),
        &column(runs, |run| run.start.owner),
        &column(runs, |run| run.outcome.state.as_str().to_owned()),
        &column(runs, |run| error(run, |error| error.code.to_string())) as &[Option<String>],
        &column(runs, |run| error(run, |error| error.message.clone())) as &[Option<String>],
        &column(runs, |run| run.outcome.error.as_ref().and_then(|error| error.details.clone())) as &[Option<Value>],
        &column(runs, |run| run.outcome.counts.clone()) as &[Option<Value>],
        &column(runs, |run| run.outcome.usage.cpu_us),
        &column(runs, |run| run.outcome.usage.peak_memory_bytes),
        &column(runs, |run| run.outcome.usage.requests),
        &column(runs, |run| run.outcome.figures.sent_bytes),
        &column(runs, |run| run.outcome.figures.received_bytes),
        &column(runs, |run| run.outcome.figures.records),
        &column(runs, |run| run.outcome.figures.progress.map(|progress| progress.done)) as &[Option<i64>],
        &column(runs, |run| run.outcome.figures.progress.and_then(|progress| progress.total)) as &[Option<i64>],
        &column(runs, |run| run.start.started_at),
        &column(runs, |run| run.finished_at),
        &column(runs, |run| run.start.job) as &[Option<Uuid>],
        &column(runs, |run| run.start.due_at) as &[Option<DateTime<Utc>>],
        &column(runs, |run| run.outcome.figures.backoff_ms),
    )
    .execute(&mut *conn)
    .await?;
    let lines: Vec<(Uuid, &LogLine)> =
        runs.iter().flat_map(|run| run.log.iter().map(|line| (run.start.id, line))).collect();
    append_logs(conn, &lines).await
}

/// The maximum number of lines per statement.
const MAX_LINES_PER_STATEMENT: usize = 2_000;

/// Appends lines to the logs of runs. Skips lines that exist already, so a write can be repeated, and lines of deleted
/// runs.
pub async fn append_logs(conn: &mut PgConnection, lines: &[(Uuid, &LogLine)]) -> sqlx::Result<()> {
    for part in lines.chunks(MAX_LINES_PER_STATEMENT) {
        sqlx::query!(
            r#"
            INSERT INTO run_logs (run_id, line, at, level, message, fields)
            SELECT r.id, added.line, added.at, added.level, added.message, added.fields
            FROM unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::text[], $5::text[], $6::jsonb[])
                AS added (run_id, line, at, level, message, fields)
            JOIN runs r ON r.id = added.run_id
            ON CONFLICT DO NOTHING
            "#,
            &column(part, |(run, _)| *run),
            &column(part, |(_, line)| line.line),
            &column(part, |(_, line)| line.at),
            &column(part, |(_, line)| line.level.to_owned()),
            &column(part, |(_, line)| line.message.clone()),
            &column(part, |(_, line)| line.fields.clone()) as &[Option<Value>],
        )
        .execute(&mut *conn)
        .await?;
    }
    Ok(())
}

/// Updates the figures of running runs.
pub async fn note_progress_counts(
    conn: &mut PgConnection,
    figures: &[(Uuid, ProgressCounts)],
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE runs r
        SET sent_bytes = told.sent_bytes, received_bytes = told.received_bytes, records = told.records,
            progress_done = told.progress_done, progress_total = told.progress_total, backoff_ms = told.backoff_ms
        FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
            AS told (id, sent_bytes, received_bytes, records, progress_done, progress_total, backoff_ms)
        WHERE r.id = told.id AND r.state = 'running'
        "#,
        &column(figures, |(run, _)| *run),
        &column(figures, |(_, figures)| figures.sent_bytes),
        &column(figures, |(_, figures)| figures.received_bytes),
        &column(figures, |(_, figures)| figures.records),
        &column(figures, |(_, figures)| figures.progress.map(|progress| progress.done)) as &[Option<i64>],
        &column(figures, |(_, figures)| figures.progress.and_then(|progress| progress.total))
            as &[Option<i64>],
        &column(figures, |(_, figures)| figures.backoff_ms),
    )
    .execute(conn)
    .await?;
    Ok(())
}
