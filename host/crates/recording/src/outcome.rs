//! The outcome of a run: what it returned, logged, and would have saved.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The outcome of a run. The lists are sorted, except for the log.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The function's value, if it returned one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RawValue>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RunFailure>,
    /// The records that the run added, changed or deleted.
    #[serde(default)]
    pub records: Vec<SavedRecord>,
    /// The number of records that the run saved without a change.
    #[serde(default)]
    pub unchanged: u64,
    /// The checkpoint after the run.
    #[serde(default)]
    pub checkpoint: Option<Box<RawValue>>,
    /// The metadata of the connection after the run.
    pub metadata: Box<RawValue>,
    #[serde(default)]
    pub log: Vec<LoggedLine>,
}

/// Why a run failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunFailure {
    /// The error code, as in the error reference.
    pub code: String,
    pub message: String,
}

/// A record that a run added, changed or deleted.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedRecord {
    pub model: String,
    pub variant: String,
    pub id: String,
    pub change: RecordChange,
    /// The record before the run, if it existed. A recording has it in its list of kept records instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Box<RawValue>>,
    /// The record after the run, unless it was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Box<RawValue>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordChange {
    Added,
    Updated,
    Deleted,
}

/// A line of the run's log, without its time.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoggedLine {
    pub level: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fields: Option<Box<RawValue>>,
}

impl RecordChange {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Updated => "updated",
            Self::Deleted => "deleted",
        }
    }
}

impl Outcome {
    /// The form in a recording.
    #[must_use]
    pub fn for_recording(mut self) -> Self {
        self.records.iter_mut().for_each(|record| record.before = None);
        self
    }

    /// The number of records with this change.
    pub fn count(&self, change: RecordChange) -> usize {
        self.records.iter().filter(|record| record.change == change).count()
    }
}
