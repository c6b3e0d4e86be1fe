//! What this host runs, and the leases that it keeps for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::task::TaskTracker;

use crate::invoker::control::RunControl;
use syncline_store::function_jobs::JobLease;
use syncline_types::ids::ConnectionPk;

/// The jobs of this host, by their fences.
#[derive(Default)]
pub(crate) struct LeasedJobs {
    running: Mutex<HashMap<i64, Running>>,
    /// What goes to its end even if the caller that waits goes away.
    pub(crate) waited_for: TaskTracker,
}

struct Running {
    hold: JobLease,
    /// None if a request waits for it: then it takes nobody's place.
    queued_for: Option<ConnectionPk>,
    control: RunControl,
}

impl LeasedJobs {
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the lease of a job until what this gives is dropped.
    pub(crate) fn hold(
        self: &Arc<Self>,
        hold: JobLease,
        queued_for: Option<ConnectionPk>,
        control: RunControl,
    ) -> LeaseGuard {
        self.lock().insert(hold.fence, Running { hold, queued_for, control });
        LeaseGuard { jobs: Arc::clone(self), fence: hold.fence }
    }

    pub(super) fn holds(&self) -> Vec<JobLease> {
        self.lock().values().map(|running| running.hold).collect()
    }

    pub(super) fn controls(&self) -> Vec<RunControl> {
        self.lock().values().map(|running| running.control.clone()).collect()
    }

    /// Tells the functions that nobody waits for to come to their end.
    pub(super) fn ask_to_end(&self) {
        for running in self.lock().values().filter(|running| running.queued_for.is_some()) {
            running.control.signals.cancel();
        }
    }

    /// How many queued jobs run here.
    pub(super) fn count_queued(&self) -> usize {
        self.lock().values().filter(|running| running.queued_for.is_some()).count()
    }

    pub(super) fn lose(&self, hold: JobLease) {
        if let Some(running) = self.lock().get(&hold.fence) {
            running.control.lost.cancel();
        }
    }

    /// The connections that have `share` queued jobs or more running here.
    pub(super) fn connections_with(&self, share: usize) -> Vec<i64> {
        let mut counts: HashMap<i64, usize> = HashMap::new();
        for connection in self.lock().values().filter_map(|running| running.queued_for) {
            *counts.entry(connection.0).or_default() += 1;
        }
        counts.into_iter().filter(|(_, count)| *count >= share).map(|(connection, _)| connection).collect()
    }
}

/// The hold on a job; also a panic ends it, so that the lease runs out and another attempt follows.
pub(crate) struct LeaseGuard {
    jobs: Arc<LeasedJobs>,
    fence: i64,
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.jobs.lock().remove(&self.fence);
    }
}
