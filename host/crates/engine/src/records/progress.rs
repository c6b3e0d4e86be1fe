//! Whether a sync gets anywhere.
//!
//! A commit shows life, not progress: a function that fetches the first page again and again commits too. What counts is
//! what cannot go on for ever while the provider stands still: another checkpoint, and ground that is new. For a run that
//! is any record which it has not saved yet, changed or not, since a full sync may have nothing but unchanged ones. For a
//! row of attempts it is a record which none of them has changed yet, since each of them may save the same ones anew.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use roaring::RoaringTreemap;

use syncline_store::streams::LockedStream;

/// What a run has gone over.
#[derive(Debug)]
pub(crate) struct Progress {
    /// What has changed since then was changed by one of the row of attempts.
    row_since: DateTime<Utc>,
    /// And since then by the run: the time of its first commit.
    run_since: Option<DateTime<Utc>>,
    /// Where the records stand that the run has saved unchanged, by the number of their stream.
    seen: HashMap<i32, RoaringTreemap>,
}

/// One change of a commit, which is of one stream.
#[derive(Debug)]
pub(crate) struct StreamProgress {
    pub(crate) stream: i32,
    /// The time of what it wrote.
    pub(crate) at: DateTime<Utc>,
    /// There is something now that was not there.
    pub(crate) is_new: bool,
    /// Of what it replaced or deleted, when the record had changed that had not for the longest.
    pub(crate) replaced_since: Option<DateTime<Utc>>,
    /// Where the records stand that it saved as they were.
    pub(crate) unchanged: RoaringTreemap,
}

impl StreamProgress {
    /// One that has done nothing.
    pub(crate) fn of(stream: &LockedStream) -> Self {
        Self {
            stream: stream.key.number,
            at: stream.now,
            is_new: false,
            replaced_since: None,
            unchanged: RoaringTreemap::new(),
        }
    }

    fn changes_what_had_not_since(&self, since: DateTime<Utc>) -> bool {
        self.is_new || self.replaced_since.is_some_and(|at| at < since)
    }
}

impl Progress {
    /// Of an attempt whose row began then.
    pub(crate) fn new(row_since: DateTime<Utc>) -> Self {
        Self { row_since, run_since: None, seen: HashMap::new() }
    }

    /// Whether a commit has changed what none of the row of attempts had.
    pub(crate) fn is_new_to_row(&self, commit: &[StreamProgress]) -> bool {
        commit.iter().any(|change| change.changes_what_had_not_since(self.row_since))
    }

    /// Takes in a commit that is kept. `false`: in it the run has only repeated what it had done.
    pub(crate) fn record_commit(&mut self, commit: Vec<StreamProgress>) -> bool {
        let mut is_new = false;
        for change in commit {
            let run_since = *self.run_since.get_or_insert(change.at);
            is_new |= change.changes_what_had_not_since(run_since);
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

    /// A commit of that second: whether it is new ground for the row of attempts, and for the run.
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
    fn only_ground_that_is_new_is_progress() {
        // The second attempt of a row that began at 100.
        let run = &mut Progress::new(at(100));
        assert_eq!(commit(run, 200, true, None, &[]), (true, true), "a new record");
        assert_eq!(commit(run, 201, false, Some(99), &[]), (true, true), "a record that none had changed");
        assert_eq!(commit(run, 202, false, Some(150), &[]), (false, true), "one that the first had changed");
        assert_eq!(commit(run, 203, false, Some(202), &[]), (false, false), "the same once more");
        assert_eq!(commit(run, 203, false, Some(200), &[]), (false, false), "what its first commit added");
        assert_eq!(commit(run, 204, false, None, &[1, 2]), (false, true), "unchanged ones");
        assert_eq!(commit(run, 205, false, None, &[2, 3]), (false, true), "one more among them");
        assert_eq!(commit(run, 206, false, None, &[1, 2, 3]), (false, false), "the same once more");
        assert_eq!(commit(run, 207, false, None, &[]), (false, false), "nothing at all");
    }
}
