//! How invocations share the host: places for those that are alive, and turns at the processor for those that need
//! much of it. In both, what somebody waits for is not kept waiting by what runs in the background, however much of
//! that there is, and neither takes all.

use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;

use super::invocation::Urgency;

/// One of so many slots is never the background's.
const KEPT_FREE: usize = 4;

pub(super) struct Shares {
    slots: Arc<Semaphore>,
    background_slots: Arc<Semaphore>,
    turns: Arc<Semaphore>,
    background_turns: Arc<Semaphore>,
}

/// What an invocation holds while it is alive.
pub(super) struct Slot {
    _slot: OwnedSemaphorePermit,
    _of_background: Option<OwnedSemaphorePermit>,
}

impl Shares {
    /// For so many invocations at once, and guests on so many processors.
    pub(super) fn new(slots: usize, processors: usize) -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        // One processor is left to those who need only a little.
        let turns = processors.saturating_sub(1).max(1);
        Self {
            slots: semaphore(slots),
            background_slots: semaphore(slots - slots / KEPT_FREE),
            turns: semaphore(turns),
            background_turns: semaphore(turns),
        }
    }

    pub(super) async fn slot(&self, urgency: Urgency) -> Slot {
        let of_background = match urgency {
            Urgency::Background => Some(acquire(&self.background_slots).await),
            Urgency::WaitedFor => None,
        };
        Slot { _slot: acquire(&self.slots).await, _of_background: of_background }
    }

    pub(super) fn turns(&self, urgency: Urgency) -> Turns {
        let semaphore = |semaphore: &Arc<Semaphore>| PollSemaphore::new(Arc::clone(semaphore));
        Turns {
            turns: semaphore(&self.turns),
            of_background: (urgency == Urgency::Background).then(|| semaphore(&self.background_turns)),
            entered: None,
        }
    }
}

async fn acquire(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(semaphore).acquire_owned().await.expect("the semaphore is never closed")
}

/// The turns of one invocation. They are given in the order in which they are asked for; but of the background only
/// as many ask at a time as there are turns. So whoever is waited for stands behind those few at most, and where both
/// compute, both go on.
pub(super) struct Turns {
    turns: PollSemaphore,
    of_background: Option<PollSemaphore>,
    /// It may ask, and has not had its turn yet.
    entered: Option<OwnedSemaphorePermit>,
}

/// One turn, until it is dropped.
pub(super) struct Turn {
    _turn: OwnedSemaphorePermit,
    _entered: Option<OwnedSemaphorePermit>,
}

impl Turns {
    pub(super) fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Turn> {
        if let Some(of_background) = &mut self.of_background
            && self.entered.is_none()
        {
            self.entered = ready!(of_background.poll_acquire(cx));
        }
        let turn = ready!(self.turns.poll_acquire(cx)).expect("the semaphore is never closed");
        Poll::Ready(Turn { _turn: turn, _entered: self.entered.take() })
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn poll(turns: &mut Turns) -> Option<Turn> {
        match turns.poll_turn(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn who_is_waited_for_has_every_other_turn_however_many_compute() {
        let shares = Shares::new(8, 2);
        let mut background: Vec<Turns> = (0..50).map(|_| shares.turns(Urgency::Background)).collect();
        let mut waited_for = shares.turns(Urgency::WaitedFor);
        let mut given = Vec::new();
        for _ in 0..40 {
            // The one whose turn it is has it, and gives it up; then all of them ask anew.
            let of_background = background.iter_mut().find_map(poll);
            given.extend(of_background.iter().map(|_| Urgency::Background));
            let own = poll(&mut waited_for);
            given.extend(own.iter().map(|_| Urgency::WaitedFor));
            drop(of_background);
            drop(own);
        }
        let own = given.iter().filter(|urgency| **urgency == Urgency::WaitedFor).count();
        assert!(own >= 15, "{own} of {} turns", given.len());
        assert!(given.len() - own >= 15, "{} of {} turns", given.len() - own, given.len());
    }

    #[tokio::test]
    async fn the_background_leaves_slots_for_what_is_waited_for() {
        use futures_util::FutureExt;
        let shares = Shares::new(8, 2);
        let mut held = Vec::new();
        while let Some(slot) = shares.slot(Urgency::Background).now_or_never() {
            held.push(slot);
        }
        assert_eq!(held.len(), 6);
        for _ in 0..2 {
            held.push(shares.slot(Urgency::WaitedFor).now_or_never().expect("it is left"));
        }
        assert!(shares.slot(Urgency::WaitedFor).now_or_never().is_none());
    }
}
