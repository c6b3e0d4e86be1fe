//! Implements the capabilities of a function for one connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde_json::{Map, Value};

use crate::connections::metadata::{MetadataChange, MetadataError, write_metadata};
use crate::connections::route::ConnectionRoute;
use crate::credentials::source::{ConnectionCredentials, unavailable};
use crate::credentials::{Freshness, LiveCredentials, RefreshError};
use crate::functions::DeployedFunction;
use crate::invoker::Invoker;
use crate::invoker::control::RunSignals;
use crate::invoker::live_runs::RunMeter;
use crate::rate_limits::ConnectionRateLimiter;
use crate::records::commit::{Committed, RecordWriter};
use syncline_auth::Environment;
use syncline_egress::{self as egress, EgressError, Exchange, Observer};
use syncline_sandbox::{
    Capabilities, Change, ConnectionInfo, Counts, Failure, GuestError, Interrupt, Limit, Request, Response,
    RunInfo, RunLog,
};
use syncline_store::connections::{self, Connection};
use syncline_types::failure_code::FailureCode;
use syncline_types::metadata::Metadata;

/// A request that would wait longer for a provider's rate limit ends its run, to free its permit. The run is retried
/// later.
const MAX_RATE_LIMIT_WAIT: Duration = Duration::from_secs(600);
/// The number of requests of one `send-all` that are in progress at a time.
const CONCURRENT_REQUESTS: usize = 8;

pub(crate) struct FunctionCapabilities {
    pub(crate) invoker: Arc<Invoker>,
    pub(crate) environment: Arc<Environment>,
    pub(crate) connection: Arc<ConnectionRoute>,
    pub(crate) function: Arc<DeployedFunction>,
    pub(crate) run: RunInfo,
    pub(crate) log: RunLog,
    pub(crate) meter: Arc<RunMeter>,
    pub(crate) signals: Arc<RunSignals>,
    pub(crate) writer: RecordWriter,
    pub(crate) checkpoint: Option<String>,
    /// The connection's row, loaded when it is first needed.
    pub(crate) row: Option<Connection>,
    /// The destination of requests, created with the first request.
    pub(crate) route: Option<Arc<egress::Route>>,
    /// When the function exceeds its wall time.
    pub(crate) ends_at: Instant,
}

impl FunctionCapabilities {
    /// How long a request may wait for a rate limit.
    fn max_wait(&self) -> Duration {
        self.ends_at.saturating_duration_since(Instant::now()).min(MAX_RATE_LIMIT_WAIT)
    }

    async fn row(&mut self) -> Result<&Connection, Interrupt> {
        if self.row.is_none() {
            let found = async {
                connections::get(&mut *self.invoker.store.connect().await?, self.connection.pk).await
            };
            let row = found.await.map_err(host_failure)?;
            // The connection was deleted during the run.
            self.row = Some(row.ok_or(Interrupt::Superseded)?);
        }
        Ok(self.row.as_ref().expect("it was just read"))
    }

    /// Ends the run if a request had no credentials because the connection was deleted.
    async fn check_connection(
        &mut self,
        failures: impl IntoIterator<Item = &Failure>,
    ) -> Result<(), Interrupt> {
        if failures.into_iter().any(|failure| failure.has_code(FailureCode::CredentialsUnavailable)) {
            self.row = None;
            self.row().await?;
        }
        Ok(())
    }

    async fn route(&mut self) -> Result<Arc<egress::Route>, GuestError> {
        if let Some(route) = &self.route {
            return Ok(Arc::clone(route));
        }
        let Some(provider) = self.invoker.catalogue.find(&self.connection.provider).cloned() else {
            let message =
                format!("the provider `{}` is not in this host's catalogue", self.connection.provider);
            return Err(Failure::new(FailureCode::InvalidRequest, message).into());
        };
        let connection_config = match &self.row().await?.connection_config {
            Value::Object(config) => config.clone(),
            _ => Map::new(),
        };
        let credentials = ConnectionCredentials::new(
            Arc::clone(&self.invoker.credentials),
            Arc::clone(&self.environment),
            self.connection.pk,
        );
        let rate_limiter = ConnectionRateLimiter::new(
            Arc::clone(&self.invoker.rate_limits),
            &provider,
            self.function.base_url.as_ref(),
            self.connection.integration,
            self.connection.pk,
            Some(Arc::clone(&self.meter)),
        );
        let route = Arc::new(egress::Route {
            provider,
            base_url: self.function.base_url.clone(),
            connection_config,
            usual_base: egress::UsualBase::default(),
            allow_hosts: self.function.allow_hosts.clone(),
            credentials: Arc::new(credentials),
            max_response_bytes: Some(self.function.limits.response_bytes),
            rate_limiter: Arc::new(rate_limiter),
        });
        self.route = Some(Arc::clone(&route));
        Ok(route)
    }
}

#[async_trait]
impl Capabilities for FunctionCapabilities {
    async fn send(&mut self, request: Request) -> Result<Response, GuestError> {
        let route = self.route().await?;
        let answer =
            send(&self.invoker.gateway, &route, request, self.max_wait(), &self.log, &self.meter).await;
        if let Err(GuestError::Failure(failure)) = &answer {
            self.check_connection([failure]).await?;
        }
        answer
    }

    async fn send_all(
        &mut self,
        requests: Vec<Request>,
    ) -> Result<Vec<Result<Response, Failure>>, Interrupt> {
        let route = match self.route().await {
            Ok(route) => route,
            Err(GuestError::Failure(failure)) => return Ok(vec![Err(failure); requests.len()]),
            Err(GuestError::Interrupt(interrupt)) => return Err(interrupt),
        };
        let gateway = &self.invoker.gateway;
        let (log, meter) = (&self.log, &self.meter);
        let patience = self.max_wait();
        let sent = requests.into_iter().map(|request| send(gateway, &route, request, patience, log, meter));
        let mut sent = stream::iter(sent).buffered(CONCURRENT_REQUESTS);
        let memory_bytes = self.function.limits.memory_bytes;
        let (mut answers, mut bytes) = (Vec::new(), 0);
        while let Some(answer) = sent.next().await {
            let answer = match answer {
                Ok(response) => Ok(response),
                Err(GuestError::Failure(failure)) => Err(failure),
                Err(GuestError::Interrupt(interrupt)) => return Err(interrupt),
            };
            bytes += answer.as_ref().map_or(0, |response| response.body.len());
            // The responses would not fit into the function's memory, so the host does not collect them.
            if bytes > memory_bytes {
                return Err(Interrupt::Limit(Limit::Memory(memory_bytes)));
            }
            answers.push(answer);
        }
        drop(sent);
        self.check_connection(answers.iter().filter_map(|answer| answer.as_ref().err())).await?;
        Ok(answers)
    }

    async fn commit(
        &mut self,
        changes: Vec<Change>,
        checkpoint: Option<String>,
    ) -> Result<Counts, GuestError> {
        let set = checkpoint.clone();
        let Committed { counts, changed, makes_progress } = self.writer.commit(changes, checkpoint).await?;
        self.meter.count_records(counts.added + counts.updated + counts.deleted + counts.unchanged);
        self.meter.note_changes(changed);
        let former = self.checkpoint.clone();
        if let Some(text) = set {
            self.checkpoint = (text.trim() != "null").then_some(text);
        }
        if makes_progress || self.checkpoint != former {
            self.signals.note_progress();
        }
        Ok(counts)
    }

    async fn find_records(
        &mut self,
        model: String,
        ids: Vec<String>,
    ) -> Result<Vec<Option<String>>, GuestError> {
        self.writer.find(&model, &ids).await
    }

    async fn checkpoint(&mut self) -> Result<Option<String>, Interrupt> {
        Ok(self.checkpoint.clone())
    }

    async fn metadata(&mut self) -> Result<String, Interrupt> {
        Ok(self.row().await?.metadata.clone().unwrap_or_default().as_str().to_owned())
    }

    async fn set_metadata(&mut self, metadata: String, merge: bool) -> Result<(), GuestError> {
        let invalid = |message: String| Failure::new(FailureCode::InvalidMetadata, message);
        let metadata = Metadata::parse(&metadata)
            .map_err(|problem| invalid(format!("the metadata of a connection {problem}")))?;
        let change = if merge { MetadataChange::Merge } else { MetadataChange::Replace };
        let mut tx = self.invoker.store.begin().await.map_err(host_failure)?;
        match write_metadata(&mut tx, &[self.connection.pk], &metadata, change).await {
            Ok(()) => tx.commit().await.map_err(host_failure)?,
            Err(problem @ MetadataError::Merged(_)) => return Err(invalid(problem.to_string()).into()),
            Err(MetadataError::Lookup(error)) => return Err(Interrupt::Host(error.into()).into()),
        }
        self.row = None;
        Ok(())
    }

    async fn credentials(&mut self) -> Result<String, GuestError> {
        if !self.function.sees_credentials {
            let message = format!(
                "`{}` may not read credentials; set `credentials = true` for it in syncline.toml to allow it",
                self.function.name
            );
            return Err(Failure::new(FailureCode::NotAllowed, message).into());
        }
        let (credentials, connection) = (&self.invoker.credentials, self.connection.pk);
        match credentials.live(&self.environment, connection, Freshness::AsNeeded).await {
            Ok(LiveCredentials { connection, credentials }) => {
                self.row = Some(connection);
                self.log.hide_credentials(credentials.secrets());
                let credentials = credentials.to_wire(false);
                self.log.hide_all(&credentials);
                Ok(credentials.to_string())
            }
            // The connection was deleted during the run.
            Err(RefreshError::Gone) => Err(Interrupt::Superseded.into()),
            Err(error) => Err(Failure::new(FailureCode::CredentialsUnavailable, unavailable(&error)).into()),
        }
    }

    async fn variables(&mut self) -> Result<Vec<(String, String)>, Interrupt> {
        let variables = self.invoker.variables.list(&self.environment).await;
        let variables = variables.map_err(|error| Interrupt::Host(error.into()))?;
        let granted = self.function.granted_variables(variables);
        granted.iter().for_each(|(_, value)| self.log.hide(value));
        Ok(granted)
    }

    async fn connection(&mut self) -> Result<ConnectionInfo, Interrupt> {
        let row = self.row().await?;
        let (config, tags) = (row.connection_config.to_string(), row.tags.to_string());
        Ok(ConnectionInfo {
            connection_id: self.connection.connection_id.to_string(),
            integration: self.connection.integration_key.to_string(),
            provider: self.connection.provider.to_string(),
            environment: self.environment.name.to_string(),
            config,
            tags,
        })
    }

    fn run(&self) -> RunInfo {
        self.run.clone()
    }

    fn progress(&mut self, done: u64, total: Option<u64>) {
        self.meter.set_progress(done, total);
    }

    fn cancelled(&self) -> bool {
        self.signals.acknowledge_stop()
    }
}

async fn send(
    gateway: &egress::EgressGateway,
    route: &egress::Route,
    request: Request,
    patience: Duration,
    log: &RunLog,
    meter: &RunMeter,
) -> Result<Response, GuestError> {
    let request = egress::Request {
        method: request.method,
        url: request.url,
        query: request.query,
        headers: request.headers,
        body: request.body.map(Bytes::from),
        retries: request.retries,
        timeout: request.timeout_ms.map(|ms| Duration::from_millis(ms.into())),
        patience,
    };
    match gateway.send(route, request, &RequestLog { log, meter }).await {
        Ok(response) => {
            let headers = response.headers.iter().map(|(name, value)| {
                (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
            });
            Ok(Response {
                status: response.status.as_u16(),
                headers: headers.collect(),
                body: response.body.into(),
            })
        }
        Err(EgressError::RateLimited { retry_after, .. }) => {
            Err(Interrupt::RateLimited { retry_after }.into())
        }
        Err(error) => Err(Failure::new(error.code(), error.to_string()).into()),
    }
}

/// Writes each request to the run's log, counts its bytes, and masks its credentials in the log.
struct RequestLog<'a> {
    log: &'a RunLog,
    meter: &'a RunMeter,
}

impl Observer for RequestLog<'_> {
    fn authenticating(&self, secrets: &[&str]) {
        self.log.hide_credentials(secrets.iter().copied());
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        let outcome = match &exchange.outcome {
            Ok(status) => status.as_u16().to_string(),
            Err(error) => error.to_string(),
        };
        let Exchange { method, url, elapsed, attempt, sent_bytes, received_bytes, .. } = exchange;
        self.meter.count_exchange(*sent_bytes, *received_bytes);
        let attempt_text = if *attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
        self.log.trace(&format!("{method} {url}: {outcome} ({} ms{attempt_text})", elapsed.as_millis()));
    }
}

fn host_failure(error: sqlx::Error) -> Interrupt {
    Interrupt::Host(error.into())
}
