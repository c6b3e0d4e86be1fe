//! The tasks that execute claimed runs. They continue if the task that claims them is restarted.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

/// Runs that are in progress.
#[derive(Default)]
pub(crate) struct RunTasks {
    tracker: TaskTracker,
    has_ended: Notify,
}

impl RunTasks {
    /// Starts a run. A panic is logged; the lease of the run expires, and another attempt follows.
    pub(crate) fn spawn(self: &std::sync::Arc<Self>, run: impl Future<Output = ()> + Send + 'static) {
        let tasks = std::sync::Arc::clone(self);
        self.tracker.spawn(async move {
            if AssertUnwindSafe(run).catch_unwind().await.is_err() {
                tracing::error!("a run panicked; another attempt follows when its lease expires");
            }
            tasks.has_ended.notify_one();
        });
    }

    /// Waits until a run has ended since the previous call.
    pub(crate) async fn ended(&self) {
        self.has_ended.notified().await;
    }

    /// Waits until every run has ended. No new run may be started after this.
    pub(crate) async fn all_ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}
