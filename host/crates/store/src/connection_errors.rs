//! The current errors of connections.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionPk, FunctionName, IntegrationPk, Variant};

/// The part of a connection that has an error.
#[derive(Debug, Clone, Copy)]
pub enum Failing<'a> {
    Auth,
    /// The provider denies a sync access, although it may accept the credentials for other requests.
    Access {
        name: &'a str,
        variant: &'a str,
    },
    Sync {
        name: &'a str,
        variant: &'a str,
    },
}

impl Failing<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Self::Auth | Self::Access { .. } => "auth",
            Self::Sync { .. } => "sync",
        }
    }

    fn subject(&self) -> String {
        match self {
            Self::Auth => String::new(),
            Self::Access { name, variant } | Self::Sync { name, variant } => format!("{name}::{variant}"),
        }
    }
}

/// Stores an error, and replaces the previous one. Returns `true` if there was none.
pub async fn set(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    failing: Failing<'_>,
    log_id: Uuid,
    code: ErrorCode,
    message: &str,
) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"
        INSERT INTO connection_errors (environment_pk, connection_pk, type, subject, log_id, code, message)
        SELECT environment_pk, pk, $2, $3, $4, $5, $6 FROM connections WHERE pk = $1
        ON CONFLICT (connection_pk, type, subject)
            DO UPDATE SET log_id = excluded.log_id, code = excluded.code, message = excluded.message
        RETURNING (xmax = 0) AS "is_new!"
        "#,
        connection.0,
        failing.kind(),
        failing.subject(),
        log_id,
        code.as_str(),
        message,
    )
    .fetch_optional(conn)
    .await
    .map(|is_new| is_new.unwrap_or(false))
}

/// The rejection of a connection's credentials by its provider.
#[derive(Debug)]
pub struct Rejection<'a> {
    pub connection: ConnectionPk,
    /// The version of the rejected credentials.
    pub version: i64,
    /// [`Failing::Auth`] or [`Failing::Access`].
    pub failing: Failing<'a>,
    pub log_id: Uuid,
    pub code: ErrorCode,
    pub message: &'a str,
}

/// Stores that the provider rejected the connection's credentials. Returns `true` if the connection had no such error.
///
/// Stores nothing if the credentials were replaced meanwhile or are being validated, or if the connection has another
/// authentication error: a failed refresh says more about the cause.
pub async fn set_rejected(conn: &mut PgConnection, rejection: &Rejection<'_>) -> sqlx::Result<bool> {
    // The lock orders this with a reconnect or a refresh, which deletes the errors of the former credentials.
    sqlx::query_scalar!(
        r#"
        WITH current AS (
            SELECT pk, environment_pk FROM connections
            WHERE pk = $1 AND credentials_version = $2 AND validating_since IS NULL AND revalidating_since IS NULL
            FOR NO KEY UPDATE
        )
        INSERT INTO connection_errors (environment_pk, connection_pk, type, subject, log_id, code, message)
        SELECT environment_pk, pk, $3, $4, $5, $6, $7 FROM current
        ON CONFLICT (connection_pk, type, subject)
            DO UPDATE SET log_id = excluded.log_id, message = excluded.message
            WHERE connection_errors.code = excluded.code
        RETURNING (xmax = 0) AS "is_new!"
        "#,
        rejection.connection.0,
        rejection.version,
        rejection.failing.kind(),
        rejection.failing.subject(),
        rejection.log_id,
        rejection.code.as_str(),
        rejection.message,
    )
    .fetch_optional(conn)
    .await
    .map(|is_new| is_new.unwrap_or(false))
}

/// Deletes an error that [`set_rejected`] stored, unless it was stored again for a later run.
pub async fn clear_rejected(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    log_id: Uuid,
) -> sqlx::Result<()> {
    sqlx::query!(
        "DELETE FROM connection_errors WHERE connection_pk = $1 AND type = 'auth' AND subject = '' AND log_id = $2",
        connection.0,
        log_id,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// A current error of a connection.
#[derive(Debug, Clone)]
pub struct ConnectionError {
    pub connection: ConnectionPk,
    /// `auth` or `sync`.
    pub kind: String,
    pub log_id: Uuid,
    /// The sync that failed. `None` if the error concerns the whole connection.
    pub sync: Option<(FunctionName, Variant)>,
    /// The text of an error code. A newer host may have stored a code that this one does not know.
    pub code: String,
    pub message: String,
    /// When the first of these errors occurred.
    pub since: DateTime<Utc>,
}

/// Lists the errors of these connections, oldest first.
pub async fn list(
    conn: &mut PgConnection,
    connections: &[ConnectionPk],
) -> sqlx::Result<Vec<ConnectionError>> {
    let connections: Vec<i64> = connections.iter().map(|connection| connection.0).collect();
    let rows = sqlx::query!(
        r#"
        SELECT connection_pk, type, subject, log_id, code, message, created_at
        FROM connection_errors WHERE connection_pk = ANY($1)
        ORDER BY created_at, type, subject
        "#,
        &connections,
    )
    .fetch_all(conn)
    .await?;
    let errors = rows.into_iter().map(|row| {
        let sync = row.subject.split_once("::").map(|(name, variant)| {
            (FunctionName::from_stored(name.to_owned()), Variant::from_stored(variant.to_owned()))
        });
        ConnectionError {
            connection: ConnectionPk(row.connection_pk),
            kind: row.r#type,
            log_id: row.log_id,
            sync,
            code: row.code,
            message: row.message,
            since: row.created_at,
        }
    });
    Ok(errors.collect())
}

/// Deletes the errors of a sync that is no longer deployed. Must be called before its schedules are deleted.
pub async fn clear_sync(
    conn: &mut PgConnection,
    integration: IntegrationPk,
    sync: &FunctionName,
) -> sqlx::Result<()> {
    sqlx::query!(
        r#"
        DELETE FROM connection_errors e USING schedules s
        WHERE s.integration_pk = $1 AND s.sync_name = $2 AND e.connection_pk = s.connection_pk
          AND e.subject = s.sync_name || '::' || s.variant
        "#,
        integration.0,
        sync.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Deletes the errors of a sync after it has worked again.
pub async fn clear(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    sync: &str,
    variant: &str,
) -> sqlx::Result<()> {
    sqlx::query!(
        "DELETE FROM connection_errors WHERE connection_pk = $1 AND subject = $2",
        connection.0,
        Failing::Sync { name: sync, variant }.subject(),
    )
    .execute(conn)
    .await?;
    Ok(())
}
