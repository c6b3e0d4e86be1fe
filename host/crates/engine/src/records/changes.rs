//! Wakes those who follow records when something was written, on whichever host.
//!
//! A writer notes the connection after its commit. Readers on the same host are woken at once, those on others by a
//! notification, of which a host sends a few a second at most, however much is written. A notification may be lost; so
//! every host also looks itself, in one statement for all connections that are followed there. A reader holds no
//! database connection while it waits.

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

/// What is written meanwhile goes into the next notification.
const TELL_EVERY: Duration = Duration::from_millis(100);
/// However quiet it is, the streams that are followed are looked at again after this long.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Connections that one statement asks for.
const LOOK_AT_ONCE: usize = 1_000;

/// Who follows records on this host, and what other hosts have to be told.
pub struct RecordChanges {
    store: Store,
    events: Arc<Events>,
    host_id: Uuid,
    followed: Mutex<HashMap<ConnectionPk, watch::Sender<()>>>,
    permits: Arc<Semaphore>,
    /// What other hosts have not been told of yet.
    untold: Mutex<BTreeSet<ConnectionPk>>,
    has_untold: Notify,
}

/// A reader's ear for one connection. It takes one of the host's permits.
pub struct FollowedConnection {
    changes: Arc<RecordChanges>,
    connection: ConnectionPk,
    woken: watch::Receiver<()>,
    _permit: OwnedSemaphorePermit,
}

impl RecordChanges {
    /// `max_readers` is how many readers may follow records on this host at once.
    pub fn new(store: Store, events: Arc<Events>, host_id: Uuid, max_readers: usize) -> Arc<Self> {
        Arc::new(Self {
            store,
            events,
            host_id,
            followed: Mutex::default(),
            permits: Arc::new(Semaphore::new(max_readers)),
            untold: Mutex::default(),
            has_untold: Notify::new(),
        })
    }

    /// Follows a connection from now on. `None`: there are as many readers as there may be.
    pub fn follow(self: &Arc<Self>, connection: ConnectionPk) -> Option<FollowedConnection> {
        let permit = Arc::clone(&self.permits).try_acquire_owned().ok()?;
        let woken = self.followed().entry(connection).or_default().subscribe();
        Some(FollowedConnection { changes: Arc::clone(self), connection, woken, _permit: permit })
    }

    /// Notes that records of the connection were changed and committed.
    pub(crate) fn note(&self, connection: ConnectionPk) {
        self.wake(connection);
        self.untold().insert(connection);
        self.has_untold.notify_one();
    }

    /// Has those who follow the connection look again.
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

    /// Tells other hosts what was written here, until `shutdown`.
    pub async fn publish(self: Arc<Self>, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(self.has_untold.notified()).await.is_some() {
            let untold: Vec<_> = std::mem::take(&mut *self.untold()).into_iter().collect();
            let told = async {
                events::publish_records(&mut *self.store.connect().await?, self.host_id, &untold).await
            };
            if let Err(error) = told.await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "other hosts were not told of new records; they will find them a little later"
                );
            }
            tokio::time::sleep(TELL_EVERY).await;
        }
    }

    /// Wakes the readers of records that other hosts have written, until `shutdown`.
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

    /// Looks for changes whose notification was lost, until `shutdown`.
    pub async fn poll(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        let mut seen = HashMap::new();
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            match self.look_once(&seen).await {
                Ok(found) => seen = found,
                Err(error) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the records that are followed could not be looked at"
                ),
            }
        }
    }

    /// Wakes the readers of connections whose streams have moved on. Gives where they all stand.
    async fn look_once(&self, seen: &HashMap<ConnectionPk, i64>) -> sqlx::Result<HashMap<ConnectionPk, i64>> {
        let followed: Vec<_> = self.followed().keys().copied().collect();
        let mut found = HashMap::with_capacity(followed.len());
        for part in followed.chunks(LOOK_AT_ONCE) {
            let mut conn = self.store.connect_records().await?;
            found.extend(streams::sums_of_positions(&mut conn, part).await?);
        }
        for (connection, sum) in &found {
            if seen.get(connection) != Some(sum) {
                self.wake(*connection);
            }
        }
        Ok(found)
    }

    fn followed(&self) -> MutexGuard<'_, HashMap<ConnectionPk, watch::Sender<()>>> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn untold(&self) -> MutexGuard<'_, BTreeSet<ConnectionPk>> {
        self.untold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FollowedConnection {
    /// Returns at the first reason to look again since this was called last.
    pub async fn woken(&mut self) {
        // The sender is there for as long as this is.
        let _changed = self.woken.changed().await;
    }
}

impl Drop for FollowedConnection {
    fn drop(&mut self) {
        let mut followed = self.changes.followed();
        // This one still counts.
        if followed.get(&self.connection).is_some_and(|sender| sender.receiver_count() <= 1) {
            followed.remove(&self.connection);
        }
    }
}
