//! Connect sessions: permissions for end users to connect accounts for a limited time.

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use syncline_types::ids::{ConnectSessionPk, ConnectionId, ConnectionPk, EnvironmentPk, IntegrationKey};

const CONNECTION_EXISTS: &str = "connect_sessions_reconnects_pk_fkey";

/// A valid session.
#[derive(Debug)]
pub struct StoredSession {
    pub pk: ConnectSessionPk,
    pub id: Uuid,
    pub environment: EnvironmentPk,
    pub end_user: Option<Value>,
    pub tags: Value,
    /// `None` allows all integrations of the environment.
    pub allowed_integrations: Option<Vec<IntegrationKey>>,
    pub integrations_config_defaults: Value,
    pub overrides: Value,
    pub webhook_url_override: Option<String>,
    pub reconnects: Option<Reconnected>,
    pub expires_at: DateTime<Utc>,
}

/// The connection that a session reconnects.
#[derive(Debug, Clone)]
pub struct Reconnected {
    pub pk: ConnectionPk,
    pub connection_id: ConnectionId,
    pub integration: IntegrationKey,
    pub end_user: Option<Value>,
}

/// A session to store.
#[derive(Debug)]
pub struct NewSession<'a> {
    pub id: Uuid,
    pub environment: EnvironmentPk,
    pub token_hash: [u8; 32],
    pub end_user: Option<&'a Value>,
    pub tags: &'a Value,
    pub allowed_integrations: Option<&'a [IntegrationKey]>,
    pub integrations_config_defaults: &'a Value,
    pub overrides: &'a Value,
    pub webhook_url_override: Option<&'a str>,
    pub reconnects: Option<ConnectionPk>,
    pub lifetime_seconds: i32,
}

/// Stores a session and returns when it expires. Returns `None` if the connection to reconnect was deleted.
pub async fn create(conn: &mut PgConnection, new: &NewSession<'_>) -> sqlx::Result<Option<DateTime<Utc>>> {
    let allowed: Option<Vec<String>> =
        new.allowed_integrations.map(|keys| keys.iter().map(ToString::to_string).collect());
    let created = sqlx::query_scalar!(
        r#"
        INSERT INTO connect_sessions
            (id, environment_pk, token_hash, end_user, tags, allowed_integrations, integrations_config_defaults,
             overrides, webhook_url_override, reconnects_pk, expires_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, now() + make_interval(secs => $11))
        RETURNING expires_at
        "#,
        new.id,
        new.environment.0,
        new.token_hash.as_slice(),
        new.end_user,
        new.tags,
        allowed.as_deref() as Option<&[String]>,
        new.integrations_config_defaults,
        new.overrides,
        new.webhook_url_override,
        new.reconnects.map(|connection| connection.0),
        f64::from(new.lifetime_seconds),
    )
    .fetch_one(conn)
    .await;
    match created {
        Ok(expires_at) => Ok(Some(expires_at)),
        Err(sqlx::Error::Database(error)) if error.constraint() == Some(CONNECTION_EXISTS) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Finds the session with this token, unless it has expired.
pub async fn find(conn: &mut PgConnection, token_hash: &[u8]) -> sqlx::Result<Option<StoredSession>> {
    let row = sqlx::query!(
        r#"
        SELECT s.pk, s.id, s.environment_pk, s.end_user, s.tags, s.allowed_integrations,
               s.integrations_config_defaults, s.overrides, s.webhook_url_override, s.expires_at,
               c.pk AS "reconnects_pk?", c.connection_id AS "connection_id?", c.end_user AS "connected_user?",
               i.unique_key AS "unique_key?"
        FROM connect_sessions s
        LEFT JOIN connections c ON c.pk = s.reconnects_pk
        LEFT JOIN integrations i ON i.pk = c.integration_pk
        WHERE s.token_hash = $1 AND s.expires_at > now()
        "#,
        token_hash,
    )
    .fetch_optional(conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let reconnects = match (row.reconnects_pk, row.connection_id, row.unique_key) {
        (Some(pk), Some(connection_id), Some(unique_key)) => Some(Reconnected {
            pk: ConnectionPk(pk),
            connection_id: ConnectionId::from_stored(connection_id),
            integration: IntegrationKey::from_stored(unique_key),
            end_user: row.connected_user,
        }),
        _ => None,
    };
    Ok(Some(StoredSession {
        pk: ConnectSessionPk(row.pk),
        id: row.id,
        environment: EnvironmentPk(row.environment_pk),
        end_user: row.end_user,
        tags: row.tags,
        allowed_integrations: row
            .allowed_integrations
            .map(|keys| keys.into_iter().map(IntegrationKey::from_stored).collect()),
        integrations_config_defaults: row.integrations_config_defaults,
        overrides: row.overrides,
        webhook_url_override: row.webhook_url_override,
        reconnects,
        expires_at: row.expires_at,
    }))
}

/// Deletes a session, so that its token is no longer valid.
pub async fn delete(conn: &mut PgConnection, session: ConnectSessionPk) -> sqlx::Result<()> {
    sqlx::query!("DELETE FROM connect_sessions WHERE pk = $1", session.0).execute(conn).await?;
    Ok(())
}

/// Deletes sessions that expired this many seconds ago, with their authorizations. Returns their number.
pub async fn delete_ended(conn: &mut PgConnection, seconds_ago: i32) -> sqlx::Result<u64> {
    let deleted = sqlx::query!(
        "DELETE FROM connect_sessions WHERE expires_at < now() - make_interval(secs => $1)",
        f64::from(seconds_ago),
    )
    .execute(conn)
    .await?;
    Ok(deleted.rows_affected())
}
