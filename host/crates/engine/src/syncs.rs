//! Syncs: their schedules, the claims and leases of their runs, and what clients ask of them.

pub(crate) mod approvals;
pub(crate) mod commands;
pub(crate) mod fair_queue;
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

/// What an operator can set of syncs.
#[derive(Debug, Clone)]
pub struct SyncSettings {
    /// How long a run is held without a sign of life from its host.
    pub lease: Duration,
    /// How many syncs run on this host at once.
    pub max_syncs: usize,
    /// How many run of one integration over all hosts, where its bundle does not say.
    pub max_syncs_per_integration: Option<u32>,
    /// How many run of one connection over all hosts, where its bundle does not say.
    pub max_syncs_per_connection: u32,
    /// When a full sync deletes nothing before somebody approves it.
    pub deletion_hold: DeletionHold,
    /// How many attempts at a sync may be interrupted in a row before they have changed anything.
    pub max_idle_attempts: i32,
    /// How long runs may go on that were asked to end: since the host stops, or for a reset.
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
    /// Timers of runs that were asked to end.
    ending: TaskTracker,
}

/// What [`Syncs`] uses.
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
