//! Metrics of this process in the OpenMetrics format, for Prometheus.
//!
//! The registry is global, because Prometheus scrapes processes. To bound the number of time series, no label value
//! grows with the number of customers: there are no connection ids, run ids or URLs.

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

/// The content type of the text that [`encode`](Metrics::encode) returns.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Clients create integrations, so the number of values of this label is limited. Further integrations share
/// [`OTHER`].
const MAX_INTEGRATIONS: usize = 200;
const OTHER: &str = "other";

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;
type Seconds = Gauge<f64, AtomicU64>;

/// Returns the metrics of this process.
pub fn metrics() -> &'static Metrics {
    static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);
    &METRICS
}

pub struct Metrics {
    registry: Registry,
    /// The integrations that have a label value of their own.
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
    rate_limited_requests: Family<LimitLabels, Counter>,
    client_connections: Gauge,
    rejected_client_connections: Family<LimitLabels, Counter>,
    websockets: Gauge,
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
struct LimitLabels {
    limit: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

/// Values that are measured when Prometheus scrapes the host.
#[derive(Debug, Clone, Copy, Default)]
pub struct Observed {
    pub runs_on: usize,
    /// `None` if the database does not answer.
    pub queues: Option<Queues>,
    pub busy_connections: usize,
    pub idle_connections: usize,
}

/// The lengths of the queues in the database, which all hosts share.
#[derive(Debug, Clone, Copy, Default)]
pub struct Queues {
    pub schedules_due: i64,
    /// How long the most overdue schedule has been waiting.
    pub lateness_seconds: f64,
    pub jobs_queued: i64,
    pub webhooks_due: i64,
    /// Inbound webhooks that are stored and not processed yet.
    pub received_webhooks: i64,
    /// How long the oldest unprocessed inbound webhook has been waiting.
    pub received_webhooks_age_seconds: f64,
}

/// The changes of one commit.
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
        let mut registrar = Registrar(registry.sub_registry_with_prefix("syncline"));
        let version = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registrar.0.register("build", "The host's version, as a label", version);
        let metrics = Self {
            integrations: Mutex::default(),
            runs: registrar.add("runs", "Finished runs by function kind, final state and integration"),
            run_seconds: registrar.seconds("run_duration", "Duration of finished runs", run_histogram),
            run_cpu_seconds: registrar.add("run_cpu_seconds", "CPU time of finished runs"),
            records: registrar.add("records", "Records that functions saved or deleted, by resulting change"),
            provider_requests: registrar.add(
                "provider_requests",
                "Requests to providers by status class, including retries and redirects",
            ),
            provider_retries: registrar.add("provider_retries", "Retried requests to providers"),
            provider_seconds: registrar.duration(
                "provider_request_duration",
                "Time until providers answered a request",
                request_histogram(),
            ),
            webhooks: registrar.add("webhook_attempts", "Attempts to deliver outbound webhooks, by result"),
            received_webhooks: registrar
                .add("received_webhooks", "Accepted inbound webhooks, by provider and result"),
            refused_webhooks: registrar
                .add("refused_webhooks", "Rejected inbound webhooks, by provider and reason"),
            processed_webhooks: registrar
                .add("processed_webhooks", "Inbound webhooks whose processing has finished, by final state"),
            refreshes: registrar.add("credential_refreshes", "Credential refreshes, by result"),
            task_failures: registrar
                .add("task_failures", "Failures of background tasks, which the host restarts"),
            api_requests: registrar.add("api_requests", "API requests by method, route and status class"),
            api_seconds: registrar.seconds(
                "api_request_duration",
                "Time to answer API requests",
                request_histogram,
            ),
            rate_limited_requests: registrar
                .add("rate_limited_requests", "API requests rejected by a rate limit, by limit"),
            client_connections: registrar.add("client_connections", "Open network connections of clients"),
            rejected_client_connections: registrar
                .add("rejected_client_connections", "Rejected network connections of clients, by limit"),
            websockets: registrar.add("websockets", "Open WebSockets"),
            runs_on: registrar.add("runs_on", "Runs in progress on this host"),
            schedules_due: registrar.add(
                "schedules_due",
                "Schedules that are due and not claimed yet; 10000 means 10000 or more",
            ),
            schedule_lateness: registrar.duration(
                "schedule_lateness",
                "How long the most overdue schedule has been waiting",
                Seconds::default(),
            ),
            jobs_queued: registrar
                .add("jobs_queued", "Jobs that no host has claimed yet; 10000 means 10000 or more"),
            webhooks_due: registrar
                .add("webhooks_due", "Outbound webhooks that are due; 10000 means 10000 or more"),
            received_webhooks_waiting: registrar.add(
                "received_webhooks_waiting",
                "Inbound webhooks that are not processed yet; 10000 means 10000 or more",
            ),
            received_webhooks_age: registrar.duration(
                "received_webhooks_age",
                "How long the oldest unprocessed inbound webhook has been waiting",
                Seconds::default(),
            ),
            database_up: registrar
                .add("database_up", "1 if the database answered during this scrape, otherwise 0"),
            database_connections: registrar
                .add("database_connections", "This host's database connections, by state"),
            process,
            registry: Registry::default(),
        };
        Self { registry, ..metrics }
    }

    /// Counts a finished run.
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

    /// Counts a request to a provider. `status` is `None` if the provider did not answer.
    pub fn count_exchange(&self, provider: &str, status: Option<u16>, attempt: u32, took: Duration) {
        let provider = provider.to_owned();
        if attempt > 1 {
            self.provider_retries.get_or_create(&ProviderOnly { provider: provider.clone() }).inc();
        }
        let status = status.map_or("none", status_class);
        self.provider_requests.get_or_create(&ProviderLabels { provider, status }).inc();
        self.provider_seconds.observe(took.as_secs_f64());
    }

    /// Counts an attempt to deliver an outbound webhook. `result` is `delivered`, `retried` or `failed`.
    pub fn count_webhook(&self, result: &'static str) {
        self.webhooks.get_or_create(&ResultLabels { result }).inc();
    }

    /// Counts an accepted inbound webhook. `result` is `stored`, `duplicate`, or `handshake`, which is only answered.
    pub fn count_received_webhook(&self, provider: &str, result: &'static str) {
        self.received_webhooks.get_or_create(&ReceivedLabels { provider: provider.to_owned(), result }).inc();
    }

    /// Counts a rejected inbound webhook. `reason` is the error code. `provider` is `None` if no integration matched
    /// the URL.
    pub fn count_refused_webhook(&self, provider: Option<&str>, reason: &'static str) {
        let provider = provider.unwrap_or("none").to_owned();
        self.refused_webhooks.get_or_create(&RefusedLabels { provider, reason }).inc();
    }

    /// Counts a processed inbound webhook. `state` is `processed`, `unmatched` or `failed`.
    pub fn count_processed_webhook(&self, state: &'static str) {
        self.processed_webhooks.get_or_create(&StateLabels { state }).inc();
    }

    /// Counts a refresh of credentials. `result` is `renewed` or `failed`.
    pub fn count_refresh(&self, result: &'static str) {
        self.refreshes.get_or_create(&ResultLabels { result }).inc();
    }

    /// Adds a background task to the metrics with a failure count of 0.
    pub fn list_task(&self, task: &'static str) {
        let _listed = self.task_failures.get_or_create(&TaskLabels { task });
    }

    /// Counts a background task that panicked, or that ended although the host was not shutting down.
    pub fn count_task_failure(&self, task: &'static str) {
        self.task_failures.get_or_create(&TaskLabels { task }).inc();
    }

    /// Counts an API request. `route` is the pattern of the path, not the path itself.
    pub fn count_api_request(&self, method: &str, route: &str, status: u16, took: Duration) {
        let (method, route) = (method.to_owned(), route.to_owned());
        self.api_seconds.get_or_create(&RouteLabels { route: route.clone() }).observe(took.as_secs_f64());
        self.api_requests.get_or_create(&ApiLabels { method, route, status: status_class(status) }).inc();
    }

    /// Counts an API request that a rate limit rejected. `limit` is `key` or `environment`.
    pub fn count_rate_limited_request(&self, limit: &'static str) {
        self.rate_limited_requests.get_or_create(&LimitLabels { limit }).inc();
    }

    /// Counts an open network connection of a client until the value is dropped.
    pub fn count_client_connection(&self) -> Counted {
        Counted::new(&self.client_connections)
    }

    /// Counts a rejected network connection of a client. `limit` is `host` or `address`.
    pub fn count_rejected_client_connection(&self, limit: &'static str) {
        self.rejected_client_connections.get_or_create(&LimitLabels { limit }).inc();
    }

    /// Counts an open WebSocket until the value is dropped.
    pub fn count_websocket(&self) -> Counted {
        Counted::new(&self.websockets)
    }

    /// Returns all metrics in the OpenMetrics text format.
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
        text::encode(&mut out, &self.registry).expect("writing to a string does not fail");
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

/// Something that a gauge counts until this value is dropped.
#[derive(Debug)]
pub struct Counted(Gauge);

impl Counted {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Creates and registers metrics.
struct Registrar<'r>(&'r mut Registry);

impl Registrar<'_> {
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

/// Buckets from 5 ms to 15 min.
fn run_histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 3.0, 12))
}

/// Buckets from 1 ms to 65 s.
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
    fn the_integration_label_has_a_limited_number_of_values() {
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
