//! The encrypted keys that sign an environment's outbound webhooks.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::hosts::interval;
use syncline_types::ids::EnvironmentPk;

#[derive(Debug, Clone)]
pub struct StoredSigningKey {
    pub id: Uuid,
    pub sealed_key: Vec<u8>,
    pub created_at: DateTime<Utc>,
    pub expires_at: Option<DateTime<Utc>>,
}

/// Lists the valid keys, newest first.
pub async fn list_valid(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
) -> sqlx::Result<Vec<StoredSigningKey>> {
    sqlx::query_as!(
        StoredSigningKey,
        r#"
        SELECT id, sealed_key, created_at, expires_at FROM outbound_webhook_signing_keys
        WHERE environment_pk = $1 AND (expires_at IS NULL OR expires_at > now())
        ORDER BY created_at DESC, pk DESC
        "#,
        environment.0,
    )
    .fetch_all(conn)
    .await
}

/// Stores a key that was encrypted for the row `id`, and notifies all hosts.
pub async fn create(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    id: Uuid,
    sealed_key: &[u8],
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        WITH made AS (
            INSERT INTO outbound_webhook_signing_keys (environment_pk, id, sealed_key) VALUES ($1, $2, $3) RETURNING pk
        )
        SELECT pg_notify('syncline', 'environments') FROM made
        "#,
        environment.0,
        id,
        sealed_key,
    )
    .fetch_all(conn)
    .await?;
    Ok(())
}

/// Lets all valid keys expire after this duration, unless they expire earlier. Deletes expired keys.
pub async fn expire_all(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    after: Duration,
) -> sqlx::Result<()> {
    sqlx::query!(
        "DELETE FROM outbound_webhook_signing_keys WHERE environment_pk = $1 AND expires_at <= now()",
        environment.0,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!(
        r#"
        UPDATE outbound_webhook_signing_keys SET expires_at = least(expires_at, now() + $2) WHERE environment_pk = $1
        "#,
        environment.0,
        interval(after),
    )
    .execute(conn)
    .await?;
    Ok(())
}
