//! Groups ended runs by period, integration and kind.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};

use crate::statistics::histogram::Histogram;
use syncline_store::run_statistics::{EndedRun, PeriodStatistics};
use syncline_types::functions::{FunctionKind, RunState};
use syncline_types::ids::{EnvironmentPk, IntegrationPk};

/// The lengths of the periods in which each run counts.
const PERIOD_HOURS: [i16; 3] = [1, 6, 24];

/// Counts each run in the periods in which it ended. The result is in the order of the rows' key.
pub(super) fn periods(ended: &[EndedRun]) -> Vec<PeriodStatistics> {
    let mut counts: BTreeMap<Key, Counts> = BTreeMap::new();
    for run in ended {
        for hours in PERIOD_HOURS {
            let starts_at = period_start(run.finished_at, hours);
            let key = (run.environment, hours, starts_at, run.integration, run.kind);
            counts.entry(key).or_default().count(run);
        }
    }
    counts.into_iter().map(|(key, counts)| counts.into_statistics(key)).collect()
}

/// The start of the period of this length that contains `at`. Periods are counted from midnight, UTC.
pub(super) fn period_start(at: DateTime<Utc>, hours: i16) -> DateTime<Utc> {
    let seconds = i64::from(hours) * 3600;
    let after = TimeDelta::seconds(at.timestamp().rem_euclid(seconds));
    at - after - TimeDelta::nanoseconds(at.timestamp_subsec_nanos().into())
}

type Key = (EnvironmentPk, i16, DateTime<Utc>, IntegrationPk, FunctionKind);

#[derive(Default)]
struct Counts {
    succeeded: i64,
    failed: i64,
    cancelled: i64,
    lost: i64,
    records_saved: i64,
    records_changed: i64,
    backoff_ms: i64,
    duration_ms: i64,
    durations: Histogram,
    queue_delay_ms: i64,
    queue_delays: Histogram,
}

impl Counts {
    fn count(&mut self, run: &EndedRun) {
        match run.state {
            RunState::Success => self.succeeded += 1,
            RunState::Error => self.failed += 1,
            RunState::Cancelled => self.cancelled += 1,
            RunState::Lost => self.lost += 1,
            // Only runs that have ended are queued.
            RunState::Running => {}
        }
        self.records_saved += run.records_saved;
        self.records_changed += run.records_changed;
        self.backoff_ms += run.backoff_ms;
        // Two clocks may disagree by some milliseconds.
        let between = |start: DateTime<Utc>, end: DateTime<Utc>| (end - start).num_milliseconds().max(0);
        let duration = between(run.started_at, run.finished_at);
        self.duration_ms += duration;
        self.durations.record(duration);
        if let Some(due_at) = run.due_at {
            let delay = between(due_at, run.started_at);
            self.queue_delay_ms += delay;
            self.queue_delays.record(delay);
        }
    }

    fn into_statistics(self, (environment, hours, starts_at, integration, kind): Key) -> PeriodStatistics {
        PeriodStatistics {
            environment,
            hours,
            starts_at,
            integration,
            kind,
            succeeded: self.succeeded,
            failed: self.failed,
            cancelled: self.cancelled,
            lost: self.lost,
            records_saved: self.records_saved,
            records_changed: self.records_changed,
            backoff_ms: self.backoff_ms,
            duration_ms: self.duration_ms,
            durations: self.durations.into_counts(),
            queue_delay_ms: self.queue_delay_ms,
            queue_delays: self.queue_delays.into_counts(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("it is a time")
    }

    fn run(state: RunState, finished_at: &str) -> EndedRun {
        let finished_at = at(finished_at);
        EndedRun {
            environment: EnvironmentPk(1),
            integration: IntegrationPk(2),
            kind: FunctionKind::Sync,
            state,
            started_at: finished_at - TimeDelta::seconds(2),
            finished_at,
            due_at: None,
            records_saved: 10,
            records_changed: 3,
            backoff_ms: 500,
        }
    }

    #[test]
    fn a_run_counts_in_its_hour_its_quarter_of_a_day_and_its_day() {
        let periods = periods(&[run(RunState::Success, "2026-11-21T17:59:59.999Z")]);
        let starts: Vec<_> = periods.iter().map(|period| (period.hours, period.starts_at)).collect();
        assert_eq!(
            starts,
            [
                (1, at("2026-11-21T17:00:00Z")),
                (6, at("2026-11-21T12:00:00Z")),
                (24, at("2026-11-21T00:00:00Z"))
            ]
        );
    }

    #[test]
    fn runs_of_one_period_are_added_up() {
        let states = [RunState::Success, RunState::Error, RunState::Lost, RunState::Cancelled];
        let runs = states.map(|state| run(state, "2026-11-21T17:30:00Z"));
        let hour = &periods(&runs)[0];
        assert_eq!((hour.succeeded, hour.failed, hour.lost, hour.cancelled), (1, 1, 1, 1));
        assert_eq!((hour.records_saved, hour.records_changed, hour.backoff_ms), (40, 12, 2_000));
        assert_eq!((hour.duration_ms, hour.durations.iter().sum::<i64>()), (8_000, 4));
        assert_eq!(hour.queue_delays.iter().sum::<i64>(), 0, "none of them waited in a queue");
    }

    #[test]
    fn the_queue_delay_is_the_time_between_due_and_start() {
        let mut waited = run(RunState::Success, "2026-11-21T17:30:00Z");
        waited.due_at = Some(waited.started_at - TimeDelta::milliseconds(700));
        let mut early = run(RunState::Success, "2026-11-21T17:30:00Z");
        early.due_at = Some(early.started_at + TimeDelta::milliseconds(700));
        let hour = &periods(&[waited, early])[0];
        assert_eq!((hour.queue_delay_ms, hour.queue_delays.iter().sum::<i64>()), (700, 2));
    }
}
