//! The encrypted record keys of environments. They are in the control database, apart from the payloads that they
//! encrypt.

use sqlx::PgConnection;

use syncline_types::ids::EnvironmentPk;

#[derive(Debug, Clone)]
pub struct StoredRecordKey {
    pub number: i32,
    pub sealed_key: Vec<u8>,
}

/// Lists the record keys of an environment.
pub async fn list(conn: &mut PgConnection, environment: EnvironmentPk) -> sqlx::Result<Vec<StoredRecordKey>> {
    sqlx::query_as!(
        StoredRecordKey,
        "SELECT number, sealed_key FROM record_keys WHERE environment_pk = $1 ORDER BY number",
        environment.0,
    )
    .fetch_all(conn)
    .await
}

/// Stores an encrypted record key and notifies all hosts.
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
