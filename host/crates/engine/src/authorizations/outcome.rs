//! What came of a way to a provider and back, for whoever waits for it on any host.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::authorizations::{AuthorizationError, Authorizations};
use syncline_store::authorizations;
use syncline_store::connections::Connection;
use syncline_store::events::Event;
use syncline_types::ids::{ConnectSessionPk, ConnectionId, IntegrationKey};

/// A event may be lost, so whoever waits also looks by itself.
const LOOK_EVERY: Duration = Duration::from_secs(3);

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Outcome {
    Connected { integration: IntegrationKey, connection_id: ConnectionId },
    Failed { integration: IntegrationKey, code: String, message: String },
}

impl Outcome {
    pub(super) fn of(integration: &IntegrationKey, came: Result<&Connection, &AuthorizationError>) -> Self {
        match came {
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
    /// Tells whoever listens. That nobody could be told is logged: the connection is there all the same.
    pub(super) async fn publish_outcome(&self, session: ConnectSessionPk, listener: Uuid, outcome: &Outcome) {
        let told = async {
            let outcome = serde_json::to_value(outcome)?;
            let mut conn = self.store.connect().await?;
            authorizations::publish_outcome(&mut conn, session, listener, &outcome).await?;
            anyhow::Ok(())
        };
        if let Err(error) = told.await {
            tracing::error!(
                error = format!("{error:#}"),
                "the outcome of an authorization could not be told"
            );
        }
    }

    /// What came of the authorization that this listener was named in, and the session that it belonged to. Waits
    /// for it for so long; `None` if there is none by then.
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
                () = events.wait_within(LOOK_EVERY, Event::Outcome(listener)) => {}
                () = tokio::time::sleep_until(deadline) => return Ok(None),
            }
        }
    }
}
