//! Connections: found quickly, taken in, and their credentials opened.

pub(crate) mod deletion;
mod storing;
pub(crate) mod typed;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use self::storing::{AuthenticatedConnection, ConnectError, ImportedConnection};

use crate::RecordChanges;
use syncline_store::Store;
use syncline_store::connections::{self, Connection};
use syncline_store::notices::{Notice, Notices};
use syncline_types::ids::{
    ConnectionId, ConnectionPk, EnvironmentPk, IntegrationKey, IntegrationPk, ProviderSlug,
};

const REMEMBERED: u64 = 100_000;

/// What of a connection never changes while it exists.
#[derive(Debug)]
pub struct ConnectionRoute {
    pub pk: ConnectionPk,
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub integration_key: IntegrationKey,
    pub provider: ProviderSlug,
    pub connection_id: ConnectionId,
}

type Name = (EnvironmentPk, IntegrationKey, ConnectionId);

/// Finds connections by the names that clients use. What was found is remembered while this host hears of changes.
pub struct Connections {
    store: Store,
    notices: Arc<Notices>,
    record_changes: Arc<RecordChanges>,
    by_name: moka::sync::Cache<Name, ConnectionPk>,
    by_pk: moka::sync::Cache<ConnectionPk, Arc<ConnectionRoute>>,
    changes_heard: AtomicU64,
}

impl Connections {
    pub(crate) fn new(store: Store, notices: Arc<Notices>, record_changes: Arc<RecordChanges>) -> Arc<Self> {
        let this = Arc::new(Self {
            store,
            notices,
            record_changes,
            by_name: moka::sync::Cache::new(REMEMBERED),
            by_pk: moka::sync::Cache::new(REMEMBERED),
            changes_heard: AtomicU64::new(0),
        });
        tokio::spawn(forget_on_notice(Arc::clone(&this)));
        this
    }

    pub async fn find(
        &self,
        environment: EnvironmentPk,
        integration: &IntegrationKey,
        connection: &ConnectionId,
    ) -> sqlx::Result<Option<Arc<ConnectionRoute>>> {
        let name = (environment, integration.clone(), connection.clone());
        if self.notices.is_hearing()
            && let Some(route) = self.by_name.get(&name).and_then(|pk| self.by_pk.get(&pk))
        {
            return Ok(Some(route));
        }
        let heard_before = self.changes_heard.load(Ordering::SeqCst);
        let mut conn = self.store.connect().await?;
        let Some(found) = connections::find(&mut conn, environment, integration, connection).await? else {
            return Ok(None);
        };
        let route = Arc::new(ConnectionRoute::from(&found));
        // One that was deleted while it was being looked up must not be remembered.
        if self.changes_heard.load(Ordering::SeqCst) == heard_before {
            self.by_name.insert(name, found.pk);
            self.by_pk.insert(found.pk, Arc::clone(&route));
        }
        Ok(Some(route))
    }

    /// Reads a connection anew when it is next asked for, as whoever follows its records does now.
    pub(crate) fn forget(&self, connection: ConnectionPk) {
        self.changes_heard.fetch_add(1, Ordering::SeqCst);
        self.by_pk.invalidate(&connection);
        self.record_changes.wake(connection);
    }

    /// Likewise every connection: the names of many have changed.
    pub fn forget_all(&self) {
        self.changes_heard.fetch_add(1, Ordering::SeqCst);
        self.by_name.invalidate_all();
        self.by_pk.invalidate_all();
        self.record_changes.wake_all();
    }
}

impl From<&Connection> for ConnectionRoute {
    fn from(connection: &Connection) -> Self {
        Self {
            pk: connection.pk,
            environment: connection.environment,
            integration: connection.integration,
            integration_key: connection.integration_key.clone(),
            provider: connection.provider.clone(),
            connection_id: connection.connection_id.clone(),
        }
    }
}

async fn forget_on_notice(connections: Arc<Connections>) {
    let mut notices = connections.notices.subscribe();
    while let Some(notice) = notices.next().await {
        match notice {
            Notice::Connection(pk) => connections.forget(pk),
            Notice::Integrations | Notice::Missed => connections.forget_all(),
            _ => {}
        }
    }
}
