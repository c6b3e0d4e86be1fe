//! Registers this host with the others, and loads environments and data keys that other hosts have created.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use syncline_auth::{EnvironmentError, Environments};
use syncline_store::events::{Event, Events};
use syncline_store::{Store, hosts};

const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait between two reads of the environments, because a notification can be lost.
const RELOAD_INTERVAL: Duration = Duration::from_secs(30);

/// The registration of this host.
pub struct HostRegistration {
    store: Store,
    events: Arc<Events>,
    environments: Arc<Environments>,
    host_id: Uuid,
}

/// Why a host could not register.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error("the host's heartbeat could not be written")]
    Store(#[from] sqlx::Error),
    #[error("environments could not be read")]
    Environments(#[from] EnvironmentError),
}

impl HostRegistration {
    /// Writes the first heartbeat, and loads the environments.
    pub async fn join(
        store: Store,
        events: Arc<Events>,
        environments: Arc<Environments>,
        host_id: Uuid,
    ) -> Result<Arc<Self>, JoinError> {
        let this = Arc::new(Self { store, events, environments, host_id });
        this.announce().await?;
        // From now on, a new data key waits for this host to load it. Keys that were created before are loaded here.
        this.environments.follow(host_id).await?;
        Ok(this)
    }

    /// Writes heartbeats, until `shutdown`.
    pub async fn heartbeat(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(HEARTBEAT_INTERVAL);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            if let Err(error) = self.announce().await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "could not write this host's heartbeat");
            }
        }
    }

    /// Loads environments and data keys that other hosts have created, until `shutdown`.
    pub async fn follow_environments(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        loop {
            let wait = events.wait_within(RELOAD_INTERVAL, Event::Environments);
            if shutdown.run_until_cancelled(wait).await.is_none() {
                return;
            }
            if let Err(error) = self.environments.follow(self.host_id).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "could not load the environments; retrying");
            }
        }
    }

    /// Removes the registration of this host at a shutdown.
    pub async fn leave(&self) {
        let left = async { hosts::leave(&mut *self.store.connect().await?, self.host_id).await };
        if let Err(error) = left.await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "could not remove this host's registration; it expires by itself");
        }
    }

    async fn announce(&self) -> sqlx::Result<()> {
        let keys = self.environments.encryption_key_ids();
        hosts::announce(&mut *self.store.connect().await?, self.host_id, env!("CARGO_PKG_VERSION"), &keys)
            .await
    }
}
