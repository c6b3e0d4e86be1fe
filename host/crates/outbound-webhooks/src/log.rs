//! The log of deliveries: listing them, and sending them again.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use syncline_engine::{ConnectionCache, LookupError};
use syncline_store::Store;
use syncline_store::events::{Event, Events};
use syncline_store::outbound_webhooks::log::{self, Filter, Redelivery};
pub use syncline_store::outbound_webhooks::log::{Delivery, LoggedAttempt, State as DeliveryState};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionId, EnvironmentPk, IntegrationKey};

/// Deliveries of one transaction when many are sent again.
const BATCH: i64 = 500;

/// Which deliveries a list shows.
#[derive(Debug)]
pub struct DeliveryFilter {
    pub states: Vec<DeliveryState>,
    pub kind: Option<String>,
    pub connection: Option<(IntegrationKey, ConnectionId)>,
    pub since: Option<DateTime<Utc>>,
    /// Only those before this row.
    pub before: Option<i64>,
}

/// A delivery with its body and its attempts.
#[derive(Debug)]
pub struct DeliveryDetail {
    pub delivery: Delivery,
    /// The JSON text that is sent.
    pub body: String,
    pub attempts: Vec<LoggedAttempt>,
}

/// Why deliveries are not shown or not sent again.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    #[error("there is no webhook delivery `{0}` in this environment")]
    Unknown(String),
    #[error("the webhook is being sent at this moment; look at it again in a few seconds")]
    InFlight,
    #[error(
        "there is no URL to send it to: none is set any more, or the one that is set answered that it is gone"
    )]
    NoUrl,
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error("the log of deliveries could not be read or written")]
    Store(#[from] sqlx::Error),
}

impl DeliveryError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown(_) => ErrorCode::UnknownWebhook,
            Self::InFlight => ErrorCode::WebhookInFlight,
            Self::NoUrl => ErrorCode::NoWebhookUrl,
            Self::Lookup(error) => error.code(),
            Self::Store(_) => ErrorCode::InternalServerError,
        }
    }
}

/// Shows deliveries and sends them again.
pub struct DeliveryLog {
    store: Store,
    events: Arc<Events>,
    connections: Arc<ConnectionCache>,
}

impl DeliveryLog {
    pub fn new(store: Store, events: Arc<Events>, connections: Arc<ConnectionCache>) -> Self {
        Self { store, events, connections }
    }

    /// Up to `limit` deliveries of an environment, the newest first.
    pub async fn list(
        &self,
        environment: EnvironmentPk,
        filter: DeliveryFilter,
        limit: i64,
    ) -> Result<Vec<Delivery>, DeliveryError> {
        let connection = match &filter.connection {
            Some((integration, id)) => Some(self.connections.get(environment, integration, id).await?.pk),
            None => None,
        };
        let DeliveryFilter { states, kind, since, before, .. } = filter;
        let filter = Filter { states, kind, connection, since, before };
        Ok(log::list(&mut *self.store.connect().await?, environment, &filter, limit).await?)
    }

    /// One delivery.
    pub async fn get(&self, environment: EnvironmentPk, id: Uuid) -> Result<DeliveryDetail, DeliveryError> {
        let mut conn = self.store.connect().await?;
        let found = log::find(&mut conn, environment, id).await?;
        let (delivery, body) = found.ok_or_else(|| DeliveryError::Unknown(id.to_string()))?;
        let attempts = log::list_attempts(&mut conn, delivery.pk).await?;
        Ok(DeliveryDetail { delivery, body, attempts })
    }

    /// Sends a delivery again, under its id, to the URL that is set now.
    pub async fn redeliver(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
    ) -> Result<DeliveryDetail, DeliveryError> {
        let mut tx = self.store.begin().await?;
        let found = log::find(&mut tx, environment, id).await?;
        let (delivery, _) = found.ok_or_else(|| DeliveryError::Unknown(id.to_string()))?;
        match log::redeliver(&mut tx, delivery.pk).await? {
            Redelivery::Due => tx.commit().await?,
            Redelivery::InFlight => return Err(DeliveryError::InFlight),
            Redelivery::NoUrl => return Err(DeliveryError::NoUrl),
        }
        let detail = self.get(environment, id).await;
        // After the delivery was read again: it is shown as pending, not as it is after its next attempt.
        self.events.publish(Event::Webhooks);
        detail
    }

    /// Sends failed deliveries again that were written at `since` or later, and returns how many. A delivery that has no
    /// URL any more is skipped.
    pub async fn redeliver_failed(
        &self,
        environment: EnvironmentPk,
        since: DateTime<Utc>,
    ) -> Result<u64, DeliveryError> {
        let mut count = 0;
        let mut before = None;
        loop {
            let mut tx = self.store.begin().await?;
            let (made_due, last) = log::redeliver_failed(&mut tx, environment, since, before, BATCH).await?;
            tx.commit().await?;
            count += made_due;
            if last.is_none() {
                return Ok(count);
            }
            before = last;
            self.events.publish(Event::Webhooks);
        }
    }
}
