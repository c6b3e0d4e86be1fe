//! Citus, which distributes the tables of the records database over several nodes.
//!
//! Hosts connect to the coordinator. It sends each statement to the node that has the rows of the connection.

use sqlx::PgConnection;

/// The settings of sessions in a records database on Citus that differ from those of other databases.
///
/// Citus plans a statement with its parameters, because they name the node. It cannot make a generic plan for most
/// statements. With `auto`, Postgres tries one and keeps it where Citus can choose the node later.
pub(super) const SESSION: [(&str, &str); 1] = [("plan_cache_mode", "auto")];

/// Whether the extension is installed in this database.
pub(super) async fn is_installed(conn: &mut PgConnection) -> sqlx::Result<bool> {
    sqlx::query_scalar!(
        r#"SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus') AS "is_installed!""#
    )
    .fetch_one(conn)
    .await
}
