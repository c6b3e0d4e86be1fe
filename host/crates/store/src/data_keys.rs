//! The wrapped versions of environments' data keys, and which versions each host knows.

use sqlx::PgConnection;
use uuid::Uuid;

use super::hosts::{ALIVE_WITHIN, interval};
use syncline_types::ids::EnvironmentPk;

#[derive(Debug, Clone)]
pub struct StoredVersion {
    pub environment: EnvironmentPk,
    pub environment_id: Uuid,
    pub version: i32,
    pub wrapped_key: Vec<u8>,
    pub is_active: bool,
}

/// The versions of an environment's data key that a host knows.
#[derive(Debug, Clone, Copy)]
pub struct KnownVersions {
    pub environment: EnvironmentPk,
    pub newest: i32,
    pub active: i32,
}

/// Lists all versions of all environments.
pub async fn list(conn: &mut PgConnection) -> sqlx::Result<Vec<StoredVersion>> {
    let rows = sqlx::query!(
        r#"
        SELECT e.pk, e.id, v.version, v.wrapped_key, v.is_active
        FROM environments e JOIN data_key_versions v ON v.environment_pk = e.pk
        ORDER BY e.pk, v.version
        "#
    )
    .fetch_all(conn)
    .await?;
    let versions = rows.into_iter().map(|row| StoredVersion {
        environment: EnvironmentPk(row.pk),
        environment_id: row.id,
        version: row.version,
        wrapped_key: row.wrapped_key,
        is_active: row.is_active,
    });
    Ok(versions.collect())
}

/// Stores a version and notifies all hosts.
pub async fn create(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    version: i32,
    wrapped_key: &[u8],
    is_active: bool,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        WITH made AS (
            INSERT INTO data_key_versions (environment_pk, version, wrapped_key, is_active)
            VALUES ($1, $2, $3, $4)
            RETURNING version
        )
        SELECT pg_notify('syncline', 'environments') FROM made
        "#,
        environment.0,
        version,
        wrapped_key,
        is_active,
    )
    .fetch_all(conn)
    .await?;
    Ok(())
}

/// Makes a version the active one, which encrypts new values, and notifies all hosts. Returns `false` if it is the
/// active one already.
pub async fn activate(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    version: i32,
) -> sqlx::Result<bool> {
    let replaced = sqlx::query!(
        "UPDATE data_key_versions SET is_active = false WHERE environment_pk = $1 AND is_active AND version <> $2",
        environment.0,
        version,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!(
        r#"
        WITH activated AS (
            UPDATE data_key_versions SET is_active = true WHERE environment_pk = $1 AND version = $2
            RETURNING version
        )
        SELECT pg_notify('syncline', 'environments') FROM activated
        "#,
        environment.0,
        version,
    )
    .fetch_all(conn)
    .await?;
    Ok(replaced.rows_affected() > 0)
}

/// Replaces the wrapped form of a version. Returns `false` if it has changed since it was read.
pub async fn replace_wrapped(
    conn: &mut PgConnection,
    version: &StoredVersion,
    wrapped_key: &[u8],
) -> sqlx::Result<bool> {
    let replaced = sqlx::query!(
        r#"
        UPDATE data_key_versions SET wrapped_key = $4
        WHERE environment_pk = $1 AND version = $2 AND wrapped_key = $3
        "#,
        version.environment.0,
        version.version,
        version.wrapped_key,
        wrapped_key,
    )
    .execute(conn)
    .await?;
    Ok(replaced.rows_affected() > 0)
}

/// Deletes the versions before this one. Returns `false`, and deletes nothing, if a stored value still needs one of
/// them.
pub async fn remove_before(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    version: i32,
) -> sqlx::Result<bool> {
    let removed = sqlx::query!(
        "DELETE FROM data_key_versions WHERE environment_pk = $1 AND version < $2",
        environment.0,
        version,
    )
    .execute(conn)
    .await;
    match removed {
        Ok(_) => Ok(true),
        Err(sqlx::Error::Database(error)) if error.is_foreign_key_violation() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Stores which versions a host knows.
pub async fn confirm(conn: &mut PgConnection, host: Uuid, known: &[KnownVersions]) -> sqlx::Result<()> {
    let environments: Vec<i64> = known.iter().map(|known| known.environment.0).collect();
    let newest: Vec<i32> = known.iter().map(|known| known.newest).collect();
    let active: Vec<i32> = known.iter().map(|known| known.active).collect();
    sqlx::query!(
        r#"
        INSERT INTO data_key_hosts (environment_pk, host_id, newest_version, active_version)
        SELECT k.environment_pk, h.id, k.newest, k.active
        FROM unnest($2::bigint[], $3::int[], $4::int[]) AS k(environment_pk, newest, active)
        JOIN environments e ON e.pk = k.environment_pk
        JOIN hosts h ON h.id = $1
        ON CONFLICT (environment_pk, host_id) DO UPDATE
        SET newest_version = excluded.newest_version, active_version = excluded.active_version
        "#,
        host,
        &environments,
        &newest,
        &active,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Returns how many live hosts do not know this version yet or, with `as_active`, do not encrypt with it yet.
pub async fn count_unaware_hosts(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    version: i32,
    as_active: bool,
) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"
        SELECT count(*) AS "count!" FROM hosts h
        WHERE h.last_heartbeat_at > now() - $4::interval
          AND NOT EXISTS (
              SELECT FROM data_key_hosts k
              WHERE k.environment_pk = $1 AND k.host_id = h.id
                AND CASE WHEN $3 THEN k.active_version ELSE k.newest_version END >= $2
          )
        "#,
        environment.0,
        version,
        as_active,
        interval(ALIVE_WITHIN),
    )
    .fetch_one(conn)
    .await
}
