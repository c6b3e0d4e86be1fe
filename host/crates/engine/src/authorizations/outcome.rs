//! The outcomes of authorizations, for listeners on any host.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::authorizations::listeners::{Progress, Registration};
use crate::authorizations::{AuthorizationError, Authorizations};
use syncline_store::authorizations::{self, ListenerState};
use syncline_store::connections::Connection;
use syncline_store::events::Event;
use syncline_types::ids::{ConnectSessionPk, ConnectionId, IntegrationKey};

/// Longest wait between two checks for an outcome, because an event can be lost.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// The outcome of an authorization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Outcome {
    Connected { integration: IntegrationKey, connection_id: ConnectionId },
    Failed { integration: IntegrationKey, code: String, message: String },
}

impl Outcome {
    pub(super) fn of(integration: &IntegrationKey, result: Result<&Connection, &AuthorizationError>) -> Self {
        match result {
            Ok(connection) => Self::Connected {
                integration: connection.integration_key.clone(),
                connection_id: connection.connection_id.clone(),
            },
            Err(error) => Self::Failed {
                integration: integration.clone(),
                code: error.code().as_str().to_owned(),
                message: error.to_string(),
            },
        }
    }
}

impl Authorizations {
    /// Publishes an outcome to its listener. A failure is only logged, because the connection exists anyway.
    pub(super) async fn publish_outcome(&self, session: ConnectSessionPk, listener: Uuid, outcome: &Outcome) {
        let published = async {
            let outcome = serde_json::to_value(outcome)?;
            let mut conn = self.store.connect().await?;
            authorizations::publish_outcome(&mut conn, session, listener, &outcome).await?;
            anyhow::Ok(())
        };
        if let Err(error) = published.await {
            tracing::error!(
                error = format!("{error:#}"),
                "could not publish the outcome of an authorization"
            );
        }
    }

    /// Waits up to `patience` for the outcome that is published to this listener. Returns it with its session, or
    /// `None` after the timeout.
    pub async fn wait_for_outcome(
        &self,
        listener: Uuid,
        patience: Duration,
    ) -> Option<(ConnectSessionPk, Outcome)> {
        self.wait(self.listeners.register(listener), patience).await
    }

    /// Waits for an outcome like [`wait_for_outcome`](Self::wait_for_outcome), but only if an authorization for the
    /// listener begins within `begins_within`.
    pub async fn wait_for_begun_outcome(
        &self,
        listener: Uuid,
        begins_within: Duration,
        patience: Duration,
    ) -> Option<(ConnectSessionPk, Outcome)> {
        let mut registration = self.listeners.register(listener);
        tokio::select! {
            () = registration.begun() => self.wait(registration, patience).await,
            () = tokio::time::sleep(begins_within) => None,
            () = self.stopping.cancelled() => None,
        }
    }

    async fn wait(
        &self,
        mut registration: Registration,
        patience: Duration,
    ) -> Option<(ConnectSessionPk, Outcome)> {
        tokio::select! {
            outcome = registration.outcome() => Some(outcome),
            () = tokio::time::sleep(patience) => None,
            () = self.stopping.cancelled() => None,
        }
    }

    /// Delivers outcomes to the listeners of this host, until `shutdown`. One query serves all of them.
    pub async fn deliver_outcomes(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        let mut checks = tokio::time::interval(MAX_CHECK_INTERVAL);
        loop {
            let listeners = tokio::select! {
                () = shutdown.cancelled() => return,
                event = events.next() => match event {
                    Some(Event::Outcome(listener)) => self.listeners.known(listener),
                    Some(Event::Missed) => self.listeners.all(),
                    Some(_) => continue,
                    None => return shutdown.cancelled().await,
                },
                () = self.listeners.registered() => self.listeners.take_new(),
                _ = checks.tick() => self.listeners.all(),
            };
            if listeners.is_empty() {
                continue;
            }
            if let Err(error) = self.deliver_to(&listeners).await {
                tracing::error!(
                    error = format!("{error:#}"),
                    "could not read the outcomes of authorizations; trying again"
                );
            }
        }
    }

    async fn deliver_to(&self, listeners: &[Uuid]) -> anyhow::Result<()> {
        let mut conn = self.store.connect().await?;
        let states = authorizations::listener_states(&mut conn, listeners).await?;
        drop(conn);
        for ListenerState { listener, outcome } in states {
            let progress = match outcome {
                None => Progress::Begun,
                Some((session, outcome)) => Progress::Ended(session, serde_json::from_value(outcome)?),
            };
            self.listeners.report(listener, progress);
        }
        Ok(())
    }
}
