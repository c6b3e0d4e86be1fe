//! The clients of this host that wait for outcomes of authorizations.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::authorizations::Outcome;
use syncline_types::ids::ConnectSessionPk;

/// How far the authorization of a listener is.
#[derive(Debug, Clone)]
pub(super) enum Progress {
    /// No authorization has begun.
    Nothing,
    Begun,
    Ended(ConnectSessionPk, Outcome),
}

/// The listeners of this host. A task reports their progress.
#[derive(Default)]
pub(super) struct Listeners {
    state: Mutex<State>,
    registered: Notify,
}

#[derive(Default)]
struct State {
    progress: HashMap<Uuid, watch::Sender<Progress>>,
    /// Listeners that were registered since the last call of [`take_new`](Listeners::take_new).
    new: Vec<Uuid>,
}

impl Listeners {
    /// Registers a listener until the returned value is dropped.
    pub(super) fn register(self: &Arc<Self>, listener: Uuid) -> Registration {
        let mut state = self.lock();
        let progress = match state.progress.entry(listener) {
            Entry::Occupied(known) => known.get().subscribe(),
            Entry::Vacant(new) => new.insert(watch::Sender::new(Progress::Nothing)).subscribe(),
        };
        state.new.push(listener);
        drop(state);
        self.registered.notify_one();
        Registration { listeners: Arc::clone(self), listener, progress }
    }

    /// Waits until a listener is registered.
    pub(super) async fn registered(&self) {
        self.registered.notified().await;
    }

    /// Returns the listeners that were registered since the last call.
    pub(super) fn take_new(&self) -> Vec<Uuid> {
        std::mem::take(&mut self.lock().new)
    }

    /// Returns the listener if it is registered.
    pub(super) fn known(&self, listener: Uuid) -> Vec<Uuid> {
        if self.lock().progress.contains_key(&listener) { vec![listener] } else { Vec::new() }
    }

    pub(super) fn all(&self) -> Vec<Uuid> {
        self.lock().progress.keys().copied().collect()
    }

    pub(super) fn report(&self, listener: Uuid, progress: Progress) {
        if let Some(reported) = self.lock().progress.get(&listener) {
            reported.send_if_modified(|known| {
                let is_new = match progress {
                    Progress::Ended(..) => true,
                    Progress::Nothing | Progress::Begun => matches!(known, Progress::Nothing),
                };
                if is_new {
                    *known = progress;
                }
                is_new
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listener that is registered until this value is dropped.
pub(super) struct Registration {
    listeners: Arc<Listeners>,
    listener: Uuid,
    progress: watch::Receiver<Progress>,
}

impl Registration {
    /// Waits until an authorization has begun.
    pub(super) async fn begun(&mut self) {
        let begun = self.progress.wait_for(|progress| !matches!(progress, Progress::Nothing)).await;
        // The sender lives as long as the registration.
        drop(begun);
    }

    /// Waits for the outcome.
    pub(super) async fn outcome(&mut self) -> (ConnectSessionPk, Outcome) {
        loop {
            if let Progress::Ended(session, outcome) = &*self.progress.borrow_and_update() {
                return (*session, outcome.clone());
            }
            if self.progress.changed().await.is_err() {
                // The sender lives as long as the registration, so this does not happen.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.listeners.lock();
        let others = state.progress.get(&self.listener).map_or(0, |sender| sender.receiver_count() - 1);
        if others == 0 {
            state.progress.remove(&self.listener);
            state.new.retain(|listener| *listener != self.listener);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use syncline_types::ids::{ConnectionId, IntegrationKey};

    fn ended() -> Progress {
        let integration = IntegrationKey::from_stored("shop".to_owned());
        let connection_id = ConnectionId::from_stored("user-1".to_owned());
        Progress::Ended(ConnectSessionPk(1), Outcome::Connected { integration, connection_id })
    }

    #[tokio::test]
    async fn every_registration_of_a_listener_gets_its_outcome() {
        let listeners = Arc::new(Listeners::default());
        let [listener, other] = [Uuid::new_v4(), Uuid::new_v4()];
        let mut first = listeners.register(listener);
        let mut second = listeners.register(listener);
        let unrelated = listeners.register(other);
        listeners.report(listener, Progress::Begun);
        first.begun().await;
        listeners.report(listener, ended());
        assert_eq!(first.outcome().await.0, ConnectSessionPk(1));
        assert_eq!(second.outcome().await.0, ConnectSessionPk(1));
        assert!(matches!(*unrelated.progress.borrow(), Progress::Nothing));
    }

    #[tokio::test]
    async fn a_listener_is_forgotten_after_its_last_registration() {
        let listeners = Arc::new(Listeners::default());
        let listener = Uuid::new_v4();
        let first = listeners.register(listener);
        let second = listeners.register(listener);
        assert_eq!(listeners.take_new(), [listener, listener]);
        drop(first);
        assert_eq!(listeners.all(), [listener]);
        drop(second);
        assert!(listeners.all().is_empty() && listeners.known(listener).is_empty());
    }
}
