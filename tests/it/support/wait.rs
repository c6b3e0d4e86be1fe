//! Waiting for a condition, with a deadline.

use std::time::{Duration, Instant};

/// Much longer than any wait takes, because a busy machine can be ten times slower.
const DEADLINE: Duration = Duration::from_secs(90);
const POLL_INTERVAL: Duration = Duration::from_millis(15);

/// Repeats `poll` until it returns a value, and panics after the deadline.
#[track_caller]
pub fn eventually<T>(what: &str, poll: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    eventually_within(DEADLINE, what, poll)
}

/// Like [`eventually`], for what takes long even on an idle machine, such as building a component.
#[track_caller]
pub fn eventually_within<T>(
    deadline: Duration,
    what: &str,
    mut poll: impl AsyncFnMut() -> Option<T>,
) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let started = Instant::now();
        loop {
            if let Some(seen) = poll().await {
                return seen;
            }
            assert!(started.elapsed() < deadline, "{caller}: not true after {deadline:?}: {what}");
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}
