//! Current numbers of queued and running work, for `/metrics`.

use std::sync::Arc;
use std::time::Duration;

use crate::invoker::live_runs::LiveRuns;
use syncline_store::Store;
use syncline_store::queues;
use syncline_telemetry::metrics::Observed;

/// A database that takes longer counts as unreachable.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the current values for `/metrics`.
pub struct Observation {
    store: Store,
    live_runs: Arc<LiveRuns>,
}

impl Observation {
    pub fn new(store: Store, live_runs: Arc<LiveRuns>) -> Self {
        Self { store, live_runs }
    }

    pub async fn observe(&self) -> Observed {
        let read = async { queues::look(&mut *self.store.connect().await?).await };
        let queues = match tokio::time::timeout(TIMEOUT, read).await {
            Ok(Ok(queues)) => Some(queues),
            Ok(Err(error)) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "could not read the queues for the metrics"
                );
                None
            }
            Err(_) => None,
        };
        let connections = self.store.connections();
        Observed {
            runs_on: self.live_runs.count(),
            queues,
            busy_connections: connections.total.saturating_sub(connections.idle),
            idle_connections: connections.idle,
        }
    }
}
