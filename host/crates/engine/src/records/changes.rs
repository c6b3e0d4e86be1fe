//! Wakes the readers of records after a write on any host.
//!
//! A writer announces the connection after its commit. Readers on the same host wake at once. Readers on other hosts
//! wake through a notification; a host sends only a few per second, however much it writes. Because a notification can
//! be lost, every host also checks periodically, with one statement for all connections that its readers follow. A
//! waiting reader uses no database connection.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use syncline_store::events::Events;
use syncline_store::{Store, events, streams};
use syncline_types::ids::ConnectionPk;

/// Interval between notifications. Writes in the meantime are part of the next one.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of the periodic check, because a notification can be lost.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Number of connections that one statement checks.
const POLL_BATCH: usize = 1_000;

/// The readers that follow records on this host, and the changes that other hosts do not know yet.
pub struct RecordChanges {
    store: Store,
    events: Arc<Events>,
    host_id: Uuid,
    followed: Mutex<HashMap<ConnectionPk, watch::Sender<()>>>,
    permits: Arc<Semaphore>,
    /// Changed connections that are not published to other hosts yet.
    unpublished: Mutex<BTreeSet<ConnectionPk>>,
    has_unpublished: Notify,
}

/// A reader's subscription to one connection. It uses one of the host's permits.
pub struct FollowedConnection {
    changes: Arc<RecordChanges>,
    connection: ConnectionPk,
    woken: watch::Receiver<()>,
    _permit: OwnedSemaphorePermit,
}

impl RecordChanges {
    /// `max_readers` limits the number of concurrent readers on this host.
    pub fn new(store: Store, events: Arc<Events>, host_id: Uuid, max_readers: usize) -> Arc<Self> {
        Arc::new(Self {
            store,
            events,
            host_id,
            followed: Mutex::default(),
            permits: Arc::new(Semaphore::new(max_readers)),
            unpublished: Mutex::default(),
            has_unpublished: Notify::new(),
        })
    }

    /// Follows a connection from now on. Returns `None` if the limit of readers is reached.
    pub fn follow(self: &Arc<Self>, connection: ConnectionPk) -> Option<FollowedConnection> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        let woken = self.followed().entry(connection).or_default().subscribe();
        Some(FollowedConnection { changes: Arc::clone(self), connection, woken, _permit: permit })
    }

    /// Announces committed changes of a connection's records.
    pub(crate) fn note(&self, connection: ConnectionPk) {
        self.wake(connection);
        self.unpublished().insert(connection);
        self.has_unpublished.notify_one();
    }

    /// Wakes the readers that follow the connection.
    pub(crate) fn wake(&self, connection: ConnectionPk) {
        if let Some(followed) = self.followed().get(&connection) {
            followed.send_replace(());
        }
    }

    pub(crate) fn wake_all(&self) {
        for followed in self.followed().values() {
            followed.send_replace(());
        }
    }

    /// Publishes changes to other hosts, until `shutdown`.
    pub async fn publish(self: Arc<Self>, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(self.has_unpublished.notified()).await.is_some() {
            let unpublished: Vec<_> = std::mem::take(&mut *self.unpublished()).into_iter().collect();
            let published = async {
                events::publish_records(&mut *self.store.connect().await?, self.host_id, &unpublished).await
            };
            if let Err(error) = published.await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not notify other hosts of changed records; they find them with their next periodic check"
                );
            }
            tokio::time::sleep(PUBLISH_INTERVAL).await;
        }
    }

    /// Wakes readers after changes on other hosts, until `shutdown`.
    pub async fn receive(self: Arc<Self>, shutdown: CancellationToken) {
        let mut received = self.events.subscribe_to_records();
        while let Some(connections) = shutdown.run_until_cancelled(received.recv()).await {
            match connections {
                Ok(connections) => connections.iter().for_each(|pk| self.wake(*pk)),
                Err(RecvError::Lagged(_)) => self.wake_all(),
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Checks periodically for changes whose notification was lost, until `shutdown`.
    pub async fn poll(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(POLL_INTERVAL);
        let mut positions = HashMap::new();
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            match self.poll_once(&positions).await {
                Ok(found) => positions = found,
                Err(error) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not check for changed records; retrying"
                ),
            }
        }
    }

    /// Wakes the readers of connections with changed streams. Returns the sums of positions of all followed
    /// connections.
    async fn poll_once(
        &self,
        before: &HashMap<ConnectionPk, i64>,
    ) -> sqlx::Result<HashMap<ConnectionPk, i64>> {
        let followed: Vec<_> = self.followed().keys().copied().collect();
        let mut found = HashMap::with_capacity(followed.len());
        for part in followed.chunks(POLL_BATCH) {
            let mut conn = self.store.connect_records().await?;
            found.extend(streams::sums_of_positions(&mut conn, part).await?);
        }
        for (connection, sum) in &found {
            if before.get(connection) != Some(sum) {
                self.wake(*connection);
            }
        }
        Ok(found)
    }

    fn followed(&self) -> MutexGuard<'_, HashMap<ConnectionPk, watch::Sender<()>>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unpublished(&self) -> MutexGuard<'_, BTreeSet<ConnectionPk>> {
        self.unpublished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FollowedConnection {
    /// Waits until there is a reason to read again since the previous call.
    pub async fn woken(&mut self) {
        // The sender exists as long as this subscription.
        let _changed = self.woken.changed().await;
    }
}

impl Drop for FollowedConnection {
    fn drop(&mut self) {
        let mut followed = self.changes.followed();
        // The count includes this receiver.
        if followed.get(&self.connection).is_some_and(|sender| sender.receiver_count() <= 1) {
            followed.remove(&self.connection);
        }
    }
}
