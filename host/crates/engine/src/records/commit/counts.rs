//! Counts of changed records.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::records::commit::StreamName;
use syncline_types::ids::ModelName;

/// The number of changes that a run has made to records of one model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCounts {
    pub added: u64,
    pub updated: u64,
    pub deleted: u64,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub set_aside: u64,
}

/// Counts by model, as in the response member `latestResult`.
pub type RunCounts = BTreeMap<ModelName, ModelCounts>;

impl ModelCounts {
    pub fn add(&mut self, other: Self) {
        self.added += other.added;
        self.updated += other.updated;
        self.deleted += other.deleted;
        self.set_aside += other.set_aside;
    }

    fn without(self, other: Self) -> Self {
        Self {
            added: self.added.saturating_sub(other.added),
            updated: self.updated.saturating_sub(other.updated),
            deleted: self.deleted.saturating_sub(other.deleted),
            set_aside: self.set_aside.saturating_sub(other.set_aside),
        }
    }
}

/// The changes of commits, by stream.
#[derive(Debug, Clone, Default)]
pub struct Changes {
    pub streams: BTreeMap<StreamName, ModelCounts>,
    /// The time from which readers see all of these changes.
    pub since: Option<DateTime<Utc>>,
}

impl Changes {
    pub(crate) fn add(&mut self, stream: StreamName, counts: ModelCounts, at: DateTime<Utc>) {
        if counts.added + counts.updated + counts.deleted == 0 {
            return;
        }
        self.streams.entry(stream).or_default().add(counts);
        self.since = self.since.min(Some(at)).or(Some(at));
    }

    /// The same streams without counts, because it is not known whether the changes were committed.
    pub(crate) fn without_counts(self) -> Self {
        let streams = self.streams.into_keys().map(|stream| (stream, ModelCounts::default()));
        Self { streams: streams.collect(), since: self.since }
    }

    pub fn extend(&mut self, later: Self) {
        for (stream, counts) in later.streams {
            self.streams.entry(stream).or_default().add(counts);
        }
        self.since = self.since.or(later.since);
    }
}

/// Returns `counts` without the counts that were carried over from earlier attempts.
pub fn without_carried(counts: &RunCounts, carried: &RunCounts) -> RunCounts {
    let own = |(model, counts): (&ModelName, &ModelCounts)| {
        (model.clone(), counts.without(carried.get(model).copied().unwrap_or_default()))
    };
    counts.iter().map(own).collect()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde requires a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}
