//! Lists of runs and their logs, for clients.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::enums;
use crate::pages::{Page, PageLimit, json_bytes};
use syncline_types::error_code::ErrorCode;
use syncline_types::functions::{FunctionKind, RunState, RunTrigger};
use syncline_types::ids::{
    ConnectionId, ConnectionPk, EnvironmentPk, FunctionName, IntegrationKey, IntegrationPk, Variant,
};

/// A run in lists and details.
#[derive(Debug, Clone)]
pub struct LoggedRun {
    pub id: Uuid,
    pub job: Option<Uuid>,
    /// `None` if it was deleted.
    pub integration: Option<IntegrationKey>,
    /// `None` if it was deleted.
    pub connection: Option<ConnectionId>,
    pub kind: FunctionKind,
    pub function: String,
    pub variant: String,
    pub trigger: RunTrigger,
    pub attempt: i32,
    pub state: RunState,
    pub error_code: Option<ErrorCode>,
    pub error_message: Option<String>,
    /// Not included in lists, because the details may be long.
    pub error_details: Option<Value>,
    pub counts: Option<Value>,
    pub cpu_us: Option<i64>,
    pub peak_memory_bytes: Option<i64>,
    pub requests: Option<i64>,
    pub sent_bytes: Option<i64>,
    pub received_bytes: Option<i64>,
    pub records: Option<i64>,
    pub progress_done: Option<i64>,
    pub progress_total: Option<i64>,
    pub started_at: DateTime<Utc>,
    pub finished_at: Option<DateTime<Utc>>,
    /// When the run's held deletions were approved.
    pub approved_at: Option<DateTime<Utc>>,
}

/// A position in the list of runs, which is ordered by start time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunPosition {
    pub started_at: DateTime<Utc>,
    pub id: Uuid,
}

/// The scope of a list of runs.
#[derive(Debug, Clone, Copy)]
pub enum Scope {
    Environment,
    Integration(IntegrationPk),
    Connection(ConnectionPk),
}

/// Which runs to list.
#[derive(Debug, Clone)]
pub struct Filter {
    pub scope: Scope,
    pub states: Vec<RunState>,
    pub kind: Option<FunctionKind>,
    pub function: Option<String>,
    pub variant: Option<String>,
    pub trigger: Option<RunTrigger>,
    pub started_after: Option<DateTime<Utc>>,
    pub started_before: Option<DateTime<Utc>>,
    /// Only runs after this position.
    pub behind: Option<RunPosition>,
}

impl Filter {
    fn state_names(&self) -> Vec<String> {
        self.states.iter().map(|state| state.as_str().to_owned()).collect()
    }
}

struct RunRow {
    id: Uuid,
    job_id: Option<Uuid>,
    unique_key: Option<String>,
    connection_id: Option<String>,
    kind: String,
    function_name: String,
    variant: String,
    trigger: String,
    attempt: i32,
    state: String,
    error_code: Option<String>,
    error_message: Option<String>,
    error_details: Option<Value>,
    counts: Option<Value>,
    cpu_us: Option<i64>,
    peak_memory_bytes: Option<i64>,
    requests: Option<i64>,
    sent_bytes: Option<i64>,
    received_bytes: Option<i64>,
    records: Option<i64>,
    progress_done: Option<i64>,
    progress_total: Option<i64>,
    started_at: DateTime<Utc>,
    finished_at: Option<DateTime<Utc>>,
    approved_at: Option<DateTime<Utc>>,
}

impl TryFrom<RunRow> for LoggedRun {
    type Error = sqlx::Error;

    fn try_from(row: RunRow) -> sqlx::Result<Self> {
        let error_code = row.error_code.as_deref();
        Ok(Self {
            id: row.id,
            job: row.job_id,
            integration: row.unique_key.map(IntegrationKey::from_stored),
            connection: row.connection_id.map(ConnectionId::from_stored),
            kind: enums::parse("kind", &row.kind)?,
            function: row.function_name,
            variant: row.variant,
            trigger: enums::parse("trigger", &row.trigger)?,
            attempt: row.attempt,
            state: enums::parse("state", &row.state)?,
            error_code: error_code.map(|code| enums::parse("error_code", code)).transpose()?,
            error_message: row.error_message,
            error_details: row.error_details,
            counts: row.counts,
            cpu_us: row.cpu_us,
            peak_memory_bytes: row.peak_memory_bytes,
            requests: row.requests,
            sent_bytes: row.sent_bytes,
            received_bytes: row.received_bytes,
            records: row.records,
            progress_done: row.progress_done,
            progress_total: row.progress_total,
            started_at: row.started_at,
            finished_at: row.finished_at,
            approved_at: row.approved_at,
        })
    }
}

/// Selects runs from the rows `r` of `$from`.
macro_rules! query_runs {
    ($details:literal, [$($from:tt)+], $whose:literal, $rest:literal, $($parameter:expr),* $(,)?) => {
        sqlx::query_as!(
            RunRow,
            r#"
        SELECT r.id, r.job_id, i.unique_key AS "unique_key?", c.connection_id AS "connection_id?", r.kind,
               r.function_name, r.variant, r.trigger, r.attempt, r.state, r.error_code, r.error_message,
               "#
                + $details
                + r#" AS error_details, r.counts, r.cpu_us, r.peak_memory_bytes, r.requests, r.sent_bytes,
               r.received_bytes, r.records, r.progress_done, r.progress_total, r.started_at, r.finished_at,
               r.approved_at
        FROM "#
                + $($from)+
                + r#" AS r
        LEFT JOIN connections c ON c.pk = r.connection_pk
        LEFT JOIN integrations i ON i.pk = r.integration_pk
        WHERE "#
                + $whose
                + $rest,
            $($parameter),*
        )
    };
}

/// Lists one page of the runs of `$whose`. Reads a separate index range for each state, so that a rare state is found
/// as fast as a common one. Runs of an integration are not filtered by environment, because without statistics the
/// planner could choose the index of the environment.
macro_rules! list_by_state {
    ($whose:literal, $pk:expr, $filter:expr, $limit:expr) => {
        query_runs!(
            "NULL::jsonb",
            [r#"unnest($2::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT * FROM runs
            WHERE "#
                + $whose
                + r#" AND state = wanted.state
              AND (started_at, id) < (coalesce($3, 'infinity'::timestamptz), coalesce($4, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
              AND started_at >= coalesce($5, '-infinity'::timestamptz)
              AND started_at < coalesce($6, 'infinity'::timestamptz)
              AND ($7::text IS NULL OR kind = $7) AND ($8::text IS NULL OR function_name = $8)
              AND ($9::text IS NULL OR variant = $9) AND ($10::text IS NULL OR trigger = $10)
            ORDER BY started_at DESC, id DESC LIMIT $11
        )"#],
            "true",
            " ORDER BY r.started_at DESC, r.id DESC LIMIT $11",
            $pk,
            &$filter.state_names(),
            $filter.behind.map(|place| place.started_at),
            $filter.behind.map(|place| place.id),
            $filter.started_after,
            $filter.started_before,
            $filter.kind.map(FunctionKind::as_str),
            $filter.function,
            $filter.variant,
            $filter.trigger.map(RunTrigger::as_str),
            $limit,
        )
    };
}

/// Lists one page of the environment's runs, newest first.
pub async fn list(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    filter: &Filter,
    limit: i64,
) -> sqlx::Result<Vec<LoggedRun>> {
    let rows = match filter.scope {
        Scope::Environment | Scope::Integration(_) if filter.function.is_some() => {
            list_of_function(conn, environment, filter, limit).await?
        }
        Scope::Environment if filter.kind.is_some() => {
            list_by_state!("environment_pk = $1 AND kind = $7", environment.0, filter, limit)
                .fetch_all(conn)
                .await?
        }
        Scope::Environment => {
            list_by_state!("environment_pk = $1", environment.0, filter, limit).fetch_all(conn).await?
        }
        Scope::Integration(pk) => {
            list_by_state!("integration_pk = $1", pk.0, filter, limit).fetch_all(conn).await?
        }
        Scope::Connection(pk) => list_of_connection(conn, environment, pk, filter, limit).await?,
    };
    rows.into_iter().map(LoggedRun::try_from).collect()
}

/// Lists the runs of functions with one name. Reads a separate index range for each state and integration: there may
/// be millions of runs of the other integrations that have a function of this name.
async fn list_of_function(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    filter: &Filter,
    limit: i64,
) -> sqlx::Result<Vec<RunRow>> {
    let integration = match filter.scope {
        Scope::Integration(pk) => Some(pk.0),
        Scope::Environment | Scope::Connection(_) => None,
    };
    query_runs!(
        "NULL::jsonb",
        [r#"(
            WITH RECURSIVE of_function AS (
                (
                    SELECT integration_pk FROM runs
                    WHERE environment_pk = $1 AND function_name = $2
                      AND integration_pk >= coalesce($12::bigint, 0)
                    ORDER BY integration_pk LIMIT 1
                )
                UNION ALL
                SELECT next.integration_pk FROM of_function CROSS JOIN LATERAL (
                    SELECT integration_pk FROM runs
                    WHERE environment_pk = $1 AND function_name = $2
                      AND integration_pk > of_function.integration_pk
                    ORDER BY integration_pk LIMIT 1
                ) AS next
                WHERE $12::bigint IS NULL
            )
            SELECT found.* FROM of_function
            CROSS JOIN unnest($3::text[]) AS wanted (state)
            CROSS JOIN LATERAL (
                SELECT * FROM runs
                WHERE environment_pk = $1 AND function_name = $2 AND integration_pk = of_function.integration_pk
                  AND state = wanted.state
                  AND (started_at, id) < (coalesce($4, 'infinity'::timestamptz), coalesce($5, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
                  AND started_at >= coalesce($6, '-infinity'::timestamptz)
                  AND started_at < coalesce($7, 'infinity'::timestamptz)
                  AND ($8::text IS NULL OR kind = $8) AND ($9::text IS NULL OR variant = $9)
                  AND ($10::text IS NULL OR trigger = $10)
                ORDER BY started_at DESC, id DESC LIMIT $11
            ) AS found
            WHERE of_function.integration_pk = coalesce($12, of_function.integration_pk)
        )"#],
        "true",
        " ORDER BY r.started_at DESC, r.id DESC LIMIT $11",
        environment.0,
        filter.function,
        &filter.state_names(),
        filter.behind.map(|place| place.started_at),
        filter.behind.map(|place| place.id),
        filter.started_after,
        filter.started_before,
        filter.kind.map(FunctionKind::as_str),
        filter.variant,
        filter.trigger.map(RunTrigger::as_str),
        limit,
        integration,
    )
    .fetch_all(conn)
    .await
}

/// Lists the runs of one sync of a connection, newest first. Runs of an earlier schedule of the same name are not
/// included. `before` is the start of the last run of the previous page.
pub async fn list_of_sync(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &FunctionName,
    variant: &Variant,
    before: Option<DateTime<Utc>>,
    limit: i64,
) -> sqlx::Result<Vec<LoggedRun>> {
    let rows = query_runs!(
        "NULL::jsonb",
        [r#"(
            SELECT run.* FROM schedules s CROSS JOIN LATERAL (
                -- Runs of one schedule never begin at the same time.
                SELECT * FROM runs WHERE schedule_pk = s.pk AND started_at < coalesce($4, 'infinity'::timestamptz)
                ORDER BY started_at DESC LIMIT $5
            ) AS run
            WHERE s.connection_pk = $1 AND s.sync_name = $2 AND s.variant = $3
        )"#],
        "true",
        " ORDER BY r.started_at DESC, r.id DESC LIMIT $5",
        connection.0,
        sync.as_str(),
        variant.as_str(),
        before,
        limit,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(LoggedRun::try_from).collect()
}

/// Lists the runs of a connection, which are few enough to scan in all states.
async fn list_of_connection(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    connection: ConnectionPk,
    filter: &Filter,
    limit: i64,
) -> sqlx::Result<Vec<RunRow>> {
    query_runs!(
        "NULL::jsonb",
        ["runs"],
        "r.connection_pk = $2",
        r#" AND r.environment_pk = $1 AND r.state = ANY($3)
          AND (r.started_at, r.id) < (coalesce($4, 'infinity'::timestamptz), coalesce($5, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid))
          AND r.started_at >= coalesce($6, '-infinity'::timestamptz)
          AND r.started_at < coalesce($7, 'infinity'::timestamptz)
          AND ($8::text IS NULL OR r.kind = $8) AND ($9::text IS NULL OR r.function_name = $9)
          AND ($10::text IS NULL OR r.variant = $10) AND ($11::text IS NULL OR r.trigger = $11)
        ORDER BY r.started_at DESC, r.id DESC LIMIT $12
        "#,
        environment.0,
        connection.0,
        &filter.state_names(),
        filter.behind.map(|place| place.started_at),
        filter.behind.map(|place| place.id),
        filter.started_after,
        filter.started_before,
        filter.kind.map(FunctionKind::as_str),
        filter.function,
        filter.variant,
        filter.trigger.map(RunTrigger::as_str),
        limit,
    )
    .fetch_all(conn)
    .await
}

/// Finds a run with its details. Returns `None` if the environment has no run with this id.
pub async fn find(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    id: Uuid,
) -> sqlx::Result<Option<LoggedRun>> {
    let row = query_runs!(
        "r.error_details",
        ["runs"],
        "r.id = $2",
        " AND r.environment_pk = $1",
        environment.0,
        id,
    )
    .fetch_optional(conn)
    .await?;
    row.map(LoggedRun::try_from).transpose()
}

/// Which lines of a log to list, oldest first.
#[derive(Debug, Clone)]
pub struct LineFilter {
    pub levels: Vec<&'static str>,
    /// Searched in the message and the fields, ignoring case.
    pub search: Option<String>,
    pub since: Option<DateTime<Utc>>,
    /// Only lines after this one.
    pub after: i32,
}

/// A line of a log.
#[derive(Debug, Clone)]
pub struct LoggedLine {
    pub line: i32,
    pub at: DateTime<Utc>,
    pub level: String,
    pub message: String,
    pub fields: Option<Value>,
}

impl LoggedLine {
    fn bytes(&self) -> usize {
        self.message.len() + self.fields.as_ref().map_or(0, json_bytes)
    }
}

/// Lists one page of a run's log.
pub async fn list_lines(
    conn: &mut PgConnection,
    run: Uuid,
    filter: &LineFilter,
    limit: PageLimit,
) -> sqlx::Result<Page<LoggedLine>> {
    let levels: Vec<String> = filter.levels.iter().map(|level| (*level).to_owned()).collect();
    let lines = sqlx::query_as!(
        LoggedLine,
        r#"
        SELECT line, at, level, message, fields FROM run_logs
        WHERE run_id = $1 AND line > $2 AND level = ANY($3) AND ($4::timestamptz IS NULL OR at >= $4)
          AND ($5::text IS NULL OR strpos(lower(message), lower($5)) > 0
               OR strpos(lower(fields::text), lower($5)) > 0)
        ORDER BY line LIMIT $6
        "#,
        run,
        filter.after,
        &levels,
        filter.since,
        filter.search,
        limit.rows,
    )
    .fetch(conn);
    Page::read(lines, limit.bytes, LoggedLine::bytes).await
}

/// Lists the last lines of a run's log, in the order in which they were written. Only lines of these levels that
/// contain the text, before the line `before`.
pub async fn list_last_lines(
    conn: &mut PgConnection,
    run: Uuid,
    levels: &[&'static str],
    search: Option<&str>,
    before: Option<i32>,
    limit: i64,
) -> sqlx::Result<Vec<LoggedLine>> {
    let levels: Vec<String> = levels.iter().map(|level| (*level).to_owned()).collect();
    let mut lines = sqlx::query_as!(
        LoggedLine,
        r#"
        SELECT line, at, level, message, fields FROM run_logs
        WHERE run_id = $1 AND line < coalesce($2, 2147483647) AND level = ANY($3)
          AND ($4::text IS NULL OR strpos(lower(message), lower($4)) > 0
               OR strpos(lower(fields::text), lower($4)) > 0)
        ORDER BY line DESC LIMIT $5
        "#,
        run,
        before,
        &levels,
        search,
        limit,
    )
    .fetch_all(conn)
    .await?;
    lines.reverse();
    Ok(lines)
}
