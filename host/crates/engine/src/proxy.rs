//! Forwards clients' own requests to providers, with a connection's credentials.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Map, Value};

use crate::credentials::source::ConnectionCredentials;
use crate::rate_limits::ConnectionPace;
use crate::{ConnectionRoute, Engine};
use syncline_auth::Environment;
use syncline_egress::{
    AnswerBody, EgressError, Exchange, ForwardedRequest, Observer, Response, Route, UsualBase,
};
use syncline_store::connections;
use syncline_store::notices::{Notice, Notices, Subscription};
use syncline_types::ids::{ConnectionPk, ProviderSlug};

const REMEMBERED: u64 = 10_000;
/// Nothing is remembered for longer, whatever was heard.
const REMEMBERED_FOR: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
pub enum ProxyError {
    #[error(transparent)]
    Egress(#[from] EgressError),
    #[error("the connection was deleted")]
    Gone,
    #[error("the provider `{0}` is not in this host's catalogue")]
    UnknownProvider(ProviderSlug),
    #[error("the connection could not be read")]
    Store(#[from] sqlx::Error),
}

/// Where the requests of connections go, so that a request needs nothing of the database. What was found is
/// remembered while this host hears of changes.
pub(crate) struct ProxyRoutes {
    routes: moka::sync::Cache<ConnectionPk, Remembered>,
    changes_heard: AtomicU64,
}

#[derive(Clone)]
struct Remembered {
    /// Of which reading of the deployments, which say where providers and further hosts are.
    deployments: u64,
    route: Arc<Route>,
}

impl ProxyRoutes {
    pub(crate) fn new(notices: &Notices) -> Arc<Self> {
        let routes =
            moka::sync::Cache::builder().max_capacity(REMEMBERED).time_to_live(REMEMBERED_FOR).build();
        let this = Arc::new(Self { routes, changes_heard: AtomicU64::new(0) });
        tokio::spawn(forget_on_notice(Arc::clone(&this), notices.subscribe()));
        this
    }

    /// A connection was changed: the next request sees how it is now.
    pub(crate) fn forget(&self, connection: ConnectionPk) {
        self.changes_heard.fetch_add(1, Ordering::SeqCst);
        self.routes.invalidate(&connection);
    }

    fn forget_all(&self) {
        self.changes_heard.fetch_add(1, Ordering::SeqCst);
        self.routes.invalidate_all();
    }
}

async fn forget_on_notice(routes: Arc<ProxyRoutes>, mut notices: Subscription) {
    while let Some(notice) = notices.next().await {
        match notice {
            Notice::Connection(pk) => routes.forget(pk),
            Notice::Missed => routes.forget_all(),
            _ => {}
        }
    }
}

impl Engine {
    /// Forwards a request to the connection's provider.
    pub async fn forward(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: &ConnectionRoute,
        request: ForwardedRequest,
    ) -> Result<Response<AnswerBody>, ProxyError> {
        let route = self.proxy_route(environment, connection).await?;
        Ok(self.gate.forward(&route, request, &ProxyLog(connection)).await?)
    }

    async fn proxy_route(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: &ConnectionRoute,
    ) -> Result<Arc<Route>, ProxyError> {
        let deployments = self.functions.reading();
        if self.notices.is_hearing()
            && let Some(remembered) = self.proxy_routes.routes.get(&connection.pk)
            && remembered.deployments == deployments
        {
            return Ok(remembered.route);
        }
        let heard_before = self.proxy_routes.changes_heard.load(Ordering::SeqCst);
        let provider = self
            .catalogue
            .find(&connection.provider)
            .ok_or_else(|| ProxyError::UnknownProvider(connection.provider.clone()))?;
        let row = connections::get(&mut *self.store.connect().await?, connection.pk).await?;
        let connection_config = match row.ok_or(ProxyError::Gone)?.connection_config {
            Value::Object(config) => config,
            _ => Map::new(),
        };
        let credentials =
            ConnectionCredentials::new(Arc::downgrade(self), Arc::clone(environment), connection.pk);
        let base_url = self.functions.base_url_of(connection.integration);
        let pace = ConnectionPace::new(
            Arc::downgrade(self),
            provider,
            base_url.as_ref(),
            connection.integration,
            connection.pk,
        );
        let route = Arc::new(Route {
            provider: Arc::clone(provider),
            base_url,
            connection_config,
            usual_base: UsualBase::default(),
            allow_hosts: self.functions.allow_hosts_of(connection.integration),
            credentials: Arc::new(credentials),
            max_response_bytes: None,
            pace: Arc::new(pace),
        });
        // What was changed while it was being read must not be remembered as it was.
        if self.proxy_routes.changes_heard.load(Ordering::SeqCst) == heard_before {
            let remembered = Remembered { deployments, route: Arc::clone(&route) };
            self.proxy_routes.routes.insert(connection.pk, remembered);
        }
        Ok(route)
    }
}

/// Notes each exchange in the host's log.
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
