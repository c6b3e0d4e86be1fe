//! Jobs: actions that nobody waits for, actions that run once however often they are asked for, and the functions of
//! webhooks and of connection events.
//!
//! Both are rows of one table. An asynchronous action is queued, and any host runs it. A request with an
//! Idempotency-Key that waits is run by the host that it came to, and goes to its end even if the caller goes away, so
//! that a repeat finds what it came to. What a host holds it holds under a lease: when the host is lost, another one
//! runs a queued job again, and a repeat of its request runs the other kind. So both run at least once, under an id
//! that stays the same.

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

/// What an operator can set of jobs.
#[derive(Debug, Clone)]
pub struct JobSettings {
    /// How long a job is held without a sign of life from its host.
    pub lease: Duration,
    /// How many queued jobs, such as asynchronous actions, run on this host at once.
    pub max_jobs: usize,
    /// How long the result of an asynchronous action, or of a request with an Idempotency-Key, is kept.
    pub results_kept_for: Duration,
    /// How long jobs may go on that were asked to end.
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
    pub(crate) held: Arc<LeasedJobs>,
    attempts: Arc<RunTasks>,
    pub(crate) settings: JobSettings,
}

/// What [`Jobs`] uses.
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
            held: Arc::default(),
            attempts: Arc::default(),
            settings,
        })
    }
}
