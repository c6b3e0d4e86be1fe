//! Plans the next run of a sync: at its slot, or earlier after a failure.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use crate::functions::DeployedFunction;
use crate::syncs::Syncs;
use crate::syncs::run::ended::Ended;
use crate::syncs::run::retry::{RetryTime, retry_delay};
use crate::syncs::schedule::next_slot;
use syncline_config::Frequency;
use syncline_store::schedules::{self, Claim, NextRun, RunEnd};

/// After this many consecutive failures, a sync waits for its next slot.
const MAX_RETRIES: i32 = 3;
/// Delay after which another host, or a newer version of this one, may know the sync.
const UNKNOWN_FUNCTION_DELAY: Duration = Duration::from_secs(60);

/// Plans the next run after one that started at `started_at`. If `function` is `None`, this host does not know it, and
/// hands the run back with everything that was requested.
pub(crate) async fn plan(
    syncs: &Syncs,
    claim: &Claim,
    function: Option<&DeployedFunction>,
    ended: &Ended,
    started_at: Instant,
) -> NextRun {
    let (frequency, now) = read_schedule(syncs, claim, started_at).await;
    let Some(function) = function else {
        let retry_at = Some(now + UNKNOWN_FUNCTION_DELAY);
        return NextRun { slot: None, retry_at, end: RunEnd::HandedBack };
    };
    // During a backoff of the provider, a run could only wait.
    let backoff =
        syncs.invoker.rate_limits.backoff_left(claim.integration, claim.connection).unwrap_or_default();
    let retry = match ended {
        Ended::Failed { retry, .. } => *retry,
        _ => RetryTime::AtNextSlot,
    };
    let earliest = now + if let RetryTime::After(wait) = retry { wait.max(backoff) } else { backoff };
    // The function that is deployed now determines the next run, even if it was deployed during this run.
    let deployed = syncs.functions.find_sync(claim.integration, &claim.sync);
    let function = deployed.as_deref().unwrap_or(function);
    let frequency = frequency.as_ref().or(function.frequency());
    let slot = frequency
        .map(|frequency| next_slot(frequency, function.timezone(), claim.claimed_at, now, rand::random()));
    let slot = slot.map(|slot| slot.max(earliest));
    let retry_at = match retry {
        RetryTime::AtNextSlot => None,
        RetryTime::Soon if claim.failures >= MAX_RETRIES => None,
        RetryTime::Soon => Some((now + retry_delay(claim.failures, rand::random())).max(earliest)),
        RetryTime::After(_) => Some(earliest),
    };
    let retry_at = retry_at.filter(|at| slot.is_none_or(|slot| *at < slot));
    let end = match ended {
        Ended::Success { .. } => RunEnd::Succeeded,
        Ended::Failed { .. } => RunEnd::Failed,
        Ended::HandedBack | Ended::Unknown => RunEnd::HandedBack,
        Ended::Dropped | Ended::Lost => RunEnd::Dropped,
    };
    NextRun { slot, retry_at, end }
}

/// Returns the frequency that overrides the function's, if any, and the time. Both may have changed during the run. The
/// time is the database's: a host whose clock is slow would plan the slot again that it has just served.
async fn read_schedule(
    syncs: &Syncs,
    claim: &Claim,
    started_at: Instant,
) -> (Option<Frequency>, DateTime<Utc>) {
    let read =
        async { schedules::frequency_override(&mut *syncs.store.connect().await?, claim.schedule).await };
    let (text, now) = read.await.unwrap_or_else(|_| {
        // If the database is not available, use the values of the claim. The next run reads the current ones.
        (claim.frequency_override.clone(), claim.claimed_at + started_at.elapsed())
    });
    (text.and_then(|text| text.parse().ok()), now)
}
