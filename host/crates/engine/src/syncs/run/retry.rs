//! When a sync that failed is tried again.

use std::time::Duration;

use crate::invoker::error::FunctionError;

const FIRST_RETRY: Duration = Duration::from_secs(10);
/// The first delay of a sync that gets nowhere.
const FIRST_STALL_DELAY: Duration = Duration::from_secs(60);
const MAX_STALL_DELAY: Duration = Duration::from_secs(24 * 3600);

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

/// Doubles with every failure, give or take a quarter.
pub(super) fn retry_delay(failures: i32, chance: f64) -> Duration {
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
