//! A background loop that finishes interrupted work.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use syncline_store::events::{Event, Events};

/// Calls `work_on_one` until `shutdown`. Repeats at once while it returns `true`, which means that there was work.
/// Otherwise waits for `event`, but at most `interval`, because a notification can be lost.
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
