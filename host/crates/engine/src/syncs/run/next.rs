//! When a sync runs next: at its slot, or before if it failed.

use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use crate::Engine;
use crate::functions::DeployedFunction;
use crate::invoker::error::FunctionError;
use crate::syncs::run::Ended;
use crate::syncs::schedule::next_slot;
use syncline_config::Frequency;
use syncline_store::schedules::{self, Claim, Next, RunEnd};

/// After so many failures in a row a sync waits for its next slot.
const MAX_RETRIES: i32 = 3;
const FIRST_RETRY: Duration = Duration::from_secs(10);
/// The same for a sync that gets nowhere.
const FIRST_STALL_DELAY: Duration = Duration::from_secs(60);
const MAX_STALL_DELAY: Duration = Duration::from_secs(24 * 3600);
/// Until then another host, or this one with another version of itself, may know a sync that this one does not.
const UNKNOWN_FUNCTION_DELAY: Duration = Duration::from_secs(60);

/// When a sync that failed is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    AtNextSlot,
    /// In a few seconds, some times, since the cause may pass.
    Soon,
    /// Then, and not before, whenever the next slot is.
    After(Duration),
}

impl Again {
    /// Nobody can tell by an error whether it will pass: a function's own may come of what the provider answered, and
    /// its crash or limit of what it met there.
    pub(crate) fn of(error: &FunctionError) -> Self {
        match error {
            FunctionError::RateLimited { retry_after } => Self::After(*retry_after),
            _ => Self::Soon,
        }
    }

    /// After longer and longer waits.
    pub(crate) fn of_stall(failures: i32) -> Self {
        Self::After(stall_delay(failures, rand::random()))
    }
}

/// Plans what comes after a run that began at that instant. `None` for the function: this host does not know it, and gives
/// the run back with all that was asked for.
pub(crate) async fn plan(
    engine: &Engine,
    claim: &Claim,
    function: Option<&DeployedFunction>,
    ended: &Ended,
    began: Instant,
) -> Next {
    let (frequency, now) = look(engine, claim, began).await;
    let Some(function) = function else {
        let retry_at = Some(now + UNKNOWN_FUNCTION_DELAY);
        return Next { slot: None, retry_at, end: RunEnd::HandedBack };
    };
    // While the provider wants to be left alone, a run could only wait.
    let held = engine.rate_limits.held_for(claim.integration, claim.connection).unwrap_or_default();
    let again = match ended {
        Ended::Failed { again, .. } => *again,
        _ => Again::AtNextSlot,
    };
    let earliest = now + if let Again::After(wait) = again { wait.max(held) } else { held };
    // What was deployed during the run says when the next one is.
    let deployed = engine.functions.find_sync(claim.integration, &claim.sync);
    let function = deployed.as_deref().unwrap_or(function);
    let frequency = frequency.as_ref().or(function.frequency());
    let slot = frequency
        .map(|frequency| next_slot(frequency, function.timezone(), claim.claimed_at, now, rand::random()));
    let slot = slot.map(|slot| slot.max(earliest));
    let retry_at = match again {
        Again::AtNextSlot => None,
        Again::Soon if claim.failures >= MAX_RETRIES => None,
        Again::Soon => Some((now + retry_delay(claim.failures, rand::random())).max(earliest)),
        Again::After(_) => Some(earliest),
    };
    let retry_at = retry_at.filter(|at| slot.is_none_or(|slot| *at < slot));
    let end = match ended {
        Ended::Success { .. } => RunEnd::Succeeded,
        Ended::Failed { .. } => RunEnd::Failed,
        Ended::HandedBack | Ended::Unknown => RunEnd::HandedBack,
        Ended::Dropped | Ended::Lost => RunEnd::Dropped,
    };
    Next { slot, retry_at, end }
}

/// The frequency that overrides the function's, if one does, and what time it is. Both may have been changed during the
/// run: the time is the database's, as a host whose clock is behind would plan the slot again that it has just served.
async fn look(engine: &Engine, claim: &Claim, began: Instant) -> (Option<Frequency>, DateTime<Utc>) {
    let read =
        async { schedules::frequency_override(&mut *engine.store.connect().await?, claim.schedule).await };
    let (text, now) = read.await.unwrap_or_else(|_| {
        // While the database is away it is as it was, but for the time; the next run will see more.
        (claim.frequency_override.clone(), claim.claimed_at + began.elapsed())
    });
    (text.and_then(|text| text.parse().ok()), now)
}

/// Doubles with every failure, give or take a quarter.
fn retry_delay(failures: i32, chance: f64) -> Duration {
    let doubled = FIRST_RETRY * 2_u32.pow(failures.clamp(0, 10).cast_unsigned());
    doubled.mul_f64(0.75 + chance / 2.0)
}

/// Doubles with every two failures in a row, give or take a quarter.
fn stall_delay(failures: i32, chance: f64) -> Duration {
    let doubled = FIRST_STALL_DELAY * 2_u32.pow((failures.max(0) / 2).min(16).cast_unsigned());
    doubled.min(MAX_STALL_DELAY).mul_f64(0.75 + chance / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_double_their_wait_and_differ_by_a_quarter_at_most() {
        for (failures, least, most) in [(0, 7_500, 12_500), (1, 15_000, 25_000), (2, 30_000, 50_000)] {
            assert_eq!(retry_delay(failures, 0.0), Duration::from_millis(least));
            assert_eq!(retry_delay(failures, 1.0), Duration::from_millis(most));
        }
    }

    #[test]
    fn what_gets_nowhere_waits_for_longer_and_longer_up_to_a_day() {
        let waits: Vec<u64> = (0..6).map(|failures| stall_delay(failures, 0.5).as_secs()).collect();
        assert_eq!(waits, [60, 60, 120, 120, 240, 240]);
        assert_eq!(stall_delay(1_000, 0.5), Duration::from_secs(86_400));
    }
}
