//! Computes when a sync is due according to its frequency. Pure: no clock, no database.

use std::time::Duration;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;

use syncline_config::Frequency;

/// Maximum jitter that is added to an interval, as a duration and as a fraction (one part in 20) of the interval.
const MAX_JITTER: Duration = Duration::from_secs(30);
const JITTER_DIVISOR: u32 = 20;

/// Returns the first slot after `now`, counted from the start of the latest run, or from `now` if there was none.
/// Missed slots are skipped, never run in a burst. `chance`, from 0 to 1, is the fraction of the jitter that is added.
pub fn next_slot(
    frequency: &Frequency,
    timezone: Tz,
    started_at: DateTime<Utc>,
    now: DateTime<Utc>,
    chance: f64,
) -> DateTime<Utc> {
    let mut slot = frequency.next_after(started_at, timezone);
    if slot <= now {
        slot = frequency.next_after(now, timezone);
    }
    slot + jitter(frequency).mul_f64(chance)
}

/// Returns the first slot after a frequency change. An interval counts from the start of the latest run, even if it has
/// already elapsed. If it counted from now, frequent changes could postpone the slot forever.
pub fn slot_after_change(
    frequency: &Frequency,
    timezone: Tz,
    started_at: DateTime<Utc>,
    now: DateTime<Utc>,
    chance: f64,
) -> DateTime<Utc> {
    match frequency.interval() {
        Some(interval) => (started_at + interval).max(now) + jitter(frequency).mul_f64(chance),
        None => next_slot(frequency, timezone, started_at, now, chance),
    }
}

/// Maximum jitter of a slot. It spreads connections that were created together. A cron expression has no jitter.
pub(crate) fn jitter(frequency: &Frequency) -> Duration {
    frequency.interval().map_or(Duration::ZERO, |interval| (interval / JITTER_DIVISOR).min(MAX_JITTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds until the next slot, after a run that started `started_ago` seconds ago.
    fn seconds(frequency: &str, started_ago: u64, chance: f64) -> i64 {
        let now: DateTime<Utc> = "2026-11-21T12:00:10Z".parse().unwrap();
        let started_at = now - Duration::from_secs(started_ago);
        let slot = next_slot(&frequency.parse().unwrap(), Tz::UTC, started_at, now, chance);
        (slot - now).num_seconds()
    }

    #[test]
    fn jitter_is_at_most_a_twentieth_of_the_interval_and_thirty_seconds() {
        assert_eq!(seconds("every 1 hour", 60, 0.0), 3_540);
        assert_eq!(seconds("every 1 hour", 60, 0.5), 3_555);
        assert_eq!(seconds("every 1 hour", 60, 1.0), 3_570);
        assert_eq!(seconds("every 1 minute", 0, 1.0), 63);
        assert_eq!(seconds("30 * * * *", 0, 1.0), 1_790, "a cron expression has no jitter");
    }

    #[test]
    fn a_new_interval_counts_from_the_latest_run_and_a_new_cron_from_now() {
        let now: DateTime<Utc> = "2026-11-21T12:00:10Z".parse().unwrap();
        let seconds = |frequency: &str, started_ago: u64| {
            let started_at = now - Duration::from_secs(started_ago);
            let slot = slot_after_change(&frequency.parse().unwrap(), Tz::UTC, started_at, now, 0.0);
            (slot - now).num_seconds()
        };
        assert_eq!(seconds("every 1 hour", 600), 3_000);
        assert_eq!(seconds("every 1 hour", 100_000), 0);
        assert_eq!(seconds("30 * * * *", 100_000), 1_790);
    }

    #[test]
    fn missed_slots_are_skipped() {
        assert_eq!(seconds("every 1 minute", 59, 0.0), 1);
        assert_eq!(seconds("every 1 minute", 60, 0.0), 60);
        assert_eq!(seconds("every 1 minute", 100_000, 0.0), 60);
        assert_eq!(seconds("* * * * *", 3_600, 0.0), 50);
    }
}
