//! Integrations: providers set up in an environment.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::deleted_connections;
use syncline_types::ids::{ConnectionPk, EnvironmentPk, IntegrationKey, IntegrationPk, ProviderSlug};

#[derive(Debug, Clone)]
pub struct Integration {
    pub pk: IntegrationPk,
    pub id: Uuid,
    pub environment: EnvironmentPk,
    pub unique_key: IntegrationKey,
    pub provider: ProviderSlug,
    pub display_name: Option<String>,
    pub forward_webhooks: bool,
    pub sealed_credentials: Option<Vec<u8>>,
    pub sealed_settings: Option<Vec<u8>>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// An integration to store. Its credentials and settings are encrypted for the row `id`.
#[derive(Debug)]
pub struct NewIntegration<'a> {
    pub id: Uuid,
    pub environment: EnvironmentPk,
    pub unique_key: &'a IntegrationKey,
    pub provider: &'a ProviderSlug,
    pub display_name: Option<&'a str>,
    pub forward_webhooks: bool,
    pub sealed_credentials: Option<&'a [u8]>,
    pub sealed_settings: Option<&'a [u8]>,
}

/// The new values of an integration.
#[derive(Debug)]
pub struct IntegrationUpdate<'a> {
    pub unique_key: &'a IntegrationKey,
    pub display_name: Option<&'a str>,
    pub forward_webhooks: bool,
    pub sealed_credentials: Option<&'a [u8]>,
    pub sealed_settings: Option<&'a [u8]>,
}

struct IntegrationRow {
    pk: i64,
    id: Uuid,
    environment_pk: i64,
    unique_key: String,
    provider: String,
    display_name: Option<String>,
    forward_webhooks: bool,
    sealed_credentials: Option<Vec<u8>>,
    sealed_settings: Option<Vec<u8>>,
    created_at: DateTime<Utc>,
    updated_at: DateTime<Utc>,
}

impl From<IntegrationRow> for Integration {
    fn from(row: IntegrationRow) -> Self {
        Self {
            pk: IntegrationPk(row.pk),
            id: row.id,
            environment: EnvironmentPk(row.environment_pk),
            unique_key: IntegrationKey::from_stored(row.unique_key),
            provider: ProviderSlug::from_stored(row.provider),
            display_name: row.display_name,
            forward_webhooks: row.forward_webhooks,
            sealed_credentials: row.sealed_credentials,
            sealed_settings: row.sealed_settings,
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

/// Selects all columns of integrations. `$before` is a statement up to `SELECT` or `RETURNING`, and `$after` is the
/// rest.
macro_rules! query_integrations {
    ($before:literal, $after:literal, $($parameter:expr),* $(,)?) => {
        sqlx::query_as!(
            IntegrationRow,
            $before
                + r#" pk, id, environment_pk, unique_key, provider, display_name, forward_webhooks,
                  sealed_credentials, sealed_settings, created_at, updated_at "#
                + $after,
            $($parameter),*
        )
    };
}

/// Stores an integration. Returns `None` if the unique key is taken.
pub async fn create(conn: &mut PgConnection, new: &NewIntegration<'_>) -> sqlx::Result<Option<Integration>> {
    let row = query_integrations!(
        r#"
        INSERT INTO integrations
            (id, environment_pk, unique_key, provider, display_name, forward_webhooks, sealed_credentials,
             sealed_settings)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
        ON CONFLICT ON CONSTRAINT integrations_unique_key DO NOTHING
        RETURNING"#,
        "",
        new.id,
        new.environment.0,
        new.unique_key.as_str(),
        new.provider.as_str(),
        new.display_name,
        new.forward_webhooks,
        new.sealed_credentials,
        new.sealed_settings,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(Integration::from))
}

pub async fn list(conn: &mut PgConnection, environment: EnvironmentPk) -> sqlx::Result<Vec<Integration>> {
    let rows = query_integrations!(
        "SELECT",
        "FROM integrations WHERE environment_pk = $1 ORDER BY pk",
        environment.0,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(Integration::from).collect())
}

pub async fn find(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    key: &IntegrationKey,
) -> sqlx::Result<Option<Integration>> {
    let row = query_integrations!(
        "SELECT",
        "FROM integrations WHERE environment_pk = $1 AND unique_key = $2",
        environment.0,
        key.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(Integration::from))
}

/// Finds the integration to which the URL of an inbound webhook belongs.
pub async fn find_by_address(
    conn: &mut PgConnection,
    environment: Uuid,
    key: &IntegrationKey,
) -> sqlx::Result<Option<Integration>> {
    let row = query_integrations!(
        "SELECT",
        r#"FROM integrations
        WHERE environment_pk = (SELECT e.pk FROM environments e WHERE e.id = $1) AND unique_key = $2"#,
        environment,
        key.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(Integration::from))
}

/// Like [`find`], but also locks the integration until the transaction ends.
pub async fn lock(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    key: &IntegrationKey,
) -> sqlx::Result<Option<Integration>> {
    let row = query_integrations!(
        "SELECT",
        "FROM integrations WHERE environment_pk = $1 AND unique_key = $2 FOR NO KEY UPDATE",
        environment.0,
        key.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(Integration::from))
}

/// Changes an integration. Returns `None` if another integration has the unique key. The transaction has then failed.
pub async fn update(
    conn: &mut PgConnection,
    integration: IntegrationPk,
    update: &IntegrationUpdate<'_>,
) -> sqlx::Result<Option<Integration>> {
    let row = query_integrations!(
        r#"
        UPDATE integrations
        SET unique_key = $2, display_name = $3, forward_webhooks = $4, sealed_credentials = $5, sealed_settings = $6,
            updated_at = now()
        WHERE pk = $1
        RETURNING"#,
        "",
        integration.0,
        update.unique_key.as_str(),
        update.display_name,
        update.forward_webhooks,
        update.sealed_credentials,
        update.sealed_settings,
    )
    .fetch_one(&mut *conn)
    .await;
    match row {
        Ok(row) => {
            notify_changed(conn).await?;
            Ok(Some(row.into()))
        }
        Err(sqlx::Error::Database(error)) if error.constraint() == Some("integrations_unique_key") => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Deletes an integration with its connections and functions, and returns the connections. Returns `None` if it does
/// not exist.
pub async fn delete(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    key: &IntegrationKey,
) -> sqlx::Result<Option<Vec<ConnectionPk>>> {
    // A connection that is being created locks the integration, so the deletion waits for it and includes it.
    let integration = sqlx::query_scalar!(
        "SELECT pk FROM integrations WHERE environment_pk = $1 AND unique_key = $2 FOR UPDATE",
        environment.0,
        key.as_str(),
    )
    .fetch_optional(&mut *conn)
    .await?;
    let Some(integration) = integration else { return Ok(None) };
    let connections =
        sqlx::query_scalar!("SELECT pk FROM connections WHERE integration_pk = $1", integration)
            .fetch_all(&mut *conn)
            .await?;
    let mut connections: Vec<ConnectionPk> = connections.into_iter().map(ConnectionPk).collect();
    // Sorted here, because with `ORDER BY` Postgres would scan the connections of all integrations in that order.
    connections.sort_unstable();
    deleted_connections::note(conn, &connections).await?;
    sqlx::query!("DELETE FROM integrations WHERE pk = $1", integration).execute(&mut *conn).await?;
    sqlx::query!("SELECT pg_notify('syncline', 'deployments')").fetch_one(&mut *conn).await?;
    notify_changed(conn).await?;
    Ok(Some(connections))
}

/// Notifies all hosts that an integration has changed, because their caches contain its unique key.
async fn notify_changed(conn: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("SELECT pg_notify('syncline', 'integrations')").fetch_one(conn).await?;
    Ok(())
}

pub async fn get(conn: &mut PgConnection, pk: IntegrationPk) -> sqlx::Result<Option<Integration>> {
    let row =
        query_integrations!("SELECT", "FROM integrations WHERE pk = $1", pk.0).fetch_optional(conn).await?;
    Ok(row.map(Integration::from))
}
