//! Commands of clients for schedules: trigger, start and pause syncs, and change their frequency.

use crate::connections::route::ConnectionRoute;
use crate::retry::retry_deadlocks;
use crate::syncs::Syncs;
use crate::syncs::schedule::slot_after_change;
use crate::syncs::selection::{SyncError, SyncSelection};
use syncline_config::Frequency;
pub use syncline_store::schedules::TriggerOptions;
use syncline_store::schedules::{self, ScheduleScope, Target};
use syncline_types::ids::{EnvironmentPk, FunctionName, Variant};

/// A command for schedules.
#[derive(Debug, Clone, Copy)]
pub enum SyncCommand {
    Trigger(TriggerOptions),
    Start,
    Pause,
}

impl Syncs {
    /// Applies the command to all selected schedules. If it names one connection, that connection must have at least
    /// one.
    pub async fn command(
        &self,
        environment: EnvironmentPk,
        selection: &SyncSelection,
        command: SyncCommand,
    ) -> Result<(), SyncError> {
        let target = self.select(environment, selection).await?.target;
        let count = retry_deadlocks(|| self.try_command(&target, command)).await?;
        if count == 0 && matches!(target.whose, ScheduleScope::Connection(_)) {
            return Err(SyncError::NoSyncs(selection.integration.clone()));
        }
        Ok(())
    }

    async fn try_command(&self, target: &Target, command: SyncCommand) -> sqlx::Result<u64> {
        let mut tx = self.store.begin().await?;
        let count = match command {
            SyncCommand::Trigger(options) => schedules::trigger(&mut tx, target, options).await?,
            SyncCommand::Start => schedules::start(&mut tx, target).await?,
            SyncCommand::Pause => schedules::pause(&mut tx, target).await?,
        };
        tx.commit().await?;
        Ok(count)
    }

    /// Overrides the frequency of one schedule, or restores the deployed one with `None`. Returns the active frequency.
    pub async fn set_frequency(
        &self,
        connection: &ConnectionRoute,
        sync: &FunctionName,
        variant: &Variant,
        frequency: Option<Frequency>,
    ) -> Result<Frequency, SyncError> {
        let (environment, key) = (connection.environment, &connection.integration_key);
        let function = self.find_deployed(environment, connection.integration, key, sync).await?;
        let text = frequency.as_ref().map(ToString::to_string);
        let active = frequency.or_else(|| function.frequency().cloned());
        let active =
            active.ok_or_else(|| SyncError::Functions(anyhow::anyhow!("the sync has no frequency")))?;
        let mut tx = self.store.begin().await?;
        let before = schedules::hold_planning(&mut tx, connection.pk, sync, variant).await?;
        let before = before
            .ok_or_else(|| SyncError::UnknownVariant { sync: sync.clone(), variant: variant.clone() })?;
        // A repeated request must not change the next run.
        if before.frequency_override != text {
            let started_at = before.started_at.unwrap_or(before.now);
            let next =
                slot_after_change(&active, function.timezone(), started_at, before.now, rand::random());
            schedules::set_frequency(&mut tx, connection.pk, sync, variant, text.as_deref(), next).await?;
            schedules::notify_due(&mut tx).await?;
            tx.commit().await?;
        }
        Ok(active)
    }
}
