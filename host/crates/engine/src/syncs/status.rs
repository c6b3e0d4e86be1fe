//! The status of syncs.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::functions::DeployedFunction;
use crate::syncs::Syncs;
use crate::syncs::schedule::next_slot;
use crate::syncs::selection::{SyncError, SyncSelection};
use syncline_config::Frequency;
use syncline_store::schedules::{self, ScheduleStatus};
pub use syncline_store::schedules::{LatestRun, SyncRunError};
use syncline_store::{streams, sync_states};
use syncline_types::functions::RunState;
use syncline_types::ids::{
    ConnectionId, ConnectionPk, EnvironmentPk, FunctionName, IntegrationPk, ModelName, SchedulePk, Variant,
};

/// The status of one sync of one connection.
#[derive(Debug)]
pub struct SyncStatus {
    pub id: Uuid,
    pub connection: ConnectionId,
    pub sync: FunctionName,
    pub variant: Variant,
    pub state: SyncState,
    pub has_succeeded: bool,
    /// `None` if the sync is no longer deployed and its frequency was not overridden.
    pub frequency: Option<String>,
    /// Whether the frequency differs from that of the deployed sync.
    pub has_own_frequency: bool,
    /// The latest run that ended with success or an error.
    pub latest: Option<LatestRun>,
    /// `None` if the sync is paused or no longer deployed.
    pub next_run_at: Option<DateTime<Utc>>,
    /// When the failed or interrupted run is repeated, before the next regular one. `None` during a run.
    pub retry_at: Option<DateTime<Utc>>,
    /// Live records of each model that the sync declares.
    pub record_counts: BTreeMap<ModelName, i64>,
    /// A JSON object.
    pub checkpoint: Option<String>,
}

/// The state of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncState {
    Running,
    Paused,
    /// The sync is no longer deployed.
    Stopped,
    Success,
    Error,
}

impl Syncs {
    /// Returns the status of the selected syncs, ordered by connection, sync and variant.
    pub async fn status(
        &self,
        environment: EnvironmentPk,
        selection: &SyncSelection,
    ) -> Result<Vec<SyncStatus>, SyncError> {
        let selected = self.select(environment, selection).await?;
        let found = schedules::list_status(&mut *self.store.connect().await?, &selected.target).await?;
        let mut connections: Vec<_> = found.iter().map(|status| status.connection).collect();
        connections.dedup();
        let output = self.read_output(&connections).await?;
        let describe = |status| self.describe(selected.integration, status, &output);
        Ok(found.into_iter().map(describe).collect())
    }

    /// Returns the status of up to `limit` of the selected syncs after the schedule `after`, in a stable order.
    pub async fn status_page(
        &self,
        environment: EnvironmentPk,
        selection: &SyncSelection,
        after: SchedulePk,
        limit: usize,
    ) -> Result<Vec<(SchedulePk, SyncStatus)>, SyncError> {
        let selected = self.select(environment, selection).await?;
        let mut conn = self.store.connect().await?;
        let found = schedules::list_status_after(&mut conn, &selected.target, after, limit).await?;
        drop(conn);
        let connections: BTreeSet<_> = found.iter().map(|(_, status)| status.connection).collect();
        let output = self.read_output(&Vec::from_iter(connections)).await?;
        let describe = |(pk, status)| (pk, self.describe(selected.integration, status, &output));
        Ok(found.into_iter().map(describe).collect())
    }

    /// Reads the records database's part of the status, with one statement per table.
    pub(super) async fn read_output(&self, connections: &[ConnectionPk]) -> sqlx::Result<Output> {
        let mut conn = self.store.connect_records().await?;
        Ok(Output {
            live: streams::live_counts(&mut conn, connections).await?,
            checkpoints: sync_states::checkpoints(&mut conn, connections).await?,
        })
    }

    pub(super) fn describe(
        &self,
        integration: IntegrationPk,
        status: ScheduleStatus,
        output: &Output,
    ) -> SyncStatus {
        let function = self.functions.find_sync(integration, &status.sync);
        let frequency = status
            .frequency_override
            .clone()
            .or_else(|| function.as_ref().map(|function| function.frequency_text()));
        let declared = function.as_ref().map(|function| function.models()).unwrap_or_default();
        let record_counts = declared.iter().map(|model| {
            let stream = (status.connection, model.clone(), status.variant.clone());
            (model.clone(), output.live.get(&stream).copied().unwrap_or(0))
        });
        let sync = (status.connection, status.sync.clone(), status.variant.clone());
        SyncStatus {
            state: state_of(&status, function.is_some()),
            next_run_at: next_run(&status, function.as_deref()),
            retry_at: status.retry_at.filter(|_| !status.is_running && function.is_some()),
            record_counts: record_counts.collect(),
            checkpoint: output.checkpoints.get(&sync).cloned(),
            id: status.id,
            connection: status.connection_id,
            sync: status.sync,
            variant: status.variant,
            has_succeeded: status.has_succeeded,
            has_own_frequency: status.frequency_override.is_some(),
            frequency,
            latest: status.latest,
        }
    }
}

/// The records database's part of the status.
pub(super) struct Output {
    live: HashMap<(ConnectionPk, ModelName, Variant), i64>,
    checkpoints: HashMap<(ConnectionPk, FunctionName, Variant), String>,
}

/// The time of the next run. During a run this is an estimate from the current frequency, because the next run is
/// planned only at the end.
fn next_run(status: &ScheduleStatus, function: Option<&DeployedFunction>) -> Option<DateTime<Utc>> {
    if status.is_paused {
        return None;
    }
    if !status.is_running {
        return status.next_run_at;
    }
    let overridden = status.frequency_override.as_deref().and_then(|text| text.parse::<Frequency>().ok());
    let frequency = overridden.as_ref().or(function?.frequency())?;
    let started_at = status.started_at.unwrap_or(status.now);
    Some(next_slot(frequency, function?.timezone(), started_at, status.now, 0.0))
}

fn state_of(status: &ScheduleStatus, is_deployed: bool) -> SyncState {
    match &status.latest {
        _ if status.is_running => SyncState::Running,
        _ if status.is_paused => SyncState::Paused,
        _ if !is_deployed => SyncState::Stopped,
        Some(run) if run.state != RunState::Success => SyncState::Error,
        _ if status.is_interrupted => SyncState::Error,
        _ => SyncState::Success,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_sync_follows_from_its_schedule_and_latest_run() {
        let state = |is_running, is_paused, is_deployed, is_interrupted, latest: Option<RunState>| {
            let status = ScheduleStatus {
                id: Uuid::nil(),
                connection: ConnectionPk(1),
                connection_id: "customer-1".parse().unwrap(),
                sync: "steps".parse().unwrap(),
                variant: Variant::base(),
                is_paused,
                is_running,
                is_interrupted,
                frequency_override: None,
                next_run_at: None,
                retry_at: None,
                started_at: None,
                now: Utc::now(),
                latest: latest.map(|state| LatestRun {
                    state,
                    finished_at: None,
                    counts: None,
                    id: Uuid::nil(),
                    error: None,
                }),
                has_succeeded: false,
            };
            state_of(&status, is_deployed)
        };
        let (yes, no) = (true, false);
        assert_eq!(state(yes, yes, no, yes, Some(RunState::Error)), SyncState::Running);
        assert_eq!(state(no, yes, no, yes, Some(RunState::Error)), SyncState::Paused);
        assert_eq!(
            state(no, no, no, no, Some(RunState::Success)),
            SyncState::Stopped,
            "no deployed function runs it"
        );
        assert_eq!(
            state(no, no, no, yes, Some(RunState::Error)),
            SyncState::Stopped,
            "its last run does not matter"
        );
        assert_eq!(state(no, no, no, no, None), SyncState::Stopped);
        assert_eq!(state(no, no, yes, no, Some(RunState::Error)), SyncState::Error);
        assert_eq!(
            state(no, no, yes, yes, Some(RunState::Success)),
            SyncState::Error,
            "the attempt after it was interrupted"
        );
        assert_eq!(state(no, no, yes, no, Some(RunState::Success)), SyncState::Success);
        assert_eq!(state(no, no, yes, no, None), SyncState::Success, "it has never run");
    }
}
