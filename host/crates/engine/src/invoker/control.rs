//! How the host asks a run to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

/// How the host asks a run to stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunControl {
    /// Asks the function to end.
    pub(crate) signals: Arc<RunSignals>,
    /// Hands the run back at once. Its schedule is due again.
    pub(crate) release: CancellationToken,
    /// The run has lost its lease and must not write anything.
    pub(crate) lost: CancellationToken,
}

/// Signals between the host and a run in progress.
#[derive(Debug, Default)]
pub struct RunSignals {
    cancelled: AtomicBool,
    acknowledged: AtomicBool,
    progress: AtomicU64,
}

impl RunSignals {
    /// Asks the function to end. Returns `false` if it was already asked.
    pub fn cancel(&self) -> bool {
        !self.cancelled.swap(true, Ordering::Relaxed)
    }

    /// How many times the function has made progress. A commit that repeats earlier changes does not count.
    pub(crate) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Counts one step of progress.
    pub(crate) fn note_progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether the function should end, and records that the function knows it.
    pub(crate) fn acknowledge_stop(&self) -> bool {
        let cancelled = self.cancelled.load(Ordering::Relaxed);
        self.acknowledged.fetch_or(cancelled, Ordering::Relaxed);
        cancelled
    }

    /// Whether the function knows that it should end. If it then returns, its work may be incomplete.
    pub(crate) fn stop_acknowledged(&self) -> bool {
        self.acknowledged.load(Ordering::Relaxed)
    }
}
