//! When a sync runs next: at its slot, or before if it failed.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use crate::functions::DeployedFunction;
use crate::syncs::Syncs;
use crate::syncs::run::ended::Ended;
use crate::syncs::run::retry::{RetryTime, retry_delay};
use crate::syncs::schedule::next_slot;
use syncline_config::Frequency;
use syncline_store::schedules::{self, Claim, NextRun, RunEnd};

/// After so many failures in a row a sync waits for its next slot.
const MAX_RETRIES: i32 = 3;
/// Until then another host, or this one with another version of itself, may know a sync that this one does not.
const UNKNOWN_FUNCTION_DELAY: Duration = Duration::from_secs(60);

/// Plans what comes after a run that began at that instant. `None` for the function: this host does not know it, and gives
/// the run back with all that was asked for.
pub(crate) async fn plan(
    syncs: &Syncs,
    claim: &Claim,
    function: Option<&DeployedFunction>,
    ended: &Ended,
    began: Instant,
) -> NextRun {
    let (frequency, now) = look(syncs, claim, began).await;
    let Some(function) = function else {
        let retry_at = Some(now + UNKNOWN_FUNCTION_DELAY);
        return NextRun { slot: None, retry_at, end: RunEnd::HandedBack };
    };
    // While the provider wants to be left alone, a run could only wait.
    let held =
        syncs.invoker.rate_limits.backoff_left(claim.integration, claim.connection).unwrap_or_default();
    let again = match ended {
        Ended::Failed { again, .. } => *again,
        _ => RetryTime::AtNextSlot,
    };
    let earliest = now + if let RetryTime::After(wait) = again { wait.max(held) } else { held };
    // What was deployed during the run says when the next one is.
    let deployed = syncs.functions.find_sync(claim.integration, &claim.sync);
    let function = deployed.as_deref().unwrap_or(function);
    let frequency = frequency.as_ref().or(function.frequency());
    let slot = frequency
        .map(|frequency| next_slot(frequency, function.timezone(), claim.claimed_at, now, rand::random()));
    let slot = slot.map(|slot| slot.max(earliest));
    let retry_at = match again {
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

/// The frequency that overrides the function's, if one does, and what time it is. Both may have been changed during the
/// run: the time is the database's, as a host whose clock is behind would plan the slot again that it has just served.
async fn look(syncs: &Syncs, claim: &Claim, began: Instant) -> (Option<Frequency>, DateTime<Utc>) {
    let read =
        async { schedules::frequency_override(&mut *syncs.store.connect().await?, claim.schedule).await };
    let (text, now) = read.await.unwrap_or_else(|_| {
        // While the database is away it is as it was, but for the time; the next run will see more.
        (claim.frequency_override.clone(), claim.claimed_at + began.elapsed())
    });
    (text.and_then(|text| text.parse().ok()), now)
}
