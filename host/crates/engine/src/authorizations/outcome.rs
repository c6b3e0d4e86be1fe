//! The outcomes of authorizations, for listeners on any host.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::authorizations::{AuthorizationError, Authorizations};
use syncline_store::authorizations;
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
    ) -> anyhow::Result<Option<(ConnectSessionPk, Outcome)>> {
        let mut events = self.events.subscribe();
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            let mut conn = self.store.connect().await?;
            let found = authorizations::find_outcome(&mut conn, listener).await?;
            drop(conn);
            if let Some((session, outcome)) = found {
                return Ok(Some((session, serde_json::from_value(outcome)?)));
            }
            if self.stopping.is_cancelled() {
                return Ok(None);
            }
            tokio::select! {
                () = events.wait_within(MAX_CHECK_INTERVAL, Event::Outcome(listener)) => {}
                () = tokio::time::sleep_until(deadline) => return Ok(None),
            }
        }
    }
}
