//! The runs of syncs on this host, and their leases.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

use crate::invoker::control::RunControl;
use crate::syncs::fair_queue::Tenant;
use syncline_store::schedules::Claim;
use syncline_types::ids::SchedulePk;

/// The runs of syncs on this host.
#[derive(Default)]
pub(crate) struct Running(Mutex<HashMap<Uuid, Run>>);

/// A run, with the data that its lease and its tenant's share need.
#[derive(Clone)]
pub(super) struct Run {
    pub(super) schedule: SchedulePk,
    tenant: Tenant,
    pub(super) control: RunControl,
}

impl Running {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Run>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn by_tenant(&self) -> HashMap<Tenant, usize> {
        let mut counts = HashMap::new();
        for run in self.lock().values() {
            *counts.entry(run.tenant).or_default() += 1;
        }
        counts
    }
}

/// Keeps the lease of a run until it is dropped. It is also dropped if the run panics, so that the lease expires and
/// another attempt follows.
pub(super) struct LeaseGuard {
    running: Arc<Running>,
    run_id: Uuid,
}

impl LeaseGuard {
    pub(super) fn new(running: &Arc<Running>, claim: &Claim, control: RunControl) -> Self {
        let tenant = Tenant { environment: claim.environment, integration: claim.integration };
        let run = Run { schedule: claim.schedule, tenant, control };
        running.lock().insert(claim.run_id, run);
        Self { running: Arc::clone(running), run_id: claim.run_id }
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.running.lock().remove(&self.run_id);
    }
}
