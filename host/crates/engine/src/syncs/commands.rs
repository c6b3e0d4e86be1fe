//! What clients ask of the schedules of a sync, of a connection or of an integration.

use crate::syncs::Syncs;
use syncline_store::schedules::{self, Target, TriggerOptions};
use syncline_store::{DEADLOCK_TRIES, is_deadlock};

/// What is asked.
#[derive(Debug, Clone, Copy)]
pub enum SyncCommand {
    Trigger(TriggerOptions),
    Start,
    Pause,
}

impl Syncs {
    /// Carries the command out for all schedules that the target names. Gives their number.
    pub async fn command(&self, target: &Target, command: SyncCommand) -> sqlx::Result<u64> {
        for _ in 1..DEADLOCK_TRIES {
            match self.try_command(target, command).await {
                Err(error) if is_deadlock(&error) => {}
                done => return done,
            }
        }
        self.try_command(target, command).await
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
}
