//! Routes, settings and credentials for the gateway's tests.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Map;
use url::Url;

use syncline_egress::{
    CredentialSource, Credentials, CredentialsUnavailable, EgressGateway, EgressSettings, Exchange, Observer,
    Request, Route, UsualBase,
};
use syncline_providers::{Catalogue, Provider};
use syncline_telemetry::clock::Clock;

/// Settings that allow these servers and use short waits.
pub fn settings(servers: &[SocketAddr]) -> EgressSettings {
    EgressSettings {
        allow: servers.iter().map(|address| address.to_string().parse().unwrap()).collect(),
        first_backoff: Duration::from_millis(1),
        max_wait: Duration::from_secs(2),
        request_timeout: Duration::from_secs(5),
        ..EgressSettings::default()
    }
}

/// A gateway that allows these servers.
pub fn gateway(servers: &[SocketAddr]) -> EgressGateway {
    EgressGateway::new(settings(servers), Clock::system()).unwrap()
}

/// A route to a provider of the catalogue with another base URL.
pub fn route(provider: &str, base_url: &Url, credentials: impl CredentialSource + 'static) -> Route {
    let catalogue = Catalogue::load(None).unwrap();
    let provider = catalogue.find(&provider.parse().unwrap()).unwrap();
    route_of(provider, base_url, credentials)
}

pub fn route_of(
    provider: Arc<Provider>,
    base_url: &Url,
    credentials: impl CredentialSource + 'static,
) -> Route {
    Route {
        provider,
        base_url: Some(base_url.clone()),
        connection_config: Map::new(),
        usual_base: UsualBase::default(),
        allow_hosts: Vec::new(),
        credentials: Arc::new(credentials),
        max_response_bytes: None,
        rate_limiter: Arc::new(()),
    }
}

pub fn get(url: &str) -> Request {
    Request { method: "GET".to_owned(), url: url.to_owned(), ..Request::default() }
}

pub fn post(url: &str, body: &'static str) -> Request {
    Request { method: "POST".to_owned(), url: url.to_owned(), body: Some(body.into()), ..Request::default() }
}

/// Credentials in a fixed order: each one is used until the provider rejects it.
pub struct Keys(Mutex<VecDeque<Arc<Credentials>>>);

impl Keys {
    pub fn one(credentials: Credentials) -> Self {
        Self::several([credentials])
    }

    pub fn several(credentials: impl IntoIterator<Item = Credentials>) -> Self {
        Self(Mutex::new(credentials.into_iter().map(Arc::new).collect()))
    }
}

#[async_trait]
impl CredentialSource for Keys {
    async fn current(&self) -> Result<Arc<Credentials>, CredentialsUnavailable> {
        let first = self.0.lock().unwrap().front().cloned();
        first.ok_or_else(|| CredentialsUnavailable { reason: "the refresh token was revoked".to_owned() })
    }

    async fn refresh_after_rejection(
        &self,
        rejected: &Arc<Credentials>,
    ) -> Result<Option<Arc<Credentials>>, CredentialsUnavailable> {
        let mut keys = self.0.lock().unwrap();
        if keys.len() > 1 && Arc::ptr_eq(&keys[0], rejected) {
            keys.pop_front();
            return Ok(Some(Arc::clone(&keys[0])));
        }
        Ok(None)
    }
}

/// Records every exchange as one line of text.
#[derive(Default)]
pub struct Recorder(Mutex<Vec<String>>);

impl Recorder {
    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Observer for Recorder {
    fn exchanged(&self, exchange: &Exchange<'_>) {
        let outcome = match exchange.outcome {
            Ok(status) => status.as_u16().to_string(),
            Err(error) => error.code().to_string(),
        };
        let line = format!("{} {} {} {outcome}", exchange.attempt, exchange.method, exchange.url);
        self.0.lock().unwrap().push(line);
    }
}
