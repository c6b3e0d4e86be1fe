//! What the service does: runs actions and syncs, deploys bundles, and keeps in memory what requests need often.

mod actions;
mod authorizations;
mod connect_sessions;
mod connections;
mod credentials;
mod deployments;
mod environment_variables;
mod functions;
mod inbound_webhooks;
mod invoker;
mod jobs;
mod lifecycle;
mod observation;
pub mod outbound_webhooks;
mod proxy;
mod rate_limits;
mod records;
mod retention;
mod run_upkeep;
mod syncs;
mod takeover;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

pub use self::authorizations::{
    AUTHORIZATION_SECONDS, Arrival, AuthorizationError, Departure, DepartureRequest, Outcome, ReturnPath,
};
pub use self::connect_sessions::{
    ConfigDefaults, ConnectSession, CreatedSession, NewConnectSession, SessionError, UiOverrides,
};
pub use self::connections::typed::{TypedConnectionError, TypedCredentials};
pub use self::connections::{
    AuthenticatedConnection, ConnectError, ConnectionRoute, Connections, ImportedConnection,
};
pub use self::credentials::source::OpenCredentialsError;
pub use self::credentials::{Freshness, LiveCredentials, RefreshError};
pub use self::deployments::{DeployError, Deployment, PlannedChange, check_components, check_settings};
pub use self::environment_variables::{InvalidVariableValue, VariableValue, Variables, VariablesError};
pub use self::functions::action_tools::ActionTool;
pub use self::functions::descriptions::FunctionDescription;
pub use self::functions::{DeployedFunction, Functions};
pub use self::inbound_webhooks::dispatch::stored_headers;
pub use self::inbound_webhooks::ingest::{Intake, IntakeEndpoint, IntakeError, IntakeRequest, Taken};
pub use self::invoker::error::{ActionError, FunctionError};
pub use self::jobs::{
    ActionCall, ActionFailure, ActionJob, ActionResult, IdempotencyKey, InvalidIdempotencyKey, KeyedResult,
};
pub use self::lifecycle::{Parted, part_through_hosts};
pub use self::proxy::ProxyError;
pub use self::records::changes::{FollowedConnection, RecordChanges};
pub use self::records::dead_letters::{DeadLetterError, Replayed};
pub use self::records::read::{ReadError, WantedRecords};
pub use self::records::stream_numbers::StreamNumbers;
pub use self::retention::{Age, Retention};
pub use self::syncs::approvals::ApprovalError;
pub use self::syncs::commands::SyncCommand;
pub use self::syncs::schedule::{next_slot, slot_after_change};
pub use self::syncs::variants::VariantError;

use self::invoker::run_writer::RunWriter;
use syncline_auth::Environments;
use syncline_config::DeletionHold;
use syncline_egress::Gate;
use syncline_providers::Catalogue;
use syncline_sandbox::Runtime;
use syncline_store::notices::{Notice, Notices};
use syncline_store::{Store, hosts};

const ANNOUNCE_EVERY: Duration = Duration::from_secs(5);
/// However quiet it is, deployments are looked at again after this long.
const RELOAD_EVERY: Duration = Duration::from_secs(30);

const REFRESHES_END_WITHIN: Duration = Duration::from_secs(30);

/// What an operator can set.
#[derive(Debug, Clone)]
pub struct EngineSettings {
    /// How long a run is held without a sign of life from its host.
    pub lease: Duration,
    /// How many syncs run on this host at once.
    pub max_syncs: usize,
    /// How many run of one integration over all hosts, where its bundle does not say.
    pub max_syncs_per_integration: Option<u32>,
    /// Likewise, of one connection.
    pub max_syncs_per_connection: u32,
    /// How many queued jobs, such as asynchronous actions, run on this host at once.
    pub max_jobs: usize,
    /// How long what an asynchronous action came to, or a request with an Idempotency-Key, is kept.
    pub results_kept_for: Duration,
    /// How many readers may follow records on this host at once.
    pub max_change_readers: usize,
    /// When a full sync deletes nothing before somebody approves it.
    pub deletion_hold: DeletionHold,
    /// How long runs that are over are kept, with their logs.
    pub runs_kept_for: Duration,
    /// The least time between two runs of a sync that a bundle or a client may ask for.
    pub minimum_interval: Duration,
    /// How many attempts at a sync may be interrupted in a row before they have changed anything.
    pub max_idle_attempts: i32,
    /// How often a webhook function that failed is tried again.
    pub webhook_function_retries: u8,
    /// How long what providers have told is kept.
    pub received_webhooks_kept_for: Duration,
    /// The longest body of a provider's webhook.
    pub intake_max_body_bytes: usize,
    /// What is held of providers' webhooks that are not stored yet.
    pub intake_held_bytes: usize,
    /// How long runs may go on that were asked to end: since the host stops, or for a reset.
    pub grace: Duration,
    /// The member of a record that holds its metadata.
    pub record_metadata_key: Arc<str>,
    /// The most records of one model, connection and variant.
    pub max_stream_records: u64,
    /// How long payloads and records are kept.
    pub retention: Retention,
}

/// Everything that one host shares.
pub struct Engine {
    pub store: Store,
    pub catalogue: Arc<Catalogue>,
    pub environments: Arc<Environments>,
    pub connections: Arc<Connections>,
    pub functions: Functions,
    pub streams: StreamNumbers,
    pub record_changes: Arc<RecordChanges>,
    pub variables: Variables,
    pub notices: Arc<Notices>,
    runtime: Arc<Runtime>,
    gate: Gate,
    proxy_routes: Arc<proxy::ProxyRoutes>,
    rate_limits: rate_limits::RateLimits,
    paces: rate_limits::limiter::Paces,
    refreshes: credentials::Refreshes,
    run_writer: RunWriter,
    live_runs: Arc<invoker::live_runs::LiveRuns>,
    jobs: Arc<jobs::Jobs>,
    intake: Arc<Intake>,
    settings: EngineSettings,
    host_id: Uuid,
    shutdown_begun: CancellationToken,
}

/// The work that goes on beside requests.
pub struct Background {
    scheduler: tokio::task::JoinHandle<()>,
    jobs: tokio::task::JoinHandle<()>,
    received: tokio::task::JoinHandle<()>,
    shutdown: CancellationToken,
    live_runs: tokio::task::JoinHandle<()>,
    run_writer: TaskTracker,
}

impl Engine {
    /// Brings the engine up and begins to work.
    pub async fn start(
        store: Store,
        environments: Arc<Environments>,
        notices: Arc<Notices>,
        catalogue: Catalogue,
        gate: Gate,
        runtime: Arc<Runtime>,
        settings: EngineSettings,
    ) -> anyhow::Result<(Arc<Self>, Background)> {
        let host_id = Uuid::new_v4();
        let encryption_keys = environments.encryption_key_ids();
        hosts::announce(&mut *store.connect().await?, host_id, env!("CARGO_PKG_VERSION"), &encryption_keys)
            .await?;
        // From here on a new data key waits for this host; what was made before is read now.
        environments.follow(host_id).await?;
        tokio::spawn({
            let (notices, pool) = (Arc::clone(&notices), store.control().clone());
            async move { notices.listen(pool, host_id).await }
        });
        let (run_writer, write_runs) = RunWriter::new(store.clone());
        let tracker = TaskTracker::new();
        tracker.spawn(write_runs);
        tracker.close();
        let record_changes = RecordChanges::new(settings.max_change_readers);
        let intake = Intake::start(&store, &notices, &settings);
        let engine = Arc::new(Self {
            catalogue: Arc::new(catalogue),
            environments,
            connections: Connections::new(store.clone(), Arc::clone(&notices), Arc::clone(&record_changes)),
            functions: Functions::new(store.clone(), Arc::clone(&runtime)),
            streams: StreamNumbers::new(store.clone()),
            record_changes,
            variables: Variables::new(store.clone()),
            proxy_routes: proxy::ProxyRoutes::new(&notices),
            notices,
            runtime,
            gate,
            rate_limits: rate_limits::RateLimits::default(),
            paces: rate_limits::limiter::Paces::default(),
            refreshes: credentials::Refreshes::new(),
            run_writer,
            live_runs: Arc::default(),
            jobs: Arc::default(),
            intake,
            settings,
            host_id,
            shutdown_begun: CancellationToken::new(),
            store,
        });
        engine.functions.reload().await?;
        let shutdown = CancellationToken::new();
        tokio::spawn(announce(Arc::clone(&engine), shutdown.clone()));
        tokio::spawn(follow_environments(Arc::clone(&engine), shutdown.clone()));
        tokio::spawn(follow_deployments(Arc::clone(&engine), shutdown.clone()));
        tokio::spawn(records::changes::tell(Arc::clone(&engine), shutdown.clone()));
        tokio::spawn(records::changes::hear(Arc::clone(&engine), shutdown.clone()));
        tokio::spawn(records::changes::look(Arc::clone(&engine), shutdown.clone()));
        tokio::spawn(connect_sessions::sweep(Arc::clone(&engine), shutdown.clone()));
        tokio::spawn(credentials::run_background(Arc::clone(&engine), shutdown.clone()));
        tokio::spawn(rate_limits::follow(Arc::clone(&engine), shutdown.clone()));
        tokio::spawn(rate_limits::limiter::tell(Arc::clone(&engine), shutdown.clone()));
        tokio::spawn(rate_limits::limiter::hear(Arc::clone(&engine), shutdown.clone()));
        tokio::spawn(connections::deletion::clear_up(Arc::clone(&engine), shutdown.clone()));
        tokio::spawn(retention::run(Arc::clone(&engine), shutdown.clone()));
        tokio::spawn(run_upkeep::run(Arc::clone(&engine), shutdown.clone()));
        let live_runs = tokio::spawn(Arc::clone(&engine.live_runs).tell(engine.store.clone()));
        tokio::spawn(inbound_webhooks::dispatch::sweep(Arc::clone(&engine), shutdown.clone()));
        let received = tokio::spawn(inbound_webhooks::dispatch::run(Arc::clone(&engine), shutdown.clone()));
        let scheduler = tokio::spawn(syncs::scheduler::run(Arc::clone(&engine), shutdown.clone()));
        let jobs = tokio::spawn(jobs::run(Arc::clone(&engine), shutdown.clone()));
        Ok((engine, Background { scheduler, jobs, received, shutdown, live_runs, run_writer: tracker }))
    }

    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// The least time between two runs of a sync that may be asked for.
    pub fn minimum_interval(&self) -> Duration {
        self.settings.minimum_interval
    }

    pub fn host_id(&self) -> Uuid {
        self.host_id
    }

    pub fn is_shutting_down(&self) -> bool {
        self.shutdown_begun.is_cancelled()
    }

    /// Returns when the host begins to stop.
    pub async fn shutdown_begun(&self) {
        self.shutdown_begun.cancelled().await;
    }

    /// Stops taking work; `GET /ready` says so.
    pub fn begin_shutdown(&self) {
        self.shutdown_begun.cancel();
    }
}

impl Background {
    /// Lets runs finish and gives back the rest.
    pub async fn finish_runs(&mut self) {
        self.shutdown.cancel();
        let (syncs, jobs, received) = tokio::join!(&mut self.scheduler, &mut self.jobs, &mut self.received);
        for ended in [syncs, jobs, received] {
            if let Err(error) = ended {
                tracing::error!(error = &error as &dyn std::error::Error, "background work did not end well");
            }
        }
    }

    /// Writes what is still to be written. Requests are over by now.
    pub async fn close(self, engine: Arc<Engine>) {
        // A provider's answer that is on its way must not be lost.
        engine.refreshes.running.close();
        if tokio::time::timeout(REFRESHES_END_WITHIN, engine.refreshes.running.wait()).await.is_err() {
            tracing::warn!("some refreshes of credentials did not come to their end");
        }
        let left = async { hosts::leave(&mut *engine.store.connect().await?, engine.host_id).await };
        if let Err(error) = left.await {
            tracing::warn!(error = &error as &dyn std::error::Error, "the host could not say that it leaves");
        }
        self.live_runs.abort();
        let store = engine.store.clone();
        // The last holder of the engine lets go of the writer, whose queue ends then.
        drop(engine);
        if tokio::time::timeout(Duration::from_secs(5), self.run_writer.wait()).await.is_err() {
            tracing::warn!("some runs of actions may not have been written");
        }
        store.close().await;
    }
}

async fn announce(engine: Arc<Engine>, shutdown: CancellationToken) {
    let mut turns = tokio::time::interval(ANNOUNCE_EVERY);
    while shutdown.run_until_cancelled(turns.tick()).await.is_some() {
        let said = async {
            hosts::announce(
                &mut *engine.store.connect().await?,
                engine.host_id,
                env!("CARGO_PKG_VERSION"),
                &engine.environments.encryption_key_ids(),
            )
            .await
        };
        if let Err(error) = said.await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the host could not say that it is alive"
            );
        }
    }
}

/// Learns of environments and data keys that others have made.
async fn follow_environments(engine: Arc<Engine>, shutdown: CancellationToken) {
    let mut notices = engine.notices.subscribe();
    while shutdown
        .run_until_cancelled(notices.hear_within(RELOAD_EVERY, Notice::Environments))
        .await
        .is_some()
    {
        if let Err(error) = engine.environments.follow(engine.host_id).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "environments could not be followed");
        }
    }
}

/// Compiles what other hosts have staged, and switches to what was activated.
async fn follow_deployments(engine: Arc<Engine>, shutdown: CancellationToken) {
    let mut notices = engine.notices.subscribe();
    while shutdown.run_until_cancelled(notices.hear_within(RELOAD_EVERY, Notice::Deployments)).await.is_some()
    {
        if let Err(error) = deployments::follow(&engine).await {
            tracing::warn!(error = format!("{error:#}"), "deployments could not be followed");
        }
    }
}
