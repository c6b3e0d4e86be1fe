//! The tasks in which a host runs what it has claimed. They go on when the task that claims is started again.

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
    /// Begins a run. One that panics is logged; its lease runs out, and another attempt follows.
    pub(crate) fn spawn(self: &std::sync::Arc<Self>, run: impl Future<Output = ()> + Send + 'static) {
        let tasks = std::sync::Arc::clone(self);
        self.tracker.spawn(async move {
            if AssertUnwindSafe(run).catch_unwind().await.is_err() {
                tracing::error!("a run panicked; its lease will run out");
            }
            tasks.has_ended.notify_one();
        });
    }

    /// Returns once a run has ended since this was called last.
    pub(crate) async fn ended(&self) {
        self.has_ended.notified().await;
    }

    /// Returns once every run has ended. Nothing may be begun any more.
    pub(crate) async fn all_ended(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }
}
