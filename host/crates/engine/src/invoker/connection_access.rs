//! A function's access to its connection, and its requests to the provider.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use serde_json::{Map, Value};
use tokio::sync::{Mutex, OnceCell};

use crate::connections::route::ConnectionRoute;
use crate::credentials::source::ConnectionCredentials;
use crate::functions::DeployedFunction;
use crate::invoker::Invoker;
use crate::invoker::live_runs::RunMeter;
use crate::rate_limits::ConnectionRateLimiter;
use syncline_auth::Environment;
use syncline_egress::{self as egress, EgressError, Exchange, Observer};
use syncline_sandbox::{Failure, GuestError, Interrupt, Limit, ProviderClient, Request, Response, RunLog};
use syncline_store::connections::{self, Connection};
use syncline_types::failure_code::FailureCode;

/// A request that would wait longer for a provider's rate limit ends its run, to free its permit. The run is retried
/// later.
pub(crate) const MAX_RATE_LIMIT_WAIT: Duration = Duration::from_secs(600);
/// The number of requests of one `send-all` that are in progress at a time.
const CONCURRENT_REQUESTS: usize = 8;

/// The connection for which a function runs. Requests of `wasi:http` share it with the function that started them.
pub(crate) struct ConnectionAccess {
    pub(crate) invoker: Arc<Invoker>,
    pub(crate) environment: Arc<Environment>,
    pub(crate) connection: Arc<ConnectionRoute>,
    pub(crate) function: Arc<DeployedFunction>,
    pub(crate) log: RunLog,
    pub(crate) meter: Arc<RunMeter>,
    /// The connection's row, loaded when it is first needed.
    row: Mutex<Option<Arc<Connection>>>,
    /// The destination of requests, created with the first request.
    route: OnceCell<Arc<egress::Route>>,
    /// When the function exceeds its wall time.
    ends_at: Instant,
}

impl ConnectionAccess {
    pub(crate) fn new(
        invoker: &Arc<Invoker>,
        environment: &Arc<Environment>,
        connection: Arc<ConnectionRoute>,
        function: &Arc<DeployedFunction>,
        log: &RunLog,
        meter: &Arc<RunMeter>,
    ) -> Self {
        Self {
            invoker: Arc::clone(invoker),
            environment: Arc::clone(environment),
            connection,
            function: Arc::clone(function),
            log: log.clone(),
            meter: Arc::clone(meter),
            row: Mutex::new(None),
            route: OnceCell::new(),
            ends_at: Instant::now() + function.limits.wall,
        }
    }

    /// Uses a row that was just read.
    pub(crate) fn with_row(self, row: Connection) -> Self {
        Self { row: Mutex::new(Some(Arc::new(row))), ..self }
    }

    pub(crate) async fn row(&self) -> Result<Arc<Connection>, Interrupt> {
        let mut row = self.row.lock().await;
        if let Some(row) = &*row {
            return Ok(Arc::clone(row));
        }
        let found =
            async { connections::get(&mut *self.invoker.store.connect().await?, self.connection.pk).await };
        let found = found.await.map_err(|error| Interrupt::Host(error.into()))?;
        // Without a row, the connection was deleted during the run.
        let found = Arc::new(found.ok_or(Interrupt::Superseded)?);
        *row = Some(Arc::clone(&found));
        Ok(found)
    }

    /// Makes the next access read the row again, or use `row`.
    pub(crate) async fn replace_row(&self, row: Option<Connection>) {
        *self.row.lock().await = row.map(Arc::new);
    }

    fn observer(&self) -> RequestLog<'_> {
        RequestLog { log: &self.log, meter: &self.meter }
    }

    /// How long a request may wait for a rate limit.
    fn max_wait(&self) -> Duration {
        self.ends_at.saturating_duration_since(Instant::now()).min(MAX_RATE_LIMIT_WAIT)
    }

    /// Ends the run if a request had no credentials because the connection was deleted.
    async fn check_connection(&self, failures: impl IntoIterator<Item = &Failure>) -> Result<(), Interrupt> {
        if failures.into_iter().any(|failure| failure.has_code(FailureCode::CredentialsUnavailable)) {
            self.replace_row(None).await;
            self.row().await?;
        }
        Ok(())
    }

    async fn route(&self) -> Result<&Arc<egress::Route>, GuestError> {
        self.route.get_or_try_init(|| self.create_route()).await
    }

    async fn create_route(&self) -> Result<Arc<egress::Route>, GuestError> {
        let Some(provider) = self.invoker.catalogue.find(&self.connection.provider) else {
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
            Some(Arc::clone(&self.meter)),
        );
        let rate_limiter = ConnectionRateLimiter::new(
            Arc::clone(&self.invoker.rate_limits),
            &provider,
            self.function.base_url.as_ref(),
            self.connection.integration,
            self.connection.pk,
            Some(Arc::clone(&self.meter)),
        );
        Ok(Arc::new(egress::Route {
            provider,
            base_url: self.function.base_url.clone(),
            connection_config,
            usual_base: egress::UsualBase::default(),
            allow_hosts: self.function.allow_hosts.clone(),
            credentials: Arc::new(credentials),
            max_response_bytes: Some(self.function.limits.response_bytes),
            rate_limiter: Arc::new(rate_limiter),
        }))
    }
}

#[async_trait]
impl ProviderClient for ConnectionAccess {
    async fn send(&self, request: Request) -> Result<Response, GuestError> {
        let route = self.route().await?;
        let answer = send(&self.invoker.gateway, route, request, self.max_wait(), &self.observer()).await;
        if let Err(GuestError::Failure(failure)) = &answer {
            self.check_connection([failure]).await?;
        }
        answer
    }

    async fn send_all(&self, requests: Vec<Request>) -> Result<Vec<Result<Response, Failure>>, Interrupt> {
        let route = match self.route().await {
            Ok(route) => route,
            Err(GuestError::Failure(failure)) => return Ok(vec![Err(failure); requests.len()]),
            Err(GuestError::Interrupt(interrupt)) => return Err(interrupt),
        };
        let memory_bytes = self.function.limits.memory_bytes;
        let (gateway, observer) = (&self.invoker.gateway, self.observer());
        let answers = send_all(gateway, route, requests, self.max_wait(), &observer, memory_bytes).await?;
        self.check_connection(answers.iter().filter_map(|answer| answer.as_ref().err())).await?;
        Ok(answers)
    }
}

/// Sends several requests concurrently. `memory_bytes` limits their responses together.
pub(crate) async fn send_all(
    gateway: &egress::EgressGateway,
    route: &egress::Route,
    requests: Vec<Request>,
    patience: Duration,
    observer: &dyn Observer,
    memory_bytes: usize,
) -> Result<Vec<Result<Response, Failure>>, Interrupt> {
    let sent = requests.into_iter().map(|request| send(gateway, route, request, patience, observer));
    let mut sent = stream::iter(sent).buffered(CONCURRENT_REQUESTS);
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
    Ok(answers)
}

/// Sends one request of a function.
pub(crate) async fn send(
    gateway: &egress::EgressGateway,
    route: &egress::Route,
    request: Request,
    patience: Duration,
    observer: &dyn Observer,
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
    match gateway.send(route, request, observer).await {
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
        Err(error) => Err(Failure::new(error.code(), error.with_advice()).into()),
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
