//! The backoff times that providers have requested.

use std::time::Duration;

use sqlx::PgConnection;

use super::hosts::interval;
use syncline_types::ids::{ConnectionPk, IntegrationPk};

/// The requests that a provider counts together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RateLimitScope {
    pub integration: IntegrationPk,
    /// `None` means all connections of the integration.
    pub connection: Option<ConnectionPk>,
}

/// A backoff, with its remaining time by the database's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub limited: RateLimitScope,
    pub left: Duration,
}

/// The number of requests that a host has sent towards a limit, and the limit's period in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentRequests {
    pub limited: RateLimitScope,
    pub per_seconds: u32,
    pub requests: u32,
}

/// Stores a backoff and notifies all hosts, unless a longer one is known.
pub async fn back_off(conn: &mut PgConnection, back_off: Backoff) -> sqlx::Result<()> {
    let Backoff { limited: RateLimitScope { integration, connection }, left } = back_off;
    let connection = connection.map_or(0, |connection| connection.0);
    let event = format!("hold:{}:{connection}:{}", integration.0, left.as_millis());
    sqlx::query!(
        r#"
        WITH held AS (
            INSERT INTO rate_limits (integration_pk, connection_pk, backoff_until)
            SELECT pk, $2, now() + $3 FROM integrations WHERE pk = $1
            ON CONFLICT (integration_pk, connection_pk) DO UPDATE SET backoff_until = excluded.backoff_until
            WHERE rate_limits.backoff_until < excluded.backoff_until
            RETURNING integration_pk
        )
        SELECT pg_notify('syncline', $4) FROM held
        "#,
        integration.0,
        connection,
        interval(left),
        event,
    )
    .fetch_optional(conn)
    .await?;
    Ok(())
}

/// Lists all current backoffs.
pub async fn list(conn: &mut PgConnection) -> sqlx::Result<Vec<Backoff>> {
    let rows = sqlx::query!(
        r#"
        SELECT integration_pk, connection_pk,
               extract(epoch FROM backoff_until - now())::double precision AS "left!"
        FROM rate_limits WHERE backoff_until > now()
        "#
    )
    .fetch_all(conn)
    .await?;
    let backoffs = rows.into_iter().map(|row| Backoff {
        limited: RateLimitScope::from_stored(row.integration_pk, row.connection_pk),
        left: Duration::try_from_secs_f64(row.left).unwrap_or_default(),
    });
    Ok(backoffs.collect())
}

/// Deletes expired backoffs.
pub async fn delete_over(conn: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("DELETE FROM rate_limits WHERE backoff_until < now()").execute(conn).await?;
    Ok(())
}

impl RateLimitScope {
    fn from_stored(integration: i64, connection: i64) -> Self {
        let connection = (connection != 0).then_some(ConnectionPk(connection));
        Self { integration: IntegrationPk(integration), connection }
    }
}

impl SentRequests {
    /// Returns the text for a notification.
    pub(super) fn to_text(self) -> String {
        let Self { limited: RateLimitScope { integration, connection }, per_seconds, requests } = self;
        format!(
            "{}.{}.{per_seconds}.{requests}",
            integration.0,
            connection.map_or(0, |connection| connection.0)
        )
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let limited = RateLimitScope::from_stored(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let per_seconds = parts.next()?.parse().ok().filter(|seconds| *seconds > 0)?;
        Some(Self { limited, per_seconds, requests: parts.next()?.parse().ok()? })
    }
}

impl Backoff {
    /// Parses the rest of a notification.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':').map(str::parse);
        let mut next = || parts.next()?.ok();
        let (integration, connection, left_ms): (i64, i64, i64) = (next()?, next()?, next()?);
        let left = Duration::from_millis(left_ms.try_into().ok()?);
        Some(Self { limited: RateLimitScope::from_stored(integration, connection), left })
    }
}
