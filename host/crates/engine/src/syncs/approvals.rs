//! Approves held deletions: records that a full sync did not find, and that are suspiciously many.
//!
//! The streams store which records the run has found, until a later run has finished. Therefore an approval deletes
//! only records that the run did not find and that nothing has saved since.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::outbound_webhooks::{self, Checkpoints, SyncEnd, SyncSubject};
use crate::records::commit::{ModelCounts, RunCounts};
use crate::syncs::Syncs;
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::events::Event;
use syncline_store::runs::{self, HeldRun};
use syncline_store::{closed_connections, records, streams};
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::actor::Actor;
use syncline_types::audit_log::{AuditAction, TargetKind};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::EnvironmentPk;

/// How often a host looks for interrupted approvals.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Why a run cannot be approved.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    #[error("there is no run `{0}` in this environment; list the runs with `GET /runs`")]
    Unknown(Uuid),
    #[error(
        "the run has no held deletions; only a run that ended with `{}` can be approved",
        ErrorCode::MassDeletionHeld
    )]
    NotHeld,
    #[error("the deletions of this run were already approved at {0}")]
    Approved(DateTime<Utc>),
    #[error(
        "the run no longer holds deletions: a later run of the sync has finished, or its records were deleted"
    )]
    Superseded,
    #[error("the approval could not be read or written in the database")]
    Store(#[from] sqlx::Error),
    #[error("the run's counts cannot be parsed")]
    Unreadable(#[from] serde_json::Error),
}

impl ApprovalError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown(_) => ErrorCode::UnknownRun,
            Self::NotHeld => ErrorCode::RunNotHeld,
            Self::Approved(_) => ErrorCode::RunAlreadyApproved,
            Self::Superseded => ErrorCode::RunSuperseded,
            Self::Store(_) | Self::Unreadable(_) => ErrorCode::InternalServerError,
        }
    }
}

impl Syncs {
    /// Deletes the records that a held run did not find and that nothing has saved since. If the approval is
    /// interrupted, another host finishes it, or a repeated request does.
    pub async fn approve_run(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
        actor: &Actor,
    ) -> Result<(), ApprovalError> {
        let mut conn = self.store.connect().await?;
        let held = runs::find_held(&mut conn, environment, id).await?.ok_or(ApprovalError::Unknown(id))?;
        runs::begin_approval(&mut conn, id, actor).await?;
        drop(conn);
        failpoints::reach(Step::ApprovalBegun);
        let approved = self.try_approve(environment, id, &held, actor).await;
        if let Err(error) = &approved
            && !matches!(error, ApprovalError::Store(_))
        {
            runs::end_approval(&mut *self.store.connect().await?, id).await?;
        }
        approved
    }

    /// Finishes interrupted approvals of lost hosts, until `shutdown`.
    pub async fn resume_approvals(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(CHECK_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            if let Some(Err(error)) = shutdown.run_until_cancelled(self.finish_approvals()).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not look for interrupted approvals; retrying"
                );
            }
        }
    }

    /// Finishes all interrupted approvals.
    async fn finish_approvals(&self) -> sqlx::Result<()> {
        loop {
            let mut conn = self.store.connect().await?;
            let Some((environment, id, actor)) = runs::take_over_approval(&mut conn).await? else {
                return Ok(());
            };
            drop(conn);
            if let Err(error) = self.approve_run(environment, id, &actor).await {
                tracing::warn!(
                    run.id = %id,
                    error = &error as &dyn std::error::Error,
                    "could not finish an interrupted approval",
                );
            }
        }
    }

    async fn try_approve(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
        held: &HeldRun,
        actor: &Actor,
    ) -> Result<(), ApprovalError> {
        if let Some(at) = held.approved_at {
            return Err(ApprovalError::Approved(at));
        }
        let fence = held.fence.filter(|_| held.error_code == Some(ErrorCode::MassDeletionHeld));
        let fence = fence.ok_or(ApprovalError::NotHeld)?;
        let (deleted, since) = self.delete_held(held, fence).await?;
        self.note_approval(environment, id, held, &deleted, since, actor).await
    }

    /// Deletes the held records. Returns their number by model, and the time from which readers see the deletions.
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
            // A run may have finished between the two statements.
            let held = records::delete_held(&mut tx, &mut stream, fence).await?;
            let (deleted, seen_from) = held.ok_or(ApprovalError::Superseded)?;
            streams::store_head(&mut tx, &stream).await?;
            counts.insert(stream.model.clone(), ModelCounts { deleted, ..ModelCounts::default() });
            since = since.min(Some(seen_from)).or(Some(seen_from));
        }
        failpoints::reach(Step::ApprovalDeleting);
        tx.commit().await?;
        failpoints::reach(Step::ApprovalDeleted);
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
        actor: &Actor,
    ) -> Result<(), ApprovalError> {
        let mut counts: RunCounts =
            held.counts.clone().map_or(Ok(RunCounts::new()), serde_json::from_value)?;
        for (model, deleted) in deleted {
            counts.entry(model.clone()).or_default().add(*deleted);
        }
        let number: u64 = deleted.values().map(|counts| counts.deleted).sum();
        let message = format!("the held deletions were approved: {number} records were deleted");
        let mut tx = self.store.begin().await?;
        if !runs::approve(&mut tx, id, &json!(counts), &message).await? {
            return Err(ApprovalError::Approved(self.clock.now()));
        }
        runs::end_approval(&mut tx, id).await?;
        let (action, run) = (AuditAction::RunApproved, id.to_string());
        let entry = NewEntry::new(environment, action, TargetKind::Run, run)
            .with(json!({ "sync": held.sync.as_str(), "deleted": number }));
        audit_log::write(&mut tx, actor, &entry).await?;
        let subject = SyncSubject {
            environment,
            connection: held.connection,
            sync: &held.sync,
            variant: &held.variant,
            last_success_at: held.last_success_at,
        };
        let end = SyncEnd::Success { unreported: deleted, since };
        let written = outbound_webhooks::note_sync(&mut tx, &subject, &end, &Checkpoints::default()).await?;
        failpoints::reach(Step::ApprovalEnding);
        tx.commit().await?;
        failpoints::reach(Step::ApprovalEnded);
        if written > 0 {
            self.events.publish(Event::Webhooks);
        }
        tracing::info!(run.id = %id, "sync `{}`: {number} deletions were approved", held.sync);
        Ok(())
    }
}
