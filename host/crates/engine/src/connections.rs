//! Stores, validates, changes and deletes connections.

pub(crate) mod cache;
pub(crate) mod deletion;
pub(crate) mod metadata;
pub(crate) mod reading;
mod revalidation;
pub(crate) mod route;
mod storing;
pub(crate) mod typed;
pub(crate) mod updating;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::task::TaskTracker;
use uuid::Uuid;

pub use self::storing::{AuthenticatedConnection, ConnectError, ImportResponse, ImportedConnection};

use crate::connections::cache::ConnectionCache;
use crate::credentials::Credentials;
use crate::functions::Functions;
use crate::lifecycle::Lifecycle;
use crate::proxy::ProxyRoutes;
use syncline_auth::Environments;
use syncline_providers::Catalogue;
use syncline_store::Store;
use syncline_store::events::Events;
use syncline_telemetry::clock::Clock;

/// Settings for connections that an operator can change.
#[derive(Debug, Clone)]
pub struct ConnectionSettings {
    /// How long another host waits, without a heartbeat of this host, before it takes over work.
    pub lease: Duration,
    /// How long a shutdown waits for validations and deletions.
    pub grace: Duration,
    /// The length of metadata and configuration at which a part of a list ends, in bytes.
    pub max_page_bytes: usize,
}

/// Stores, validates and deletes connections.
pub struct Connections {
    clock: Clock,
    store: Store,
    events: Arc<Events>,
    environments: Arc<Environments>,
    catalogue: Arc<Catalogue>,
    credentials: Arc<Credentials>,
    functions: Arc<Functions>,
    lifecycle: Arc<Lifecycle>,
    cache: Arc<ConnectionCache>,
    proxy_routes: Arc<ProxyRoutes>,
    host_id: Uuid,
    settings: ConnectionSettings,
    /// Tasks that finish even if the client that started them disconnects.
    running: TaskTracker,
}

/// Dependencies of [`Connections`].
pub struct ConnectionParts {
    pub clock: Clock,
    pub store: Store,
    pub events: Arc<Events>,
    pub environments: Arc<Environments>,
    pub catalogue: Arc<Catalogue>,
    pub credentials: Arc<Credentials>,
    pub functions: Arc<Functions>,
    pub lifecycle: Arc<Lifecycle>,
    pub cache: Arc<ConnectionCache>,
    pub proxy_routes: Arc<ProxyRoutes>,
    pub host_id: Uuid,
}

impl Connections {
    pub fn new(parts: ConnectionParts, settings: ConnectionSettings) -> Arc<Self> {
        let ConnectionParts {
            clock,
            store,
            events,
            environments,
            catalogue,
            credentials,
            functions,
            lifecycle,
            cache,
            proxy_routes,
            host_id,
        } = parts;
        Arc::new(Self {
            clock,
            store,
            events,
            environments,
            catalogue,
            credentials,
            functions,
            lifecycle,
            cache,
            proxy_routes,
            host_id,
            settings,
            running: TaskTracker::new(),
        })
    }
}
