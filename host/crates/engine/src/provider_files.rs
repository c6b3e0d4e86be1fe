//! Reads the operator's provider files again when they change.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use syncline_providers::Catalogue;
use syncline_store::events::{Event, Events};

/// How often the files are compared with those that were read.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// Keeps the catalogue equal to the operator's files.
pub struct ProviderFiles {
    catalogue: Arc<Catalogue>,
    events: Arc<Events>,
}

impl ProviderFiles {
    pub fn new(catalogue: Arc<Catalogue>, events: Arc<Events>) -> Arc<Self> {
        Arc::new(Self { catalogue, events })
    }

    /// Reloads the catalogue after each change, until `shutdown`.
    pub async fn follow(self: Arc<Self>, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(tokio::time::sleep(CHECK_EVERY)).await.is_some() {
            match tokio::task::block_in_place(|| self.catalogue.reload_if_changed()) {
                Ok(false) => {}
                Ok(true) => {
                    // Caches contain facts about providers.
                    self.events.publish(Event::Missed);
                    tracing::info!("the provider files were reloaded");
                }
                Err(error) => tracing::error!(
                    error = format!("{:#}", anyhow::Error::from(error)),
                    "the provider files were not reloaded; the host continues with the previous ones"
                ),
            }
        }
    }
}
