//! Commands of clients for schedules: trigger, start and pause syncs, and change their frequency.

use serde_json::{Value, json};

use crate::connections::route::ConnectionRoute;
use crate::retry::retry_deadlocks;
use crate::syncs::Syncs;
use crate::syncs::schedule::slot_after_change;
use crate::syncs::selection::{SyncError, SyncSelection};
use syncline_config::Frequency;
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::recordings;
pub use syncline_store::recordings::RecordingOrder;
pub use syncline_store::schedules::TriggerOptions;
use syncline_store::schedules::{self, ScheduleScope, Target};
use syncline_types::actor::Actor;
use syncline_types::audit_log::{AuditAction, TargetKind};
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
        actor: &Actor,
    ) -> Result<(), SyncError> {
        let target = self.select(environment, selection).await?.target;
        let entry = selection.entry(environment, command);
        let count = retry_deadlocks(|| self.try_command(&target, command, &entry, actor)).await?;
        if count == 0 && matches!(target.whose, ScheduleScope::Connection(_)) {
            return Err(SyncError::NoSyncs(selection.integration.clone()));
        }
        Ok(())
    }

    async fn try_command(
        &self,
        target: &Target,
        command: SyncCommand,
        entry: &NewEntry,
        actor: &Actor,
    ) -> sqlx::Result<u64> {
        let mut tx = self.store.begin().await?;
        let count = match command {
            SyncCommand::Trigger(options) => schedules::trigger(&mut tx, target, options).await?,
            SyncCommand::Start => schedules::start(&mut tx, target).await?,
            SyncCommand::Pause => schedules::pause(&mut tx, target).await?,
        };
        if count > 0 {
            audit_log::write(&mut tx, actor, entry).await?;
        }
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
        actor: &Actor,
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
            let action = AuditAction::SyncFrequencyChanged;
            let entry = NewEntry::of_connection(environment, action, key, &connection.connection_id)
                .with(json!({ "sync": sync.as_str(), "variant": variant.as_str(), "frequency": text }));
            audit_log::write(&mut tx, actor, &entry).await?;
            tx.commit().await?;
        }
        Ok(active)
    }
}

impl Syncs {
    /// Which runs of one schedule are recorded.
    pub async fn recording(
        &self,
        connection: &ConnectionRoute,
        sync: &FunctionName,
        variant: &Variant,
    ) -> Result<Option<RecordingOrder>, SyncError> {
        Ok(recordings::order(&mut *self.store.connect().await?, connection.pk, sync, variant).await?)
    }

    /// Sets which runs of one schedule are recorded, or stops recording with `None`.
    pub async fn set_recording(
        &self,
        connection: &ConnectionRoute,
        sync: &FunctionName,
        variant: &Variant,
        order: Option<RecordingOrder>,
        actor: &Actor,
    ) -> Result<(), SyncError> {
        let (environment, key) = (connection.environment, &connection.integration_key);
        self.find_deployed(environment, connection.integration, key, sync).await?;
        let mut tx = self.store.begin().await?;
        let former = recordings::set_order(&mut tx, connection.pk, sync, variant, order).await?;
        let former = former
            .ok_or_else(|| SyncError::UnknownVariant { sync: sync.clone(), variant: variant.clone() })?;
        if former != order {
            let action = AuditAction::SyncRecordingChanged;
            let details = json!({
                "sync": sync.as_str(),
                "variant": variant.as_str(),
                "runs": order.map(|order| order.runs),
                "retention_days": order.map(|order| order.days),
            });
            let entry =
                NewEntry::of_connection(environment, action, key, &connection.connection_id).with(details);
            audit_log::write(&mut tx, actor, &entry).await?;
        }
        tx.commit().await?;
        Ok(())
    }
}

impl SyncSelection {
    /// The entry of the audit log about a command for these schedules.
    fn entry(&self, environment: EnvironmentPk, command: SyncCommand) -> NewEntry {
        let (action, options) = match command {
            SyncCommand::Trigger(TriggerOptions { reset, empty_cache }) => {
                (AuditAction::SyncTriggered, json!({ "reset": reset, "empty_cache": empty_cache }))
            }
            SyncCommand::Start => (AuditAction::SyncStarted, json!({})),
            SyncCommand::Pause => (AuditAction::SyncPaused, json!({})),
        };
        let entry = match &self.connection {
            Some(id) => NewEntry::of_connection(environment, action, &self.integration, id),
            None => NewEntry::new(environment, action, TargetKind::Integration, self.integration.as_str()),
        };
        let syncs = self.syncs.iter().map(|(sync, variant)| {
            if variant.is_base() { sync.to_string() } else { format!("{sync}::{variant}") }
        });
        let syncs: Vec<String> = syncs.collect();
        let mut details = options;
        // Without names, the command is for all syncs.
        details["syncs"] = if syncs.is_empty() { Value::Null } else { syncs.into() };
        entry.with(details)
    }
}
