//! When a sync is due by its frequency. Pure: no clock, no database.

use std::time::Duration;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;

use syncline_config::Frequency;

/// The most that an interval is lengthened by, and the part of it that is so at most.
const MOST_JITTER: Duration = Duration::from_secs(30);
const JITTER_PART: u32 = 20;

/// The first slot after `now`, counted from the start of the latest run, or from now where there was none. Missed slots
/// are skipped, never run in a burst. `chance`, from 0 to 1, is how much of the jitter there is.
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

/// The first slot by a frequency that the sync has not had so far. An interval counts from the start of the latest run,
/// also if it is over by then: counted from now, one that is changed often enough would never be over.
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

/// What is added to a slot at most: connections that were made together should not run together for ever. A cron means
/// the time that it says.
pub(crate) fn jitter(frequency: &Frequency) -> Duration {
    frequency.interval().map_or(Duration::ZERO, |interval| (interval / JITTER_PART).min(MOST_JITTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many seconds it is to the next slot after a run that began so long ago.
    fn seconds(frequency: &str, began_ago: u64, chance: f64) -> i64 {
        let now: DateTime<Utc> = "2026-11-21T12:00:10Z".parse().unwrap();
        let began = now - Duration::from_secs(began_ago);
        let slot = next_slot(&frequency.parse().unwrap(), Tz::UTC, began, now, chance);
        (slot - now).num_seconds()
    }

    #[test]
    fn intervals_are_lengthened_by_a_twentieth_and_half_a_minute_at_most() {
        assert_eq!(seconds("every 1 hour", 60, 0.0), 3_540);
        assert_eq!(seconds("every 1 hour", 60, 0.5), 3_555);
        assert_eq!(seconds("every 1 hour", 60, 1.0), 3_570);
        assert_eq!(seconds("every 1 minute", 0, 1.0), 63);
        assert_eq!(seconds("30 * * * *", 0, 1.0), 1_790, "a cron is on time");
    }

    #[test]
    fn another_interval_counts_from_the_latest_run_and_another_cron_from_now() {
        let now: DateTime<Utc> = "2026-11-21T12:00:10Z".parse().unwrap();
        let seconds = |frequency: &str, began_ago: u64| {
            let began = now - Duration::from_secs(began_ago);
            let slot = slot_after_change(&frequency.parse().unwrap(), Tz::UTC, began, now, 0.0);
            (slot - now).num_seconds()
        };
        assert_eq!(seconds("every 1 hour", 600), 3_000);
        assert_eq!(seconds("every 1 hour", 100_000), 0);
        assert_eq!(seconds("30 * * * *", 100_000), 1_790);
    }

    #[test]
    fn slots_that_were_missed_are_skipped() {
        assert_eq!(seconds("every 1 minute", 59, 0.0), 1);
        assert_eq!(seconds("every 1 minute", 60, 0.0), 60);
        assert_eq!(seconds("every 1 minute", 100_000, 0.0), 60);
        assert_eq!(seconds("* * * * *", 3_600, 0.0), 50);
    }
}
