//! The log of deliveries: lists and redelivers them.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::json;
use url::Url;
use uuid::Uuid;

use syncline_engine::{ConnectionCache, LookupError};
use syncline_store::Store;
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::events::{Event, Events};
use syncline_store::outbound_webhooks::log::{self, Filter, Redelivery};
pub use syncline_store::outbound_webhooks::log::{Delivery, LoggedAttempt, State as DeliveryState};
use syncline_types::actor::Actor;
use syncline_types::audit_log::{AuditAction, TargetKind};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionId, EnvironmentPk, IntegrationKey};

/// Deliveries that one transaction redelivers.
const BATCH: i64 = 500;

/// Selects deliveries of an environment.
#[derive(Debug)]
pub struct DeliveryFilter {
    pub states: Vec<DeliveryState>,
    pub kind: Option<String>,
    pub connection: Option<(IntegrationKey, ConnectionId)>,
    pub since: Option<DateTime<Utc>>,
    /// Only deliveries before this row.
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

/// Why deliveries cannot be returned or redelivered.
#[derive(Debug, thiserror::Error)]
pub enum DeliveryError {
    #[error(
        "there is no webhook delivery `{0}` in this environment; list the deliveries with `GET /webhooks/deliveries`"
    )]
    Unknown(String),
    #[error("the webhook is being sent; check its state again in a few seconds")]
    InFlight,
    #[error(
        "this delivery has no URL: no webhook URL is set, or the URL answered 410 Gone; set a webhook URL"
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

/// Returns the origin of a URL. The rest can contain secrets, which only clients that can read the settings may see.
pub fn url_without_secrets(url: &str) -> String {
    match Url::parse(url) {
        Ok(url) => format!("{}/…", url.origin().ascii_serialization()),
        Err(_) => "…".to_owned(),
    }
}

/// Lists and redelivers deliveries.
pub struct DeliveryLog {
    store: Store,
    events: Arc<Events>,
    connections: Arc<ConnectionCache>,
}

impl DeliveryLog {
    pub fn new(store: Store, events: Arc<Events>, connections: Arc<ConnectionCache>) -> Self {
        Self { store, events, connections }
    }

    /// Returns up to `limit` deliveries of an environment, newest first.
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

    /// Returns one delivery.
    pub async fn get(&self, environment: EnvironmentPk, id: Uuid) -> Result<DeliveryDetail, DeliveryError> {
        let mut conn = self.store.connect().await?;
        let found = log::find(&mut conn, environment, id).await?;
        let (delivery, body) = found.ok_or_else(|| DeliveryError::Unknown(id.to_string()))?;
        let attempts = log::list_attempts(&mut conn, delivery.pk).await?;
        Ok(DeliveryDetail { delivery, body, attempts })
    }

    /// Redelivers a delivery with the same id to the currently configured URL.
    pub async fn redeliver(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
        actor: &Actor,
    ) -> Result<DeliveryDetail, DeliveryError> {
        let mut tx = self.store.begin().await?;
        let found = log::find(&mut tx, environment, id).await?;
        let (delivery, _) = found.ok_or_else(|| DeliveryError::Unknown(id.to_string()))?;
        match log::redeliver(&mut tx, delivery.pk).await? {
            Redelivery::Due => {}
            Redelivery::InFlight => return Err(DeliveryError::InFlight),
            Redelivery::NoUrl => return Err(DeliveryError::NoUrl),
        }
        let (action, delivery) = (AuditAction::OutboundWebhookRedelivered, id.to_string());
        let entry = NewEntry::new(environment, action, TargetKind::OutboundWebhook, delivery);
        audit_log::write(&mut tx, actor, &entry).await?;
        tx.commit().await?;
        let detail = self.get(environment, id).await;
        // Published only now, so that the response shows the delivery as pending and not as after its next attempt.
        self.events.publish(Event::Webhooks);
        detail
    }

    /// Redelivers failed deliveries that were written at `since` or later, and returns how many. Skips deliveries
    /// without a configured URL. The audit log gets one entry for each transaction, with the number of its deliveries.
    pub async fn redeliver_failed(
        &self,
        environment: EnvironmentPk,
        since: DateTime<Utc>,
        actor: &Actor,
    ) -> Result<u64, DeliveryError> {
        let mut count = 0;
        let mut before = None;
        loop {
            let mut tx = self.store.begin().await?;
            let (made_due, last) = log::redeliver_failed(&mut tx, environment, since, before, BATCH).await?;
            if made_due > 0 {
                let entry = NewEntry::of_environment(environment, AuditAction::OutboundWebhookRedelivered)
                    .with(json!({ "webhooks": made_due }));
                audit_log::write(&mut tx, actor, &entry).await?;
            }
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
