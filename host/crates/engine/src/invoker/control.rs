//! How a run is told to stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

/// How a run is told to stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct RunControl {
    /// The function is asked to come to its end.
    pub(crate) signals: Arc<RunSignals>,
    /// The run is given back at once; its schedule is due again.
    pub(crate) release: CancellationToken,
    /// The run lost its lease: it may not touch anything any more.
    pub(crate) lost: CancellationToken,
}

/// What can be told to a run while it is on.
#[derive(Debug, Default)]
pub struct RunSignals {
    cancelled: AtomicBool,
    noticed: AtomicBool,
    progress: AtomicU64,
}

impl RunSignals {
    /// Asks the function to come to its end. `false`: it was asked before.
    pub fn cancel(&self) -> bool {
        !self.cancelled.swap(true, Ordering::Relaxed)
    }

    /// How often the function has got on: a commit that repeats what it has done is not counted.
    pub(crate) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Counts that the function has got on.
    pub(crate) fn note_progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// Tells the function whether it should come to its end, and keeps that it knows.
    pub(crate) fn acknowledge_stop(&self) -> bool {
        let cancelled = self.cancelled.load(Ordering::Relaxed);
        self.noticed.fetch_or(cancelled, Ordering::Relaxed);
        cancelled
    }

    /// Whether the function knows that it should come to its end: when it returns then, it may not be done.
    pub(crate) fn stop_acknowledged(&self) -> bool {
        self.noticed.load(Ordering::Relaxed)
    }
}
