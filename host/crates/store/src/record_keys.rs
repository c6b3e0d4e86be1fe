//! The keys that seal payloads of records, sealed themselves. They lie apart from what they seal.

use sqlx::PgConnection;

use syncline_types::ids::EnvironmentPk;

#[derive(Debug, Clone)]
pub struct StoredRecordKey {
    pub number: i32,
    pub sealed_key: Vec<u8>,
}

/// All of an environment's.
pub async fn list(conn: &mut PgConnection, environment: EnvironmentPk) -> sqlx::Result<Vec<StoredRecordKey>> {
    sqlx::query_as!(
        StoredRecordKey,
        "SELECT number, sealed_key FROM record_keys WHERE environment_pk = $1 ORDER BY number",
        environment.0,
    )
    .fetch_all(conn)
    .await
}

/// Stores a key that was sealed for its number, and tells every host.
pub async fn create(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    number: i32,
    sealed_key: &[u8],
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        WITH made AS (
            INSERT INTO record_keys (environment_pk, number, sealed_key) VALUES ($1, $2, $3) RETURNING number
        )
        SELECT pg_notify('syncline', 'environments') FROM made
        "#,
        environment.0,
        number,
        sealed_key,
    )
    .fetch_all(conn)
    .await?;
    Ok(())
}
