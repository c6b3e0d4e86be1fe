//! Whether the databases of this host answer.

use std::time::Duration;

use sqlx::Connection;

use syncline_store::Store;

/// A database that takes longer counts as unreachable.
const PATIENCE: Duration = Duration::from_secs(2);

/// Checks the databases.
pub struct Health {
    store: Store,
}

impl Health {
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// Whether the control database and the records database answer within two seconds.
    pub async fn reaches_databases(&self) -> bool {
        let pings = async {
            self.store.connect().await?.ping().await?;
            self.store.connect_records().await?.ping().await
        };
        matches!(tokio::time::timeout(PATIENCE, pings).await, Ok(Ok(())))
    }
}
