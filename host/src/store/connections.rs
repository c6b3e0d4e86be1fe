//! Connections: one end user's link to a provider each.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::refreshes::RenewedCredentials;
use crate::ids::{ConnectionId, ConnectionPk, EnvironmentPk, IntegrationKey, IntegrationPk, ProviderSlug};

#[derive(Debug, Clone)]
pub struct Connection {
    pub pk: ConnectionPk,
    pub id: Uuid,
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub integration_key: IntegrationKey,
    pub provider: ProviderSlug,
    pub connection_id: ConnectionId,
    pub sealed_credentials: Vec<u8>,
    pub connection_config: Value,
    pub metadata: Option<Value>,
    pub tags: Value,
    pub end_user: Option<Value>,
    pub webhook_url_override: Option<String>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
    pub last_fetched_at: Option<DateTime<Utc>>,
}

/// A connection to store. Its credentials were sealed for the row `id`.
#[derive(Debug)]
pub struct NewConnection<'a> {
    pub id: Uuid,
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub connection_id: &'a ConnectionId,
    pub credentials: &'a RenewedCredentials,
    pub connection_config: &'a Value,
    pub metadata: &'a Value,
    pub tags: &'a Value,
    pub end_user: Option<&'a Value>,
    pub webhook_url_override: Option<&'a str>,
}

/// Which connections a list shows. What is `None` or empty does not restrict it.
#[derive(Debug, Default)]
pub struct ConnectionFilter {
    pub connection_id: Option<String>,
    pub search: Option<String>,
    pub end_user_id: Option<String>,
    pub organization_id: Option<String>,
    pub integrations: Option<Vec<String>>,
    pub tags: Option<Value>,
}

struct ConnectionRow {
    pk: i64,
    id: Uuid,
    environment_pk: i64,
    integration_pk: i64,
    unique_key: String,
    provider: String,
    connection_id: String,
    sealed_credentials: Vec<u8>,
    connection_config: Value,
    metadata: Option<Value>,
    tags: Value,
    end_user: Option<Value>,
    webhook_url_override: Option<String>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    last_fetched_at: Option<DateTime<Utc>>,
}

impl From<ConnectionRow> for Connection {
    fn from(row: ConnectionRow) -> Self {
        Self {
            pk: ConnectionPk(row.pk),
            id: row.id,
            environment: EnvironmentPk(row.environment_pk),
            integration: IntegrationPk(row.integration_pk),
            integration_key: IntegrationKey::from_stored(row.unique_key),
            provider: ProviderSlug::from_stored(row.provider),
            connection_id: ConnectionId::from_stored(row.connection_id),
            sealed_credentials: row.sealed_credentials,
            connection_config: row.connection_config,
            metadata: row.metadata,
            tags: row.tags,
            end_user: row.end_user,
            webhook_url_override: row.webhook_url_override,
            created_at: row.created_at,
            updated_at: row.updated_at,
            last_fetched_at: row.last_fetched_at,
        }
    }
}

/// Stores a connection. `None`: the integration has one of that id.
pub async fn create(conn: &mut PgConnection, new: &NewConnection<'_>) -> sqlx::Result<Option<ConnectionPk>> {
    let pk = sqlx::query_scalar!(
        r#"
        INSERT INTO connections
            (id, environment_pk, integration_pk, connection_id, sealed_credentials, connection_config, metadata,
             tags, end_user, webhook_url_override, credentials_expire_at, refresh_due_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
        ON CONFLICT ON CONSTRAINT connections_connection_id DO NOTHING
        RETURNING pk
        "#,
        new.id,
        new.environment.0,
        new.integration.0,
        new.connection_id.as_str(),
        new.credentials.sealed,
        new.connection_config,
        new.metadata,
        new.tags,
        new.end_user,
        new.webhook_url_override,
        new.credentials.expire_at,
        new.credentials.due_at,
    )
    .fetch_optional(conn)
    .await?;
    Ok(pk.map(ConnectionPk))
}

/// Replaces what an import brings on a connection that exists; its id, records and schedules stay.
pub async fn replace(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    new: &NewConnection<'_>,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        WITH replaced AS (
            UPDATE connections
            SET sealed_credentials = $2, connection_config = $3, metadata = $4, tags = $5, end_user = $6,
                webhook_url_override = $7, updated_at = now(), credentials_version = credentials_version + 1,
                credentials_expire_at = $8, refresh_due_at = $9, credentials_changed_at = now(),
                refresh_failed_at = NULL, refresh_failing_days = 0, refresh_day_counted_at = NULL,
                refresh_exhausted = false
            WHERE pk = $1
            RETURNING pk
        ), works_again AS (
            DELETE FROM connection_errors WHERE connection_pk = $1 AND type = 'auth'
        )
        SELECT pg_notify('syncline', 'connection:' || pk) FROM replaced
        "#,
        connection.0,
        new.credentials.sealed,
        new.connection_config,
        new.metadata,
        new.tags,
        new.end_user,
        new.webhook_url_override,
        new.credentials.expire_at,
        new.credentials.due_at,
    )
    .fetch_all(conn)
    .await?;
    Ok(())
}

/// Finds a connection by the names a client uses; `None` if there is none.
pub async fn find(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    integration: &IntegrationKey,
    id: &ConnectionId,
) -> sqlx::Result<Option<Connection>> {
    let row = sqlx::query_as!(
        ConnectionRow,
        r#"
        SELECT c.pk, c.id, c.environment_pk, c.integration_pk, i.unique_key, i.provider, c.connection_id,
               c.sealed_credentials, c.connection_config, c.metadata, c.tags, c.end_user, c.webhook_url_override,
               c.created_at, c.updated_at, c.last_fetched_at
        FROM connections c JOIN integrations i ON i.pk = c.integration_pk
        WHERE i.environment_pk = $1 AND i.unique_key = $2 AND c.connection_id = $3
        "#,
        environment.0,
        integration.as_str(),
        id.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(Connection::from))
}

pub async fn get(conn: &mut PgConnection, pk: ConnectionPk) -> sqlx::Result<Option<Connection>> {
    let row = sqlx::query_as!(
        ConnectionRow,
        r#"
        SELECT c.pk, c.id, c.environment_pk, c.integration_pk, i.unique_key, i.provider, c.connection_id,
               c.sealed_credentials, c.connection_config, c.metadata, c.tags, c.end_user, c.webhook_url_override,
               c.created_at, c.updated_at, c.last_fetched_at
        FROM connections c JOIN integrations i ON i.pk = c.integration_pk
        WHERE c.pk = $1
        "#,
        pk.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(Connection::from))
}

/// One page of an environment's connections, newest first.
pub async fn list(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    filter: &ConnectionFilter,
    limit: i64,
    offset: i64,
) -> sqlx::Result<Vec<Connection>> {
    let search = filter.search.as_deref().map(contains_pattern);
    let rows = sqlx::query_as!(
        ConnectionRow,
        r#"
        SELECT c.pk, c.id, c.environment_pk, c.integration_pk, i.unique_key, i.provider, c.connection_id,
               c.sealed_credentials, c.connection_config, c.metadata, c.tags, c.end_user, c.webhook_url_override,
               c.created_at, c.updated_at, c.last_fetched_at
        FROM connections c JOIN integrations i ON i.pk = c.integration_pk
        WHERE c.environment_pk = $1
          AND ($2::text IS NULL OR c.connection_id = $2)
          AND ($3::text IS NULL OR c.connection_id ILIKE $3
               OR c.end_user->>'display_name' ILIKE $3 OR c.end_user->>'email' ILIKE $3)
          AND ($4::text IS NULL OR c.end_user->>'id' = $4)
          AND ($5::text IS NULL OR c.end_user->'organization'->>'id' = $5)
          AND ($6::text[] IS NULL OR i.unique_key = ANY($6))
          AND ($7::jsonb IS NULL OR c.tags @> $7)
        ORDER BY c.created_at DESC, c.pk DESC
        LIMIT $8 OFFSET $9
        "#,
        environment.0,
        filter.connection_id,
        search,
        filter.end_user_id,
        filter.organization_id,
        filter.integrations.as_deref(),
        filter.tags,
        limit,
        offset,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(Connection::from).collect())
}

/// Deletes a connection with its schedules and everything else of it but what its syncs kept. `None`: there is none.
pub async fn delete(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    integration: &IntegrationKey,
    id: &ConnectionId,
) -> sqlx::Result<Option<ConnectionPk>> {
    let row = sqlx::query!(
        r#"
        WITH gone AS (
            DELETE FROM connections c USING integrations i
            WHERE i.pk = c.integration_pk AND i.environment_pk = $1 AND i.unique_key = $2 AND c.connection_id = $3
            RETURNING c.pk
        )
        SELECT pk AS "pk!", pg_notify('syncline', 'connection:' || pk)::text AS "none?" FROM gone
        "#,
        environment.0,
        integration.as_str(),
        id.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| ConnectionPk(row.pk)))
}

/// Notes that a client fetched the connection.
pub async fn note_fetched(conn: &mut PgConnection, connection: ConnectionPk) -> sqlx::Result<()> {
    sqlx::query!("UPDATE connections SET last_fetched_at = now() WHERE pk = $1", connection.0)
        .execute(conn)
        .await?;
    Ok(())
}

/// Replaces the metadata, or merges `metadata`'s top-level keys into it.
pub async fn set_metadata(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    metadata: &Value,
    merge: bool,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        UPDATE connections
        SET metadata = CASE WHEN $3 THEN coalesce(metadata, '{}') || $2 ELSE $2 END, updated_at = now()
        WHERE pk = $1
        "#,
        connection.0,
        metadata,
        merge,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A pattern for `ILIKE` that finds `text` anywhere, with its own wildcards taken literally.
fn contains_pattern(text: &str) -> String {
    let escaped = text.replace('\\', r"\\").replace('%', r"\%").replace('_', r"\_");
    format!("%{escaped}%")
}
