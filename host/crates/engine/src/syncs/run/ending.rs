//! The end of a run: its log line and webhooks, and the transaction that closes it and releases its schedule.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::json;
use sqlx::PgConnection;

use crate::functions::DeployedFunction;
use crate::invoker::live_runs::LiveRun;
use crate::invoker::recording::stored_usage;
use crate::outbound_webhooks::{self, SyncEnd};
use crate::records::commit::ModelCounts;
use crate::syncs::Syncs;
use crate::syncs::run::ended::Ended;
use syncline_sandbox::Usage;
use syncline_store::connection_errors::{self, Failing};
use syncline_store::events::Event;
use syncline_store::recordings::{self, NewRecording};
use syncline_store::runs::{self, LogLine, Outcome, RunError, RunState};
use syncline_store::schedules::{self, Claim, DueReason, NextRun};
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::error_code::ErrorCode;

const WRITE_OUTCOME_TRIES: u32 = 5;

/// A run that has ended and must be closed.
pub(crate) struct Finished {
    pub(crate) outcome: Outcome,
    pub(crate) ended: Ended,
    pub(crate) function: Option<Arc<DeployedFunction>>,
    pub(crate) next: NextRun,
    /// The lines of its log that are not written yet.
    pub(crate) lines: Vec<LogLine>,
    pub(crate) recording: Option<NewRecording>,
}

/// Logs the end of a run. A run that another attempt continues is not logged.
pub(crate) fn report(claim: &Claim, ended: &Ended) {
    let sync = &claim.sync;
    match ended {
        Ended::Success { counts, .. } => {
            let sum = |of: fn(&ModelCounts) -> u64| counts.values().map(of).sum::<u64>();
            let (added, updated, deleted) = (sum(|c| c.added), sum(|c| c.updated), sum(|c| c.deleted));
            tracing::info!(
                run.id = %claim.run_id,
                connection.id = claim.connection.0,
                "sync `{sync}`: {added} added, {updated} updated, {deleted} deleted",
            );
        }
        Ended::Failed { error, .. } => tracing::warn!(
            run.id = %claim.run_id,
            connection.id = claim.connection.0,
            error.code = %error.code,
            "sync `{sync}` failed: {}",
            error.message,
        ),
        Ended::Unknown => tracing::warn!(
            run.id = %claim.run_id,
            "this host cannot run sync `{sync}`; another host or a later attempt runs it",
        ),
        Ended::Dropped | Ended::HandedBack | Ended::Lost => {}
    }
}

pub(crate) fn outcome_of(ended: &Ended, usage: Usage, live: &LiveRun) -> Outcome {
    let (state, error, counts) = match ended {
        Ended::Success { counts, .. } => (RunState::Success, None, Some(json!(counts))),
        Ended::Failed { error, counts, .. } => {
            (RunState::Error, Some(error.clone()), counts.as_ref().map(|counts| json!(counts)))
        }
        Ended::Dropped => (RunState::Cancelled, Some(cancelled("the connection was deleted")), None),
        Ended::Unknown => (
            RunState::Cancelled,
            Some(cancelled("the host that claimed the run does not know the sync; another attempt follows")),
            None,
        ),
        Ended::HandedBack | Ended::Lost => (
            RunState::Cancelled,
            Some(cancelled("the run was stopped; the sync continues from its checkpoint")),
            None,
        ),
    };
    Outcome { state, error, counts, usage: stored_usage(usage), figures: live.meter.figures() }
}

fn cancelled(message: &str) -> RunError {
    RunError { code: ErrorCode::ScriptCancelled, message: message.to_owned(), details: None }
}

/// Closes the run and releases the schedule. Waits if the database is briefly not available. If it stays unavailable,
/// the lease expires and another attempt follows.
pub(crate) async fn write_outcome(syncs: &Syncs, claim: &Claim, finished: &Finished) {
    for number in 1..=WRITE_OUTCOME_TRIES {
        match try_write_outcome(syncs, claim, finished).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(
                    run.id = %claim.run_id,
                    error = &error as &dyn std::error::Error,
                    "could not write the end of sync `{}` (try {number} of {WRITE_OUTCOME_TRIES})", claim.sync,
                );
                tokio::time::sleep(Duration::from_millis(200) * 2_u32.pow(number)).await;
            }
        }
    }
}

async fn try_write_outcome(syncs: &Syncs, claim: &Claim, finished: &Finished) -> sqlx::Result<()> {
    let mut tx = syncs.store.begin().await?;
    let is_ours = runs::close(&mut tx, claim.run_id, syncs.host_id, claim.fence, &finished.outcome).await?;
    let lines: Vec<_> = finished.lines.iter().map(|line| (claim.run_id, line)).collect();
    runs::append_logs(&mut tx, &lines).await?;
    schedules::release(&mut tx, claim, syncs.host_id, &finished.next).await?;
    // If the run was closed before, the webhook was already written, or the next attempt writes it.
    let written = if is_ours {
        if let Some(recording) = &finished.recording {
            recordings::insert(&mut tx, claim, recording).await?;
        }
        let is_first = note_error(&mut tx, claim, finished).await?;
        write_webhooks(&mut tx, claim, finished, is_first, syncs.clock.now()).await?
    } else {
        0
    };
    failpoints::reach(Step::SyncReleasing);
    tx.commit().await?;
    failpoints::reach(Step::SyncReleased);
    if written > 0 {
        syncs.events.publish(Event::Webhooks);
    }
    Ok(())
}

/// Sets the connection's error about this sync, or clears it after a success. Returns `true` for the first failure
/// since the last success.
async fn note_error(conn: &mut PgConnection, claim: &Claim, finished: &Finished) -> sqlx::Result<bool> {
    match &finished.ended {
        Ended::Success { .. } => {
            let (sync, variant) = (claim.sync.as_str(), claim.variant.as_str());
            connection_errors::clear(conn, claim.connection, sync, variant).await?;
            Ok(false)
        }
        Ended::Failed { error, .. } => {
            let failing = Failing::Sync { name: claim.sync.as_str(), variant: claim.variant.as_str() };
            connection_errors::set(conn, claim.connection, failing, claim.run_id, error.code, &error.message)
                .await
        }
        Ended::Dropped | Ended::Unknown | Ended::HandedBack | Ended::Lost => Ok(false),
    }
}

/// Writes the webhook about a run's end. The first failure is reported. A failed retry is reported only if no further
/// retry follows.
async fn write_webhooks(
    conn: &mut PgConnection,
    claim: &Claim,
    finished: &Finished,
    is_first: bool,
    now: DateTime<Utc>,
) -> sqlx::Result<u64> {
    match &finished.ended {
        Ended::Failed { .. }
            if claim.reason == DueReason::Retry && !is_first && finished.next.retry_at.is_some() =>
        {
            Ok(0)
        }
        Ended::Success { unreported, since, checkpoints, .. } => {
            let end = SyncEnd::Success { unreported, since: *since };
            outbound_webhooks::note_sync(conn, &claim.into(), &end, checkpoints).await
        }
        Ended::Failed { error, checkpoints, .. } => {
            let models = finished.function.iter().flat_map(|function| function.models.keys()).collect();
            let end = SyncEnd::Failure { models, error, failed_at: now };
            outbound_webhooks::note_sync(conn, &claim.into(), &end, checkpoints).await
        }
        Ended::Dropped | Ended::Unknown | Ended::HandedBack | Ended::Lost => Ok(0),
    }
}

/// Appends the log of a run whose end the next attempt writes.
pub(crate) async fn append_log(syncs: &Syncs, claim: &Claim, lines: &[LogLine]) {
    let lines: Vec<_> = lines.iter().map(|line| (claim.run_id, line)).collect();
    let written = async { runs::append_logs(&mut *syncs.store.connect().await?, &lines).await };
    if let Err(error) = written.await {
        tracing::warn!(
            run.id = %claim.run_id,
            error = &error as &dyn std::error::Error,
            "could not write log lines of a run",
        );
    }
}
