//! Approving what a full sync has held back: records that it did not see again, too many to be deleted unasked.
//!
//! What the run has seen is kept with its streams until a later run has come to its end. So an approval deletes what
//! is not there, and nothing that was saved again since, by whomever.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::outbound_webhooks::{self, Checkpoints, SyncEnd, SyncSubject};
use crate::records::commit::{ModelCounts, RunCounts};
use crate::syncs::Syncs;
use syncline_store::events::Event;
use syncline_store::runs::{self, HeldRun};
use syncline_store::{closed_connections, records, streams};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::EnvironmentPk;

/// How often approvals are looked for that were cut short.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Why a run cannot be approved.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    #[error("there is no such run in this environment")]
    Unknown,
    #[error(
        "the run holds no deletions back; only one that ended with `{}` can be approved",
        ErrorCode::MassDeletionHeld
    )]
    NotHeld,
    #[error("the deletions of this run were approved already, at {0}")]
    Approved(DateTime<Utc>),
    #[error(
        "a later run of the sync has come to its end, or its records are gone: this one holds nothing back any more"
    )]
    Superseded,
    #[error("the database failed")]
    Store(#[from] sqlx::Error),
    #[error("the run's counts cannot be read")]
    Unreadable(#[from] serde_json::Error),
}

impl ApprovalError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown => ErrorCode::UnknownRun,
            Self::NotHeld => ErrorCode::RunNotHeld,
            Self::Approved(_) => ErrorCode::RunAlreadyApproved,
            Self::Superseded => ErrorCode::RunSuperseded,
            Self::Store(_) | Self::Unreadable(_) => ErrorCode::InternalServerError,
        }
    }
}

impl Syncs {
    /// Deletes what a held run did not see and nobody has saved since. What is cut short is finished by another host, or by
    /// asking again.
    pub async fn approve_run(&self, environment: EnvironmentPk, id: Uuid) -> Result<(), ApprovalError> {
        let mut conn = self.store.connect().await?;
        let held = runs::find_held(&mut conn, environment, id).await?.ok_or(ApprovalError::Unknown)?;
        runs::begin_approval(&mut conn, id).await?;
        drop(conn);
        let approved = self.try_approve(environment, id, &held).await;
        if let Err(error) = &approved
            && !matches!(error, ApprovalError::Store(_))
        {
            runs::end_approval(&mut *self.store.connect().await?, id).await?;
        }
        approved
    }

    /// Finishes approvals that another host has begun, until `shutdown`.
    pub async fn resume_approvals(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            if let Some(Err(error)) = shutdown.run_until_cancelled(self.finish_approvals()).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "approvals that were cut short could not be looked for"
                );
            }
        }
    }

    /// Finishes the approvals that were cut short.
    async fn finish_approvals(&self) -> sqlx::Result<()> {
        loop {
            let mut conn = self.store.connect().await?;
            let Some((environment, id)) = runs::take_over_approval(&mut conn).await? else { return Ok(()) };
            drop(conn);
            if let Err(error) = self.approve_run(environment, id).await {
                tracing::warn!(
                    run.id = %id,
                    error = &error as &dyn std::error::Error,
                    "an approval that was cut short was not finished",
                );
            }
        }
    }

    async fn try_approve(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
        held: &HeldRun,
    ) -> Result<(), ApprovalError> {
        if let Some(at) = held.approved_at {
            return Err(ApprovalError::Approved(at));
        }
        let fence = held.fence.filter(|_| held.error_code == Some(ErrorCode::MassDeletionHeld));
        let fence = fence.ok_or(ApprovalError::NotHeld)?;
        let (deleted, since) = self.delete_held(held, fence).await?;
        self.note_approval(environment, id, held, &deleted, since).await
    }

    /// Gives what was deleted by model, and since when readers find it.
    async fn delete_held(
        &self,
        held: &HeldRun,
        fence: i64,
    ) -> Result<(RunCounts, DateTime<Utc>), ApprovalError> {
        let mut tx = self.store.begin_records().await?;
        if !closed_connections::hold_open(&mut tx, held.connection).await? {
            return Err(ApprovalError::Superseded);
        }
        let names = streams::list_held(&mut tx, held.connection, fence).await?;
        let mut counts = RunCounts::new();
        let mut since = None;
        for mut stream in streams::lock(&mut tx, held.connection, &names, Some(&held.sync)).await? {
            // Between the two statements a run may have come to its end.
            let Some(deleted) = records::delete_held(&mut tx, &mut stream, fence).await? else {
                return Err(ApprovalError::Superseded);
            };
            streams::store_head(&mut tx, &stream).await?;
            counts.insert(stream.model.clone(), ModelCounts { deleted, ..ModelCounts::default() });
            since = since.min(Some(stream.now)).or(Some(stream.now));
        }
        tx.commit().await?;
        self.record_changes.note(held.connection);
        Ok((counts, since.ok_or(ApprovalError::Superseded)?))
    }

    async fn note_approval(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
        held: &HeldRun,
        deleted: &RunCounts,
        since: DateTime<Utc>,
    ) -> Result<(), ApprovalError> {
        let mut counts: RunCounts =
            held.counts.clone().map_or(Ok(RunCounts::new()), serde_json::from_value)?;
        for (model, deleted) in deleted {
            counts.entry(model.clone()).or_default().add(*deleted);
        }
        let number: u64 = deleted.values().map(|counts| counts.deleted).sum();
        let message = format!("what was held back was approved: {number} records were deleted");
        let mut tx = self.store.begin().await?;
        if !runs::approve(&mut tx, id, &json!(counts), &message).await? {
            return Err(ApprovalError::Approved(Utc::now()));
        }
        runs::end_approval(&mut tx, id).await?;
        let subject = SyncSubject {
            environment,
            connection: held.connection,
            sync: &held.sync,
            variant: &held.variant,
            last_success_at: held.last_success_at,
        };
        let end = SyncEnd::Success { unreported: deleted, since };
        let written = outbound_webhooks::note_sync(&mut tx, &subject, &end, &Checkpoints::default()).await?;
        tx.commit().await?;
        if written > 0 {
            self.events.publish(Event::Webhooks);
        }
        tracing::info!(run.id = %id, "sync `{}`: {number} deletions were approved", held.sync);
        Ok(())
    }
}
