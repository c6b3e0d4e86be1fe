//! Lists of an environment's connections.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt;
use serde_json::Value;
use sqlx::PgConnection;

use super::{Connection, ConnectionRow, query_connections};
use crate::pages::{self, json_bytes};
use syncline_types::ids::{ConnectionPk, EnvironmentPk, IntegrationPk};

/// Which connections to list. Members that are `None` do not restrict the list.
#[derive(Debug, Default)]
pub struct ConnectionFilter {
    pub connection_id: Option<String>,
    pub search: Option<String>,
    pub end_user_id: Option<String>,
    pub organization_id: Option<String>,
    pub integrations: Option<Vec<String>>,
    pub tags: Option<Value>,
    pub errors: Option<ErrorFilter>,
    /// Only connections after this position in the list.
    pub behind: Option<ConnectionPosition>,
}

/// Which current errors a connection must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorFilter {
    Any,
    Auth,
    Sync,
}

impl ErrorFilter {
    fn as_str(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Auth => "auth",
            Self::Sync => "sync",
        }
    }
}

/// A position in the list of connections, which is ordered by creation time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionPosition {
    pub created_at: DateTime<Utc>,
    pub pk: ConnectionPk,
}

/// The number of connections of an integration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    pub all: i64,
    /// Those that have an error now.
    pub failing: i64,
}

/// A page of a list.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    pub limit: i64,
    pub offset: i64,
}

/// Lists the rows `c` of `$from` that match the filter. Each variant is a separate statement with its own index,
/// because a generic plan does not depend on the filter's values.
macro_rules! list_rows {
    ($found:literal, $from:literal, $conn:expr, $environment:expr, $filter:expr, $page:expr) => {
        query_connections!(
            $found,
            $from,
            r#"
        WHERE c.environment_pk = $1 AND c.validating_since IS NULL
          AND ($2::text IS NULL OR c.connection_id = $2)
          AND ($3::text IS NULL OR c.end_user->>'id' = $3 OR c.tags->>'end_user_id' = $3)
          AND ($4::text IS NULL OR c.connection_id ILIKE $4
               OR c.end_user->>'display_name' ILIKE $4 OR c.end_user->>'email' ILIKE $4
               OR c.tags->>'end_user_display_name' ILIKE $4 OR c.tags->>'end_user_email' ILIKE $4)
          AND ($5::text IS NULL OR c.end_user->'organization'->>'id' = $5 OR c.tags->>'organization_id' = $5)
          AND ($6::text[] IS NULL OR i.unique_key = ANY($6))
          AND ($7::jsonb IS NULL OR c.tags @> $7)
          AND ($10::text IS NULL OR EXISTS (
              SELECT FROM connection_errors e WHERE e.connection_pk = c.pk AND ($10 = 'any' OR e.type = $10)
          ))
          AND (c.created_at, c.pk) < (coalesce($11, 'infinity'::timestamptz), coalesce($12, 9223372036854775807))
        ORDER BY c.created_at DESC, c.pk DESC
        LIMIT $8 OFFSET $9
        "#,
            $environment.0,
            $filter.connection_id,
            $filter.end_user_id,
            $filter.search.as_deref().map(contains_pattern),
            $filter.organization_id,
            $filter.integrations.as_deref(),
            $filter.tags,
            $page.limit,
            $page.offset,
            $filter.errors.map(ErrorFilter::as_str),
            $filter.behind.map(|place| place.created_at),
            $filter.behind.map(|place| place.pk.0),
        )
        .fetch($conn)
    };
}

/// Lists one page of an environment's connections, newest first. The page ends early at `max_bytes` of metadata and
/// configuration. Filters by connection id, end user or errors use an index. Other filters scan the environment's
/// connections in the order of the list.
pub async fn list(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    filter: &ConnectionFilter,
    page: Page,
    max_bytes: usize,
) -> sqlx::Result<pages::Page<Connection>> {
    let rows = if filter.connection_id.is_some() {
        list_rows!(
            r#"
        WITH found AS MATERIALIZED (
            SELECT * FROM connections WHERE environment_pk = $1 AND connection_id = $2
        )"#,
            "found",
            conn,
            environment,
            filter,
            page
        )
    } else if filter.end_user_id.is_some() {
        list_rows!(
            r#"
        WITH found AS MATERIALIZED (
            SELECT * FROM connections WHERE environment_pk = $1 AND end_user->>'id' = $3
            UNION ALL
            SELECT * FROM connections
            WHERE environment_pk = $1 AND tags->>'end_user_id' = $3 AND end_user->>'id' IS DISTINCT FROM $3
        )"#,
            "found",
            conn,
            environment,
            filter,
            page
        )
    } else if filter.errors.is_some() {
        // Few connections have an error.
        list_rows!(
            r#"
        WITH found AS MATERIALIZED (
            SELECT * FROM connections
            WHERE environment_pk = $1 AND pk IN (
                SELECT connection_pk FROM connection_errors WHERE $10 = 'any' OR type = $10
            )
        )"#,
            "found",
            conn,
            environment,
            filter,
            page
        )
    } else {
        list_rows!("", "connections", conn, environment, filter, page)
    };
    pages::Page::read(rows.map_ok(Connection::from), max_bytes, bytes_of).await
}

/// The approximate size of the parts of a connection that may be long.
fn bytes_of(connection: &Connection) -> usize {
    connection.sealed_credentials.len()
        + json_bytes(&connection.connection_config)
        + json_bytes(&connection.tags)
        + connection.metadata.as_ref().map_or(0, |metadata| metadata.as_str().len())
        + connection.end_user.as_ref().map_or(0, json_bytes)
}

/// Counts the connections of these integrations. Integrations without connections are omitted.
pub async fn count_by_integration(
    conn: &mut PgConnection,
    integrations: &[IntegrationPk],
) -> sqlx::Result<HashMap<IntegrationPk, ConnectionCounts>> {
    let integrations: Vec<i64> = integrations.iter().map(|integration| integration.0).collect();
    let rows = sqlx::query!(
        r#"
        SELECT c.integration_pk, count(*) AS "all!", count(e.connection_pk) AS "failing!"
        FROM connections c
        LEFT JOIN (SELECT DISTINCT connection_pk FROM connection_errors) AS e ON e.connection_pk = c.pk
        WHERE c.integration_pk = ANY($1) AND c.validating_since IS NULL
        GROUP BY c.integration_pk
        "#,
        &integrations,
    )
    .fetch_all(conn)
    .await?;
    let counts = rows.into_iter().map(|row| {
        (IntegrationPk(row.integration_pk), ConnectionCounts { all: row.all, failing: row.failing })
    });
    Ok(counts.collect())
}

/// Returns an `ILIKE` pattern that matches texts containing `text`. Wildcards in `text` are escaped.
fn contains_pattern(text: &str) -> String {
    let escaped = text.replace('\\', r"\\").replace('%', r"\%").replace('_', r"\_");
    format!("%{escaped}%")
}
