//! The requests of a dry run, through the egress gateway.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Map, Value};

use crate::dry_runs::report::SentRequest;
use crate::dry_runs::{DryRuns, ProjectFunction, RunData};
use crate::functions::DeployedFunction;
use crate::invoker::connection_access::{MAX_RATE_LIMIT_WAIT, send, send_all};
use syncline_auth::StoredCredentials;
use syncline_egress::{
    self as egress, CredentialsUnavailable, EgressGateway, Exchange, FixedCredentials, Observer,
};
use syncline_sandbox::{Failure, GuestError, Interrupt, ProviderClient, Request, Response, RunLog};
use syncline_types::json;

/// Sends requests with fixed credentials.
pub(crate) struct GatewayClient {
    gateway: Arc<EgressGateway>,
    route: egress::Route,
    function: Arc<DeployedFunction>,
    ends_at: Instant,
    observer: SentRequests,
}

/// Collects the requests, and masks their credentials in the log.
struct SentRequests {
    log: RunLog,
    sent: Mutex<Vec<SentRequest>>,
}

impl GatewayClient {
    pub(crate) fn new(
        runs: &DryRuns,
        project: &ProjectFunction,
        data: &RunData,
        credentials: &StoredCredentials,
        log: RunLog,
    ) -> Result<Self, CredentialsUnavailable> {
        let Some(provider) = runs.catalogue.find(&project.provider) else {
            let reason = format!("the provider `{}` is not in the catalogue", project.provider);
            return Err(CredentialsUnavailable { reason });
        };
        let connection_config = match json::parse(&data.connection.config) {
            Ok(Value::Object(config)) => config,
            _ => Map::new(),
        };
        let function = Arc::clone(&project.function);
        let route = egress::Route {
            provider,
            base_url: function.base_url.clone(),
            connection_config,
            usual_base: egress::UsualBase::default(),
            allow_hosts: function.allow_hosts.clone(),
            credentials: Arc::new(FixedCredentials::new(credentials.for_requests(None)?)),
            max_response_bytes: Some(function.limits.response_bytes),
            rate_limiter: Arc::new(()),
        };
        let ends_at = Instant::now() + function.limits.wall;
        let observer = SentRequests { log, sent: Mutex::default() };
        Ok(Self { gateway: Arc::clone(&runs.gateway), route, function, ends_at, observer })
    }

    pub(crate) fn sent(&self) -> Vec<SentRequest> {
        self.observer.sent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn max_wait(&self) -> Duration {
        self.ends_at.saturating_duration_since(Instant::now()).min(MAX_RATE_LIMIT_WAIT)
    }
}

#[async_trait]
impl ProviderClient for GatewayClient {
    async fn send(&self, request: Request) -> Result<Response, GuestError> {
        send(&self.gateway, &self.route, request, self.max_wait(), &self.observer).await
    }

    async fn send_all(&self, requests: Vec<Request>) -> Result<Vec<Result<Response, Failure>>, Interrupt> {
        let memory_bytes = self.function.limits.memory_bytes;
        send_all(&self.gateway, &self.route, requests, self.max_wait(), &self.observer, memory_bytes).await
    }
}

impl Observer for SentRequests {
    fn authenticating(&self, secrets: &[&str]) {
        self.log.hide_credentials(secrets.iter().copied());
    }

    fn exchanged(&self, exchange: &Exchange<'_>) {
        let (status, error) = match &exchange.outcome {
            Ok(status) => (Some(status.as_u16()), None),
            Err(error) => (None, Some(self.log.masked(&error.to_string()))),
        };
        let sent = SentRequest {
            method: exchange.method.to_string(),
            url: self.log.masked(exchange.url),
            status,
            error,
            ms: u64::try_from(exchange.elapsed.as_millis()).unwrap_or(u64::MAX),
            attempt: exchange.attempt,
        };
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).push(sent);
    }
}
