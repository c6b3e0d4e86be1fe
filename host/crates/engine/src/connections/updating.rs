//! Changes connections: end user, tags, metadata and webhook URL.

use serde_json::json;

use crate::connections::Connections;
use crate::connections::metadata::{MetadataChange, MetadataError, write_metadata};
use crate::lookup::LookupError;
use crate::outbound_webhooks;
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::connections;
pub use syncline_store::connections::ConnectionUpdate;
use syncline_types::actor::Actor;
use syncline_types::audit_log::{AuditAction, TargetKind};
use syncline_types::ids::{ConnectionId, EnvironmentPk, IntegrationKey};
use syncline_types::metadata::Metadata;

impl Connections {
    /// Changes a connection.
    pub async fn update(
        &self,
        environment: EnvironmentPk,
        integration: &IntegrationKey,
        id: &ConnectionId,
        update: &ConnectionUpdate<'_>,
        actor: &Actor,
    ) -> Result<(), LookupError> {
        let mut tx = self.store.begin().await?;
        if !connections::update(&mut tx, environment, integration, id, update).await? {
            drop(tx);
            return Err(self.cache.explain_missing(environment, integration, id).await);
        }
        if let Some(url) = update.webhook_url_override.flatten() {
            outbound_webhooks::use_again(&mut tx, environment, url).await?;
        }
        let members = [
            ("end_user", update.end_user.is_some()),
            ("tags", update.tags.is_some()),
            ("webhook_url_override", update.webhook_url_override.is_some()),
        ];
        let changed: Vec<_> = members.iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name).collect();
        let entry = NewEntry::of_connection(environment, AuditAction::ConnectionUpdated, integration, id)
            .with(json!({ "changed": changed }));
        audit_log::write(&mut tx, actor, &entry).await?;
        Ok(tx.commit().await?)
    }

    /// Writes metadata to all of these connections, or to none if one is missing.
    pub async fn set_metadata(
        &self,
        environment: EnvironmentPk,
        integration: &IntegrationKey,
        ids: &[ConnectionId],
        metadata: &Metadata,
        change: MetadataChange,
        actor: &Actor,
    ) -> Result<(), MetadataError> {
        let mut tx = self.store.begin().await?;
        let found = connections::lock_many(&mut tx, environment, integration, ids).await?;
        if let Some(missing) = ids.iter().find(|id| !found.iter().any(|(_, found)| found == *id)) {
            drop(tx);
            return Err(self.cache.explain_missing(environment, integration, missing).await.into());
        }
        let pks: Vec<_> = found.iter().map(|(pk, _)| *pk).collect();
        write_metadata(&mut tx, &pks, metadata, change).await?;
        let action = AuditAction::ConnectionMetadataChanged;
        let entry = match ids {
            [id] => NewEntry::of_connection(environment, action, integration, id),
            _ => NewEntry::new(environment, action, TargetKind::Integration, integration.as_str())
                .with(json!({ "connections": ids.len() })),
        };
        audit_log::write(&mut tx, actor, &entry).await?;
        Ok(tx.commit().await?)
    }
}
