//! Hosts that share the database.

use std::time::Duration;

use sqlx::PgConnection;
use sqlx::postgres::types::PgInterval;
use uuid::Uuid;

/// Says that this host is alive, and forgets those that have been silent for long.
pub async fn announce(conn: &mut PgConnection, host: Uuid, version: &str) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        INSERT INTO hosts (id, version) VALUES ($1, $2)
        ON CONFLICT (id) DO UPDATE SET seen_at = now()
        "#,
        host,
        version,
    )
    .execute(&mut *conn)
    .await?;
    sqlx::query!("DELETE FROM hosts WHERE seen_at < now() - interval '1 hour'").execute(conn).await?;
    Ok(())
}

pub async fn leave(conn: &mut PgConnection, host: Uuid) -> sqlx::Result<()> {
    sqlx::query!("DELETE FROM hosts WHERE id = $1", host).execute(conn).await?;
    Ok(())
}

/// An interval for SQL. Longer than any that we use would be needed to fail.
pub(super) fn interval(duration: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: i64::try_from(duration.as_micros()).unwrap_or(i64::MAX) }
}
