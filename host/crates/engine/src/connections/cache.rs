//! Finds connections by the names that clients use.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

use crate::connections::route::ConnectionRoute;
use crate::lookup::{LookupError, NamedScope, find_integration};
use crate::records::changes::RecordChanges;
use syncline_store::Store;
use syncline_store::connections;
use syncline_store::events::{Event, Events};
use syncline_store::runs::Scope;
use syncline_types::ids::{ConnectionId, ConnectionPk, EnvironmentPk, IntegrationKey};

const CAPACITY: u64 = 100_000;

type Name = (EnvironmentPk, IntegrationKey, ConnectionId);

/// Finds connections by the names that clients use. An entry is used only while this host receives events.
pub struct ConnectionCache {
    store: Store,
    events: Arc<Events>,
    record_changes: Arc<RecordChanges>,
    by_name: moka::sync::Cache<Name, ConnectionPk>,
    by_pk: moka::sync::Cache<ConnectionPk, Arc<ConnectionRoute>>,
    invalidations: AtomicU64,
}

impl ConnectionCache {
    pub fn new(store: Store, events: Arc<Events>, record_changes: Arc<RecordChanges>) -> Arc<Self> {
        Arc::new(Self {
            store,
            events,
            record_changes,
            by_name: moka::sync::Cache::new(CAPACITY),
            by_pk: moka::sync::Cache::new(CAPACITY),
            invalidations: AtomicU64::new(0),
        })
    }

    /// Returns the connection with this id.
    pub async fn get(
        &self,
        environment: EnvironmentPk,
        integration: &IntegrationKey,
        connection: &ConnectionId,
    ) -> Result<Arc<ConnectionRoute>, LookupError> {
        if let Some(found) = self.find(environment, integration, connection).await? {
            return Ok(found);
        }
        Err(self.explain_missing(environment, integration, connection).await)
    }

    /// Finds out what is missing after a failed lookup: the connection or its integration.
    pub(crate) async fn explain_missing(
        &self,
        environment: EnvironmentPk,
        integration: &IntegrationKey,
        connection: &ConnectionId,
    ) -> LookupError {
        let lookup =
            async { find_integration(&mut *self.store.connect().await?, environment, integration).await };
        match lookup.await {
            Ok(_) => LookupError::UnknownConnection {
                integration: integration.clone(),
                connection: connection.clone(),
            },
            Err(error) => error,
        }
    }

    /// Resolves the names in a scope to row numbers.
    pub(crate) async fn resolve(
        &self,
        environment: EnvironmentPk,
        scope: &NamedScope,
    ) -> Result<Scope, LookupError> {
        Ok(match scope {
            NamedScope::Environment => Scope::Environment,
            NamedScope::Integration(key) => {
                let mut conn = self.store.connect().await?;
                Scope::Integration(find_integration(&mut conn, environment, key).await?.pk)
            }
            NamedScope::Connection { integration, connection } => {
                Scope::Connection(self.get(environment, integration, connection).await?.pk)
            }
        })
    }

    pub(crate) async fn find(
        &self,
        environment: EnvironmentPk,
        integration: &IntegrationKey,
        connection: &ConnectionId,
    ) -> sqlx::Result<Option<Arc<ConnectionRoute>>> {
        let name = (environment, integration.clone(), connection.clone());
        if self.events.is_receiving()
            && let Some(route) = self.by_name.get(&name).and_then(|pk| self.by_pk.get(&pk))
        {
            return Ok(Some(route));
        }
        let invalidations_before = self.invalidations.load(Ordering::SeqCst);
        let mut conn = self.store.connect().await?;
        let Some(found) = connections::find(&mut conn, environment, integration, connection).await? else {
            return Ok(None);
        };
        let route = Arc::new(ConnectionRoute::from(&found));
        // A connection that was deleted during the lookup must not be cached.
        if self.invalidations.load(Ordering::SeqCst) == invalidations_before {
            self.by_name.insert(name, found.pk);
            self.by_pk.insert(found.pk, Arc::clone(&route));
        }
        Ok(Some(route))
    }

    /// Drops an entry, so that the next lookup reads the database. Readers that wait for the connection's records look
    /// it up again as well.
    pub(crate) fn forget(&self, connection: ConnectionPk) {
        self.invalidations.fetch_add(1, Ordering::SeqCst);
        self.by_pk.invalidate(&connection);
        self.record_changes.wake(connection);
    }

    /// Drops all entries, since the names of many connections have changed.
    pub(crate) fn forget_all(&self) {
        self.invalidations.fetch_add(1, Ordering::SeqCst);
        self.by_name.invalidate_all();
        self.by_pk.invalidate_all();
        self.record_changes.wake_all();
    }

    /// Drops entries that another host has changed, until `shutdown`.
    pub async fn invalidate(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        // Events may have been missed before the subscription.
        self.forget_all();
        while let Some(Some(event)) = shutdown.run_until_cancelled(events.next()).await {
            match event {
                Event::Connection(pk) => self.forget(pk),
                Event::Integrations | Event::Missed => self.forget_all(),
                _ => {}
            }
        }
    }
}
