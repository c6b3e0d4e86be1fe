//! Detects whether a sync makes progress.
//!
//! A commit alone does not prove progress: a function that fetches the first page again and again commits too. Progress
//! is what cannot continue forever without new data: a new checkpoint, or new records. For a run, that is any record
//! that the run has not saved before, even if unchanged, because a full sync may find only unchanged records. For a
//! series of attempts, it is a record that none of them has changed before, because each may save the same records
//! again.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use roaring::RoaringTreemap;

use syncline_store::streams::LockedStream;

/// The records that a run has processed so far.
#[derive(Debug)]
pub(crate) struct Progress {
    /// The start of the series of attempts. Records that changed later were changed by one of these attempts.
    attempts_since: DateTime<Utc>,
    /// The time of the run's first commit. Records that changed later were changed by this run.
    run_since: Option<DateTime<Utc>>,
    /// The positions of records that the run has saved unchanged, by the number of their stream.
    seen: HashMap<i32, RoaringTreemap>,
}

/// The changes of a commit in one stream.
#[derive(Debug)]
pub(crate) struct StreamProgress {
    pub(crate) stream: i32,
    /// The time that the changed records received.
    pub(crate) at: DateTime<Utc>,
    /// The commit added a record.
    pub(crate) is_new: bool,
    /// Of the replaced or deleted records, the earliest time of a previous change.
    pub(crate) replaced_since: Option<DateTime<Utc>>,
    /// The positions of records that were saved unchanged.
    pub(crate) unchanged: RoaringTreemap,
}

impl StreamProgress {
    /// The progress of a commit without changes.
    pub(crate) fn of(stream: &LockedStream) -> Self {
        Self {
            stream: stream.key.number,
            at: stream.now,
            is_new: false,
            replaced_since: None,
            unchanged: RoaringTreemap::new(),
        }
    }

    fn changes_older_than(&self, since: DateTime<Utc>) -> bool {
        self.is_new || self.replaced_since.is_some_and(|at| at < since)
    }
}

impl Progress {
    /// For an attempt of a series that started at `attempts_since`.
    pub(crate) fn new(attempts_since: DateTime<Utc>) -> Self {
        Self { attempts_since, run_since: None, seen: HashMap::new() }
    }

    /// Returns whether a commit has changed a record that no attempt of the series had changed.
    pub(crate) fn is_new_to_row(&self, commit: &[StreamProgress]) -> bool {
        commit.iter().any(|change| change.changes_older_than(self.attempts_since))
    }

    /// Adds a commit. Returns `false` if the run has only repeated earlier changes in it.
    pub(crate) fn record_commit(&mut self, commit: Vec<StreamProgress>) -> bool {
        let mut is_new = false;
        for change in commit {
            let run_since = *self.run_since.get_or_insert(change.at);
            is_new |= change.changes_older_than(run_since);
            let seen = self.seen.entry(change.stream).or_default();
            is_new |= !change.unchanged.is_subset(seen);
            *seen |= change.unchanged;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).expect("a small number")
    }

    /// A commit at this second. Returns whether it is progress for the series of attempts, and for the run.
    fn commit(
        run: &mut Progress,
        second: i64,
        is_new: bool,
        replaced_since: Option<i64>,
        unchanged: &[u64],
    ) -> (bool, bool) {
        let change = StreamProgress {
            stream: 1,
            at: at(second),
            is_new,
            replaced_since: replaced_since.map(at),
            unchanged: unchanged.iter().copied().collect(),
        };
        let commit = vec![change];
        (run.is_new_to_row(&commit), run.record_commit(commit))
    }

    #[test]
    fn only_new_changes_are_progress() {
        // The second attempt of a series that started at second 100.
        let run = &mut Progress::new(at(100));
        assert_eq!(commit(run, 200, true, None, &[]), (true, true), "a new record");
        assert_eq!(
            commit(run, 201, false, Some(99), &[]),
            (true, true),
            "a record that no attempt has changed"
        );
        assert_eq!(
            commit(run, 202, false, Some(150), &[]),
            (false, true),
            "a record that the first attempt has changed"
        );
        assert_eq!(commit(run, 203, false, Some(202), &[]), (false, false), "the same record again");
        assert_eq!(
            commit(run, 203, false, Some(200), &[]),
            (false, false),
            "a record that this run has added"
        );
        assert_eq!(commit(run, 204, false, None, &[1, 2]), (false, true), "unchanged records");
        assert_eq!(commit(run, 205, false, None, &[2, 3]), (false, true), "one of them is new to the run");
        assert_eq!(commit(run, 206, false, None, &[1, 2, 3]), (false, false), "the same records again");
        assert_eq!(commit(run, 207, false, None, &[]), (false, false), "no records");
    }
}
