//! Waiting for what will be true soon, with an end to it.

use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(30);
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
