//! Lists the syncs of an environment.

use crate::lookup::find_integration;
use crate::syncs::Syncs;
use crate::syncs::selection::SyncError;
use crate::syncs::status::SyncStatus;
use syncline_store::schedules::{self, ScheduleFilter};
pub use syncline_store::schedules::{ListedState, SchedulePosition as SyncPosition};
use syncline_types::ids::{ConnectionId, EnvironmentPk, FunctionName, IntegrationKey};

/// Which syncs of an environment to list.
#[derive(Debug, Default)]
pub struct SyncFilter {
    pub integration: Option<IntegrationKey>,
    /// The connections with this id, of any integration.
    pub connection: Option<ConnectionId>,
    pub sync: Option<FunctionName>,
    pub state: Option<ListedState>,
    /// Only syncs after this position.
    pub behind: Option<SyncPosition>,
}

/// A sync of a connection in a list.
#[derive(Debug)]
pub struct ListedSync {
    pub position: SyncPosition,
    pub integration: IntegrationKey,
    pub status: SyncStatus,
}

impl Syncs {
    /// Returns up to `limit` syncs of connections: the newest integration first, and in it the newest sync.
    pub async fn list(
        &self,
        environment: EnvironmentPk,
        filter: &SyncFilter,
        limit: i64,
    ) -> Result<Vec<ListedSync>, SyncError> {
        let mut conn = self.store.connect().await?;
        let integration = match &filter.integration {
            Some(key) => Some(find_integration(&mut conn, environment, key).await?.pk),
            None => None,
        };
        let filter = ScheduleFilter {
            integration,
            connection: filter.connection.clone(),
            sync: filter.sync.clone(),
            state: filter.state,
            behind: filter.behind,
        };
        let found = schedules::list(&mut conn, environment, &filter, limit).await?;
        drop(conn);
        let mut connections: Vec<_> = found.iter().map(|listed| listed.status.connection).collect();
        connections.sort();
        connections.dedup();
        let output = self.read_output(&connections).await?;
        let describe = |listed: schedules::ListedSchedule| ListedSync {
            position: listed.position,
            integration: listed.integration,
            status: self.describe(listed.position.integration, listed.status, &output),
        };
        Ok(found.into_iter().map(describe).collect())
    }
}
