//! Encrypted environment variables.

use sqlx::PgConnection;

use syncline_types::ids::EnvironmentPk;

/// Lists names with encrypted values, ordered by name.
pub async fn list(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
) -> sqlx::Result<Vec<(String, Vec<u8>)>> {
    let rows = sqlx::query!(
        "SELECT name, sealed_value FROM environment_variables WHERE environment_pk = $1 ORDER BY name",
        environment.0,
    )
    .fetch_all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.name, row.sealed_value)).collect())
}

pub async fn set(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    name: &str,
    sealed_value: &[u8],
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        INSERT INTO environment_variables (environment_pk, name, sealed_value) VALUES ($1, $2, $3)
        ON CONFLICT (environment_pk, name) DO UPDATE SET sealed_value = excluded.sealed_value, updated_at = now()
        "#,
        environment.0,
        name,
        sealed_value,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Returns `false` if there is no variable with this name.
pub async fn delete(conn: &mut PgConnection, environment: EnvironmentPk, name: &str) -> sqlx::Result<bool> {
    let deleted = sqlx::query!(
        "DELETE FROM environment_variables WHERE environment_pk = $1 AND name = $2",
        environment.0,
        name,
    )
    .execute(conn)
    .await?;
    Ok(deleted.rows_affected() > 0)
}
