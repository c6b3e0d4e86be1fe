//! The composition root: creates every service of a host in the order of their dependencies, starts every
//! long-lived task, and stops them in order.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use syncline_api::{App, ClientLimitSettings, ClientLimits, Services};
use syncline_auth::{Accounts, ApiKeys, Authenticator, Environments};
use syncline_dashboard::Dashboard;
use syncline_egress::EgressGateway;
use syncline_engine::{
    Actions, AuditLog, AuthorizationParts, Authorizations, ConnectSessions, ConnectionCache, ConnectionParts,
    ConnectionSettings, Connections, Credentials, DeadLetters, DeploymentParts, Deployments,
    DispatchSettings, EnvironmentVariables, Functions, Health, HostRegistration, InboundWebhookLog,
    IngestSettings, Integrations, Invoker, InvokerParts, JobParts, JobSettings, Jobs, Lifecycle, LiveRuns,
    Observation, ProviderFiles, Proxy, ProxyParts, ProxyRoutes, RateLimits, RecordChanges, RecordSettings,
    Records, Retention, RetentionSettings, RunUpkeep, RunWriter, Runs, Statistics, SyncParts, SyncSettings,
    Syncs, TypedConnections, WebhookDispatch, WebhookIngest,
};
use syncline_outbound_webhooks::{DeliveryLog, Sender, SenderSettings};
use syncline_providers::Catalogue;
use syncline_sandbox::Sandbox;
use syncline_store::Store;
use syncline_store::events::Events;
use syncline_telemetry::clock::Clock;
use syncline_telemetry::supervisor::{Importance, Stage, Supervisor};

/// Number of transactions that can store inbound webhooks at the same time.
const INBOUND_WEBHOOK_WRITERS: [&str; 2] = ["inbound-webhook-writer-1", "inbound-webhook-writer-2"];
/// How much longer than the grace period a shutdown waits for work. Runs that did not end in time are released,
/// which needs writes to the database.
const WORK_ENDS_WITHIN: Duration = Duration::from_secs(30);
const UPKEEP_ENDS_WITHIN: Duration = Duration::from_secs(5);
const WRITING_ENDS_WITHIN: Duration = Duration::from_secs(5);

/// The settings of an operator, by service.
pub(crate) struct HostSettings {
    pub(crate) clients: ClientLimitSettings,
    pub(crate) connections: ConnectionSettings,
    pub(crate) dispatch: DispatchSettings,
    pub(crate) ingest: IngestSettings,
    pub(crate) jobs: JobSettings,
    pub(crate) records: RecordSettings,
    pub(crate) retention: RetentionSettings,
    pub(crate) sender: SenderSettings,
    pub(crate) syncs: SyncSettings,
    /// Maximum number of concurrent readers that follow records on this host.
    pub(crate) max_change_readers: usize,
    /// Shortest interval between two runs of a sync that a bundle or a client may set.
    pub(crate) minimum_interval: Duration,
    /// How long finished runs are retained, with their logs.
    pub(crate) runs_kept_for: Duration,
    /// How long entries of the audit log are retained.
    pub(crate) audit_log_kept_for: Duration,
    /// How long requests may continue after a stop signal, and runs after they were asked to stop.
    pub(crate) grace: Duration,
    /// URL at which clients reach this service, without a slash at the end.
    pub(crate) public_url: Arc<str>,
    /// URL at which end users reach the Connect UI, without a slash at the end.
    pub(crate) connect_url: Arc<str>,
}

/// The parts that all services use.
pub(crate) struct Foundation {
    pub(crate) clock: Clock,
    pub(crate) store: Store,
    pub(crate) events: Arc<Events>,
    pub(crate) environments: Arc<Environments>,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) gateway: Arc<EgressGateway>,
    pub(crate) sandbox: Arc<Sandbox>,
}

/// A running host.
pub(crate) struct Host {
    pub(crate) app: App,
    pub(crate) dashboard: Dashboard,
    supervisor: Arc<Supervisor>,
    stopping: CancellationToken,
    host_registration: Arc<HostRegistration>,
    credentials: Arc<Credentials>,
    store: Store,
    grace: Duration,
}

impl Host {
    /// Joins the other hosts and starts to work. Loading the deployed components may take minutes if they have to
    /// be compiled. Returns nothing if `stop` is cancelled before that; the other hosts then know that this host
    /// has left.
    pub(crate) async fn start(
        foundation: Foundation,
        settings: HostSettings,
        stop: &CancellationToken,
    ) -> anyhow::Result<Option<Self>> {
        let Foundation { clock, store, events, environments, catalogue, gateway, sandbox } = foundation;
        let host_id = Uuid::new_v4();
        let stopping = CancellationToken::new();
        let supervisor = Arc::new(Supervisor::default());
        let tasks = Tasks(&supervisor);
        let host_registration =
            HostRegistration::join(store.clone(), Arc::clone(&events), Arc::clone(&environments), host_id)
                .await?;
        tasks.listen(&events, &store, host_id);

        let authenticator = Authenticator::new(store.clone(), Arc::clone(&environments), Arc::clone(&events));
        let functions = Functions::new(store.clone(), Arc::clone(&sandbox));
        let variables = Arc::new(EnvironmentVariables::new(store.clone()));
        let record_changes =
            RecordChanges::new(store.clone(), Arc::clone(&events), host_id, settings.max_change_readers);
        let rate_limits = RateLimits::new(store.clone(), Arc::clone(&events), host_id, clock.clone());
        let run_writer = RunWriter::new(store.clone());
        let live_runs = LiveRuns::new(store.clone());
        let retention = Retention::new(store.clone(), settings.retention);
        let audit_log = AuditLog::new(store.clone(), settings.audit_log_kept_for);
        let statistics = Statistics::new(clock.clone(), store.clone());
        let run_upkeep = RunUpkeep::new(store.clone(), settings.syncs.lease, settings.runs_kept_for);
        let credentials = Credentials::new(
            clock.clone(),
            store.clone(),
            Arc::clone(&environments),
            Arc::clone(&catalogue),
            Arc::clone(&gateway),
        );
        let record_metadata_key = Arc::clone(&settings.records.metadata_key);
        let max_page_bytes = settings.records.max_page_bytes;
        let records = Records::new(
            store.clone(),
            Arc::clone(&environments),
            Arc::clone(&functions),
            Arc::clone(&record_changes),
            settings.records.clone(),
        );
        let invoker = Invoker::new(InvokerParts {
            clock: clock.clone(),
            store: store.clone(),
            catalogue: Arc::clone(&catalogue),
            gateway: Arc::clone(&gateway),
            sandbox: Arc::clone(&sandbox),
            variables: Arc::clone(&variables),
            records: Arc::clone(&records),
            credentials: Arc::clone(&credentials),
            rate_limits: Arc::clone(&rate_limits),
            live_runs: Arc::clone(&live_runs),
            run_writer: Arc::clone(&run_writer),
            host_id,
        });
        let proxy_routes = ProxyRoutes::new(Arc::clone(&events));
        let proxy = Proxy::new(ProxyParts {
            store: store.clone(),
            catalogue: Arc::clone(&catalogue),
            gateway: Arc::clone(&gateway),
            functions: Arc::clone(&functions),
            credentials: Arc::clone(&credentials),
            rate_limits: Arc::clone(&rate_limits),
            routes: Arc::clone(&proxy_routes),
        });
        let lifecycle = Lifecycle::new(
            store.clone(),
            Arc::clone(&environments),
            Arc::clone(&functions),
            Arc::clone(&invoker),
        );
        let connection_cache =
            ConnectionCache::new(store.clone(), Arc::clone(&events), Arc::clone(&record_changes));
        let connections = Connections::new(
            ConnectionParts {
                clock: clock.clone(),
                store: store.clone(),
                events: Arc::clone(&events),
                environments: Arc::clone(&environments),
                catalogue: Arc::clone(&catalogue),
                credentials: Arc::clone(&credentials),
                functions: Arc::clone(&functions),
                lifecycle,
                cache: Arc::clone(&connection_cache),
                proxy_routes: Arc::clone(&proxy_routes),
                host_id,
            },
            settings.connections,
        );
        let connect_sessions = ConnectSessions::new(store.clone(), Arc::clone(&environments));
        let typed_connections = TypedConnections::new(
            store.clone(),
            Arc::clone(&catalogue),
            Arc::clone(&gateway),
            Arc::clone(&functions),
            Arc::clone(&connections),
        );
        let authorizations = Authorizations::new(AuthorizationParts {
            store: store.clone(),
            events: Arc::clone(&events),
            environments: Arc::clone(&environments),
            catalogue: Arc::clone(&catalogue),
            gateway: Arc::clone(&gateway),
            sessions: Arc::clone(&connect_sessions),
            connections: Arc::clone(&connections),
            typed: Arc::clone(&typed_connections),
            stopping: stopping.clone(),
        });
        let jobs = Jobs::new(
            JobParts {
                clock: clock.clone(),
                store: store.clone(),
                events: Arc::clone(&events),
                environments: Arc::clone(&environments),
                catalogue: Arc::clone(&catalogue),
                functions: Arc::clone(&functions),
                invoker: Arc::clone(&invoker),
                host_id,
            },
            settings.jobs,
        );
        let actions =
            Actions::new(store.clone(), Arc::clone(&functions), Arc::clone(&invoker), Arc::clone(&jobs));
        let syncs = Syncs::new(
            SyncParts {
                clock: clock.clone(),
                store: store.clone(),
                events: Arc::clone(&events),
                environments: Arc::clone(&environments),
                connections: Arc::clone(&connection_cache),
                functions: Arc::clone(&functions),
                invoker,
                record_changes: Arc::clone(&record_changes),
                host_id,
            },
            settings.syncs,
        );
        let inbound_webhooks = WebhookIngest::new(
            clock.clone(),
            store.clone(),
            Arc::clone(&events),
            Arc::clone(&environments),
            Arc::clone(&catalogue),
            &settings.ingest,
        );
        let dispatch = WebhookDispatch::new(
            store.clone(),
            Arc::clone(&events),
            Arc::clone(&catalogue),
            Arc::clone(&functions),
            settings.dispatch,
        );
        let deployments = Deployments::new(
            DeploymentParts {
                store: store.clone(),
                events: Arc::clone(&events),
                environments: Arc::clone(&environments),
                catalogue: Arc::clone(&catalogue),
                sandbox,
                functions: Arc::clone(&functions),
                host_id,
            },
            settings.minimum_interval,
        );
        let sender = Sender::new(
            clock.clone(),
            store.clone(),
            Arc::clone(&events),
            Arc::clone(&environments),
            gateway,
            host_id,
            settings.sender,
        );
        match stop.run_until_cancelled(functions.reload()).await {
            Some(loaded) => loaded?,
            None => {
                supervisor.end_stage(Stage::Upkeep, UPKEEP_ENDS_WITHIN).await;
                host_registration.leave().await;
                supervisor.end_stage(Stage::Writing, WRITING_ENDS_WITHIN).await;
                return Ok(None);
            }
        }

        // Without these tasks, requests fail, hang, or see outdated data.
        tasks.serve("run-writer", Stage::Writing, &run_writer, RunWriter::write_runs);
        for name in INBOUND_WEBHOOK_WRITERS {
            tasks.serve(name, Stage::Writing, &inbound_webhooks, WebhookIngest::store_queued);
        }
        tasks.serve("api-key-cache", Stage::Upkeep, &authenticator, Authenticator::invalidate);
        tasks.serve("environment-cache", Stage::Upkeep, &environments, Environments::invalidate);
        tasks.serve("connection-cache", Stage::Upkeep, &connection_cache, ConnectionCache::invalidate);
        tasks.serve("proxy-route-cache", Stage::Upkeep, &proxy_routes, ProxyRoutes::invalidate);
        tasks.serve("inbound-webhook-cache", Stage::Upkeep, &inbound_webhooks, WebhookIngest::invalidate);
        // These tasks keep the host up to date while requests and runs are in progress.
        let provider_files = ProviderFiles::new(Arc::clone(&catalogue), Arc::clone(&events));
        tasks.keep_up("provider-files", &provider_files, ProviderFiles::follow);
        tasks.keep_up("heartbeat", &host_registration, HostRegistration::heartbeat);
        tasks.keep_up("environments", &host_registration, HostRegistration::follow_environments);
        tasks.keep_up("api-key-use", &authenticator, Authenticator::note_use);
        tasks.keep_up("rate-limit-backoffs", &rate_limits, RateLimits::follow_backoffs);
        tasks.keep_up("rate-limit-publisher", &rate_limits, RateLimits::publish_requests);
        tasks.keep_up("rate-limit-receiver", &rate_limits, RateLimits::receive_requests);
        tasks.keep_up("record-change-publisher", &record_changes, RecordChanges::publish);
        tasks.keep_up("record-change-receiver", &record_changes, RecordChanges::receive);
        tasks.keep_up("record-change-poller", &record_changes, RecordChanges::poll);
        tasks.keep_up("run-progress", &live_runs, LiveRuns::write_news);
        tasks.keep_up("authorization-outcomes", &authorizations, Authorizations::deliver_outcomes);
        tasks.keep_up("sync-leases", &syncs, Syncs::keep_leases);
        tasks.keep_up("stalled-transactions", &syncs, Syncs::end_stalled);
        tasks.keep_up("job-leases", &jobs, Jobs::keep_leases);
        // These tasks do the host's work.
        tasks.work("deployments", &deployments, Deployments::follow);
        tasks.work("deployment-preparation", &deployments, Deployments::prepare);
        tasks.work("connect-sessions", &connect_sessions, ConnectSessions::sweep);
        tasks.work("credential-refresh", &credentials, Credentials::renew_ahead);
        tasks.work("connection-validation", &connections, Connections::maintain_validations);
        tasks.work("connection-cleanup", &connections, Connections::clean_up);
        tasks.work("variant-cleanup", &syncs, Syncs::clean_up_variants);
        tasks.work("approvals", &syncs, Syncs::resume_approvals);
        tasks.work("retention", &retention, Retention::run);
        tasks.work("run-upkeep", &run_upkeep, RunUpkeep::run);
        tasks.work("audit-log-retention", &audit_log, AuditLog::delete_old);
        tasks.work("run-statistics", &statistics, Statistics::run);
        tasks.work("inbound-webhook-dispatch", &dispatch, WebhookDispatch::run);
        tasks.work("inbound-webhook-cleanup", &dispatch, WebhookDispatch::sweep);
        tasks.work("outbound-webhooks", &sender, Sender::send);
        tasks.work("outbound-webhook-log", &sender, Sender::maintain_delivery_log);
        tasks.work("syncs", &syncs, Syncs::schedule);
        tasks.work("jobs", &jobs, Jobs::work);
        tasks.work("job-cleanup", &jobs, Jobs::sweep);

        let accounts = Accounts::new(store.clone());
        let api_keys = Arc::new(ApiKeys::new(store.clone(), Arc::clone(&authenticator)));
        let dead_letters = Arc::new(DeadLetters::new(
            store.clone(),
            Arc::clone(&environments),
            Arc::clone(&functions),
            Arc::clone(&connection_cache),
            Arc::clone(&record_changes),
            settings.records,
        ));
        let deliveries =
            Arc::new(DeliveryLog::new(store.clone(), Arc::clone(&events), Arc::clone(&connection_cache)));
        let health = Arc::new(Health::new(store.clone()));
        let inbound_webhook_log = Arc::new(InboundWebhookLog::new(
            store.clone(),
            Arc::clone(&events),
            Arc::clone(&connection_cache),
        ));
        let integrations = Arc::new(Integrations::new(
            store.clone(),
            Arc::clone(&catalogue),
            Arc::clone(&connections),
            Arc::clone(&connection_cache),
            Arc::clone(&inbound_webhooks),
        ));
        let runs = Arc::new(Runs::new(store.clone(), Arc::clone(&connection_cache), max_page_bytes));
        tasks.work("account-sessions", &accounts, Accounts::sweep);

        let dashboard = Dashboard::new(syncline_dashboard::Services {
            accounts,
            actions: Arc::clone(&actions),
            api_keys: Arc::clone(&api_keys),
            audit_log: Arc::clone(&audit_log),
            catalogue: Arc::clone(&catalogue),
            connect_sessions: Arc::clone(&connect_sessions),
            connection_cache: Arc::clone(&connection_cache),
            connections: Arc::clone(&connections),
            dead_letters: Arc::clone(&dead_letters),
            deliveries: Arc::clone(&deliveries),
            deployments: Arc::clone(&deployments),
            environments: Arc::clone(&environments),
            functions: Arc::clone(&functions),
            health: Arc::clone(&health),
            inbound_webhook_log: Arc::clone(&inbound_webhook_log),
            integrations: Arc::clone(&integrations),
            records: Arc::clone(&records),
            runs: Arc::clone(&runs),
            statistics,
            syncs: Arc::clone(&syncs),
            variables: Arc::clone(&variables),
            stopping: stopping.clone(),
            public_url: Arc::clone(&settings.public_url),
            connect_url: Arc::clone(&settings.connect_url),
        });
        let app = App::new(Services {
            actions,
            api_keys,
            audit_log,
            authenticator,
            authorizations,
            catalogue,
            clock,
            connect_sessions,
            connection_cache,
            connections,
            dead_letters,
            deliveries,
            deployments,
            environments,
            functions,
            health,
            inbound_webhook_log,
            inbound_webhooks,
            integrations,
            limits: ClientLimits::new(&settings.clients),
            observation: Observation::new(store.clone(), live_runs),
            proxy,
            record_changes,
            records,
            runs,
            supervisor: Arc::clone(&supervisor),
            syncs,
            typed_connections,
            variables,
            stopping: stopping.clone(),
            public_url: settings.public_url,
            connect_url: settings.connect_url,
            record_metadata_key,
        });
        let grace = settings.grace;
        Ok(Some(Self { app, dashboard, supervisor, stopping, host_registration, credentials, store, grace }))
    }

    /// Stops accepting work, which `GET /ready` reports.
    pub(crate) fn begin_to_stop(&self) {
        self.stopping.cancel();
    }

    /// How long requests may continue after a stop signal.
    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    /// Lets runs finish, and releases the others.
    pub(crate) async fn finish_work(&self) {
        self.supervisor.end_stage(Stage::Work, self.grace + WORK_ENDS_WITHIN).await;
    }

    /// Writes outstanding data. All requests have ended by now.
    pub(crate) async fn close(self) {
        self.credentials.finish().await;
        self.supervisor.end_stage(Stage::Upkeep, UPKEEP_ENDS_WITHIN).await;
        self.host_registration.leave().await;
        self.supervisor.end_stage(Stage::Writing, WRITING_ENDS_WITHIN).await;
        self.store.close().await;
    }
}

/// Registers tasks with the supervisor.
struct Tasks<'s>(&'s Supervisor);

impl Tasks<'_> {
    fn listen(&self, events: &Arc<Events>, store: &Store, host_id: Uuid) {
        let (events, pool) = (Arc::clone(events), store.control().clone());
        self.0.spawn("events", Importance::Background, Stage::Upkeep, move |shutdown| {
            let (events, pool) = (Arc::clone(&events), pool.clone());
            async move { events.listen(&pool, host_id, shutdown).await }
        });
    }

    fn serve<S, F>(
        &self,
        name: &'static str,
        stage: Stage,
        service: &Arc<S>,
        task: impl Fn(Arc<S>, CancellationToken) -> F + Send + 'static,
    ) where
        S: Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn(name, Importance::Serving, stage, service, task);
    }

    fn keep_up<S, F>(
        &self,
        name: &'static str,
        service: &Arc<S>,
        task: impl Fn(Arc<S>, CancellationToken) -> F + Send + 'static,
    ) where
        S: Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn(name, Importance::Background, Stage::Upkeep, service, task);
    }

    fn work<S, F>(
        &self,
        name: &'static str,
        service: &Arc<S>,
        task: impl Fn(Arc<S>, CancellationToken) -> F + Send + 'static,
    ) where
        S: Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn(name, Importance::Background, Stage::Work, service, task);
    }

    fn spawn<S, F>(
        &self,
        name: &'static str,
        importance: Importance,
        stage: Stage,
        service: &Arc<S>,
        task: impl Fn(Arc<S>, CancellationToken) -> F + Send + 'static,
    ) where
        S: Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let service = Arc::clone(service);
        self.0.spawn(name, importance, stage, move |shutdown| task(Arc::clone(&service), shutdown));
    }
}
