//! The jobs that this host runs, and their leases.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::task::TaskTracker;

use crate::invoker::control::RunControl;
use syncline_store::function_jobs::JobLease;
use syncline_types::ids::ConnectionPk;

/// The running jobs of this host, by fencing token.
#[derive(Default)]
pub(crate) struct LeasedJobs {
    running: Mutex<HashMap<i64, Running>>,
    /// Jobs that a client waits for. They finish even if the client disconnects.
    pub(crate) waited_for: TaskTracker,
}

struct Running {
    hold: JobLease,
    /// The connection of a queued job. `None` if a client waits for the job: then no limit of queued jobs applies.
    queued_for: Option<ConnectionPk>,
    control: RunControl,
}

impl LeasedJobs {
    fn lock(&self) -> MutexGuard<'_, HashMap<i64, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the lease of a job until the returned guard is dropped.
    pub(crate) fn hold(
        self: &Arc<Self>,
        hold: JobLease,
        queued_for: Option<ConnectionPk>,
        control: RunControl,
    ) -> LeaseGuard {
        self.lock().insert(hold.fence, Running { hold, queued_for, control });
        LeaseGuard { jobs: Arc::clone(self), fence: hold.fence }
    }

    pub(super) fn leases(&self) -> Vec<JobLease> {
        self.lock().values().map(|running| running.hold).collect()
    }

    pub(super) fn controls(&self) -> Vec<RunControl> {
        self.lock().values().map(|running| running.control.clone()).collect()
    }

    /// Asks the functions of queued jobs to end. Jobs that a client waits for continue.
    pub(super) fn ask_to_end(&self) {
        for running in self.lock().values().filter(|running| running.queued_for.is_some()) {
            running.control.signals.cancel();
        }
    }

    /// The number of queued jobs that run on this host.
    pub(super) fn count_queued(&self) -> usize {
        self.lock().values().filter(|running| running.queued_for.is_some()).count()
    }

    pub(super) fn lose(&self, hold: JobLease) {
        if let Some(running) = self.lock().get(&hold.fence) {
            running.control.lost.cancel();
        }
    }

    /// The connections of which at least `share` queued jobs run on this host.
    pub(super) fn connections_with(&self, share: usize) -> Vec<i64> {
        let mut counts: HashMap<i64, usize> = HashMap::new();
        for connection in self.lock().values().filter_map(|running| running.queued_for) {
            *counts.entry(connection.0).or_default() += 1;
        }
        counts.into_iter().filter(|(_, count)| *count >= share).map(|(connection, _)| connection).collect()
    }
}

/// Keeps the lease of a job. It is also dropped after a panic, so that the lease expires and another attempt follows.
pub(crate) struct LeaseGuard {
    jobs: Arc<LeasedJobs>,
    fence: i64,
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.jobs.lock().remove(&self.fence);
    }
}
