//! The contents of deployed bundles, and the keys that bundles must be signed with.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::PgConnection;

use syncline_types::ids::EnvironmentPk;

/// The content of a bundle, with the digests of its components instead of their bytes.
#[derive(Debug, Clone)]
pub struct StoredBundle {
    /// The text of `syncline.toml`.
    pub config: String,
    pub schemas: BTreeMap<String, String>,
    /// As hexadecimal digits, by path.
    pub components: BTreeMap<String, String>,
}

/// Stores the content of a bundle, unless it is stored already.
pub async fn put(conn: &mut PgConnection, digest: &str, bundle: &StoredBundle) -> sqlx::Result<()> {
    sqlx::query!(
        "INSERT INTO bundles (digest, config, schemas, components) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
        digest,
        bundle.config,
        to_json(&bundle.schemas),
        to_json(&bundle.components),
    )
    .execute(conn)
    .await?;
    Ok(())
}

pub async fn find(conn: &mut PgConnection, digest: &str) -> sqlx::Result<Option<StoredBundle>> {
    let row = sqlx::query!("SELECT config, schemas, components FROM bundles WHERE digest = $1", digest)
        .fetch_optional(conn)
        .await?;
    row.map(|row| {
        Ok(StoredBundle {
            config: row.config,
            schemas: from_json(row.schemas)?,
            components: from_json(row.components)?,
        })
    })
    .transpose()
}

/// Loads the bytes of a bundle's components, by path.
pub async fn load_components(
    conn: &mut PgConnection,
    digest: &str,
) -> sqlx::Result<BTreeMap<String, Vec<u8>>> {
    let rows = sqlx::query!(
        r#"
        SELECT listed.key AS "path!", c.wasm
        FROM bundles b CROSS JOIN LATERAL jsonb_each_text(b.components) AS listed
        JOIN components c ON c.digest = decode(listed.value, 'hex')
        WHERE b.digest = $1
        "#,
        digest,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.path, row.wasm)).collect())
}

fn to_json(texts: &BTreeMap<String, String>) -> Value {
    Value::Object(texts.iter().map(|(name, text)| (name.clone(), Value::String(text.clone()))).collect())
}

fn from_json(texts: Value) -> sqlx::Result<BTreeMap<String, String>> {
    serde_json::from_value(texts).map_err(|error| sqlx::Error::Decode(error.into()))
}

/// A public key that an environment trusts.
#[derive(Debug, Clone)]
pub struct StoredBundleKey {
    pub name: String,
    /// As base64.
    pub public_key: String,
    pub created_at: DateTime<Utc>,
}

/// Lists the trusted keys of an environment by name.
pub async fn list_keys(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
) -> sqlx::Result<Vec<StoredBundleKey>> {
    sqlx::query_as!(
        StoredBundleKey,
        "SELECT name, public_key, created_at FROM bundle_keys WHERE environment_pk = $1 ORDER BY name",
        environment.0,
    )
    .fetch_all(conn)
    .await
}

/// Adds a trusted key. Returns `false` if another key has the name.
pub async fn add_key(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    name: &str,
    public_key: &str,
) -> sqlx::Result<bool> {
    let added = sqlx::query!(
        r#"
        INSERT INTO bundle_keys (environment_pk, name, public_key) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING
        "#,
        environment.0,
        name,
        public_key,
    )
    .execute(conn)
    .await?;
    Ok(added.rows_affected() == 1)
}

/// Removes a trusted key. Returns `false` if no key has this name.
pub async fn remove_key(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    name: &str,
) -> sqlx::Result<bool> {
    let removed =
        sqlx::query!("DELETE FROM bundle_keys WHERE environment_pk = $1 AND name = $2", environment.0, name)
            .execute(conn)
            .await?;
    Ok(removed.rows_affected() == 1)
}
