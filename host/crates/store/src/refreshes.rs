//! Leases for refreshing credentials, and the results of refreshes.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use syncline_types::ids::{ConnectionPk, EnvironmentPk};

/// The state of a connection's refreshes.
#[derive(Debug, Clone, Copy)]
pub struct RefreshState {
    /// Grows whenever the credentials are replaced.
    pub version: i64,
    /// When the background task refreshes the credentials, or `None` if never.
    pub due_at: Option<DateTime<Utc>>,
    /// When the credentials were obtained or imported.
    pub changed_at: DateTime<Utc>,
    /// When the credentials expire, or `None` if never.
    pub expire_at: Option<DateTime<Utc>>,
    pub failed_at: Option<DateTime<Utc>>,
    /// The number of consecutive days on which a refresh failed.
    pub failing_days: i32,
    /// Whether the host has given up: only the end user, who reconnects, or a forced refresh can help.
    pub is_exhausted: bool,
}

/// New credentials, encrypted for the connection's row.
#[derive(Debug, Clone)]
pub struct RenewedCredentials {
    pub sealed: Vec<u8>,
    pub expire_at: Option<DateTime<Utc>>,
    pub due_at: Option<DateTime<Utc>>,
}

/// A connection whose credentials are due for a refresh.
#[derive(Debug, Clone, Copy)]
pub struct DueRefresh {
    pub connection: ConnectionPk,
    pub environment: EnvironmentPk,
}

/// Claims the refresh of the credentials with this version. Returns `false` if another host has the lease, or the
/// credentials were replaced.
pub async fn take_lease(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    version: i64,
    owner: Uuid,
    seconds: f64,
) -> sqlx::Result<bool> {
    let claimed = sqlx::query!(
        r#"
        UPDATE connections SET refresh_owner = $3, refresh_leased_until = now() + make_interval(secs => $4)
        WHERE pk = $1 AND credentials_version = $2
          AND (refresh_leased_until IS NULL OR refresh_leased_until <= now())
        "#,
        connection.0,
        version,
        owner,
        seconds,
    )
    .execute(conn)
    .await?;
    Ok(claimed.rows_affected() == 1)
}

/// Replaces the credentials of this version, and deletes the connection's authentication errors. Returns `false` if
/// they were replaced meanwhile. An expired lease does not matter, because the version shows whether another refresh
/// came first.
pub async fn succeed(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    version: i64,
    renewed: &RenewedCredentials,
) -> sqlx::Result<bool> {
    let stored = sqlx::query!(
        r#"
        WITH renewed AS (
            UPDATE connections
            SET sealed_credentials = $3, credentials_version = credentials_version + 1,
                credentials_expire_at = $4, refresh_due_at = $5, credentials_changed_at = now(),
                refresh_owner = NULL, refresh_leased_until = NULL, refresh_failed_at = NULL,
                refresh_failing_days = 0, refresh_day_counted_at = NULL, refresh_exhausted = false, updated_at = now()
            WHERE pk = $1 AND credentials_version = $2
            RETURNING pk
        )
        SELECT pg_notify('syncline', 'connection:' || pk) FROM renewed
        "#,
        connection.0,
        version,
        renewed.sealed,
        renewed.expire_at,
        renewed.due_at,
    )
    .fetch_all(&mut *conn)
    .await?;
    if stored.is_empty() {
        return Ok(false);
    }
    // A separate statement also sees an error that was committed while the first one waited for the row.
    sqlx::query!("DELETE FROM connection_errors WHERE connection_pk = $1 AND type = 'auth'", connection.0)
        .execute(conn)
        .await?;
    Ok(true)
}

/// Releases the lease after a failure. Each day with failures is counted once. After `max_failing_days` days, the
/// background task gives up. Returns `false` if the credentials of this version were replaced meanwhile, or another
/// refresh of them has begun: then the failure no longer concerns the connection.
pub async fn fail(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    version: i64,
    owner: Uuid,
    max_failing_days: i32,
) -> sqlx::Result<bool> {
    let noted = sqlx::query!(
        r#"
        UPDATE connections c
        SET refresh_owner = NULL, refresh_leased_until = NULL, refresh_failed_at = now(),
            refresh_failing_days = refresh_failing_days + counted.is_new_day::int,
            refresh_day_counted_at = CASE WHEN counted.is_new_day THEN now() ELSE refresh_day_counted_at END,
            refresh_exhausted = refresh_failing_days + counted.is_new_day::int >= $4
        FROM (
            SELECT pk, refresh_day_counted_at IS NULL OR refresh_day_counted_at <= now() - interval '1 day'
                       AS is_new_day
            FROM connections WHERE pk = $1
        ) AS counted
        WHERE c.pk = counted.pk AND c.credentials_version = $2 AND c.refresh_owner = $3
        "#,
        connection.0,
        version,
        owner,
        max_failing_days,
    )
    .execute(conn)
    .await?;
    Ok(noted.rows_affected() == 1)
}

/// Marks credentials of this version that cannot be refreshed. Returns `false` if they were replaced meanwhile, or
/// were marked before.
pub async fn give_up(conn: &mut PgConnection, connection: ConnectionPk, version: i64) -> sqlx::Result<bool> {
    let marked = sqlx::query!(
        r#"
        UPDATE connections SET refresh_exhausted = true
        WHERE pk = $1 AND credentials_version = $2 AND NOT refresh_exhausted
        "#,
        connection.0,
        version,
    )
    .execute(conn)
    .await?;
    Ok(marked.rows_affected() == 1)
}

/// Lists the connections whose credentials are due for a refresh, longest overdue first.
pub async fn list_due(
    conn: &mut PgConnection,
    retry_after_seconds: f64,
    limit: i64,
) -> sqlx::Result<Vec<DueRefresh>> {
    let rows = sqlx::query!(
        r#"
        SELECT pk, environment_pk FROM connections
        WHERE refresh_due_at <= now() AND NOT refresh_exhausted
          AND (refresh_leased_until IS NULL OR refresh_leased_until <= now())
          AND (refresh_failed_at IS NULL OR refresh_failed_at <= now() - make_interval(secs => $1))
        ORDER BY refresh_due_at LIMIT $2
        "#,
        retry_after_seconds,
        limit,
    )
    .fetch_all(conn)
    .await?;
    let due = rows.into_iter().map(|row| DueRefresh {
        connection: ConnectionPk(row.pk),
        environment: EnvironmentPk(row.environment_pk),
    });
    Ok(due.collect())
}
