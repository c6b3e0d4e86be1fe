//! Lists of an environment's connections.

use serde_json::Value;
use sqlx::PgConnection;

use super::{Connection, ConnectionRow, query_connections};
use syncline_types::ids::EnvironmentPk;

/// Which connections to list. Members that are `None` do not restrict the list.
#[derive(Debug, Default)]
pub struct ConnectionFilter {
    pub connection_id: Option<String>,
    pub search: Option<String>,
    pub end_user_id: Option<String>,
    pub organization_id: Option<String>,
    pub integrations: Option<Vec<String>>,
    pub tags: Option<Value>,
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
        )
        .fetch_all($conn)
        .await
    };
}

/// Lists one page of an environment's connections, newest first. Filters by connection id or end user use an index.
/// Other filters scan the environment's connections in the order of the list.
pub async fn list(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    filter: &ConnectionFilter,
    page: Page,
) -> sqlx::Result<Vec<Connection>> {
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
    } else {
        list_rows!("", "connections", conn, environment, filter, page)
    };
    Ok(rows?.into_iter().map(Connection::from).collect())
}

/// Returns an `ILIKE` pattern that matches texts containing `text`. Wildcards in `text` are escaped.
fn contains_pattern(text: &str) -> String {
    let escaped = text.replace('\\', r"\\").replace('%', r"\%").replace('_', r"\_");
    format!("%{escaped}%")
}
