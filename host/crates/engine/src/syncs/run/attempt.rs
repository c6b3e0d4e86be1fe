//! The steps of an attempt in the records database, except its commits: begin, complete and hold deletions.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::functions::DeployedFunction;
use crate::outbound_webhooks::Checkpoints;
use crate::records::commit::{ModelCounts, RunCounts, without_carried};
use crate::syncs::Syncs;
use crate::syncs::run::ended::Ended;
use crate::syncs::run::retry::RetryTime;
use syncline_sandbox::{LogLevel, RunLog};
use syncline_store::records::{self, Unseen};
use syncline_store::runs::RunError;
use syncline_store::schedules::Claim;
use syncline_store::sync_states::{self, Attempt, Begun, CheckpointChange};
use syncline_store::{closed_connections, streams};
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ModelName, Variant};

/// The state from which an attempt starts.
pub(crate) struct Start {
    /// The counts of earlier attempts since the last success.
    pub(crate) carried: RunCounts,
    /// When the first of these attempts began, by the clock of the records database.
    pub(crate) row_began_at: DateTime<Utc>,
    checkpoint: Option<String>,
    pub(crate) idle_attempts: i32,
    /// Whether the records that the run does not find are deleted.
    pub(crate) is_full: bool,
}

impl Start {
    pub(crate) fn from(begun: &Begun, is_full: bool) -> serde_json::Result<Self> {
        Ok(Self {
            is_full,
            carried: serde_json::from_value(begun.counts.clone())?,
            row_began_at: begun.row_began_at,
            checkpoint: begun.checkpoint.clone(),
            idle_attempts: begun.idle_attempts,
        })
    }

    pub(crate) fn until(&self, checkpoint: Option<String>) -> Checkpoints {
        Checkpoints { from: self.checkpoint.clone(), to: checkpoint }
    }

    fn success(&self, counts: RunCounts, checkpoint: Option<String>) -> Ended {
        Ended::Success {
            counts: without_carried(&counts, &self.carried),
            unreported: counts,
            since: self.row_began_at,
            checkpoints: self.until(checkpoint),
        }
    }

    fn own_counts(&self, counts: Option<Value>) -> anyhow::Result<Option<RunCounts>> {
        let Some(counts) = counts else { return Ok(None) };
        Ok(Some(without_carried(&serde_json::from_value(counts)?, &self.carried)))
    }
}

/// The result of an attempt so far.
pub(crate) struct AttemptOutcome {
    pub(crate) counts: Option<RunCounts>,
    pub(crate) checkpoint: Option<String>,
    /// The attempt was interrupted before it made progress.
    pub(crate) is_idle: bool,
}

/// The result of [`begin`].
pub(crate) enum Beginning {
    Begun {
        begun: Begun,
        is_full: bool,
    },
    ConnectionDeleted,
    /// A later attempt has begun.
    Superseded,
}

/// Raises the fencing token, applies a requested reset, and starts the detection of deletions.
pub(crate) async fn begin(
    syncs: &Syncs,
    claim: &Claim,
    function: &DeployedFunction,
    attempt: &Attempt,
) -> anyhow::Result<Beginning> {
    let mut tx = syncs.store.begin_records().await?;
    if !closed_connections::hold_open(&mut tx, claim.connection).await? {
        return Ok(Beginning::ConnectionDeleted);
    }
    let begun = sync_states::begin(&mut tx, attempt, claim.resets, claim.unreported_since).await?;
    let Some(mut begun) = begun else {
        return Ok(Beginning::Superseded);
    };
    let models: Vec<_> = function.models.keys().map(ToString::to_string).collect();
    streams::assign(&mut tx, claim.connection, &models, &claim.variant, &claim.sync).await?;
    let empties_cache = claim.resets && claim.empties_cache;
    if empties_cache {
        // Saved records that were not reported yet are deleted too, so they are never reported.
        begun.counts = json!({});
    }
    if claim.resets && (begun.checkpoint.take().is_some() || empties_cache) {
        sync_states::store(&mut tx, attempt, &CheckpointChange::Clear, &begun.counts, false).await?;
    }
    let is_full = is_full(function, &begun);
    if function.has_incremental_runs() && is_full != begun.full_in_progress {
        if is_full {
            sync_states::begin_full(&mut tx, attempt).await?;
            begun.checkpoint = None;
        } else {
            sync_states::end_full(&mut tx, attempt, false).await?;
        }
    }
    let mut names: Vec<_> = if is_full || empties_cache {
        function.models.keys().map(|model| (model.clone(), claim.variant.clone())).collect()
    } else {
        // A deployment may have turned the detection of deletions off. No run completes it any more.
        streams::list_watched(&mut tx, claim.connection, &models, &claim.variant).await?
    };
    if empties_cache {
        let all = streams::list_of_sync(&mut tx, claim.connection, &claim.sync, &claim.variant, &models);
        names.extend(all.await?);
        names.sort();
        names.dedup();
    }
    if !names.is_empty() {
        for mut stream in streams::lock(&mut tx, claim.connection, &names, Some(&claim.sync)).await? {
            if empties_cache {
                records::delete_all(&mut tx, &mut stream).await?;
            }
            if !(is_full && function.models.contains_key(&stream.model)) {
                records::end_generation(&mut tx, &mut stream).await?;
            } else if begun.checkpoint.is_none() {
                // A run that continues from a checkpoint belongs to the generation that set it.
                records::begin_generation(&mut tx, &mut stream, claim.fence).await?;
            }
            streams::store_head(&mut tx, &stream).await?;
        }
    }
    failpoints::reach(Step::SyncBeginning);
    tx.commit().await?;
    failpoints::reach(Step::SyncBegun);
    Ok(Beginning::Begun { begun, is_full })
}

/// Whether the records that the run does not find are to be deleted. A run without a checkpoint fetches everything.
fn is_full(function: &DeployedFunction, begun: &Begun) -> bool {
    if !function.has_incremental_runs() {
        return function.tracks_deletes();
    }
    let is_due = |last| function.next_full_run(last).is_none_or(|due| due <= begun.now);
    begun.full_in_progress || begun.checkpoint.is_none() || begun.last_full_at.is_none_or(is_due)
}

/// Completes an attempt after its function has returned. A full run deletes the records that it did not find. It clears
/// the checkpoint unless the next runs are incremental.
pub(crate) async fn complete(
    syncs: &Syncs,
    function: &DeployedFunction,
    attempt: &Attempt,
    start: &Start,
    log: &RunLog,
) -> anyhow::Result<Ended> {
    let mut tx = syncs.store.begin_records().await?;
    let Some(counts) = sync_states::lock(&mut tx, attempt).await? else { return Ok(Ended::Lost) };
    let mut counts: RunCounts = serde_json::from_value(counts)?;
    for model in function.models.keys() {
        counts.entry(model.clone()).or_default();
    }
    sync_states::note_restored(&mut tx, attempt).await?;
    if !start.is_full {
        let checkpoint =
            sync_states::checkpoint(&mut tx, attempt.connection, &attempt.sync, &attempt.variant).await?;
        tx.commit().await?;
        return Ok(start.success(counts, checkpoint));
    }
    let names: Vec<_> =
        function.models.keys().map(|model| (model.clone(), attempt.variant.clone())).collect();
    let mut has_deleted = false;
    let hold = function.deletion_hold(&syncs.settings.deletion_hold);
    for mut stream in streams::lock(&mut tx, attempt.connection, &names, Some(&attempt.sync)).await? {
        match records::delete_unseen(&mut tx, &mut stream, |unseen, live| hold.lets_pass(unseen, live))
            .await?
        {
            Unseen::Deleted(deleted) => {
                has_deleted |= deleted > 0;
                counts
                    .entry(stream.model.clone())
                    .or_default()
                    .add(ModelCounts { deleted, ..ModelCounts::default() });
            }
            Unseen::Held { unseen, live } => {
                let message = format!(
                    "the sync did not find {unseen} of {live} records of `{}`, so the host deleted nothing; if they no \
                     longer exist at the provider, approve the deletions with `syncline runs approve`",
                    stream.model
                );
                log.note(LogLevel::Error, &message);
                let details = Some(json!({ "model": stream.model, "unseen": unseen, "live": live }));
                let error = RunError { code: ErrorCode::MassDeletionHeld, message, details };
                tx.rollback().await?;
                let counts = hold_deletions(syncs, attempt, start, &names).await?;
                let checkpoints = start.until(None);
                return Ok(Ended::Failed {
                    error,
                    rejection: None,
                    retry: RetryTime::AtNextSlot,
                    counts,
                    checkpoints,
                });
            }
        }
        records::end_generation(&mut tx, &mut stream).await?;
        streams::store_head(&mut tx, &stream).await?;
    }
    let checkpoint = if function.has_incremental_runs() {
        // Incremental runs continue from the checkpoint of the full run.
        sync_states::store(&mut tx, attempt, &CheckpointChange::Keep, &json!(counts), false).await?;
        sync_states::end_full(&mut tx, attempt, true).await?;
        sync_states::checkpoint(&mut tx, attempt.connection, &attempt.sync, &attempt.variant).await?
    } else {
        sync_states::store(&mut tx, attempt, &CheckpointChange::Clear, &json!(counts), false).await?;
        None
    };
    failpoints::reach(Step::SyncCompleting);
    tx.commit().await?;
    failpoints::reach(Step::SyncCompleted);
    if has_deleted {
        syncs.record_changes.note(attempt.connection);
    }
    Ok(start.success(counts, checkpoint))
}

/// Keeps the generation of the run, so that an operator can approve its deletions. The next run lists everything again,
/// and keeps the records that it finds. Returns the counts of the run.
async fn hold_deletions(
    syncs: &Syncs,
    attempt: &Attempt,
    start: &Start,
    names: &[(ModelName, Variant)],
) -> anyhow::Result<Option<RunCounts>> {
    let mut tx = syncs.store.begin_records().await?;
    let counts = sync_states::lock(&mut tx, attempt).await?;
    if let Some(counts) = &counts {
        for mut stream in streams::lock(&mut tx, attempt.connection, names, Some(&attempt.sync)).await? {
            records::hold_generation(&mut tx, &mut stream, attempt.fence).await?;
            streams::store_head(&mut tx, &stream).await?;
        }
        sync_states::store(&mut tx, attempt, &CheckpointChange::Clear, counts, false).await?;
    }
    tx.commit().await?;
    start.own_counts(counts)
}

/// Reads the result of an attempt so far. If the attempt was not interrupted, `settled` is the number of interrupted
/// attempts to store.
pub(crate) async fn attempt_outcome(
    syncs: &Syncs,
    attempt: &Attempt,
    start: &Start,
    settled: Option<i32>,
) -> anyhow::Result<AttemptOutcome> {
    let mut tx = syncs.store.begin_records().await?;
    let counts = start.own_counts(sync_states::lock(&mut tx, attempt).await?)?;
    let checkpoint =
        sync_states::checkpoint(&mut tx, attempt.connection, &attempt.sync, &attempt.variant).await?;
    let is_idle = match settled {
        None => sync_states::is_idle(&mut tx, attempt).await?,
        Some(idle_attempts) => {
            sync_states::settle(&mut tx, attempt, idle_attempts).await?;
            false
        }
    };
    tx.commit().await?;
    Ok(AttemptOutcome { counts, checkpoint, is_idle })
}
