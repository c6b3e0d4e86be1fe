//! Background loops that finish work which was cut short.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use syncline_store::events::{Event, Events};

/// Calls `work_on_one` until `shutdown`: again at once while it returns that there was something to do, otherwise when
/// `event` is received, and at least every `interval`, since a notification may be lost.
pub(crate) async fn sweep<F>(
    events: &Events,
    event: Event,
    interval: Duration,
    shutdown: CancellationToken,
    failure: &'static str,
    work_on_one: impl Fn() -> F,
) where
    F: Future<Output = sqlx::Result<bool>>,
{
    let mut events = events.subscribe();
    loop {
        match shutdown.run_until_cancelled(work_on_one()).await {
            None => return,
            Some(Ok(true)) => continue,
            Some(Ok(false)) => {}
            Some(Err(error)) => tracing::warn!(error = &error as &dyn std::error::Error, "{failure}"),
        }
        if shutdown.run_until_cancelled(events.wait_within(interval, event)).await.is_none() {
            return;
        }
    }
}
