//! The log of inbound webhooks: lists and replays them.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::connections::cache::ConnectionCache;
use crate::lookup::{LookupError, NamedScope};
use syncline_store::Store;
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::events::{Event, Events};
use syncline_store::inbound_webhooks::log::{self, Filter};
pub use syncline_store::inbound_webhooks::log::{
    Received as InboundWebhook, State as InboundWebhookState, WebhookJob,
};
use syncline_store::runs::Scope;
use syncline_types::actor::Actor;
use syncline_types::audit_log::{AuditAction, TargetKind};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{EnvironmentPk, IntegrationKey};

/// Webhooks that one transaction replays.
const BATCH: i64 = 500;

/// Selects inbound webhooks.
#[derive(Debug)]
pub struct InboundWebhookFilter {
    pub states: Vec<InboundWebhookState>,
    pub integration: Option<IntegrationKey>,
    pub event_type: Option<String>,
    pub since: Option<DateTime<Utc>>,
    /// Only webhooks older than this one.
    pub before: Option<Uuid>,
}

/// A webhook with its body and the functions that ran for it.
#[derive(Debug)]
pub struct InboundWebhookDetail {
    pub webhook: InboundWebhook,
    /// An object with the value of each stored header.
    pub headers: Value,
    /// The body as JSON. A body that is not JSON becomes a JSON string.
    pub body: String,
    pub functions: Vec<WebhookJob>,
}

/// Why webhooks cannot be read or replayed.
#[derive(Debug, thiserror::Error)]
pub enum InboundWebhookError {
    #[error(
        "there is no inbound webhook `{0}` in this environment; list the webhooks with `GET /webhooks/received`"
    )]
    Unknown(String),
    #[error(
        "the webhook cannot be replayed: it is still being processed, or it is a handshake; try again later"
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

/// Lists and replays inbound webhooks.
pub struct InboundWebhookLog {
    store: Store,
    events: Arc<Events>,
    connections: Arc<ConnectionCache>,
}

impl InboundWebhookLog {
    pub fn new(store: Store, events: Arc<Events>, connections: Arc<ConnectionCache>) -> Self {
        Self { store, events, connections }
    }

    /// Returns up to `limit` webhooks of an environment, newest first.
    pub async fn list(
        &self,
        environment: EnvironmentPk,
        filter: InboundWebhookFilter,
        limit: i64,
    ) -> Result<Vec<InboundWebhook>, InboundWebhookError> {
        let filter = self.resolve(environment, filter).await?;
        Ok(log::list(&mut *self.store.connect().await?, environment, &filter, limit).await?)
    }

    /// Returns one webhook.
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

    /// Replays a webhook whose processing has ended.
    pub async fn replay(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
        actor: &Actor,
    ) -> Result<InboundWebhookDetail, InboundWebhookError> {
        // Ensures that the webhook belongs to this environment.
        self.get(environment, id).await?;
        let mut tx = self.store.begin().await?;
        if log::replay(&mut tx, &[id]).await? == 0 {
            return Err(InboundWebhookError::InFlight);
        }
        let (action, webhook) = (AuditAction::InboundWebhookReplayed, id.to_string());
        let entry = NewEntry::new(environment, action, TargetKind::InboundWebhook, webhook);
        audit_log::write(&mut tx, actor, &entry).await?;
        tx.commit().await?;
        let detail = self.get(environment, id).await;
        // Published only now, so that the response shows the webhook as received and not as dispatched again.
        self.events.publish(Event::Received);
        detail
    }

    /// Replays webhooks whose processing has ended, and returns how many. The audit log gets one entry for each
    /// transaction, with the number of its webhooks.
    pub async fn replay_many(
        &self,
        environment: EnvironmentPk,
        filter: InboundWebhookFilter,
        actor: &Actor,
    ) -> Result<u64, InboundWebhookError> {
        let target = filter.integration.as_ref().map(ToString::to_string);
        let mut filter = self.resolve(environment, filter).await?;
        let mut count = 0;
        loop {
            let mut tx = self.store.begin().await?;
            let found = log::list(&mut tx, environment, &filter, BATCH).await?;
            let ids: Vec<Uuid> = found.iter().map(|webhook| webhook.id).collect();
            let replayed = log::replay(&mut tx, &ids).await?;
            if replayed > 0 {
                let action = AuditAction::InboundWebhookReplayed;
                let entry = match &target {
                    Some(key) => NewEntry::new(environment, action, TargetKind::Integration, key),
                    None => NewEntry::of_environment(environment, action),
                };
                audit_log::write(&mut tx, actor, &entry.with(json!({ "webhooks": replayed }))).await?;
            }
            count += replayed;
            tx.commit().await?;
            // A replayed webhook keeps its id, so the next page does not contain it again even if it has ended
            // meanwhile.
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
