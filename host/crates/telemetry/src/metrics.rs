//! What the host counts, for Prometheus to fetch.
//!
//! There is one set a process, since a process is what is watched. No label holds what grows with customers: not a
//! connection, not a run, not a URL.

mod process;

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use self::process::Process;

/// What [`encode`](Metrics::encode) gives.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Integrations are made by clients, so what is counted by them has an end: the rest is counted as one.
const MAX_INTEGRATIONS: usize = 200;
const OTHER: &str = "other";

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;
type Seconds = Gauge<f64, AtomicU64>;

/// The counters of this process.
pub fn metrics() -> &'static Metrics {
    static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);
    &METRICS
}

pub struct Metrics {
    registry: Registry,
    /// Those that have a label of their own.
    integrations: Mutex<BTreeSet<String>>,
    runs: Family<RunLabels, Counter>,
    run_seconds: Histograms<KindLabels>,
    run_cpu_seconds: Family<KindLabels, Counter<f64, AtomicU64>>,
    records: Family<ChangeLabels, Counter>,
    provider_requests: Family<ProviderLabels, Counter>,
    provider_retries: Family<ProviderOnly, Counter>,
    provider_seconds: Histogram,
    webhooks: Family<ResultLabels, Counter>,
    received_webhooks: Family<ReceivedLabels, Counter>,
    refused_webhooks: Family<RefusedLabels, Counter>,
    processed_webhooks: Family<StateLabels, Counter>,
    refreshes: Family<ResultLabels, Counter>,
    task_failures: Family<TaskLabels, Counter>,
    api_requests: Family<ApiLabels, Counter>,
    api_seconds: Histograms<RouteLabels>,
    runs_on: Gauge,
    schedules_due: Gauge,
    schedule_lateness: Seconds,
    jobs_queued: Gauge,
    webhooks_due: Gauge,
    received_webhooks_waiting: Gauge,
    received_webhooks_age: Seconds,
    database_up: Gauge,
    database_connections: Family<StateLabels, Gauge>,
    process: Process,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunLabels {
    kind: &'static str,
    state: &'static str,
    integration: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ChangeLabels {
    change: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProviderLabels {
    provider: String,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProviderOnly {
    provider: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabels {
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReceivedLabels {
    provider: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedLabels {
    provider: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TaskLabels {
    task: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ApiLabels {
    method: String,
    route: String,
    status: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    route: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

/// What stands still between two looks, as it is now.
#[derive(Debug, Clone, Copy, Default)]
pub struct Observed {
    pub runs_on: usize,
    /// None if the database does not answer.
    pub queues: Option<Queues>,
    pub busy_connections: usize,
    pub idle_connections: usize,
}

/// What waits in the database, for any host.
#[derive(Debug, Clone, Copy, Default)]
pub struct Queues {
    pub schedules_due: i64,
    /// How long the schedule has waited that is due for longest.
    pub lateness_seconds: f64,
    pub jobs_queued: i64,
    pub webhooks_due: i64,
    /// Those of providers that are stored and not processed.
    pub received_webhooks: i64,
    /// How long the oldest of them has waited.
    pub received_webhooks_age_seconds: f64,
}

/// Changes of one commit.
#[derive(Debug, Clone, Copy)]
pub struct SavedRecords {
    pub added: u64,
    pub updated: u64,
    pub deleted: u64,
    pub unchanged: u64,
}

impl Metrics {
    fn new() -> Self {
        let mut registry = Registry::default();
        let process = Process::new(&mut registry);
        let mut named = Named(registry.sub_registry_with_prefix("syncline"));
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        named.0.register("build", "The version of the host", version);
        let metrics = Self {
            integrations: Mutex::default(),
            runs: named.add("runs", "Runs that are over, by kind of function, state and integration"),
            run_seconds: named.seconds("run_duration", "How long runs took", run_histogram),
            run_cpu_seconds: named.add("run_cpu_seconds", "Processor time of runs that are over"),
            records: named.add("records", "Records that functions handed over, by what became of them"),
            provider_requests: named
                .add("provider_requests", "Requests to providers, retries and redirects included, by status"),
            provider_retries: named.add("provider_retries", "Requests to providers that were sent again"),
            provider_seconds: named.duration(
                "provider_request_duration",
                "How long providers took",
                request_histogram(),
            ),
            webhooks: named.add("webhook_attempts", "Attempts at webhooks, by what came of them"),
            received_webhooks: named
                .add("received_webhooks", "Webhooks of providers that were taken, by what became of them"),
            refused_webhooks: named
                .add("refused_webhooks", "Webhooks of providers that were not taken, by reason"),
            processed_webhooks: named
                .add("processed_webhooks", "Webhooks of providers that are over, by how they ended"),
            refreshes: named.add("credential_refreshes", "Renewals of credentials, by what came of them"),
            task_failures: named
                .add("task_failures", "Failures of background tasks, each of which is started again"),
            api_requests: named.add("api_requests", "Requests to the API, by route and status"),
            api_seconds: named.seconds("api_request_duration", "How long answers took", request_histogram),
            runs_on: named.add("runs_on", "Runs that are on at this host"),
            schedules_due: named
                .add("schedules_due", "Schedules that wait for a host; 10000 is that or more"),
            schedule_lateness: named.duration(
                "schedule_lateness",
                "How long the schedule has waited that is due for longest",
                Seconds::default(),
            ),
            jobs_queued: named.add("jobs_queued", "Jobs that wait for a host; 10000 is that or more"),
            webhooks_due: named.add("webhooks_due", "Webhooks that are due; 10000 is that or more"),
            received_webhooks_waiting: named.add(
                "received_webhooks_waiting",
                "Webhooks of providers that are stored and not processed; 10000 is that or more",
            ),
            received_webhooks_age: named.duration(
                "received_webhooks_age",
                "How long the oldest of them has waited",
                Seconds::default(),
            ),
            database_up: named.add("database_up", "Whether the database answered at this look"),
            database_connections: named
                .add("database_connections", "Connections of this host to its database"),
            process,
            registry: Registry::default(),
        };
        Self { registry, ..metrics }
    }

    /// A run is over.
    pub fn count_run(
        &self,
        kind: &'static str,
        state: &'static str,
        integration: &str,
        took: Duration,
        cpu: Duration,
    ) {
        let integration = self.bounded(integration);
        self.runs.get_or_create(&RunLabels { kind, state, integration }).inc();
        self.run_seconds.get_or_create(&KindLabels { kind }).observe(took.as_secs_f64());
        self.run_cpu_seconds.get_or_create(&KindLabels { kind }).inc_by(cpu.as_secs_f64());
    }

    pub fn count_records(&self, changes: SavedRecords) {
        let SavedRecords { added, updated, deleted, unchanged } = changes;
        for (change, count) in
            [("added", added), ("updated", updated), ("deleted", deleted), ("unchanged", unchanged)]
        {
            if count > 0 {
                self.records.get_or_create(&ChangeLabels { change }).inc_by(count);
            }
        }
    }

    /// A request to a provider has its answer, or `None`.
    pub fn count_exchange(&self, provider: &str, status: Option<u16>, attempt: u32, took: Duration) {
        let provider = provider.to_owned();
        if attempt > 1 {
            self.provider_retries.get_or_create(&ProviderOnly { provider: provider.clone() }).inc();
        }
        let status = status.map_or("none", status_class);
        self.provider_requests.get_or_create(&ProviderLabels { provider, status }).inc();
        self.provider_seconds.observe(took.as_secs_f64());
    }

    /// `delivered`, `retried` or `failed`.
    pub fn count_webhook(&self, result: &'static str) {
        self.webhooks.get_or_create(&ResultLabels { result }).inc();
    }

    /// A provider's webhook was `stored`, was there already (`duplicate`), or is a `handshake`, which is answered only.
    pub fn count_received_webhook(&self, provider: &str, result: &'static str) {
        self.received_webhooks.get_or_create(&ReceivedLabels { provider: provider.to_owned(), result }).inc();
    }

    /// `reason` is the code of the refusal. What came to no integration has no provider.
    pub fn count_refused_webhook(&self, provider: Option<&str>, reason: &'static str) {
        let provider = provider.unwrap_or("none").to_owned();
        self.refused_webhooks.get_or_create(&RefusedLabels { provider, reason }).inc();
    }

    /// `processed`, `unmatched` or `failed`.
    pub fn count_processed_webhook(&self, state: &'static str) {
        self.processed_webhooks.get_or_create(&StateLabels { state }).inc();
    }

    /// `renewed` or `failed`.
    pub fn count_refresh(&self, result: &'static str) {
        self.refreshes.get_or_create(&ResultLabels { result }).inc();
    }

    /// Lists a background task, which has not failed yet.
    pub fn list_task(&self, task: &'static str) {
        let _listed = self.task_failures.get_or_create(&TaskLabels { task });
    }

    /// A background task panicked, or ended although the host goes on.
    pub fn count_task_failure(&self, task: &'static str) {
        self.task_failures.get_or_create(&TaskLabels { task }).inc();
    }

    /// `route` is a pattern.
    pub fn count_api_request(&self, method: &str, route: &str, status: u16, took: Duration) {
        let (method, route) = (method.to_owned(), route.to_owned());
        self.api_seconds.get_or_create(&RouteLabels { route: route.clone() }).observe(took.as_secs_f64());
        self.api_requests.get_or_create(&ApiLabels { method, route, status: status_class(status) }).inc();
    }

    /// Everything, in the text format of OpenMetrics.
    pub fn encode(&self, observed: &Observed) -> String {
        self.runs_on.set(observed.runs_on as i64);
        self.database_up.set(i64::from(observed.queues.is_some()));
        let queues = observed.queues.unwrap_or_default();
        self.schedules_due.set(queues.schedules_due);
        self.schedule_lateness.set(queues.lateness_seconds);
        self.jobs_queued.set(queues.jobs_queued);
        self.webhooks_due.set(queues.webhooks_due);
        self.received_webhooks_waiting.set(queues.received_webhooks);
        self.received_webhooks_age.set(queues.received_webhooks_age_seconds);
        for (state, count) in [("busy", observed.busy_connections), ("idle", observed.idle_connections)] {
            self.database_connections.get_or_create(&StateLabels { state }).set(count as i64);
        }
        self.process.observe();
        let mut out = String::new();
        text::encode(&mut out, &self.registry).expect("text takes everything");
        out
    }

    fn bounded(&self, integration: &str) -> String {
        let mut known = self.integrations.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(integration) {
            return integration.to_owned();
        }
        if known.len() >= MAX_INTEGRATIONS {
            return OTHER.to_owned();
        }
        known.insert(integration.to_owned());
        integration.to_owned()
    }
}

/// Makes metrics and has them listed.
struct Named<'r>(&'r mut Registry);

impl Named<'_> {
    fn add<M>(&mut self, name: &str, help: &str) -> M
    where
        M: prometheus_client::registry::Metric + Clone + Default,
    {
        let metric = M::default();
        self.0.register(name, help, metric.clone());
        metric
    }

    fn duration<M>(&mut self, name: &str, help: &str, metric: M) -> M
    where
        M: prometheus_client::registry::Metric + Clone,
    {
        self.0.register_with_unit(name, help, Unit::Seconds, metric.clone());
        metric
    }

    fn seconds<L>(&mut self, name: &str, help: &str, histogram: fn() -> Histogram) -> Histograms<L>
    where
        L: EncodeLabelSet + std::fmt::Debug + Clone + std::hash::Hash + Eq + Send + Sync + 'static,
    {
        self.duration(name, help, Family::new_with_constructor(histogram))
    }
}

/// From 5 ms to 15 min.
fn run_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 3.0, 12))
}

/// From 1 ms to 65 s.
fn request_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 4.0, 9))
}

fn status_class(status: u16) -> &'static str {
    match status {
        100..200 => "1xx",
        200..300 => "2xx",
        300..400 => "3xx",
        400..500 => "4xx",
        _ => "5xx",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_cannot_make_labels_without_end() {
        let metrics = Metrics::new();
        for number in 0..2 * MAX_INTEGRATIONS {
            let integration = format!("integration-{number}");
            metrics.count_run("action", "success", &integration, Duration::ZERO, Duration::ZERO);
        }
        let text = metrics.encode(&Observed::default());
        assert_eq!(text.matches("syncline_runs_total{").count(), MAX_INTEGRATIONS + 1);
        assert!(text.contains(&format!("integration=\"{OTHER}\"}} {MAX_INTEGRATIONS}\n")), "{text}");
    }
}
