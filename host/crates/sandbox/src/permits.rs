//! Limits the number of concurrent invocations, including those that wait for a provider. Background work never uses
//! all permits.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::priority_class::PriorityClass;

/// One of this many permits is reserved for interactive invocations.
const RESERVED_FRACTION: usize = 4;

pub(super) struct InvocationPermits {
    all: Arc<Semaphore>,
    background: Arc<Semaphore>,
}

/// Held by an invocation until its instance is dropped.
pub(super) struct InvocationPermit {
    _any: OwnedSemaphorePermit,
    _of_background: Option<OwnedSemaphorePermit>,
}

impl InvocationPermits {
    pub(super) fn new(count: usize) -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self { all: semaphore(count), background: semaphore(count - count / RESERVED_FRACTION) }
    }

    pub(super) async fn acquire(&self, priority: PriorityClass) -> InvocationPermit {
        let of_background = match priority {
            PriorityClass::Background => Some(acquire(&self.background).await),
            PriorityClass::Interactive => None,
        };
        InvocationPermit { _any: acquire(&self.all).await, _of_background: of_background }
    }
}

async fn acquire(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(semaphore).acquire_owned().await.expect("the semaphore is never closed")
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn background_work_leaves_permits_for_interactive_invocations() {
        let permits = InvocationPermits::new(8);
        let mut held = Vec::new();
        while let Some(permit) = permits.acquire(PriorityClass::Background).now_or_never() {
            held.push(permit);
        }
        assert_eq!(held.len(), 6);
        for _ in 0..2 {
            held.push(
                permits
                    .acquire(PriorityClass::Interactive)
                    .now_or_never()
                    .expect("a reserved permit is free"),
            );
        }
        assert!(permits.acquire(PriorityClass::Interactive).now_or_never().is_none());
    }
}
