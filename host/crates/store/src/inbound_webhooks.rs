//! What providers have told: taken in, and processed when its turn comes.

pub mod log;

use std::collections::HashMap;
use std::time::Duration;

use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use self::log::State;
use super::hosts::interval;
use syncline_types::ids::{
    ConnectionId, ConnectionPk, EnvironmentPk, IntegrationKey, IntegrationPk, ProviderSlug,
};

/// What a body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::Type)]
#[sqlx(type_name = "text", rename_all = "lowercase")]
pub enum Format {
    Json,
    Form,
    Text,
}

impl Format {
    fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Form => "form",
            Self::Text => "text",
        }
    }
}

/// A webhook to store.
#[derive(Debug)]
pub struct NewWebhook {
    pub id: Uuid,
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub event_type: Option<String>,
    pub delivery_id: Option<String>,
    /// What was signed, where the id was not: a webhook that has either is there already.
    pub fingerprint: Option<String>,
    pub headers: Value,
    pub query: String,
    pub format: Format,
    pub body: Vec<u8>,
}

/// Stores webhooks in one statement, and gives the ids of those that were not there already.
pub async fn insert(conn: &mut PgConnection, new: &[NewWebhook]) -> sqlx::Result<Vec<Uuid>> {
    // In one order everywhere: transactions that store the same deliveries must not wait for each other in a ring. Only
    // whoever gives recorded ones other ids could make one, and Postgres ends it.
    let mut rows: Vec<&NewWebhook> = new.iter().collect();
    rows.sort_by_key(|row| (row.integration.0, row.delivery_id.as_deref()));
    let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
    let environments: Vec<i64> = rows.iter().map(|row| row.environment.0).collect();
    let integrations: Vec<i64> = rows.iter().map(|row| row.integration.0).collect();
    let types: Vec<Option<String>> = rows.iter().map(|row| row.event_type.clone()).collect();
    let deliveries: Vec<Option<String>> = rows.iter().map(|row| row.delivery_id.clone()).collect();
    let fingerprints: Vec<Option<String>> = rows.iter().map(|row| row.fingerprint.clone()).collect();
    let headers: Vec<Value> = rows.iter().map(|row| row.headers.clone()).collect();
    let queries: Vec<String> = rows.iter().map(|row| row.query.clone()).collect();
    let formats: Vec<String> = rows.iter().map(|row| row.format.as_str().to_owned()).collect();
    let bodies: Vec<&[u8]> = rows.iter().map(|row| row.body.as_slice()).collect();
    sqlx::query_scalar!(
        r#"
        INSERT INTO inbound_webhooks
            (id, environment_pk, integration_pk, event_type, delivery_id, fingerprint, headers, query, format, body,
             state)
        SELECT new.*, 'received'
        FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::jsonb[],
                    $8::text[], $9::text[], $10::bytea[]) AS new
        ON CONFLICT DO NOTHING
        RETURNING id
        "#,
        &ids,
        &environments,
        &integrations,
        &types as &[Option<String>],
        &deliveries as &[Option<String>],
        &fingerprints as &[Option<String>],
        &headers,
        &queries,
        &formats,
        &bodies as &[&[u8]],
    )
    .fetch_all(conn)
    .await
}

/// Keeps what a provider has sent to try the URL out, and of its integration's others only the newest, so that there are
/// `most`. Nothing is done with any of them.
pub async fn keep_handshake(conn: &mut PgConnection, new: &NewWebhook, most: i64) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        WITH former AS (
            SELECT id FROM inbound_webhooks WHERE integration_pk = $3 AND state = 'handshake'
            ORDER BY id DESC OFFSET $9::bigint - 1 FOR UPDATE SKIP LOCKED
        ), gone AS (
            DELETE FROM inbound_webhooks r USING former WHERE r.id = former.id
        )
        INSERT INTO inbound_webhooks
            (id, environment_pk, integration_pk, event_type, headers, query, format, body, state, finished_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, 'handshake', now())
        "#,
        new.id,
        new.environment.0,
        new.integration.0,
        new.event_type,
        new.headers,
        new.query,
        new.format.as_str(),
        new.body,
        most,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A webhook whose connections are to be found. It is locked.
#[derive(Debug, Clone)]
pub struct Waiting {
    pub id: Uuid,
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub integration_key: IntegrationKey,
    pub provider: ProviderSlug,
    pub forwards: bool,
    pub headers: Value,
    pub query: String,
    pub format: Format,
    pub body_bytes: i64,
    /// How often processing it has failed on our side.
    pub failures: i32,
}

/// Locks up to `share` waiting webhooks of each integration that has some, the oldest first, `limit` in all.
pub async fn lock_waiting(conn: &mut PgConnection, share: i64, limit: i64) -> sqlx::Result<Vec<Waiting>> {
    let rows = sqlx::query!(
        r#"
        WITH RECURSIVE waiting AS (
            (SELECT integration_pk FROM inbound_webhooks ORDER BY integration_pk LIMIT 1)
            UNION ALL
            SELECT next.integration_pk
            FROM waiting CROSS JOIN LATERAL (
                SELECT integration_pk FROM inbound_webhooks
                WHERE integration_pk > waiting.integration_pk ORDER BY integration_pk LIMIT 1
            ) AS next
        )
        SELECT r.id, r.environment_pk, r.integration_pk, i.unique_key, i.provider, i.forward_webhooks, r.headers,
               r.query, r.format AS "format: Format", octet_length(r.body)::bigint AS "body_bytes!", r.failures
        FROM (SELECT integration_pk FROM waiting ORDER BY random()) AS turns
        JOIN integrations i ON i.pk = turns.integration_pk
        CROSS JOIN LATERAL (
            SELECT * FROM inbound_webhooks
            WHERE state = 'received' AND integration_pk = turns.integration_pk AND due_at <= now()
            ORDER BY id LIMIT $1
            FOR UPDATE SKIP LOCKED
        ) AS r
        LIMIT $2
        "#,
        share,
        limit,
    )
    .fetch_all(conn)
    .await?;
    let waiting = rows.into_iter().map(|row| Waiting {
        id: row.id,
        environment: EnvironmentPk(row.environment_pk),
        integration: IntegrationPk(row.integration_pk),
        integration_key: IntegrationKey::from_stored(row.unique_key),
        provider: ProviderSlug::from_stored(row.provider),
        forwards: row.forward_webhooks,
        headers: row.headers,
        query: row.query,
        format: row.format,
        body_bytes: row.body_bytes,
        failures: row.failures,
    });
    Ok(waiting.collect())
}

/// The bodies of webhooks.
pub async fn load_bodies(conn: &mut PgConnection, ids: &[Uuid]) -> sqlx::Result<HashMap<Uuid, Vec<u8>>> {
    let rows = sqlx::query!("SELECT id, body FROM inbound_webhooks WHERE id = ANY($1)", ids);
    Ok(rows.fetch_all(conn).await?.into_iter().map(|row| (row.id, row.body)).collect())
}

/// Something by which connections of an integration may be known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subject {
    pub integration: IntegrationPk,
    /// As the catalogue names it, such as `metadata.account`.
    pub name: String,
    pub value: String,
}

/// A connection that an event is about.
#[derive(Debug, Clone)]
pub struct MatchedConnection {
    pub connection: ConnectionPk,
    pub connection_id: ConnectionId,
    pub webhook_url_override: Option<String>,
}

/// The connections that are known by each of these subjects, with the subject's index.
pub async fn find_matched_connections(
    conn: &mut PgConnection,
    subjects: &[Subject],
) -> sqlx::Result<Vec<(usize, MatchedConnection)>> {
    let integrations: Vec<i64> = subjects.iter().map(|subject| subject.integration.0).collect();
    let names: Vec<String> = subjects.iter().map(|subject| subject.name.clone()).collect();
    let values: Vec<String> = subjects.iter().map(|subject| subject.value.clone()).collect();
    let rows = sqlx::query!(
        r#"
        SELECT wanted.number AS "number!", c.pk, c.connection_id, c.webhook_url_override
        FROM unnest($1::bigint[], $2::text[], $3::text[]) WITH ORDINALITY AS wanted (integration, name, value, number)
        CROSS JOIN LATERAL (
            SELECT connection_pk FROM connection_identifiers
            WHERE integration_pk = wanted.integration AND name = wanted.name AND value = wanted.value
            ORDER BY connection_pk
        ) AS known
        JOIN connections c ON c.pk = known.connection_pk
        WHERE c.validating_since IS NULL
        "#,
        &integrations,
        &names,
        &values,
    )
    .fetch_all(conn)
    .await?;
    let found = rows.into_iter().map(|row| {
        let addressee = MatchedConnection {
            connection: ConnectionPk(row.pk),
            connection_id: ConnectionId::from_stored(row.connection_id),
            webhook_url_override: row.webhook_url_override,
        };
        (row.number.unsigned_abs() as usize - 1, addressee)
    });
    Ok(found.collect())
}

/// What was found for a webhook.
#[derive(Debug, Clone, Copy)]
pub struct Routed {
    pub id: Uuid,
    pub connections: usize,
    pub jobs: usize,
}

impl Routed {
    /// Where the webhook stands with that.
    pub fn state(&self) -> State {
        match (self.jobs, self.connections) {
            (0, 0) => State::Unmatched,
            (0, _) => State::Processed,
            _ => State::Processing,
        }
    }
}

/// Notes what was found for webhooks that this transaction has locked.
pub async fn note_routed(conn: &mut PgConnection, routed: &[Routed]) -> sqlx::Result<()> {
    let ids: Vec<Uuid> = routed.iter().map(|routed| routed.id).collect();
    let connections: Vec<i32> = routed.iter().map(|routed| routed.connections as i32).collect();
    let jobs: Vec<i32> = routed.iter().map(|routed| routed.jobs as i32).collect();
    let states: Vec<String> = routed.iter().map(|routed| routed.state().as_str().to_owned()).collect();
    sqlx::query!(
        r#"
        UPDATE inbound_webhooks r
        SET connections = routed.connections, jobs_left = routed.jobs, jobs_failed = 0, error = NULL,
            state = routed.state, finished_at = CASE WHEN routed.jobs = 0 THEN now() END
        FROM unnest($1::uuid[], $2::integer[], $3::integer[], $4::text[]) AS routed (id, connections, jobs, state)
        WHERE r.id = routed.id
        "#,
        &ids,
        &connections,
        &jobs,
        &states,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes that a webhook could not be processed by a failure of ours: tried again later, or given up.
pub async fn note_failure(
    conn: &mut PgConnection,
    id: Uuid,
    error: &str,
    wait: Option<Duration>,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE inbound_webhooks
        SET failures = failures + 1, error = $2, due_at = now() + coalesce($3, interval '0'),
            state = CASE WHEN $3::interval IS NULL THEN 'failed' ELSE state END,
            finished_at = CASE WHEN $3::interval IS NULL THEN now() END
        WHERE id = $1 AND state = 'received'
        "#,
        id,
        error,
        wait.map(interval) as Option<sqlx::postgres::types::PgInterval>,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes that a function is over that ran for a webhook. With the last one the webhook is over, too: then this gives
/// how it ended.
pub async fn note_job_end(
    conn: &mut PgConnection,
    id: Uuid,
    has_failed: bool,
) -> sqlx::Result<Option<State>> {
    let state = sqlx::query_scalar!(
        r#"
        UPDATE inbound_webhooks
        SET jobs_left = jobs_left - 1, jobs_failed = jobs_failed + $2::boolean::integer,
            state = CASE WHEN jobs_left > 1 THEN state WHEN $2 OR jobs_failed > 0 THEN 'failed'
                         ELSE 'processed' END,
            finished_at = CASE WHEN jobs_left <= 1 THEN now() END
        WHERE id = $1 AND state = 'processing'
        RETURNING state
        "#,
        id,
        has_failed,
    )
    .fetch_optional(conn)
    .await?;
    Ok(State::OVER.into_iter().find(|over| state.as_deref() == Some(over.as_str())))
}

/// What a function is given of a webhook.
#[derive(Debug)]
pub struct StoredBody {
    pub headers: Value,
    pub format: Format,
    pub body: Vec<u8>,
}

/// `None`: it was removed.
pub async fn find_body(conn: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<StoredBody>> {
    sqlx::query_as!(
        StoredBody,
        r#"SELECT headers, format AS "format: Format", body FROM inbound_webhooks WHERE id = $1"#,
        id,
    )
    .fetch_optional(conn)
    .await
}

/// Removes some of what came in before this time and is over, or waits for nothing any more. Gives how many.
pub async fn delete_old(conn: &mut PgConnection, before: Uuid, limit: i64) -> sqlx::Result<u64> {
    let deleted = sqlx::query!(
        r#"
        DELETE FROM inbound_webhooks WHERE id IN (
            SELECT id FROM inbound_webhooks
            WHERE id < $1 AND state NOT IN ('received', 'processing')
            ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED
        )
        "#,
        before,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(deleted.rows_affected())
}

/// Removes some of what is left of integrations that are gone. Gives how many.
pub async fn delete_orphans(conn: &mut PgConnection, limit: i64) -> sqlx::Result<u64> {
    let deleted = sqlx::query!(
        r#"
        WITH RECURSIVE known AS (
            (SELECT integration_pk FROM inbound_webhooks ORDER BY integration_pk LIMIT 1)
            UNION ALL
            SELECT next.integration_pk FROM known CROSS JOIN LATERAL (
                SELECT integration_pk FROM inbound_webhooks WHERE integration_pk > known.integration_pk
                ORDER BY integration_pk LIMIT 1
            ) AS next
        ), orphaned AS (
            SELECT r.id FROM known CROSS JOIN LATERAL (
                SELECT id FROM inbound_webhooks WHERE integration_pk = known.integration_pk
                LIMIT $1 FOR UPDATE SKIP LOCKED
            ) AS r
            WHERE NOT EXISTS (SELECT FROM integrations i WHERE i.pk = known.integration_pk)
            LIMIT $1
        )
        DELETE FROM inbound_webhooks r USING orphaned WHERE r.id = orphaned.id
        "#,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(deleted.rows_affected())
}

impl StoredBody {
    /// The body as JSON text; what is not JSON as a text.
    pub fn to_json(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        match self.format {
            Format::Json => text.trim_start_matches('\u{feff}').to_owned(),
            Format::Form | Format::Text => Value::from(text).to_string(),
        }
    }
}
