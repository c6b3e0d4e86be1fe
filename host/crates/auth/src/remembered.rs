//! What was read from the database, remembered only while this host hears of changes.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, PoisonError, RwLock};

use syncline_store::events::Events;

pub struct Remembered<K, V> {
    events: Arc<Events>,
    entries: RwLock<Entries<K, V>>,
}

struct Entries<K, V> {
    by_key: HashMap<K, V>,
    times_forgotten: u64,
}

impl<K: Eq + Hash, V: Clone> Remembered<K, V> {
    pub fn new(events: Arc<Events>) -> Self {
        Self { events, entries: RwLock::new(Entries { by_key: HashMap::new(), times_forgotten: 0 }) }
    }

    /// The value of that key: the remembered one, or what `read` gives.
    pub async fn get<E>(&self, key: K, read: impl Future<Output = Result<V, E>>) -> Result<V, E> {
        let times_forgotten = {
            let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(value) = entries.by_key.get(&key)
                && self.events.is_receiving()
            {
                return Ok(value.clone());
            }
            entries.times_forgotten
        };
        let value = read.await?;
        // What changed while it was being read must not be remembered.
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        if entries.times_forgotten == times_forgotten {
            entries.by_key.insert(key, value.clone());
        }
        Ok(value)
    }

    pub fn forget(&self) {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.by_key.clear();
        entries.times_forgotten += 1;
    }
}
