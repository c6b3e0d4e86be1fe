//! Waiting for what will be true soon, with an end to it.

use std::time::{Duration, Instant};

/// Far more than anything takes that is waited for, since a busy machine can be ten times as slow.
const DEADLINE: Duration = Duration::from_secs(90);
const LOOK_EVERY: Duration = Duration::from_millis(15);

/// Looks again and again until there is something to see.
#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let started = Instant::now();
        loop {
            if let Some(seen) = look().await {
                return seen;
            }
            assert!(started.elapsed() < DEADLINE, "{caller}: after {DEADLINE:?} still not true: {what}");
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}
