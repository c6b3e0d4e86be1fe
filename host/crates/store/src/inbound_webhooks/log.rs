//! The log of inbound webhooks for clients, and replays.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Format, StoredBody};
use crate::function_jobs::JobState;
use syncline_types::ids::{ConnectionId, EnvironmentPk, FunctionName, IntegrationKey, IntegrationPk};

/// The state of a webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Its connections have not been determined yet.
    Received,
    /// Functions are running for it, or will run.
    Processing,
    Processed,
    /// It concerned no existing connection.
    Unmatched,
    /// A function has failed and is not retried.
    Failed,
    /// The provider tested the URL. Handshakes are not processed.
    Handshake,
}

impl State {
    pub const ALL: [Self; 6] =
        [Self::Received, Self::Processing, Self::Processed, Self::Unmatched, Self::Failed, Self::Handshake];
    /// The final states, in which a webhook can be replayed.
    pub const OVER: [Self; 3] = [Self::Processed, Self::Unmatched, Self::Failed];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Processing => "processing",
            Self::Processed => "processed",
            Self::Unmatched => "unmatched",
            Self::Failed => "failed",
            Self::Handshake => "handshake",
        }
    }
}

/// Which webhooks to list, newest first.
#[derive(Debug, Clone)]
pub struct Filter {
    pub states: Vec<State>,
    pub integration: Option<IntegrationPk>,
    pub event_type: Option<String>,
    pub since: Option<DateTime<Utc>>,
    /// Only webhooks before this one.
    pub before: Option<Uuid>,
}

impl Filter {
    fn state_names(&self) -> Vec<String> {
        self.states.iter().map(|state| state.as_str().to_owned()).collect()
    }
}

/// A webhook without its body.
#[derive(Debug, Clone)]
pub struct Received {
    pub id: Uuid,
    pub integration_key: IntegrationKey,
    pub event_type: Option<String>,
    pub delivery_id: Option<String>,
    pub state: String,
    pub connections: i32,
    pub jobs_left: i32,
    pub jobs_failed: i32,
    pub replays: i32,
    pub error: Option<String>,
    pub received_at: DateTime<Utc>,
    pub finished_at: Option<DateTime<Utc>>,
}

struct ReceivedRow {
    id: Uuid,
    unique_key: String,
    event_type: Option<String>,
    delivery_id: Option<String>,
    state: String,
    connections: i32,
    jobs_left: i32,
    jobs_failed: i32,
    replays: i32,
    error: Option<String>,
    received_at: DateTime<Utc>,
    finished_at: Option<DateTime<Utc>>,
}

impl From<ReceivedRow> for Received {
    fn from(row: ReceivedRow) -> Self {
        Self {
            id: row.id,
            integration_key: IntegrationKey::from_stored(row.unique_key),
            event_type: row.event_type,
            delivery_id: row.delivery_id,
            state: row.state,
            connections: row.connections,
            jobs_left: row.jobs_left,
            jobs_failed: row.jobs_failed,
            replays: row.replays,
            error: row.error,
            received_at: row.received_at,
            finished_at: row.finished_at,
        }
    }
}

/// Lists one page of the environment's webhooks. Reads a separate index range for each state of each integration.
pub async fn list(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    filter: &Filter,
    limit: i64,
) -> sqlx::Result<Vec<Received>> {
    let rows = sqlx::query_as!(
        ReceivedRow,
        r#"
        SELECT r.id, i.unique_key, r.event_type, r.delivery_id, r.state, r.connections, r.jobs_left, r.jobs_failed,
               r.replays, r.error, r.received_at, r.finished_at
        FROM integrations i
        CROSS JOIN unnest($3::text[]) AS wanted (state)
        CROSS JOIN LATERAL (
            SELECT * FROM inbound_webhooks
            WHERE integration_pk = i.pk AND state = wanted.state AND ($4::uuid IS NULL OR id < $4)
              AND ($5::text IS NULL OR event_type = $5) AND ($6::timestamptz IS NULL OR received_at >= $6)
            ORDER BY id DESC LIMIT $7
        ) AS r
        WHERE i.environment_pk = $1 AND ($2::bigint IS NULL OR i.pk = $2)
        ORDER BY r.id DESC LIMIT $7
        "#,
        environment.0,
        filter.integration.map(|integration| integration.0),
        &filter.state_names(),
        filter.before,
        filter.event_type,
        filter.since,
        limit,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(Received::from).collect())
}

/// Finds a webhook with its body. Returns `None` if the environment has no webhook with this id.
pub async fn find(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    id: Uuid,
) -> sqlx::Result<Option<(Received, StoredBody)>> {
    let row = sqlx::query!(
        r#"
        SELECT r.id, i.unique_key, r.event_type, r.delivery_id, r.state, r.connections, r.jobs_left, r.jobs_failed,
               r.replays, r.error, r.received_at, r.finished_at, r.headers, r.format AS "format: Format", r.body
        FROM inbound_webhooks r JOIN integrations i ON i.pk = r.integration_pk
        WHERE r.id = $1 AND r.environment_pk = $2
        "#,
        id,
        environment.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| {
        let received = ReceivedRow {
            id: row.id,
            unique_key: row.unique_key,
            event_type: row.event_type,
            delivery_id: row.delivery_id,
            state: row.state,
            connections: row.connections,
            jobs_left: row.jobs_left,
            jobs_failed: row.jobs_failed,
            replays: row.replays,
            error: row.error,
            received_at: row.received_at,
            finished_at: row.finished_at,
        };
        (received.into(), StoredBody { headers: row.headers, format: row.format, body: row.body })
    }))
}

/// A function that runs for a webhook, and its state.
#[derive(Debug, Clone)]
pub struct WebhookJob {
    /// The id of the function's run, the same in every attempt.
    pub id: Uuid,
    pub connection_id: ConnectionId,
    pub function: FunctionName,
    pub state: JobState,
    /// The number of failed attempts.
    pub failures: i32,
}

/// Lists the functions that run for a webhook, or ran within the retention period of jobs.
pub async fn list_jobs(conn: &mut PgConnection, id: Uuid) -> sqlx::Result<Vec<WebhookJob>> {
    // Ordered by both columns, because for the order of `pk` alone Postgres would scan the jobs of all webhooks.
    let rows = sqlx::query!(
        r#"
        SELECT id, connection_id, function_name, state AS "state: JobState", failures FROM function_jobs
        WHERE webhook_id >= $1 AND webhook_id <= $1 ORDER BY webhook_id, pk LIMIT 1000
        "#,
        id,
    )
    .fetch_all(conn)
    .await?;
    let jobs = rows.into_iter().map(|row| WebhookJob {
        id: row.id,
        connection_id: ConnectionId::from_stored(row.connection_id),
        function: FunctionName::from_stored(row.function_name),
        state: row.state,
        // `failures` counts attempts that were followed by another one. The last attempt is added here.
        failures: row.failures + i32::from(row.state == JobState::Error),
    });
    Ok(jobs.collect())
}

/// Queues finished webhooks for processing again. Returns their number.
pub async fn replay(conn: &mut PgConnection, ids: &[Uuid]) -> sqlx::Result<u64> {
    let final_states = State::OVER.map(|state| state.as_str().to_owned());
    let replayed = sqlx::query!(
        r#"
        WITH wanted AS (
            SELECT id FROM inbound_webhooks WHERE id = ANY($1) AND state = ANY($2) ORDER BY id FOR UPDATE
        ), former AS (
            DELETE FROM function_jobs j USING wanted WHERE j.webhook_id = wanted.id
        )
        UPDATE inbound_webhooks r
        SET state = 'received', replays = replays + 1, failures = 0, error = NULL, due_at = now(), finished_at = NULL
        FROM wanted WHERE r.id = wanted.id
        "#,
        ids,
        &final_states,
    )
    .execute(conn)
    .await?;
    Ok(replayed.rows_affected())
}
