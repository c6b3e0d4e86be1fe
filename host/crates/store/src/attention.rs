//! Counts what an operator should look at. Each count stops at [`MOST`] and reads an index that contains only the rows
//! to count.

use sqlx::PgConnection;

use syncline_types::error_code::ErrorCode;
use syncline_types::ids::EnvironmentPk;

/// The highest number that is counted. A result with this value means: this many or more.
pub const MOST: i64 = 1_000;

/// Problems in the control database.
#[derive(Debug, Clone, Copy)]
pub struct Problems {
    /// Connections with an error of their authentication or of a sync.
    pub connections: i64,
    /// Syncs of connections, by variant, whose latest run failed.
    pub syncs: i64,
    /// Runs whose deletions wait for an approval.
    pub held_deletions: i64,
    /// Outbound webhooks that were given up.
    pub deliveries: i64,
}

/// Counts problems in the control database.
pub async fn count(conn: &mut PgConnection, environment: EnvironmentPk) -> sqlx::Result<Problems> {
    sqlx::query_as!(
        Problems,
        r#"
        SELECT
            (SELECT count(*) FROM (
                SELECT DISTINCT connection_pk FROM connection_errors WHERE environment_pk = $1
                ORDER BY connection_pk DESC LIMIT $2
            ) AS failing) AS "connections!",
            (SELECT count(*) FROM (
                SELECT FROM connection_errors WHERE environment_pk = $1 AND type = 'sync' ORDER BY code LIMIT $2
            ) AS failing) AS "syncs!",
            -- The error of the sync stays until its next run, also if the deletions were approved meanwhile.
            (SELECT count(*) FROM (
                SELECT FROM connection_errors e JOIN runs r ON r.id = e.log_id
                WHERE e.environment_pk = $1 AND e.type = 'sync' AND e.code = $3 AND r.approved_at IS NULL
                LIMIT $2
            ) AS held) AS "held_deletions!",
            (SELECT count(*) FROM (
                SELECT FROM outbound_webhook_deliveries WHERE environment_pk = $1 AND state = 'failed'
                ORDER BY pk DESC LIMIT $2
            ) AS failed) AS "deliveries!"
        "#,
        environment.0,
        MOST,
        ErrorCode::MassDeletionHeld.as_str(),
    )
    .fetch_one(conn)
    .await
}

/// Counts dead letters, in the records database.
pub async fn count_dead_letters(conn: &mut PgConnection, environment: EnvironmentPk) -> sqlx::Result<i64> {
    sqlx::query_scalar!(
        r#"
        SELECT count(*) AS "count!" FROM (
            SELECT number FROM dead_letters WHERE environment_pk = $1 ORDER BY number LIMIT $2
        ) AS letters
        "#,
        environment.0,
        MOST,
    )
    .fetch_one(conn)
    .await
}
