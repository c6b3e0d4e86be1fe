//! The log of deliveries for clients, and redeliveries.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use syncline_types::ids::{ConnectionId, ConnectionPk, EnvironmentPk, IntegrationKey};

/// The state of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It is being sent or waits for its next attempt.
    Pending,
    Delivered,
    /// It was given up.
    Failed,
    /// Its URL had answered 410 before it was sent.
    Cancelled,
}

impl State {
    pub const ALL: [Self; 4] = [Self::Pending, Self::Delivered, Self::Failed, Self::Cancelled];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// One message to one URL.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub pk: i64,
    pub id: Uuid,
    pub message_id: Uuid,
    pub kind: String,
    pub url: String,
    pub state: String,
    pub attempts: i32,
    pub next_attempt_at: Option<DateTime<Utc>>,
    pub created_at: DateTime<Utc>,
    pub finished_at: Option<DateTime<Utc>>,
    /// `None` if the message is about no connection, or about a deleted one.
    pub connection: Option<(IntegrationKey, ConnectionId)>,
}

/// The result of one attempt.
#[derive(Debug, Clone)]
pub struct LoggedAttempt {
    pub number: i32,
    pub at: DateTime<Utc>,
    pub status: Option<i32>,
    pub error: Option<String>,
    pub duration_ms: i32,
}

/// Which deliveries to list, newest first.
#[derive(Debug, Clone)]
pub struct Filter {
    pub states: Vec<State>,
    pub kind: Option<String>,
    pub connection: Option<ConnectionPk>,
    pub since: Option<DateTime<Utc>>,
    /// Only deliveries before this row.
    pub before: Option<i64>,
}

impl Filter {
    fn state_names(&self) -> Vec<String> {
        self.states.iter().map(|state| state.as_str().to_owned()).collect()
    }
}

struct DeliveryRow {
    pk: i64,
    id: Uuid,
    message_id: Uuid,
    kind: String,
    url: String,
    state: String,
    attempts: i32,
    next_attempt_at: Option<DateTime<Utc>>,
    created_at: DateTime<Utc>,
    finished_at: Option<DateTime<Utc>>,
    unique_key: Option<String>,
    connection_id: Option<String>,
}

impl From<DeliveryRow> for Delivery {
    fn from(row: DeliveryRow) -> Self {
        let integration = row.unique_key.map(IntegrationKey::from_stored);
        Self {
            pk: row.pk,
            id: row.id,
            message_id: row.message_id,
            kind: row.kind,
            url: row.url,
            state: row.state,
            attempts: row.attempts,
            next_attempt_at: row.next_attempt_at,
            created_at: row.created_at,
            finished_at: row.finished_at,
            connection: integration.zip(row.connection_id.map(ConnectionId::from_stored)),
        }
    }
}

/// Lists one page of the environment's deliveries.
pub async fn list(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    filter: &Filter,
    limit: i64,
) -> sqlx::Result<Vec<Delivery>> {
    let rows = match filter.connection {
        Some(connection) => list_of_connection(conn, environment, connection, filter, limit).await?,
        None => list_of_environment(conn, environment, filter, limit).await?,
    };
    Ok(rows.into_iter().map(Delivery::from).collect())
}

/// Reads the index for each state separately, so that a rare state is found as fast as a common one.
async fn list_of_environment(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    filter: &Filter,
    limit: i64,
) -> sqlx::Result<Vec<DeliveryRow>> {
    sqlx::query_as!(
        DeliveryRow,
        r#"
        SELECT d.pk AS "pk!", d.id AS "id!", d.message_id AS "message_id!", d.type AS "kind!", d.url AS "url!",
               d.state AS "state!", d.attempts AS "attempts!", d.next_attempt_at, d.created_at AS "created_at!",
               d.finished_at, c.unique_key AS "unique_key?", c.connection_id AS "connection_id?"
        FROM (
            SELECT found.*
            FROM unnest($2::text[]) AS wanted (state)
            CROSS JOIN LATERAL (
                SELECT * FROM outbound_webhook_deliveries
                WHERE environment_pk = $1 AND state >= wanted.state AND state <= wanted.state
                  AND ($3::bigint IS NULL OR pk < $3)
                  AND ($4::text IS NULL OR type = $4) AND ($5::timestamptz IS NULL OR created_at >= $5)
                -- For the order of `pk` alone, Postgres would scan the deliveries of all states.
                ORDER BY state, pk DESC LIMIT $6
            ) AS found
            ORDER BY found.pk DESC LIMIT $6
        ) AS d
        LEFT JOIN LATERAL (
            -- OFFSET keeps the planner from joining with all connections.
            SELECT i.unique_key, c.connection_id
            FROM connections c JOIN integrations i ON i.pk = c.integration_pk
            WHERE c.pk = d.connection_pk OFFSET 0
        ) AS c ON true
        ORDER BY d.pk DESC
        "#,
        environment.0,
        &filter.state_names(),
        filter.before,
        filter.kind,
        filter.since,
        limit,
    )
    .fetch_all(conn)
    .await
}

async fn list_of_connection(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    connection: ConnectionPk,
    filter: &Filter,
    limit: i64,
) -> sqlx::Result<Vec<DeliveryRow>> {
    sqlx::query_as!(
        DeliveryRow,
        r#"
        SELECT d.pk, d.id, d.message_id, d.type AS kind, d.url, d.state, d.attempts, d.next_attempt_at, d.created_at,
               d.finished_at, i.unique_key AS "unique_key?", c.connection_id AS "connection_id?"
        FROM outbound_webhook_deliveries d
        LEFT JOIN connections c ON c.pk = d.connection_pk
        LEFT JOIN integrations i ON i.pk = c.integration_pk
        WHERE d.connection_pk = $2 AND d.environment_pk = $1 AND d.state = ANY($3)
          AND ($4::bigint IS NULL OR d.pk < $4) AND ($5::text IS NULL OR d.type = $5)
          AND ($6::timestamptz IS NULL OR d.created_at >= $6)
        ORDER BY d.pk DESC LIMIT $7
        "#,
        environment.0,
        connection.0,
        &filter.state_names(),
        filter.before,
        filter.kind,
        filter.since,
        limit,
    )
    .fetch_all(conn)
    .await
}

/// Finds a delivery with its body. Returns `None` if the environment has no delivery with this id.
pub async fn find(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    id: Uuid,
) -> sqlx::Result<Option<(Delivery, String)>> {
    let row = sqlx::query!(
        r#"
        SELECT d.pk, d.id, d.message_id, d.type AS kind, d.url, d.state, d.attempts, d.next_attempt_at, d.created_at,
               d.finished_at, d.body, i.unique_key AS "unique_key?", c.connection_id AS "connection_id?"
        FROM outbound_webhook_deliveries d
        LEFT JOIN connections c ON c.pk = d.connection_pk
        LEFT JOIN integrations i ON i.pk = c.integration_pk
        WHERE d.id = $2 AND d.environment_pk = $1
        "#,
        environment.0,
        id,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| {
        let delivery = DeliveryRow {
            pk: row.pk,
            id: row.id,
            message_id: row.message_id,
            kind: row.kind,
            url: row.url,
            state: row.state,
            attempts: row.attempts,
            next_attempt_at: row.next_attempt_at,
            created_at: row.created_at,
            finished_at: row.finished_at,
            unique_key: row.unique_key,
            connection_id: row.connection_id,
        };
        (delivery.into(), row.body)
    }))
}

/// Lists the attempts of a delivery, oldest first.
pub async fn list_attempts(conn: &mut PgConnection, delivery: i64) -> sqlx::Result<Vec<LoggedAttempt>> {
    sqlx::query_as!(
        LoggedAttempt,
        r#"
        SELECT number, at, status, error, duration_ms FROM outbound_webhook_attempts
        WHERE delivery_pk = $1 ORDER BY number
        "#,
        delivery,
    )
    .fetch_all(conn)
    .await
}

/// The result of requesting a redelivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redelivery {
    /// The delivery is due now.
    Due,
    /// A host is sending the delivery at this moment.
    InFlight,
    /// The setting that its URL came from is empty now, or its URL has answered 410.
    NoUrl,
}

/// Makes a delivery due again, as the same message, to the current URL of its setting.
pub async fn redeliver(conn: &mut PgConnection, delivery: i64) -> sqlx::Result<Redelivery> {
    let row = sqlx::query!(
        "SELECT owner IS NOT NULL AS \"in_flight!\" FROM outbound_webhook_deliveries WHERE pk = $1 FOR UPDATE",
        delivery
    )
    .fetch_optional(&mut *conn)
    .await?;
    match row {
        Some(row) if row.in_flight => Ok(Redelivery::InFlight),
        Some(_) if make_due(conn, &[delivery]).await? == 1 => Ok(Redelivery::Due),
        Some(_) | None => Ok(Redelivery::NoUrl),
    }
}

/// Makes failed deliveries of the environment due again, newest first, that were created at `since` or later and
/// before the row `before`. Returns their number and the last row that was examined, or `None` if none is left.
pub async fn redeliver_failed(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    since: DateTime<Utc>,
    before: Option<i64>,
    limit: i64,
) -> sqlx::Result<(u64, Option<i64>)> {
    let failed = sqlx::query_scalar!(
        r#"
        SELECT pk FROM outbound_webhook_deliveries
        WHERE environment_pk = $1 AND state = 'failed' AND created_at >= $2 AND ($3::bigint IS NULL OR pk < $3)
        ORDER BY pk DESC LIMIT $4
        FOR UPDATE SKIP LOCKED
        "#,
        environment.0,
        since,
        before,
        limit,
    )
    .fetch_all(&mut *conn)
    .await?;
    let made_due = make_due(conn, &failed).await?;
    Ok((made_due, failed.last().copied()))
}

/// Makes deliveries due again. A message about a connection whose own URL was removed is sent to the environment's
/// URL.
async fn make_due(conn: &mut PgConnection, deliveries: &[i64]) -> sqlx::Result<u64> {
    let made_due = sqlx::query!(
        r#"
        WITH wanted AS (
            SELECT d.pk, d.environment_pk,
                   CASE WHEN d.target = 'secondary' THEN e.webhook_url_secondary
                        WHEN d.target = 'override' THEN coalesce(c.webhook_url_override, e.webhook_url)
                        ELSE e.webhook_url END AS url
            FROM outbound_webhook_deliveries d
            JOIN environments e ON e.pk = d.environment_pk
            LEFT JOIN connections c ON c.pk = d.connection_pk
            WHERE d.pk = ANY($1)
        )
        UPDATE outbound_webhook_deliveries d
        SET state = 'pending', url = wanted.url, next_attempt_at = now(), finished_at = NULL,
            attempts_before = d.attempts, expires_at = now() + interval '4 days'
        FROM wanted
        WHERE d.pk = wanted.pk AND d.owner IS NULL AND wanted.url IS NOT NULL
          AND NOT EXISTS (
              SELECT FROM outbound_webhook_gone_urls g
              WHERE g.environment_pk = wanted.environment_pk AND g.url = wanted.url
          )
        "#,
        deliveries,
    )
    .execute(conn)
    .await?;
    Ok(made_due.rows_affected())
}
