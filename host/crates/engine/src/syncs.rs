//! Syncs: schedules, claims and leases of runs, and the commands of clients.

pub(crate) mod approvals;
pub(crate) mod commands;
pub(crate) mod fair_queue;
pub(crate) mod list;
pub(crate) mod run;
pub(crate) mod running;
pub(crate) mod schedule;
pub(crate) mod scheduler;
pub(crate) mod selection;
pub(crate) mod status;
pub(crate) mod variants;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::connections::cache::ConnectionCache;
use crate::functions::Functions;
use crate::invoker::Invoker;
use crate::invoker::run_tasks::RunTasks;
use crate::records::changes::RecordChanges;
use crate::syncs::running::Running;
use syncline_auth::Environments;
use syncline_config::DeletionHold;
use syncline_store::Store;
use syncline_store::events::Events;
use syncline_telemetry::clock::Clock;

/// Settings for syncs that an operator can change.
#[derive(Debug, Clone)]
pub struct SyncSettings {
    /// How long another host waits, without a heartbeat of this host, before it takes over a run.
    pub lease: Duration,
    /// Maximum number of concurrent syncs on this host.
    pub max_syncs: usize,
    /// Maximum number of concurrent syncs of one integration on all hosts, unless its bundle sets one.
    pub max_syncs_per_integration: Option<u32>,
    /// Maximum number of concurrent syncs of one connection on all hosts, unless its bundle sets one.
    pub max_syncs_per_connection: u32,
    /// When the deletions of a full sync wait for approval.
    pub deletion_hold: DeletionHold,
    /// How many consecutive attempts of a run may be interrupted without progress.
    pub max_idle_attempts: i32,
    /// How long runs may continue after they were asked to end, because of a shutdown or a reset.
    pub grace: Duration,
}

/// Schedules and runs syncs.
pub struct Syncs {
    clock: Clock,
    store: Store,
    events: Arc<Events>,
    environments: Arc<Environments>,
    connections: Arc<ConnectionCache>,
    functions: Arc<Functions>,
    invoker: Arc<Invoker>,
    record_changes: Arc<RecordChanges>,
    host_id: Uuid,
    settings: SyncSettings,
    running: Arc<Running>,
    runs: Arc<RunTasks>,
    /// Timers that stop runs after the grace period.
    ending: TaskTracker,
}

/// Dependencies of [`Syncs`].
pub struct SyncParts {
    pub clock: Clock,
    pub store: Store,
    pub events: Arc<Events>,
    pub environments: Arc<Environments>,
    pub connections: Arc<ConnectionCache>,
    pub functions: Arc<Functions>,
    pub invoker: Arc<Invoker>,
    pub record_changes: Arc<RecordChanges>,
    pub host_id: Uuid,
}

impl Syncs {
    pub fn new(parts: SyncParts, settings: SyncSettings) -> Arc<Self> {
        let SyncParts {
            clock,
            store,
            events,
            environments,
            connections,
            functions,
            invoker,
            record_changes,
            host_id,
        } = parts;
        Arc::new(Self {
            clock,
            store,
            events,
            environments,
            connections,
            functions,
            invoker,
            record_changes,
            host_id,
            settings,
            running: Arc::default(),
            runs: Arc::default(),
            ending: TaskTracker::new(),
        })
    }
}
