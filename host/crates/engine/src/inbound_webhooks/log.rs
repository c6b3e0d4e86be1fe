//! The log of inbound webhooks: listing them, and processing them again.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

use crate::connections::cache::ConnectionCache;
use crate::lookup::{LookupError, NamedScope};
use syncline_store::Store;
use syncline_store::events::{Event, Events};
use syncline_store::inbound_webhooks::log::{self, Filter};
pub use syncline_store::inbound_webhooks::log::{
    Received as InboundWebhook, State as InboundWebhookState, WebhookJob,
};
use syncline_store::runs::Scope;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{EnvironmentPk, IntegrationKey};

/// Webhooks of one transaction when many are replayed.
const BATCH: i64 = 500;

/// Which webhooks are meant.
#[derive(Debug)]
pub struct InboundWebhookFilter {
    pub states: Vec<InboundWebhookState>,
    pub integration: Option<IntegrationKey>,
    pub event_type: Option<String>,
    pub since: Option<DateTime<Utc>>,
    /// Only those before this one.
    pub before: Option<Uuid>,
}

/// A webhook with its body and the functions that ran for it.
#[derive(Debug)]
pub struct InboundWebhookDetail {
    pub webhook: InboundWebhook,
    /// An object with the value of each header that was kept.
    pub headers: Value,
    /// The body as JSON; one that is not JSON as a JSON string.
    pub body: String,
    pub functions: Vec<WebhookJob>,
}

/// Why webhooks are not shown or not processed again.
#[derive(Debug, thiserror::Error)]
pub enum InboundWebhookError {
    #[error("there is no received webhook `{0}` in this environment")]
    Unknown(String),
    #[error(
        "the webhook is still being processed, which has to be over first, or is a handshake, with which nothing is done"
    )]
    InFlight,
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error("the log of inbound webhooks could not be read or written")]
    Store(#[from] sqlx::Error),
}

impl InboundWebhookError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown(_) => ErrorCode::UnknownWebhook,
            Self::InFlight => ErrorCode::WebhookInFlight,
            Self::Lookup(error) => error.code(),
            Self::Store(_) => ErrorCode::InternalServerError,
        }
    }
}

/// Shows inbound webhooks and has them processed again.
pub struct InboundWebhookLog {
    store: Store,
    events: Arc<Events>,
    connections: Arc<ConnectionCache>,
}

impl InboundWebhookLog {
    pub fn new(store: Store, events: Arc<Events>, connections: Arc<ConnectionCache>) -> Self {
        Self { store, events, connections }
    }

    /// Up to `limit` webhooks of an environment, the newest first.
    pub async fn list(
        &self,
        environment: EnvironmentPk,
        filter: InboundWebhookFilter,
        limit: i64,
    ) -> Result<Vec<InboundWebhook>, InboundWebhookError> {
        let filter = self.resolve(environment, filter).await?;
        Ok(log::list(&mut *self.store.connect().await?, environment, &filter, limit).await?)
    }

    /// One webhook.
    pub async fn get(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
    ) -> Result<InboundWebhookDetail, InboundWebhookError> {
        let mut conn = self.store.connect().await?;
        let found = log::find(&mut conn, environment, id).await?;
        let (webhook, stored) = found.ok_or_else(|| InboundWebhookError::Unknown(id.to_string()))?;
        let functions = log::list_jobs(&mut conn, id).await?;
        let body = stored.to_json();
        Ok(InboundWebhookDetail { webhook, headers: stored.headers, body, functions })
    }

    /// Processes a webhook again whose processing has ended.
    pub async fn replay(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
    ) -> Result<InboundWebhookDetail, InboundWebhookError> {
        // Only one of this environment.
        self.get(environment, id).await?;
        let mut tx = self.store.begin().await?;
        if log::replay(&mut tx, &[id]).await? == 0 {
            return Err(InboundWebhookError::InFlight);
        }
        tx.commit().await?;
        let detail = self.get(environment, id).await;
        // After the webhook was read again: it is shown as received, not as it is after its next dispatch.
        self.events.publish(Event::Received);
        detail
    }

    /// Processes webhooks again whose processing has ended, and returns how many.
    pub async fn replay_many(
        &self,
        environment: EnvironmentPk,
        filter: InboundWebhookFilter,
    ) -> Result<u64, InboundWebhookError> {
        let mut filter = self.resolve(environment, filter).await?;
        let mut count = 0;
        loop {
            let mut tx = self.store.begin().await?;
            let found = log::list(&mut tx, environment, &filter, BATCH).await?;
            let ids: Vec<Uuid> = found.iter().map(|webhook| webhook.id).collect();
            count += log::replay(&mut tx, &ids).await?;
            tx.commit().await?;
            // A webhook whose processing ends again in the meantime keeps its id, so it is not found twice.
            let Some(last) = ids.last() else { return Ok(count) };
            filter.before = Some(*last);
            self.events.publish(Event::Received);
        }
    }

    async fn resolve(
        &self,
        environment: EnvironmentPk,
        filter: InboundWebhookFilter,
    ) -> Result<Filter, LookupError> {
        let scope = filter.integration.map_or(NamedScope::Environment, NamedScope::Integration);
        let integration = match self.connections.resolve(environment, &scope).await? {
            Scope::Integration(pk) => Some(pk),
            Scope::Environment | Scope::Connection(_) => None,
        };
        let InboundWebhookFilter { states, event_type, since, before, .. } = filter;
        Ok(Filter { states, integration, event_type, since, before })
    }
}
