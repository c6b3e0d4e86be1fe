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
    Sync { name: &'a str, variant: &'a str },
}

impl Failing<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Self::Auth => "auth",
            Self::Sync { .. } => "sync",
        }
    }

    fn subject(&self) -> String {
        match self {
            Self::Auth => String::new(),
            Self::Sync { name, variant } => format!("{name}::{variant}"),
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

/// A current error of a connection.
#[derive(Debug, Clone)]
pub struct ConnectionError {
    pub connection: ConnectionPk,
    /// `auth` or `sync`.
    pub kind: String,
    pub log_id: Uuid,
    /// The sync that failed. `None` for authentication.
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
        WHERE s.integration_pk = $1 AND s.sync_name = $2 AND e.connection_pk = s.connection_pk AND e.type = 'sync'
          AND e.subject = s.sync_name || '::' || s.variant
        "#,
        integration.0,
        sync.as_str(),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Deletes an error after the authentication or the sync has worked again.
pub async fn clear(
    conn: &mut PgConnection,
    connection: ConnectionPk,
    failing: Failing<'_>,
) -> sqlx::Result<()> {
    sqlx::query!(
        "DELETE FROM connection_errors WHERE connection_pk = $1 AND type = $2 AND subject = $3",
        connection.0,
        failing.kind(),
        failing.subject(),
    )
    .execute(conn)
    .await?;
    Ok(())
}
