//! Log lines and traces: log lines go to standard error, traces to a collector if the standard OpenTelemetry
//! variables name one.

use std::fmt;
use std::io::IsTerminal;
use std::time::Duration;

use async_trait::async_trait;
use clap::ValueEnum;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tokio::runtime::Handle;
use tracing_subscriber::filter::{FilterExt, LevelFilter, ParseError, filter_fn};
use tracing_subscriber::layer::{Filter, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

const DEFAULT_LINES: &str = "info";
/// The longest time that a shutdown waits for the collector.
const FLUSH_WITHIN: Duration = Duration::from_secs(3);
const CONNECT_WITHIN: Duration = Duration::from_secs(3);
const SEND_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum LogFormat {
    Text,
    Json,
}

/// Logging and tracing, which must be shut down in order.
pub(super) struct Telemetry {
    traces: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Starts logging and, if the environment names a collector, tracing.
    pub(super) fn start(format: LogFormat) -> anyhow::Result<Self> {
        Self::start_with(format, DEFAULT_LINES)
    }

    /// Like [`start`](Self::start), but logs only warnings unless `RUST_LOG` is set, because the log shares the
    /// terminal with a command's own output.
    pub(super) fn start_quietly() -> anyhow::Result<Self> {
        Self::start_with(LogFormat::Text, "warn")
    }

    fn start_with(format: LogFormat, default_lines: &str) -> anyhow::Result<Self> {
        let (wanted, mistake) = wanted_lines(default_lines);
        let filter = || filter(&wanted);
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let lines = match format {
            LogFormat::Text => lines
                .with_ansi(std::io::stderr().is_terminal())
                .with_target(false)
                .with_filter(filter())
                .boxed(),
            LogFormat::Json => lines.json().flatten_event(true).with_filter(filter()).boxed(),
        };
        let traces = traces()?;
        let spans = traces.as_ref().map(|traces| {
            // Exports spans of this project's crates regardless of `RUST_LOG`. Log lines are written elsewhere.
            let ours = filter_fn(|metadata| metadata.is_span() && metadata.target().starts_with("syncline"))
                .with_max_level_hint(LevelFilter::DEBUG);
            tracing_opentelemetry::layer()
                .with_tracer(traces.tracer("syncline"))
                .with_location(false)
                .with_threads(false)
                .with_tracked_inactivity(false)
                .with_target(false)
                .with_filter(ours)
        });
        tracing_subscriber::registry().with(lines).with(spans).init();
        if let Some(mistake) = mistake {
            tracing::warn!("RUST_LOG is invalid, so the filter is `{wanted}`: {mistake}");
        }
        Ok(Self { traces })
    }

    /// Sends the remaining spans, and waits only briefly if the collector is not available.
    pub(super) async fn finish(self) {
        let Some(traces) = self.traces else { return };
        let finished = tokio::task::spawn_blocking(move || traces.shutdown_with_timeout(FLUSH_WITHIN));
        if let Ok(Err(error)) = finished.await {
            tracing::warn!(error = &error as &dyn std::error::Error, "could not send the last traces");
        }
    }
}

/// Filters log lines by `RUST_LOG`.
fn filter<S>(wanted: &str) -> impl Filter<S> + use<S> {
    // The MCP library logs the content of client messages, so it is silenced. Without the level hint, every line
    // and span of any level would be created only to be dropped.
    let others =
        filter_fn(|metadata| !metadata.target().starts_with("rmcp")).with_max_level_hint(LevelFilter::TRACE);
    EnvFilter::new(wanted).and(others)
}

/// Returns the log filter from `RUST_LOG`, and the error if it is invalid.
fn wanted_lines(default: &str) -> (String, Option<ParseError>) {
    let given = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|given| !given.is_empty());
    match given.map(|given| EnvFilter::builder().parse(&given).map(|_| given)) {
        Some(Ok(given)) => (given, None),
        None => (default.to_owned(), None),
        Some(Err(mistake)) => (default.to_owned(), Some(mistake)),
    }
}

/// Returns none unless the standard variables name a collector.
fn traces() -> anyhow::Result<Option<SdkTracerProvider>> {
    let value_of = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let has_endpoint = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"]
        .into_iter()
        .any(|name| value_of(name).is_some());
    let is_off = value_of("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
        || value_of("OTEL_TRACES_EXPORTER").is_some_and(|value| value == "none");
    if !has_endpoint || is_off {
        return Ok(None);
    }
    let client = reqwest::Client::builder().connect_timeout(CONNECT_WITHIN).timeout(SEND_WITHIN).build()?;
    let exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(RuntimeHttpClient { client, runtime: Handle::current() })
        .with_protocol(Protocol::HttpBinary)
        .build()?;
    let names_service = value_of("OTEL_SERVICE_NAME").is_some()
        || value_of("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|value| value.contains("service.name="));
    let mut resource =
        Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    if !names_service {
        resource = resource.with_service_name("syncline");
    }
    Ok(Some(
        SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build(),
    ))
}

/// Sends the exporter's requests on this runtime, because the exporter's own thread has none.
struct RuntimeHttpClient {
    client: reqwest::Client,
    runtime: Handle,
}

impl fmt::Debug for RuntimeHttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Requests contain the collector's key.
        f.write_str("RuntimeHttpClient")
    }
}

#[async_trait]
impl HttpClient for RuntimeHttpClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move {
            let answer = client.execute(request.try_into()?).await?;
            let status = answer.status();
            let body = answer.bytes().await?;
            let mut response = Response::new(body);
            *response.status_mut() = status;
            Ok::<_, reqwest::Error>(response)
        });
        let sent = sent.await?;
        match &sent {
            Ok(response) if response.status().is_success() => {}
            Ok(response) => tracing::warn!("the trace collector responded with {}", response.status()),
            Err(error) => {
                let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
                tracing::warn!(cause, "could not reach the trace collector; these traces are lost");
            }
        }
        sent.map_err(|error| error.without_url().into())
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::Registry;

    use super::*;

    #[test]
    fn disabled_log_levels_are_not_evaluated() {
        for (wanted, most) in [("info", LevelFilter::INFO), ("warn,syncline=debug", LevelFilter::DEBUG)] {
            assert_eq!(Filter::<Registry>::max_level_hint(&filter(wanted)), Some(most), "{wanted}");
        }
    }
}
