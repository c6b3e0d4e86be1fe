//! How a run of a sync ended.

use chrono::{DateTime, Utc};

use crate::outbound_webhooks::Checkpoints;
use crate::records::commit::RunCounts;
use crate::syncs::run::retry::RetryTime;
use syncline_store::runs::RunError;

pub(super) enum Ended {
    Success {
        counts: RunCounts,
        /// With what earlier attempts saved since the last success.
        unreported: RunCounts,
        /// When the first of these began, by the clock that records' times are from.
        since: DateTime<Utc>,
        checkpoints: Checkpoints,
    },
    Failed {
        error: RunError,
        again: RetryTime,
        counts: Option<RunCounts>,
        checkpoints: Checkpoints,
    },
    /// Nothing is left to do, as after the deletion of the connection.
    Dropped,
    /// This host does not know the sync, or cannot run it: another one may.
    Unknown,
    HandedBack,
    Lost,
}
