//! Places for invocations: how many are alive at once, also while they wait for a provider. What runs in the background
//! never has all of them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::urgency::Urgency;

/// One of so many slots is never the background's.
const KEPT_FREE: usize = 4;

pub(super) struct Slots {
    all: Arc<Semaphore>,
    background: Arc<Semaphore>,
}

/// What an invocation holds while it is alive.
pub(super) struct Slot {
    _any: OwnedSemaphorePermit,
    _of_background: Option<OwnedSemaphorePermit>,
}

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self { all: semaphore(count), background: semaphore(count - count / KEPT_FREE) }
    }

    pub(super) async fn acquire(&self, urgency: Urgency) -> Slot {
        let of_background = match urgency {
            Urgency::Background => Some(acquire(&self.background).await),
            Urgency::WaitedFor => None,
        };
        Slot { _any: acquire(&self.all).await, _of_background: of_background }
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
    async fn the_background_leaves_slots_for_what_is_waited_for() {
        let slots = Slots::new(8);
        let mut held = Vec::new();
        while let Some(slot) = slots.acquire(Urgency::Background).now_or_never() {
            held.push(slot);
        }
        assert_eq!(held.len(), 6);
        for _ in 0..2 {
            held.push(slots.acquire(Urgency::WaitedFor).now_or_never().expect("it is left"));
        }
        assert!(slots.acquire(Urgency::WaitedFor).now_or_never().is_none());
    }
}
