//! Jobs: asynchronous actions, actions with an Idempotency-Key, and the functions of webhooks and of connection events.
//!
//! All jobs are rows of one table. A queued job, such as an asynchronous action, runs on any host. A request with an
//! Idempotency-Key that waits for its result runs on the host that received it, and finishes even if the client
//! disconnects, so that a repeated request finds the result. Each running job has a lease. If its host is lost, another
//! host repeats a queued job, and a repeated request repeats the other kind. So every job runs at least once, under an
//! id that stays the same.

pub(crate) mod attempt;
pub(crate) mod leases;
pub(crate) mod result;
mod saved;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::functions::Functions;
use crate::invoker::Invoker;
use crate::invoker::run_tasks::RunTasks;
use crate::jobs::leases::LeasedJobs;
use syncline_auth::Environments;
use syncline_providers::Catalogue;
use syncline_store::Store;
use syncline_store::events::Events;
use syncline_telemetry::clock::Clock;

/// Settings for jobs that an operator can change.
#[derive(Debug, Clone)]
pub struct JobSettings {
    /// How long another host waits, without a heartbeat of this host, before it takes over a job.
    pub lease: Duration,
    /// Maximum number of queued jobs, such as asynchronous actions, that run on this host concurrently.
    pub max_jobs: usize,
    /// How long the result of an asynchronous action, or of a request with an Idempotency-Key, is stored.
    pub results_kept_for: Duration,
    /// How long jobs may continue after they were asked to end.
    pub grace: Duration,
}

/// Claims jobs, runs them, and keeps their leases.
pub struct Jobs {
    clock: Clock,
    store: Store,
    events: Arc<Events>,
    environments: Arc<Environments>,
    catalogue: Arc<Catalogue>,
    functions: Arc<Functions>,
    invoker: Arc<Invoker>,
    pub(crate) host_id: Uuid,
    pub(crate) leased: Arc<LeasedJobs>,
    attempts: Arc<RunTasks>,
    pub(crate) settings: JobSettings,
}

/// Dependencies of [`Jobs`].
pub struct JobParts {
    pub clock: Clock,
    pub store: Store,
    pub events: Arc<Events>,
    pub environments: Arc<Environments>,
    pub catalogue: Arc<Catalogue>,
    pub functions: Arc<Functions>,
    pub invoker: Arc<Invoker>,
    pub host_id: Uuid,
}

impl Jobs {
    pub fn new(parts: JobParts, settings: JobSettings) -> Arc<Self> {
        let JobParts { clock, store, events, environments, catalogue, functions, invoker, host_id } = parts;
        Arc::new(Self {
            clock,
            store,
            events,
            environments,
            catalogue,
            functions,
            invoker,
            host_id,
            leased: Arc::default(),
            attempts: Arc::default(),
            settings,
        })
    }
}
