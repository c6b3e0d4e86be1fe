//! How a run of a sync ended.

use chrono::{DateTime, Utc};

use crate::credentials::rejection::RejectionCause;
use crate::outbound_webhooks::Checkpoints;
use crate::records::commit::RunCounts;
use crate::syncs::run::retry::RetryTime;
use syncline_store::runs::RunError;

pub(super) enum Ended {
    Success {
        counts: RunCounts,
        /// Including what earlier attempts have saved since the last success.
        unreported: RunCounts,
        /// When the first of these attempts began, by the clock of the records database.
        since: DateTime<Utc>,
        checkpoints: Checkpoints,
    },
    Failed {
        error: RunError,
        /// Set if the provider rejected the connection's credentials.
        rejection: Option<RejectionCause>,
        retry: RetryTime,
        counts: Option<RunCounts>,
        checkpoints: Checkpoints,
    },
    /// Nothing is left to do, for example because the connection was deleted.
    Dropped,
    /// This host does not know the sync or cannot run it. Another host may.
    Unknown,
    HandedBack,
    Lost,
}
