//! Integrations: providers set up in an environment.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::ids::{EnvironmentPk, IntegrationKey, IntegrationPk, ProviderSlug};

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
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// An integration to store. Its credentials were sealed for the row `id`.
#[derive(Debug)]
pub struct NewIntegration<'a> {
    pub id: Uuid,
    pub environment: EnvironmentPk,
    pub unique_key: &'a IntegrationKey,
    pub provider: &'a ProviderSlug,
    pub display_name: Option<&'a str>,
    pub forward_webhooks: bool,
    pub sealed_credentials: Option<&'a [u8]>,
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
            created_at: row.created_at,
            updated_at: row.updated_at,
        }
    }
}

/// Stores an integration. `None`: its unique key is taken.
pub async fn create(conn: &mut PgConnection, new: &NewIntegration<'_>) -> sqlx::Result<Option<Integration>> {
    let row = sqlx::query_as!(
        IntegrationRow,
        r#"
        INSERT INTO integrations
            (id, environment_pk, unique_key, provider, display_name, forward_webhooks, sealed_credentials)
        VALUES ($1, $2, $3, $4, $5, $6, $7)
        ON CONFLICT ON CONSTRAINT integrations_unique_key DO NOTHING
        RETURNING pk, id, environment_pk, unique_key, provider, display_name, forward_webhooks,
                  sealed_credentials, created_at, updated_at
        "#,
        new.id,
        new.environment.0,
        new.unique_key.as_str(),
        new.provider.as_str(),
        new.display_name,
        new.forward_webhooks,
        new.sealed_credentials,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(Integration::from))
}

pub async fn list(conn: &mut PgConnection, environment: EnvironmentPk) -> sqlx::Result<Vec<Integration>> {
    let rows = sqlx::query_as!(
        IntegrationRow,
        r#"
        SELECT pk, id, environment_pk, unique_key, provider, display_name, forward_webhooks,
               sealed_credentials, created_at, updated_at
        FROM integrations WHERE environment_pk = $1 ORDER BY pk
        "#,
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
    let row = sqlx::query_as!(
        IntegrationRow,
        r#"
        SELECT pk, id, environment_pk, unique_key, provider, display_name, forward_webhooks,
               sealed_credentials, created_at, updated_at
        FROM integrations WHERE environment_pk = $1 AND unique_key = $2
        "#,
        environment.0,
        key.as_str(),
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(Integration::from))
}
