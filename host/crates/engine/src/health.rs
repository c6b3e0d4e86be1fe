//! Checks whether the databases of this host respond.

use std::time::Duration;

use sqlx::Connection;

use syncline_store::Store;

/// A database that takes longer counts as unreachable.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Checks the databases.
pub struct Health {
    store: Store,
}

impl Health {
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// Returns whether the control database and the records database respond within two seconds.
    pub async fn reaches_databases(&self) -> bool {
        let pings = async {
            self.store.connect().await?.ping().await?;
            self.store.connect_records().await?.ping().await
        };
        matches!(tokio::time::timeout(TIMEOUT, pings).await, Ok(Ok(())))
    }
}
