//! Environments, and the facts of the installation as a whole.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::ids::{EnvironmentName, EnvironmentPk};

/// A row of `environments`; the data key is still wrapped.
#[derive(Debug, Clone)]
pub struct StoredEnvironment {
    pub pk: EnvironmentPk,
    pub id: Uuid,
    pub name: EnvironmentName,
    pub wrapped_data_key: Vec<u8>,
}

pub async fn list(conn: &mut PgConnection) -> sqlx::Result<Vec<StoredEnvironment>> {
    let rows =
        sqlx::query!("SELECT pk, id, name, data_key FROM environments ORDER BY pk").fetch_all(conn).await?;
    let environments = rows.into_iter().map(|row| StoredEnvironment {
        pk: EnvironmentPk(row.pk),
        id: row.id,
        name: EnvironmentName::from_stored(row.name),
        wrapped_data_key: row.data_key,
    });
    Ok(environments.collect())
}

/// Makes the environment unless there is one of that name.
pub async fn create_if_missing(
    conn: &mut PgConnection,
    id: Uuid,
    name: &EnvironmentName,
    wrapped_data_key: &[u8],
) -> sqlx::Result<()> {
    sqlx::query!(
        "INSERT INTO environments (id, name, data_key) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING",
        id,
        name.as_str(),
        wrapped_data_key,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Notes a fact of the installation unless it is known, and gives what is known.
pub async fn remember_fact(conn: &mut PgConnection, name: &str, value: &str) -> sqlx::Result<String> {
    sqlx::query_scalar!(
        r#"
        INSERT INTO installation (name, value) VALUES ($1, $2)
        ON CONFLICT (name) DO UPDATE SET value = installation.value
        RETURNING value
        "#,
        name,
        value,
    )
    .fetch_one(conn)
    .await
}
