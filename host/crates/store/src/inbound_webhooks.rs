//! Inbound webhooks: stored when they arrive, and processed afterwards.

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

/// The format of a body.
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
    /// What the signature covers, if it does not cover the delivery id. A webhook with a known delivery id or
    /// fingerprint is a duplicate.
    pub fingerprint: Option<String>,
    pub headers: Value,
    pub query: String,
    pub format: Format,
    pub body: Vec<u8>,
}

/// Stores webhooks in one statement, and returns the ids of those that are not duplicates.
pub async fn insert(conn: &mut PgConnection, new: &[NewWebhook]) -> sqlx::Result<Vec<Uuid>> {
    // Sorted, so that concurrent transactions with the same deliveries lock them in the same order. Only an attacker
    // who replays deliveries with other ids could cause a deadlock, which Postgres resolves.
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

/// Stores a handshake for inspection, and deletes the oldest handshakes of its integration so that `max_stored`
/// remain. Handshakes are not processed.
pub async fn keep_handshake(conn: &mut PgConnection, new: &NewWebhook, max_stored: i64) -> sqlx::Result<()> {
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
        max_stored,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A locked webhook whose connections have not been determined yet.
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
    /// The number of times that the host failed to process it.
    pub failures: i32,
}

/// Locks up to `share` waiting webhooks of each integration, oldest first, and `limit` in total.
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

/// Loads the bodies of webhooks.
pub async fn load_bodies(conn: &mut PgConnection, ids: &[Uuid]) -> sqlx::Result<HashMap<Uuid, Vec<u8>>> {
    let rows = sqlx::query!("SELECT id, body FROM inbound_webhooks WHERE id = ANY($1)", ids);
    Ok(rows.fetch_all(conn).await?.into_iter().map(|row| (row.id, row.body)).collect())
}

/// A value that can identify connections of an integration.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Subject {
    pub integration: IntegrationPk,
    /// The name in the catalogue's notation, such as `metadata.account`.
    pub name: String,
    pub value: String,
}

/// A connection that an event concerns.
#[derive(Debug, Clone)]
pub struct MatchedConnection {
    pub connection: ConnectionPk,
    pub connection_id: ConnectionId,
    pub webhook_url_override: Option<String>,
}

/// Finds the connections that each of these subjects identifies. Returns them with the index of the subject.
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
        let matched = MatchedConnection {
            connection: ConnectionPk(row.pk),
            connection_id: ConnectionId::from_stored(row.connection_id),
            webhook_url_override: row.webhook_url_override,
        };
        (row.number.unsigned_abs() as usize - 1, matched)
    });
    Ok(found.collect())
}

/// The result of dispatching a webhook.
#[derive(Debug, Clone, Copy)]
pub struct Routed {
    pub id: Uuid,
    pub connections: usize,
    pub jobs: usize,
}

impl Routed {
    /// Returns the webhook's state after the dispatch.
    pub fn state(&self) -> State {
        match (self.jobs, self.connections) {
            (0, 0) => State::Unmatched,
            (0, _) => State::Processed,
            _ => State::Processing,
        }
    }
}

/// Stores the results of dispatching webhooks that this transaction has locked.
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

/// Stores that the host failed to process a webhook. It is tried again after `wait`, or given up without it.
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

/// Stores that a function for a webhook has finished. If it was the last one, returns the webhook's final state.
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
    Ok(State::OVER.into_iter().find(|final_state| state.as_deref() == Some(final_state.as_str())))
}

/// The parts of a webhook that a function receives.
#[derive(Debug)]
pub struct StoredBody {
    pub headers: Value,
    pub format: Format,
    pub body: Vec<u8>,
}

/// Returns `None` if the webhook was deleted.
pub async fn find_body(conn: &mut PgConnection, id: Uuid) -> sqlx::Result<Option<StoredBody>> {
    sqlx::query_as!(
        StoredBody,
        r#"SELECT headers, format AS "format: Format", body FROM inbound_webhooks WHERE id = $1"#,
        id,
    )
    .fetch_optional(conn)
    .await
}

/// Deletes webhooks that arrived before this id and have finished, up to `limit`. Returns their number.
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

/// Deletes webhooks of deleted integrations, up to `limit`. Returns their number.
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
    /// Returns the body as JSON text. A body that is not JSON becomes a JSON string.
    pub fn to_json(&self) -> String {
        let text = String::from_utf8_lossy(&self.body);
        match self.format {
            Format::Json => text.trim_start_matches('\u{feff}').to_owned(),
            Format::Form | Format::Text => Value::from(text).to_string(),
        }
    }
}
