//! The secret keys of environments. Only their SHA-256 hashes are stored.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use syncline_types::ids::{EnvironmentPk, KeyPk};

/// A valid key.
#[derive(Debug, Clone)]
pub struct StoredKey {
    pub pk: KeyPk,
    pub id: Uuid,
    pub name: String,
    pub environment: EnvironmentPk,
    pub scopes: Vec<String>,
}

/// A key in lists, without the key itself.
#[derive(Debug, Clone, serde::Serialize)]
pub struct KeyListing {
    pub id: Uuid,
    pub environment: String,
    pub name: String,
    pub prefix: String,
    pub scopes: Vec<String>,
    pub created_at: DateTime<Utc>,
    pub last_used_at: Option<DateTime<Utc>>,
}

/// A key to store.
#[derive(Debug)]
pub struct NewKey<'a> {
    pub environment: EnvironmentPk,
    pub name: &'a str,
    pub prefix: &'a str,
    pub hash: &'a [u8],
    pub scopes: &'a [String],
}

pub async fn find_by_hash(conn: &mut PgConnection, hash: &[u8]) -> sqlx::Result<Option<StoredKey>> {
    let row = sqlx::query!(
        "SELECT pk, id, name, environment_pk, scopes FROM api_keys WHERE hash = $1 AND revoked_at IS NULL",
        hash,
    )
    .fetch_optional(conn)
    .await?;
    Ok(row.map(|row| StoredKey {
        pk: KeyPk(row.pk),
        id: row.id,
        name: row.name,
        environment: EnvironmentPk(row.environment_pk),
        scopes: row.scopes,
    }))
}

/// The values that the database assigned to a new key.
#[derive(Debug, Clone, Copy)]
pub struct CreatedKey {
    pub id: Uuid,
    pub created_at: DateTime<Utc>,
}

/// Stores a key. Returns `None` if the environment has a valid key with this name, or the key itself exists.
pub async fn create(conn: &mut PgConnection, key: &NewKey<'_>) -> sqlx::Result<Option<CreatedKey>> {
    sqlx::query_as!(
        CreatedKey,
        r#"
        INSERT INTO api_keys (environment_pk, name, prefix, hash, scopes) VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT DO NOTHING
        RETURNING id, created_at
        "#,
        key.environment.0,
        key.name,
        key.prefix,
        key.hash,
        key.scopes,
    )
    .fetch_optional(conn)
    .await
}

/// A key that was revoked.
#[derive(Debug, Clone)]
pub struct RevokedKey {
    pub id: Uuid,
    pub name: String,
}

/// Revokes the key with this name if its hash differs from `hash`, and notifies all hosts. Returns the revoked key.
pub async fn revoke_replaced(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    name: &str,
    hash: &[u8],
) -> sqlx::Result<Option<RevokedKey>> {
    let revoked = sqlx::query!(
        r#"
        WITH revoked AS (
            UPDATE api_keys SET revoked_at = now()
            WHERE environment_pk = $1 AND name = $2 AND hash <> $3 AND revoked_at IS NULL
            RETURNING id, name
        )
        SELECT id AS "id!", name AS "name!", pg_notify('syncline', 'keys') FROM revoked
        "#,
        environment.0,
        name,
        hash,
    )
    .fetch_optional(conn)
    .await?;
    Ok(revoked.map(|row| RevokedKey { id: row.id, name: row.name }))
}

/// Revokes a key by its name or public id, and notifies all hosts. Returns the revoked keys: none if no key has this
/// name or id, and two if one key has the id of another as its name.
pub async fn revoke(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    name_or_id: &str,
) -> sqlx::Result<Vec<RevokedKey>> {
    let revoked = sqlx::query!(
        r#"
        WITH revoked AS (
            UPDATE api_keys SET revoked_at = now()
            WHERE environment_pk = $1 AND (name = $2 OR id::text = $2) AND revoked_at IS NULL
            RETURNING id, name
        )
        SELECT id AS "id!", name AS "name!", pg_notify('syncline', 'keys') FROM revoked
        "#,
        environment.0,
        name_or_id,
    )
    .fetch_all(conn)
    .await?;
    Ok(revoked.into_iter().map(|row| RevokedKey { id: row.id, name: row.name }).collect())
}

/// Revokes a key by its public id, and notifies all hosts. Returns `None` if it does not exist.
pub async fn revoke_by_id(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    id: Uuid,
) -> sqlx::Result<Option<RevokedKey>> {
    let revoked = sqlx::query!(
        r#"
        WITH revoked AS (
            UPDATE api_keys SET revoked_at = now()
            WHERE environment_pk = $1 AND id = $2 AND revoked_at IS NULL
            RETURNING id, name
        )
        SELECT id AS "id!", name AS "name!", pg_notify('syncline', 'keys') FROM revoked
        "#,
        environment.0,
        id,
    )
    .fetch_optional(conn)
    .await?;
    Ok(revoked.map(|row| RevokedKey { id: row.id, name: row.name }))
}

/// Lists the valid keys of all environments.
pub async fn list(conn: &mut PgConnection) -> sqlx::Result<Vec<KeyListing>> {
    sqlx::query_as!(
        KeyListing,
        r#"
        SELECT k.id, e.name AS environment, k.name, k.prefix, k.scopes, k.created_at, k.last_used_at
        FROM api_keys k JOIN environments e ON e.pk = k.environment_pk
        WHERE k.revoked_at IS NULL
        ORDER BY k.pk
        "#
    )
    .fetch_all(conn)
    .await
}

/// Lists the valid keys of an environment, in the order of their creation.
pub async fn list_of_environment(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
) -> sqlx::Result<Vec<KeyListing>> {
    sqlx::query_as!(
        KeyListing,
        r#"
        SELECT k.id, e.name AS environment, k.name, k.prefix, k.scopes, k.created_at, k.last_used_at
        FROM api_keys k JOIN environments e ON e.pk = k.environment_pk
        WHERE k.environment_pk = $1 AND k.revoked_at IS NULL
        ORDER BY k.pk
        "#,
        environment.0,
    )
    .fetch_all(conn)
    .await
}

/// Whether the database has any valid key.
pub async fn any_exists(conn: &mut PgConnection) -> sqlx::Result<bool> {
    let found =
        sqlx::query_scalar!(r#"SELECT true AS "found!" FROM api_keys WHERE revoked_at IS NULL LIMIT 1"#)
            .fetch_optional(conn)
            .await?;
    Ok(found.is_some())
}

/// Stores when keys were last used. Callers write in batches, so the time may lag by some seconds.
pub async fn note_used(conn: &mut PgConnection, keys: &[i64]) -> sqlx::Result<()> {
    sqlx::query!("UPDATE api_keys SET last_used_at = now() WHERE pk = ANY($1)", keys).execute(conn).await?;
    Ok(())
}
