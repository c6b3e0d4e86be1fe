//! Lists of an environment's schedules.

use std::collections::HashMap;

use sqlx::PgConnection;

use super::status::{ScheduleStatus, list_status_of};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{
    ConnectionId, EnvironmentPk, FunctionName, IntegrationKey, IntegrationPk, SchedulePk,
};

/// A position in a list of schedules: the newest integration first, and in it the newest schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulePosition {
    pub integration: IntegrationPk,
    pub schedule: SchedulePk,
}

/// A state by which schedules are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedState {
    /// A run is in progress.
    Running,
    Paused,
    /// The latest run failed.
    Failing,
    /// The latest run has deletions that wait for an approval.
    Held,
}

impl ListedState {
    pub const ALL: [Self; 4] = [Self::Running, Self::Paused, Self::Failing, Self::Held];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Failing => "failing",
            Self::Held => "held",
        }
    }
}

/// Which schedules of an environment to list.
#[derive(Debug, Default)]
pub struct ScheduleFilter {
    pub integration: Option<IntegrationPk>,
    /// The connections with this id, of any integration.
    pub connection: Option<ConnectionId>,
    pub sync: Option<FunctionName>,
    pub state: Option<ListedState>,
    /// Only schedules after this position.
    pub behind: Option<SchedulePosition>,
}

impl ScheduleFilter {
    /// The position before the first schedule of the list.
    fn start(&self) -> SchedulePosition {
        self.behind.unwrap_or(SchedulePosition {
            integration: self.integration.unwrap_or(IntegrationPk(i64::MAX)),
            schedule: SchedulePk(i64::MAX),
        })
    }
}

/// A schedule in a list.
#[derive(Debug)]
pub struct ListedSchedule {
    pub position: SchedulePosition,
    pub integration: IntegrationKey,
    pub status: ScheduleStatus,
}

/// Selects one page of the schedules `s` of `$from` that fulfil `$condition`. The integration is a range of positions,
/// so that one index serves lists with and without it.
macro_rules! query_page {
    ($from:literal, $condition:literal, $environment:expr, $filter:expr, $limit:expr $(, $parameter:expr)*) => {{
        let start = $filter.start();
        sqlx::query!(
            r#"
        SELECT s.pk AS "pk!", s.integration_pk AS "integration_pk!",
               (SELECT unique_key FROM integrations i WHERE i.pk = s.integration_pk) AS "unique_key!"
        FROM "#
                + $from
                + r#" AS s
        WHERE s.environment_pk = $1 AND s.integration_pk >= $2 AND (s.integration_pk, s.pk) < ($3, $4)
          AND ($5::text IS NULL OR s.sync_name = $5) AND s.retired_at IS NULL AND "#
                + $condition
                + r#"
        ORDER BY s.integration_pk DESC, s.pk DESC LIMIT $6
        "#,
            $environment.0,
            $filter.integration.map_or(0, |integration| integration.0),
            start.integration.0,
            start.schedule.0,
            $filter.sync.as_ref().map(FunctionName::as_str),
            $limit,
            $($parameter),*
        )
        .map(|row| {
            let position = SchedulePosition {
                integration: IntegrationPk(row.integration_pk),
                schedule: SchedulePk(row.pk),
            };
            (position, IntegrationKey::from_stored(row.unique_key))
        })
    }};
}

/// Lists one page of an environment's schedules. The filter by sync scans the list, all others use an index.
pub async fn list(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    filter: &ScheduleFilter,
    limit: i64,
) -> sqlx::Result<Vec<ListedSchedule>> {
    let page = list_positions(conn, environment, filter, limit).await?;
    let pks: Vec<_> = page.iter().map(|(position, _)| position.schedule).collect();
    let mut statuses: HashMap<_, _> = list_status_of(conn, &pks).await?.into_iter().collect();
    let describe = |(position, integration): (SchedulePosition, IntegrationKey)| {
        let status = statuses.remove(&position.schedule)?;
        Some(ListedSchedule { position, integration, status })
    };
    Ok(page.into_iter().filter_map(describe).collect())
}

/// Lists the positions of one page. Each state is a separate statement with its own index, because a generic plan does
/// not depend on the filter's values.
async fn list_positions(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    filter: &ScheduleFilter,
    limit: i64,
) -> sqlx::Result<Vec<(SchedulePosition, IntegrationKey)>> {
    if let Some(connection) = &filter.connection {
        return query_page!(
            r#"(
            SELECT found.* FROM connections c CROSS JOIN LATERAL (
                SELECT * FROM schedules WHERE connection_pk = c.pk OFFSET 0
            ) AS found
            WHERE c.environment_pk = $1 AND c.connection_id = $7
        )"#,
            r#"CASE $8::text
              WHEN 'running' THEN s.run_id IS NOT NULL
              WHEN 'paused' THEN s.state = 'paused'
              WHEN 'failing' THEN s.failures > 0
              WHEN 'held' THEN EXISTS (
                SELECT FROM connection_errors e JOIN runs r ON r.id = e.log_id
                WHERE e.connection_pk = s.connection_pk AND e.type = 'sync' AND e.code = $9
                  AND r.schedule_pk = s.pk AND r.approved_at IS NULL
              )
              ELSE true
          END"#,
            environment,
            filter,
            limit,
            connection.as_str(),
            filter.state.map(ListedState::as_str),
            ErrorCode::MassDeletionHeld.as_str()
        )
        .fetch_all(conn)
        .await;
    }
    match filter.state {
        None => query_page!("schedules", "true", environment, filter, limit).fetch_all(conn).await,
        Some(ListedState::Paused) => {
            query_page!("schedules", "s.state = 'paused'", environment, filter, limit).fetch_all(conn).await
        }
        Some(ListedState::Failing) => {
            query_page!("schedules", "s.failures > 0", environment, filter, limit).fetch_all(conn).await
        }
        // The error of such a sync stays until its next run, also if the deletions were approved meanwhile.
        Some(ListedState::Held) => {
            query_page!(
                r#"(
            SELECT held.* FROM connection_errors e JOIN runs r ON r.id = e.log_id CROSS JOIN LATERAL (
                SELECT * FROM schedules WHERE pk = r.schedule_pk OFFSET 0
            ) AS held
            WHERE e.environment_pk = $1 AND e.type = 'sync' AND e.code = $7 AND r.approved_at IS NULL
        )"#,
                "true",
                environment,
                filter,
                limit,
                ErrorCode::MassDeletionHeld.as_str()
            )
            .fetch_all(conn)
            .await
        }
        // Hosts run a limited number of syncs at the same time, so these are few.
        Some(ListedState::Running) => {
            query_page!(
                r#"(
            SELECT running.* FROM integrations i CROSS JOIN LATERAL (
                SELECT * FROM schedules WHERE integration_pk = i.pk AND run_id IS NOT NULL OFFSET 0
            ) AS running
            WHERE i.environment_pk = $1
        )"#,
                "true",
                environment,
                filter,
                limit
            )
            .fetch_all(conn)
            .await
        }
    }
}
