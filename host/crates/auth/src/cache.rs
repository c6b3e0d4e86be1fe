//! Caches values that this host has read from the database.

use std::hash::Hash;
use std::sync::Arc;

use tokio::sync::OnceCell;

use syncline_store::events::Events;

/// The maximum number of values in a cache.
const CAPACITY: u64 = 100_000;

/// Reads a missing value once, however many tasks ask for it. Caches values only while this host receives events,
/// because events from other hosts invalidate them.
pub struct Cache<K, V> {
    events: Arc<Events>,
    values: Values<K, V>,
}

impl<K, V> Cache<K, V>
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    pub fn new(events: Arc<Events>) -> Self {
        Self { events, values: Values::new() }
    }

    /// Returns the cached value of a key, or the result of `read`. Errors are not cached.
    pub async fn get<E>(&self, key: K, read: impl Future<Output = Result<V, E>>) -> Result<V, E> {
        if self.events.is_receiving() { self.values.get(key, read).await } else { read.await }
    }

    /// Drops all values. Callers that come later do not get the result of a read that is in progress.
    pub fn invalidate(&self) {
        self.values.0.invalidate_all();
    }
}

/// A cell is empty while its value is being read. An invalidation also drops empty cells, so a value that was read
/// before the invalidation is not cached.
struct Values<K, V>(moka::sync::Cache<K, Arc<OnceCell<V>>>);

impl<K, V> Values<K, V>
where
    K: Eq + Hash + Clone + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    fn new() -> Self {
        Self(moka::sync::Cache::new(CAPACITY))
    }

    async fn get<E>(&self, key: K, read: impl Future<Output = Result<V, E>>) -> Result<V, E> {
        let cell = self.0.get_with_by_ref(&key, Arc::default);
        let value = cell.get_or_try_init(|| read).await.cloned();
        if value.is_err() {
            // Clients choose some keys. Unknown keys must not displace cached values.
            self.0.invalidate(&key);
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn a_missing_value_is_read_once_for_all_callers() {
        let values = Values::new();
        let reads = AtomicU32::new(0);
        let get = || {
            values.get("key", async {
                reads.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                Ok::<_, Infallible>(7)
            })
        };
        assert_eq!(tokio::join!(get(), get(), get()), (Ok(7), Ok(7), Ok(7)));
        assert_eq!(get().await, Ok(7));
        assert_eq!(reads.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_value_that_was_read_before_an_invalidation_is_not_cached() {
        let values = Values::new();
        let (is_reading, may_end) = (Notify::new(), Notify::new());
        let slow = values.get("key", async {
            is_reading.notify_one();
            may_end.notified().await;
            Ok::<_, Infallible>("old")
        });
        let invalidation = async {
            is_reading.notified().await;
            values.0.invalidate_all();
            let fresh = values.get("key", async { Ok::<_, Infallible>("new") }).await;
            may_end.notify_one();
            fresh
        };
        assert_eq!(tokio::join!(slow, invalidation), (Ok("old"), Ok("new")));
        assert_eq!(values.get("key", async { Err(()) }).await, Ok("new"));
    }

    #[tokio::test]
    async fn an_error_is_not_cached() {
        let values = Values::new();
        assert_eq!(values.get("key", async { Err("unavailable") }).await, Err("unavailable"));
        values.0.run_pending_tasks();
        assert_eq!(values.0.entry_count(), 0);
        assert_eq!(values.get("key", async { Ok::<_, Infallible>(7) }).await, Ok(7));
    }
}
