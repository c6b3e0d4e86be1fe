//! Tells other hosts that this one is alive, and learns of environments and data keys that others have made.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use syncline_auth::{EnvironmentError, Environments};
use syncline_store::events::{Event, Events};
use syncline_store::{Store, hosts};

const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
/// However quiet it is, environments are read again after this long.
const RELOAD_EVERY: Duration = Duration::from_secs(30);

/// This host among the others.
pub struct HostRegistration {
    store: Store,
    events: Arc<Events>,
    environments: Arc<Environments>,
    host_id: Uuid,
}

/// Why a host could not join the others.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("the host's heartbeat could not be written")]
    Store(#[from] sqlx::Error),
    #[error("environments could not be read")]
    Environments(#[from] EnvironmentError),
}

impl HostRegistration {
    /// Writes the first heartbeat, and reads which environments there are.
    pub async fn join(
        store: Store,
        events: Arc<Events>,
        environments: Arc<Environments>,
        host_id: Uuid,
    ) -> Result<Arc<Self>, JoinError> {
        let this = Arc::new(Self { store, events, environments, host_id });
        this.announce().await?;
        // From here on a new data key waits for this host; what was made before is read now.
        this.environments.follow(host_id).await?;
        Ok(this)
    }

    /// Says that the host is alive, until `shutdown`.
    pub async fn heartbeat(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(HEARTBEAT_EVERY);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            if let Err(error) = self.announce().await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "could not write this host's heartbeat");
            }
        }
    }

    /// Learns of environments and data keys that others have made, until `shutdown`.
    pub async fn follow_environments(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        loop {
            let wait = events.wait_within(RELOAD_EVERY, Event::Environments);
            if shutdown.run_until_cancelled(wait).await.is_none() {
                return;
            }
            if let Err(error) = self.environments.follow(self.host_id).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "environments could not be followed");
            }
        }
    }

    /// Says that the host leaves.
    pub async fn leave(&self) {
        let left = async { hosts::leave(&mut *self.store.connect().await?, self.host_id).await };
        if let Err(error) = left.await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "the host could not say that it leaves");
        }
    }

    async fn announce(&self) -> sqlx::Result<()> {
        let keys = self.environments.encryption_key_ids();
        hosts::announce(&mut *self.store.connect().await?, self.host_id, env!("CARGO_PKG_VERSION"), &keys)
            .await
    }
}
