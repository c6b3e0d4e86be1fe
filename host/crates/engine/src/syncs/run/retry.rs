//! When a failed sync is retried.

use std::time::Duration;

use syncline_sandbox::{FunctionError, Interrupt};

const FIRST_RETRY: Duration = Duration::from_secs(10);
/// The first delay of a sync that makes no progress.
const FIRST_STALL_DELAY: Duration = Duration::from_secs(60);
const MAX_STALL_DELAY: Duration = Duration::from_secs(24 * 3600);

/// When a failed sync is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryTime {
    AtNextSlot,
    /// In a few seconds, a limited number of times: the cause may be temporary.
    Soon,
    /// After this delay, even if the next slot is earlier.
    After(Duration),
}

impl RetryTime {
    /// Every error may be temporary: even a crash or an exceeded limit may depend on the provider's responses.
    pub(crate) fn of(error: &FunctionError) -> Self {
        match error {
            FunctionError::Interrupted(Interrupt::RateLimited { retry_after }) => Self::After(*retry_after),
            _ => Self::Soon,
        }
    }

    /// After delays that grow with each failure.
    pub(crate) fn of_stall(failures: i32) -> Self {
        Self::After(stall_delay(failures, rand::random()))
    }
}

/// Doubles with every failure, with a jitter of 25 %.
pub(super) fn retry_delay(failures: i32, chance: f64) -> Duration {
    let doubled = FIRST_RETRY * 2_u32.pow(failures.clamp(0, 10).cast_unsigned());
    doubled.mul_f64(0.75 + chance / 2.0)
}

/// Doubles with every two consecutive failures, with a jitter of 25 %.
fn stall_delay(failures: i32, chance: f64) -> Duration {
    let doubled = FIRST_STALL_DELAY * 2_u32.pow((failures.max(0) / 2).min(16).cast_unsigned());
    doubled.min(MAX_STALL_DELAY).mul_f64(0.75 + chance / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delays_double_and_vary_by_at_most_a_quarter() {
        for (failures, least, most) in [(0, 7_500, 12_500), (1, 15_000, 25_000), (2, 30_000, 50_000)] {
            assert_eq!(retry_delay(failures, 0.0), Duration::from_millis(least));
            assert_eq!(retry_delay(failures, 1.0), Duration::from_millis(most));
        }
    }

    #[test]
    fn delays_without_progress_grow_to_one_day() {
        let waits: Vec<u64> = (0..6).map(|failures| stall_delay(failures, 0.5).as_secs()).collect();
        assert_eq!(waits, [60, 60, 120, 120, 240, 240]);
        assert_eq!(stall_delay(1_000, 0.5), Duration::from_secs(86_400));
    }
}
