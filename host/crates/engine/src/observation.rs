//! What is queued and what is running, for those who watch the host.

use std::sync::Arc;
use std::time::Duration;

use crate::invoker::live_runs::LiveRuns;
use syncline_store::Store;
use syncline_store::queues;
use syncline_telemetry::metrics::Observed;

/// A database that takes longer is told as one that does not answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Looks at what `/metrics` shows as it is now.
pub struct Observation {
    store: Store,
    live_runs: Arc<LiveRuns>,
}

impl Observation {
    pub fn new(store: Store, live_runs: Arc<LiveRuns>) -> Self {
        Self { store, live_runs }
    }

    pub async fn observe(&self) -> Observed {
        let look = async { queues::look(&mut *self.store.connect().await?).await };
        let queues = match tokio::time::timeout(PATIENCE, look).await {
            Ok(Ok(queues)) => Some(queues),
            Ok(Err(error)) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "queues could not be looked at");
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
