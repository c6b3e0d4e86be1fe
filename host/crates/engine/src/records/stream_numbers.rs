//! Caches the numbers of streams, which never change.

use syncline_store::Store;
use syncline_store::streams::{self, StreamKey};
use syncline_types::ids::{ConnectionPk, ModelName, Variant};

const MAX_CACHED: u64 = 100_000;

/// A cache of stream numbers.
pub struct StreamNumbers {
    store: Store,
    known: moka::sync::Cache<(ConnectionPk, ModelName, Variant), StreamKey>,
}

impl StreamNumbers {
    pub fn new(store: Store) -> Self {
        Self { store, known: moka::sync::Cache::new(MAX_CACHED) }
    }

    /// Returns the stream of a model, or `None` until something is saved to it.
    pub async fn find(
        &self,
        connection: ConnectionPk,
        model: &ModelName,
        variant: &Variant,
    ) -> sqlx::Result<Option<StreamKey>> {
        let name = (connection, model.clone(), variant.clone());
        if let Some(key) = self.known.get(&name) {
            return Ok(Some(key));
        }
        let mut conn = self.store.connect_records().await?;
        let found = streams::find(&mut conn, connection, model, variant).await?;
        if let Some(key) = found {
            self.known.insert(name, key);
        }
        Ok(found)
    }
}
