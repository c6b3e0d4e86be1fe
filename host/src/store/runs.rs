//! Runs: one execution of a function each, with its log.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::ids::{ConnectionPk, EnvironmentPk, FunctionName, SchedulePk};

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::Type)]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum RunState {
    Running,
    Success,
    Error,
    Cancelled,
    Lost,
}

impl RunState {
    fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Success => "success",
            Self::Error => "error",
            Self::Cancelled => "cancelled",
            Self::Lost => "lost",
        }
    }
}

/// What is known of a run when it ends.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub state: RunState,
    pub error: Option<RunError>,
    pub counts: Option<Value>,
    pub usage: Usage,
}

/// Why a run failed, in the words of the API.
#[derive(Debug, Clone)]
pub struct RunError {
    pub code: String,
    pub message: String,
    pub details: Option<Value>,
}

/// What a run used.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub cpu_us: i64,
    pub peak_memory_bytes: i64,
    pub requests: i64,
}

/// A finished run of a function that has no schedule.
#[derive(Debug, Clone)]
pub struct FinishedRun {
    pub id: Uuid,
    /// The job that it is an attempt of.
    pub job: Option<Uuid>,
    pub environment: EnvironmentPk,
    pub connection: ConnectionPk,
    pub kind: &'static str,
    pub function: FunctionName,
    /// 1 for the first.
    pub attempt: i32,
    pub owner: Uuid,
    pub started_at: DateTime<Utc>,
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

/// Closes a run that `owner` holds under `fence`. `false`: it was closed already, by a successor.
pub async fn close(
    conn: &mut PgConnection,
    run: Uuid,
    owner: Uuid,
    fence: i64,
    outcome: &Outcome,
) -> sqlx::Result<bool> {
    let error = outcome.error.as_ref();
    let closed = sqlx::query!(
        r#"
        UPDATE runs
        SET state = $4, error_code = $5, error_message = $6, error_details = $7, counts = $8, cpu_us = $9,
            peak_memory_bytes = $10, requests = $11, finished_at = now()
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
    )
    .execute(conn)
    .await?;
    Ok(closed.rows_affected() > 0)
}

/// Closes the runs that are on for connections that are gone.
pub async fn cancel_orphans(conn: &mut PgConnection, connections: &[ConnectionPk]) -> sqlx::Result<()> {
    let connections: Vec<i64> = connections.iter().map(|connection| connection.0).collect();
    sqlx::query!(
        r#"
        UPDATE runs
        SET state = 'cancelled', finished_at = now(), error_code = 'script_cancelled',
            error_message = 'the connection was deleted'
        WHERE connection_pk = ANY($1) AND state = 'running'
        "#,
        &connections,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// When the latest run of a schedule began that succeeded, `except` aside.
pub async fn last_success(
    conn: &mut PgConnection,
    schedule: SchedulePk,
    except: Uuid,
) -> sqlx::Result<Option<DateTime<Utc>>> {
    sqlx::query_scalar!(
        r#"
        SELECT started_at FROM runs
        WHERE schedule_pk = $1 AND state = 'success' AND id <> $2
        ORDER BY started_at DESC LIMIT 1
        "#,
        schedule.0,
        except,
    )
    .fetch_optional(conn)
    .await
}

/// Writes runs that are over, as a group.
pub async fn insert_finished(conn: &mut PgConnection, runs: &[FinishedRun]) -> sqlx::Result<()> {
    fn column<T>(runs: &[FinishedRun], value: impl Fn(&FinishedRun) -> T) -> Vec<T> {
        runs.iter().map(value).collect()
    }
    let error = |run: &FinishedRun, text: fn(&RunError) -> String| run.outcome.error.as_ref().map(text);
    sqlx::query!(
        r#"
        INSERT INTO runs (id, environment_pk, connection_pk, kind, function_name, variant, trigger, attempt, owner,
                          state, error_code, error_message, error_details, counts, cpu_us, peak_memory_bytes,
                          requests, started_at, finished_at, job_id)
        SELECT id, environment_pk, connection_pk, kind, function_name, 'base', 'api', attempt, owner, state,
               error_code, error_message, error_details, counts, cpu_us, peak_memory_bytes, requests, started_at,
               finished_at, job_id
        FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::uuid[], $7::text[],
                    $8::text[], $9::text[], $10::jsonb[], $11::jsonb[], $12::bigint[], $13::bigint[],
                    $14::bigint[], $15::timestamptz[], $16::timestamptz[], $17::int[], $18::uuid[])
            AS finished (id, environment_pk, connection_pk, kind, function_name, owner, state, error_code,
                         error_message, error_details, counts, cpu_us, peak_memory_bytes, requests, started_at,
                         finished_at, attempt, job_id)
        "#,
        &column(runs, |run| run.id),
        &column(runs, |run| run.environment.0),
        &column(runs, |run| run.connection.0),
        &column(runs, |run| run.kind.to_owned()),
        &column(runs, |run| run.function.to_string()),
        &column(runs, |run| run.owner),
        &column(runs, |run| run.outcome.state.as_str().to_owned()),
        &column(runs, |run| error(run, |error| error.code.clone())) as &[Option<String>],
        &column(runs, |run| error(run, |error| error.message.clone())) as &[Option<String>],
        &column(runs, |run| run.outcome.error.as_ref().and_then(|error| error.details.clone())) as &[Option<Value>],
        &column(runs, |run| run.outcome.counts.clone()) as &[Option<Value>],
        &column(runs, |run| run.outcome.usage.cpu_us),
        &column(runs, |run| run.outcome.usage.peak_memory_bytes),
        &column(runs, |run| run.outcome.usage.requests),
        &column(runs, |run| run.started_at),
        &column(runs, |run| run.finished_at),
        &column(runs, |run| run.attempt),
        &column(runs, |run| run.job) as &[Option<Uuid>],
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Appends to a run's log. Lines that are there already are passed over, so a repeated write does no harm.
pub async fn append_log(conn: &mut PgConnection, run: Uuid, lines: &[LogLine]) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        INSERT INTO run_logs (run_id, line, at, level, message, fields)
        SELECT $1, line, at, level, message, fields
        FROM unnest($2::int[], $3::timestamptz[], $4::text[], $5::text[], $6::jsonb[])
            AS added (line, at, level, message, fields)
        ON CONFLICT DO NOTHING
        "#,
        run,
        &lines.iter().map(|line| line.line).collect::<Vec<_>>(),
        &lines.iter().map(|line| line.at).collect::<Vec<_>>(),
        &lines.iter().map(|line| line.level.to_owned()).collect::<Vec<_>>(),
        &lines.iter().map(|line| line.message.clone()).collect::<Vec<_>>(),
        &lines.iter().map(|line| line.fields.clone()).collect::<Vec<_>>() as &[Option<Value>],
    )
    .execute(conn)
    .await?;
    Ok(())
}
