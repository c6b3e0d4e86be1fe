//! Connections, each of which links one end user to a provider.

mod list;

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

pub use self::list::{
    ConnectionCounts, ConnectionFilter, ConnectionPosition, ErrorFilter, Page, count_by_integration, list,
};

use super::hosts::interval;
use super::refreshes::{RefreshState, RenewedCredentials};
use syncline_types::ids::{
    ConnectionId, ConnectionPk, EnvironmentPk, IntegrationKey, IntegrationPk, ProviderSlug,
};
use syncline_types::metadata::Metadata;

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
    pub metadata: Option<Metadata>,
    pub tags: Value,
    pub end_user: Option<Value>,
    pub webhook_url_override: Option<String>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
    pub last_fetched_at: Option<DateTime<Utc>>,
    pub refresh: RefreshState,
    /// The log id of the error that the provider rejected the credentials, if there is one.
    pub rejected_log: Option<Uuid>,
}

/// A connection to store. Its credentials are encrypted for the row `id`.
#[derive(Debug)]
pub struct NewConnection<'a> {
    pub id: Uuid,
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub connection_id: &'a ConnectionId,
    pub credentials: &'a RenewedCredentials,
    pub connection_config: &'a Value,
    pub metadata: &'a Metadata,
    pub tags: &'a Value,
    pub end_user: Option<&'a Value>,
    pub webhook_url_override: Option<&'a str>,
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
    metadata: Option<String>,
    tags: Value,
    end_user: Option<Value>,
    webhook_url_override: Option<String>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
    last_fetched_at: Option<DateTime<Utc>>,
    credentials_version: i64,
    refresh_due_at: Option<DateTime<Utc>>,
    credentials_changed_at: DateTime<Utc>,
    credentials_expire_at: Option<DateTime<Utc>>,
    refresh_failed_at: Option<DateTime<Utc>>,
    refresh_failing_days: i32,
    refresh_exhausted: bool,
    rejected_log: Option<Uuid>,
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
            // Postgres has checked that the text is JSON.
            metadata: row.metadata.and_then(|text| Metadata::from_stored(text).ok()),
            tags: row.tags,
            end_user: row.end_user,
            webhook_url_override: row.webhook_url_override,
            created_at: row.created_at,
            updated_at: row.updated_at,
            last_fetched_at: row.last_fetched_at,
            refresh: RefreshState {
                version: row.credentials_version,
                due_at: row.refresh_due_at,
                changed_at: row.credentials_changed_at,
                expire_at: row.credentials_expire_at,
                failed_at: row.refresh_failed_at,
                failing_days: row.refresh_failing_days,
                is_exhausted: row.refresh_exhausted,
            },
            rejected_log: row.rejected_log,
        }
    }
}

/// Selects stored connections from the rows `c` that `$with` and `$from` define.
macro_rules! query_connections {
    ($with:literal, $from:literal, $rest:literal $(+ $more:literal)*, $($parameter:expr),* $(,)?) => {
        sqlx::query_as!(
            ConnectionRow,
            $with
                + r#"
        SELECT c.pk AS "pk!", c.id AS "id!", c.environment_pk AS "environment_pk!",
               c.integration_pk AS "integration_pk!", i.unique_key AS "unique_key!", i.provider AS "provider!",
               c.connection_id AS "connection_id!", c.sealed_credentials AS "sealed_credentials!",
               c.connection_config AS "connection_config!", c.metadata::text AS "metadata?", c.tags AS "tags!",
               c.end_user AS "end_user?", c.webhook_url_override AS "webhook_url_override?",
               c.created_at AS "created_at!", c.updated_at AS "updated_at!", c.last_fetched_at AS "last_fetched_at?",
               c.credentials_version AS "credentials_version!", c.refresh_due_at AS "refresh_due_at?",
               c.credentials_changed_at AS "credentials_changed_at!", c.refresh_failed_at AS "refresh_failed_at?",
               c.credentials_expire_at AS "credentials_expire_at?",
               c.refresh_failing_days AS "refresh_failing_days!", c.refresh_exhausted AS "refresh_exhausted!",
               (SELECT e.log_id FROM connection_errors e
                WHERE e.connection_pk = c.pk AND e.type = 'auth' AND e.subject = ''
                  AND e.code = 'credentials_rejected') AS "rejected_log?"
        FROM "#
                + $from
                + r#" c JOIN integrations i ON i.pk = c.integration_pk
        "#
                + $rest $(+ $more)*,
            $($parameter),*
        )
    };
}
use query_connections;

/// The result of storing a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    Now(ConnectionPk),
    /// The integration already has a connection with this id.
    Before,
    /// The integration was deleted meanwhile. The transaction has failed and must be rolled back.
    IntegrationGone,
}

pub async fn create(conn: &mut PgConnection, new: &NewConnection<'_>) -> sqlx::Result<Created> {
    let created = sqlx::query_scalar!(
        r#"
        INSERT INTO connections
            (id, environment_pk, integration_pk, connection_id, sealed_credentials, connection_config, metadata,
             tags, end_user, webhook_url_override, credentials_expire_at, refresh_due_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7::text::json, $8, $9, $10, $11, $12)
        ON CONFLICT ON CONSTRAINT connections_connection_id DO NOTHING
        RETURNING pk
        "#,
        new.id,
        new.environment.0,
        new.integration.0,
        new.connection_id.as_str(),
        new.credentials.sealed,
        new.connection_config,
        new.metadata.as_str(),
        new.tags,
        new.end_user,
        new.webhook_url_override,
        new.credentials.expire_at,
        new.credentials.due_at,
    )
    .fetch_optional(conn)
    .await;
    match created {
        Ok(Some(pk)) => Ok(Created::Now(ConnectionPk(pk))),
        Ok(None) => Ok(Created::Before),
        Err(sqlx::Error::Database(error)) if error.is_foreign_key_violation() => Ok(Created::IntegrationGone),
        Err(error) => Err(error),
    }
}

/// Whether a connection exists.
pub async fn exists(conn: &mut PgConnection, connection: ConnectionPk) -> sqlx::Result<bool> {
    let found = sqlx::query_scalar!("SELECT pk FROM connections WHERE pk = $1", connection.0);
    Ok(found.fetch_optional(conn).await?.is_some())
}

/// Locks a connection until the transaction ends, if it exists.
pub async fn lock(conn: &mut PgConnection, connection: ConnectionPk) -> sqlx::Result<()> {
    sqlx::query!("SELECT pk FROM connections WHERE pk = $1 FOR NO KEY UPDATE", connection.0)
        .fetch_optional(conn)
        .await?;
    Ok(())
}

/// Whether a connection is being validated and not announced to clients yet. Locks it until the transaction ends.
pub async fn lock_unannounced(conn: &mut PgConnection, connection: ConnectionPk) -> sqlx::Result<bool> {
    let is_unannounced = sqlx::query_scalar!(
        r#"SELECT validating_since IS NOT NULL AS "is_untold!" FROM connections WHERE pk = $1 FOR NO KEY UPDATE"#,
        connection.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(is_unannounced == Some(true))
}

/// Replaces the values of an existing connection. Its id, records and schedules stay. A revalidation or a refresh in
/// progress concerned the old values, so its result no longer counts.
pub async fn replace(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    new: &NewConnection<'_>,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        WITH replaced AS (
            UPDATE connections
            SET sealed_credentials = $2, connection_config = $3, metadata = $4::text::json, tags = $5, end_user = $6,
                webhook_url_override = $7, updated_at = now(), credentials_version = credentials_version + 1,
                credentials_expire_at = $8, refresh_due_at = $9, credentials_changed_at = now(),
                refresh_owner = NULL, refresh_leased_until = NULL, refresh_failed_at = NULL, refresh_failing_days = 0,
                refresh_day_counted_at = NULL, refresh_exhausted = false, validating_since = NULL,
                revalidating_since = NULL, revalidating_host = NULL
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
        new.metadata.as_str(),
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

/// Finds a connection by its integration and connection id. Returns `None` if it does not exist or is being validated.
pub async fn find(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    integration: &IntegrationKey,
    id: &ConnectionId,
) -> sqlx::Result<Option<Connection>> {
    let row = query_connections!(
        "",
        "connections",
        "WHERE i.environment_pk = $1 AND i.unique_key = $2 AND c.connection_id = $3 AND c.validating_since IS NULL",
        environment.0,
        integration.as_str(),
        id.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(Connection::from))
}

/// Finds the connection with this id that a new one replaces, even if it is being validated.
pub async fn find_to_replace(
    conn: &mut PgConnection,
    integration: IntegrationPk,
    id: &ConnectionId,
) -> sqlx::Result<Option<Connection>> {
    let row = query_connections!(
        "",
        "connections",
        "WHERE c.integration_pk = $1 AND c.connection_id = $2",
        integration.0,
        id.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(Connection::from))
}

pub async fn get(conn: &mut PgConnection, pk: ConnectionPk) -> sqlx::Result<Option<Connection>> {
    let row = query_connections!("", "connections", "WHERE c.pk = $1", pk.0).fetch_optional(conn).await?;
    Ok(row.map(Connection::from))
}

/// Returns a connection for a client, and stores that it was fetched.
pub async fn fetch(conn: &mut PgConnection, pk: ConnectionPk) -> sqlx::Result<Option<Connection>> {
    let row = query_connections!(
        r#"
        WITH fetched AS (
            UPDATE connections SET last_fetched_at = now() WHERE pk = $1 RETURNING *
        )"#,
        "fetched",
        "",
        pk.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(Connection::from))
}

/// Lists connections of some integrations of an environment after `after`, ordered by row number.
pub async fn list_of(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    integrations: &[IntegrationPk],
    after: ConnectionPk,
    limit: i64,
) -> sqlx::Result<Vec<Connection>> {
    let integrations: Vec<i64> = integrations.iter().map(|pk| pk.0).collect();
    let rows = query_connections!(
        "",
        "connections",
        r#"WHERE c.environment_pk = $1 AND c.integration_pk = ANY($2) AND c.pk > $3 AND c.validating_since IS NULL
        ORDER BY c.pk LIMIT $4"#,
        environment.0,
        &integrations,
        after.0,
        limit,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(Connection::from).collect())
}

/// Returns the integration and connection id of those of these connections that exist.
pub async fn names(
    conn: &mut PgConnection,
    pks: &[ConnectionPk],
) -> sqlx::Result<Vec<(ConnectionPk, IntegrationKey, ConnectionId)>> {
    let pks: Vec<i64> = pks.iter().map(|pk| pk.0).collect();
    let rows = sqlx::query!(
        r#"
        SELECT c.pk, i.unique_key, c.connection_id
        FROM connections c JOIN integrations i ON i.pk = c.integration_pk
        WHERE c.pk = ANY($1)
        "#,
        &pks,
    )
    .fetch_all(conn)
    .await?;
    let names = rows.into_iter().map(|row| {
        let (key, id) =
            (IntegrationKey::from_stored(row.unique_key), ConnectionId::from_stored(row.connection_id));
        (ConnectionPk(row.pk), key, id)
    });
    Ok(names.collect())
}

/// A change of a connection, apart from its credentials and metadata. Members that are `None` stay.
#[derive(Debug, Default)]
pub struct ConnectionUpdate<'a> {
    /// The whole new end user.
    pub end_user: Option<&'a Value>,
    /// All tags.
    pub tags: Option<&'a Value>,
    /// `Some(None)` removes it.
    pub webhook_url_override: Option<Option<&'a str>>,
}

/// Changes a connection. Returns `false` if it does not exist.
pub async fn update(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    integration: &IntegrationKey,
    id: &ConnectionId,
    update: &ConnectionUpdate<'_>,
) -> sqlx::Result<bool> {
    let updated = sqlx::query!(
        r#"
        UPDATE connections c
        SET end_user = coalesce($4, c.end_user), tags = coalesce($5, c.tags),
            webhook_url_override = CASE WHEN $6 THEN $7 ELSE c.webhook_url_override END, updated_at = now()
        FROM integrations i
        WHERE i.pk = c.integration_pk AND i.environment_pk = $1 AND i.unique_key = $2 AND c.connection_id = $3
          AND c.validating_since IS NULL
        "#,
        environment.0,
        integration.as_str(),
        id.as_str(),
        update.end_user,
        update.tags,
        update.webhook_url_override.is_some(),
        update.webhook_url_override.flatten(),
    )
    .execute(conn)
    .await?;
    Ok(updated.rows_affected() > 0)
}

/// Deletes a connection with its schedules, but not its records. With `validation`, deletes it only while that
/// validation is the current one. Returns `false` if nothing was deleted.
pub async fn delete(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    validation: Option<Validation>,
) -> sqlx::Result<bool> {
    let deleted = sqlx::query!(
        r#"
        WITH gone AS (
            DELETE FROM connections
            WHERE pk = $1 AND ($2::timestamptz IS NULL OR validating_since = $2)
            RETURNING pk
        )
        SELECT pg_notify('syncline', 'connection:' || pk) FROM gone
        "#,
        connection.0,
        validation.map(|validation| validation.0),
    )
    .fetch_optional(conn)
    .await?;
    Ok(deleted.is_some())
}

/// The validation of a new connection, identified by its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validation(DateTime<Utc>);

/// Begins the validation of a connection that was not announced to clients yet.
pub async fn begin_validation(
    conn: &mut PgConnection,
    connection: ConnectionPk,
) -> sqlx::Result<Option<Validation>> {
    let since = sqlx::query_scalar!(
        r#"
        UPDATE connections SET validating_since = clock_timestamp() WHERE pk = $1
        RETURNING validating_since AS "validating_since!"
        "#,
        connection.0,
    )
    .fetch_optional(conn)
    .await?;
    Ok(since.map(Validation))
}

/// Accepts a new connection. Returns `false` if this validation is no longer the current one.
pub async fn end_validation(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    validation: Validation,
) -> sqlx::Result<bool> {
    let ended = sqlx::query!(
        "UPDATE connections SET validating_since = NULL WHERE pk = $1 AND validating_since = $2",
        connection.0,
        validation.0,
    )
    .execute(conn)
    .await?;
    Ok(ended.rows_affected() > 0)
}

/// Lists new connections whose validation began longer ago than this and has not ended.
pub async fn list_unvalidated(
    conn: &mut PgConnection,
    older_than: Duration,
) -> sqlx::Result<Vec<(ConnectionPk, Validation)>> {
    let rows = sqlx::query!(
        r#"
        SELECT pk, validating_since AS "validating_since!" FROM connections
        WHERE validating_since < now() - $1::interval
        LIMIT 100
        "#,
        interval(older_than),
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (ConnectionPk(row.pk), Validation(row.validating_since))).collect())
}

/// The validation of a reconnected connection, identified by its start. Clients can use the connection meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Revalidation(DateTime<Utc>);

/// Begins a validation of a reconnected connection by this host.
pub async fn begin_revalidation(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    host: Uuid,
) -> sqlx::Result<Option<Revalidation>> {
    let since = sqlx::query_scalar!(
        r#"
        UPDATE connections SET revalidating_since = clock_timestamp(), revalidating_host = $2 WHERE pk = $1
        RETURNING revalidating_since AS "revalidating_since!"
        "#,
        connection.0,
        host,
    )
    .fetch_optional(conn)
    .await?;
    Ok(since.map(Revalidation))
}

/// Ends a revalidation, so that its result counts. Returns `false` if it is no longer the current one.
pub async fn end_revalidation(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    revalidation: Revalidation,
) -> sqlx::Result<bool> {
    let ended = sqlx::query!(
        r#"
        UPDATE connections SET revalidating_since = NULL, revalidating_host = NULL
        WHERE pk = $1 AND revalidating_since = $2
        "#,
        connection.0,
        revalidation.0,
    )
    .execute(conn)
    .await?;
    Ok(ended.rows_affected() > 0)
}

/// Takes over revalidations of hosts that have been silent for longer than `silent_for`, and revalidations that began
/// longer ago than `older_than`. The previous revalidations no longer count.
pub async fn take_over_revalidations(
    conn: &mut PgConnection,
    host: Uuid,
    silent_for: Duration,
    older_than: Duration,
    limit: i64,
) -> sqlx::Result<Vec<(ConnectionPk, Revalidation)>> {
    let rows = sqlx::query!(
        r#"
        UPDATE connections c
        SET revalidating_since = clock_timestamp(), revalidating_host = $1
        FROM (
            SELECT pk FROM connections
            WHERE revalidating_since IS NOT NULL
              AND (revalidating_since < now() - $3::interval OR NOT EXISTS (
                  SELECT FROM hosts h
                  WHERE h.id = revalidating_host AND h.last_heartbeat_at > now() - $2::interval
              ))
            LIMIT $4
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS left_behind
        WHERE c.pk = left_behind.pk
        RETURNING c.pk, c.revalidating_since AS "revalidating_since!"
        "#,
        host,
        interval(silent_for),
        interval(older_than),
        limit,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (ConnectionPk(row.pk), Revalidation(row.revalidating_since))).collect())
}

/// Locks and returns those of an integration's connections that have these ids. All callers lock them in the same
/// order.
pub async fn lock_many(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    integration: &IntegrationKey,
    ids: &[ConnectionId],
) -> sqlx::Result<Vec<(ConnectionPk, ConnectionId)>> {
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let rows = sqlx::query!(
        r#"
        -- Apart from each other: plans avoid sorts, and would go through all connections there are in this order.
        WITH found AS MATERIALIZED (
            SELECT c.pk
            FROM unnest($3::text[]) AS wanted (id)
            JOIN integrations i ON i.environment_pk = $1 AND i.unique_key = $2
            JOIN connections c ON c.integration_pk = i.pk AND c.connection_id = wanted.id
        )
        SELECT c.pk, c.connection_id
        FROM (SELECT pk FROM found ORDER BY pk) AS found JOIN connections c ON c.pk = found.pk
        WHERE c.validating_since IS NULL
        FOR NO KEY UPDATE OF c
        "#,
        environment.0,
        integration.as_str(),
        &ids,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (ConnectionPk(row.pk), ConnectionId::from_stored(row.connection_id)))
        .collect())
}

/// Replaces the metadata of these connections.
pub async fn set_metadata(
    conn: &mut PgConnection,
    connections: &[ConnectionPk],
    metadata: &Metadata,
) -> sqlx::Result<()> {
    let connections: Vec<i64> = connections.iter().map(|connection| connection.0).collect();
    sqlx::query!(
        "UPDATE connections SET metadata = $2::text::json, updated_at = now() WHERE pk = ANY($1)",
        &connections,
        metadata.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Locks these connections, and returns the metadata of those that exist.
pub async fn lock_metadata(
    conn: &mut PgConnection,
    connections: &[ConnectionPk],
) -> sqlx::Result<Vec<(ConnectionPk, Metadata)>> {
    let connections: Vec<i64> = connections.iter().map(|connection| connection.0).collect();
    let rows = sqlx::query!(
        r#"
        SELECT c.pk, coalesce(c.metadata, '{}')::text AS "metadata!"
        FROM unnest($1::bigint[]) AS named (pk) JOIN connections c ON c.pk = named.pk
        FOR NO KEY UPDATE OF c
        "#,
        &connections,
    )
    .fetch_all(conn)
    .await?;
    let read = rows.into_iter().map(|row| {
        let metadata = Metadata::from_stored(row.metadata);
        Ok((ConnectionPk(row.pk), metadata.map_err(|error| sqlx::Error::Decode(error.into()))?))
    });
    read.collect()
}

/// Replaces the metadata of each of these connections.
pub async fn set_metadata_of_each(
    conn: &mut PgConnection,
    connections: &[(ConnectionPk, Metadata)],
) -> sqlx::Result<()> {
    let pks: Vec<i64> = connections.iter().map(|(connection, _)| connection.0).collect();
    let texts: Vec<&str> = connections.iter().map(|(_, metadata)| metadata.as_str()).collect();
    sqlx::query!(
        r#"
        UPDATE connections c SET metadata = given.metadata::json, updated_at = now()
        FROM unnest($1::bigint[], $2::text[]) AS given (pk, metadata)
        WHERE c.pk = given.pk
        "#,
        &pks,
        &texts as &[&str],
    )
    .execute(conn)
    .await?;
    Ok(())
}
