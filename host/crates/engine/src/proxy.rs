//! Forwards clients' own requests to providers, with a connection's credentials.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use crate::connections::route::ConnectionRoute;
use crate::credentials::Credentials;
use crate::credentials::source::ConnectionCredentials;
use crate::functions::Functions;
use crate::rate_limits::{ConnectionRateLimiter, RateLimits};
use syncline_auth::Environment;
use syncline_egress::{
    AnswerBody, EgressError, EgressGateway, Exchange, ForwardedRequest, Observer, Response, Route,
    UploadFailure, UsualBase,
};
use syncline_providers::Catalogue;
use syncline_store::Store;
use syncline_store::connections;
use syncline_store::events::{Event, Events};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionPk, ProviderSlug};

const CAPACITY: u64 = 10_000;
/// A route is cached for this long, even if no event invalidates it.
const CACHE_TTL: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error("{}", .0.with_advice())]
    Egress(EgressError),
    #[error("the connection was deleted")]
    Gone,
    #[error(
        "the provider `{0}` is not in this host's catalogue; add its file to SYNCLINE_PROVIDERS_DIR on every host"
    )]
    UnknownProvider(ProviderSlug),
    #[error("the connection could not be read")]
    Store(#[from] sqlx::Error),
}

impl ProxyError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Egress(error) => egress_code(error),
            Self::Gone => ErrorCode::UnknownConnection,
            Self::UnknownProvider(_) => ErrorCode::UnknownProvider,
            Self::Store(_) => ErrorCode::InternalServerError,
        }
    }
}

impl From<EgressError> for ProxyError {
    fn from(error: EgressError) -> Self {
        Self::Egress(error)
    }
}

/// The code of a request that was not forwarded, or received no response.
fn egress_code(error: &EgressError) -> ErrorCode {
    match error {
        EgressError::InvalidRequest { .. } => ErrorCode::InvalidProxyRequest,
        EgressError::HostNotAllowed { .. } | EgressError::PlainHttp { .. } => ErrorCode::HostNotAllowed,
        EgressError::AddressNotAllowed { .. } => ErrorCode::AddressNotAllowed,
        EgressError::OverrideNotAllowed { .. } => ErrorCode::BaseUrlOverrideNotAllowed,
        EgressError::Upload(UploadFailure::Cut) => ErrorCode::InvalidBody,
        EgressError::Upload(UploadFailure::TooLong { .. }) => ErrorCode::PayloadTooLarge,
        EgressError::Upload(UploadFailure::Stalled { .. } | UploadFailure::Slow { .. }) => {
            ErrorCode::BodyTimeout
        }
        EgressError::Upload(UploadFailure::NoMemory) => ErrorCode::TooManyBodies,
        EgressError::CredentialsUnavailable(_) => ErrorCode::CredentialsUnavailable,
        EgressError::Redirected(_) | EgressError::UploadNotKept => ErrorCode::RedirectNotAllowed,
        EgressError::TooManyRedirects { .. } => ErrorCode::TooManyRedirects,
        EgressError::Network { .. } | EgressError::ResponseTooLarge { .. } => ErrorCode::UpstreamFailed,
        EgressError::RateLimited { .. } => ErrorCode::RateLimited,
        EgressError::Timeout { .. } => ErrorCode::UpstreamTimeout,
    }
}

/// Caches the destinations of connections' requests, so that a request needs no database query. Cached routes are used
/// only while this host receives events.
pub struct ProxyRoutes {
    events: Arc<Events>,
    routes: moka::sync::Cache<ConnectionPk, CachedRoute>,
}

#[derive(Clone)]
struct CachedRoute {
    /// The version of the deployed functions, which set base URLs and additional hosts.
    functions: u64,
    /// Empty while the route is being read. An invalidation drops an empty cell too, so that a route that was read
    /// before the invalidation is not cached.
    route: Arc<OnceCell<Arc<Route>>>,
}

impl ProxyRoutes {
    pub fn new(events: Arc<Events>) -> Arc<Self> {
        let routes = moka::sync::Cache::builder().max_capacity(CAPACITY).time_to_live(CACHE_TTL).build();
        Arc::new(Self { events, routes })
    }

    /// Returns the cached route of a connection, or the result of `read`. `functions` is the version of the deployed
    /// functions before `read`.
    async fn get<E>(
        &self,
        connection: ConnectionPk,
        functions: u64,
        read: impl Future<Output = Result<Arc<Route>, E>>,
    ) -> Result<Arc<Route>, E> {
        if !self.events.is_receiving() {
            return read.await;
        }
        let cached = self.routes.entry(connection).or_insert_with_if(
            || CachedRoute { functions, route: Arc::default() },
            |cached| cached.functions < functions,
        );
        cached.into_value().route.get_or_try_init(|| read).await.cloned()
    }

    /// Drops the cached route of a changed connection.
    pub(crate) fn forget(&self, connection: ConnectionPk) {
        self.routes.invalidate(&connection);
    }

    fn forget_all(&self) {
        self.routes.invalidate_all();
    }

    /// Drops the routes of changed connections, until `shutdown`.
    pub async fn invalidate(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        // Events may have been missed before the subscription.
        self.forget_all();
        while let Some(Some(event)) = shutdown.run_until_cancelled(events.next()).await {
            match event {
                Event::Connection(pk) => self.forget(pk),
                Event::Missed => self.forget_all(),
                _ => {}
            }
        }
    }
}

/// Forwards clients' requests to providers.
pub struct Proxy {
    store: Store,
    catalogue: Arc<Catalogue>,
    gateway: Arc<EgressGateway>,
    functions: Arc<Functions>,
    credentials: Arc<Credentials>,
    rate_limits: Arc<RateLimits>,
    routes: Arc<ProxyRoutes>,
}

/// Dependencies of [`Proxy`].
pub struct ProxyParts {
    pub store: Store,
    pub catalogue: Arc<Catalogue>,
    pub gateway: Arc<EgressGateway>,
    pub functions: Arc<Functions>,
    pub credentials: Arc<Credentials>,
    pub rate_limits: Arc<RateLimits>,
    pub routes: Arc<ProxyRoutes>,
}

impl Proxy {
    pub fn new(parts: ProxyParts) -> Arc<Self> {
        let ProxyParts { store, catalogue, gateway, functions, credentials, rate_limits, routes } = parts;
        Arc::new(Self { store, catalogue, gateway, functions, credentials, rate_limits, routes })
    }

    /// Forwards a request to the connection's provider.
    pub async fn forward(
        &self,
        environment: &Arc<Environment>,
        connection: &ConnectionRoute,
        request: ForwardedRequest,
    ) -> Result<Response<AnswerBody>, ProxyError> {
        let read = self.read_route(environment, connection);
        let route = self.routes.get(connection.pk, self.functions.version(), read).await?;
        Ok(self.gateway.forward(&route, request, &ProxyLog(connection)).await?)
    }

    async fn read_route(
        &self,
        environment: &Arc<Environment>,
        connection: &ConnectionRoute,
    ) -> Result<Arc<Route>, ProxyError> {
        let provider = self
            .catalogue
            .find(&connection.provider)
            .ok_or_else(|| ProxyError::UnknownProvider(connection.provider.clone()))?;
        let row = connections::get(&mut *self.store.connect().await?, connection.pk).await?;
        let connection_config = match row.ok_or(ProxyError::Gone)?.connection_config {
            Value::Object(config) => config,
            _ => Map::new(),
        };
        let credentials = ConnectionCredentials::new(
            Arc::clone(&self.credentials),
            Arc::clone(environment),
            connection.pk,
            None,
        );
        let base_url = self.functions.base_url_of(connection.integration);
        let rate_limiter = ConnectionRateLimiter::new(
            Arc::clone(&self.rate_limits),
            &provider,
            base_url.as_ref(),
            connection.integration,
            connection.pk,
            None,
        );
        Ok(Arc::new(Route {
            provider: Arc::clone(&provider),
            base_url,
            connection_config,
            usual_base: UsualBase::default(),
            allow_hosts: self.functions.allow_hosts_of(connection.integration),
            credentials: Arc::new(credentials),
            max_response_bytes: None,
            rate_limiter: Arc::new(rate_limiter),
        }))
    }
}

/// Writes each exchange to the host's log.
struct ProxyLog<'a>(&'a ConnectionRoute);

impl Observer for ProxyLog<'_> {
    fn exchanged(&self, exchange: &Exchange<'_>) {
        let Exchange { attempt, method, url, outcome, elapsed, .. } = exchange;
        let outcome = match outcome {
            Ok(status) => status.as_u16().to_string(),
            Err(error) => error.to_string(),
        };
        tracing::debug!(
            connection.id = %self.0.connection_id,
            integration = %self.0.integration_key,
            attempt,
            latency.us = elapsed.as_micros() as u64,
            "forwarded {method} {url}: {outcome}"
        );
    }
}
