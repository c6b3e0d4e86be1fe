//! The hosts that share the database, and their heartbeats.

use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;
use uuid::Uuid;

/// A host whose last heartbeat is older than this counts as lost.
pub const ALIVE_WITHIN: Duration = Duration::from_secs(15);

/// Stores this host's heartbeat and its encryption keys. Deletes hosts that have been silent for an hour.
pub async fn announce(
    conn: &mut PgConnection,
    host: Uuid,
    version: &str,
    encryption_keys: &[String],
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        INSERT INTO hosts (id, version, encryption_keys) VALUES ($1, $2, $3)
        ON CONFLICT (id) DO UPDATE SET last_heartbeat_at = now()
        "#,
        host,
        version,
        encryption_keys,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!("DELETE FROM hosts WHERE last_heartbeat_at < now() - interval '1 hour'")
        .execute(conn)
        .await?;
    Ok(())
}

pub async fn leave(conn: &mut PgConnection, host: Uuid) -> sqlx::Result<()> {
    sqlx::query!("DELETE FROM hosts WHERE id = $1", host).execute(conn).await?;
    Ok(())
}

/// Whether any host is alive.
pub async fn is_any_alive(conn: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"
        SELECT EXISTS (SELECT FROM hosts WHERE last_heartbeat_at > now() - $1::interval) AS "is_any_alive!"
        "#,
        interval(ALIVE_WITHIN),
    )
    .fetch_one(conn)
    .await
}

/// Returns how many live hosts do not have the encryption key with this id.
pub async fn count_without_encryption_key(conn: &mut PgConnection, id: &str) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"
        SELECT count(*) AS "count!" FROM hosts
        WHERE last_heartbeat_at > now() - $1::interval AND $2 <> ALL (encryption_keys)
        "#,
        interval(ALIVE_WITHIN),
        id,
    )
    .fetch_one(conn)
    .await
}

/// Converts a duration for SQL. Longer durations than an interval can hold become the longest one.
pub(super) fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX) }
}
