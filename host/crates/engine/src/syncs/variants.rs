//! Variants: further instances of a sync for one connection, each with its own schedule, records and checkpoint.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::audit_log::commit_records;
use crate::connections::route::ConnectionRoute;
use crate::functions::hold_post_creation;
use crate::retry::retry_deadlocks;
use crate::sweep::sweep;
use crate::syncs::Syncs;
use crate::syncs::selection::SyncError;
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::connection_errors;
use syncline_store::events::Event;
use syncline_store::schedules::{self, NewVariant, Retired};
use syncline_store::{RecordsTransaction, closed_connections, records, streams, sync_states};
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::actor::Actor;
use syncline_types::audit_log::AuditAction;
use syncline_types::ids::{ConnectionPk, FunctionName, Variant};

/// Maximum number of variants of a sync for one connection, including the base variant.
const MAX_VARIANTS: i64 = 100;

/// Longest wait between two checks for retired variants, because a notification can be lost.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(5);

impl Syncs {
    /// Creates a variant, which is due at once if the sync has `auto_start`. Returns the id of its schedule.
    pub async fn create_variant(
        &self,
        connection: &ConnectionRoute,
        sync: &FunctionName,
        variant: &Variant,
        actor: &Actor,
    ) -> Result<Uuid, SyncError> {
        let mut tx = self.store.begin().await?;
        let active = hold_post_creation(&mut tx, connection.environment, connection.integration).await?;
        let spec = active.syncs.iter().find(|spec| spec.name == *sync).ok_or_else(|| {
            SyncError::UnknownSync { sync: sync.clone(), integration: connection.integration_key.clone() }
        })?;
        let entry = variant_entry(AuditAction::SyncVariantCreated, connection, sync, variant);
        let connection = connection.pk;
        let new = NewVariant { connection, sync, variant, auto_start: spec.auto_start, most: MAX_VARIANTS };
        let created = schedules::create_variant(&mut tx, &new).await?;
        let Some(id) = created else {
            let existing = schedules::find_variant(&mut tx, connection, sync, variant).await?;
            return Err(match existing {
                Some(_) => SyncError::VariantExists,
                None => SyncError::TooManyVariants { most: MAX_VARIANTS },
            });
        };
        schedules::notify_due(&mut tx).await?;
        audit_log::write(&mut tx, actor, &entry).await?;
        tx.commit().await?;
        Ok(id)
    }

    /// Removes a variant with its records and checkpoint. From now on, no request can start a run of it, and a run in
    /// progress can write nothing. If the removal is interrupted, another host finishes it, or a repeated request does.
    pub async fn delete_variant(
        &self,
        connection: &ConnectionRoute,
        sync: &FunctionName,
        variant: &Variant,
        actor: &Actor,
    ) -> Result<(), SyncError> {
        let entry = variant_entry(AuditAction::SyncVariantDeleted, connection, sync, variant);
        // A run that ends locks its own row before the schedule's row, so the two transactions may deadlock.
        if let Some(retired) =
            retry_deadlocks(|| self.retire(connection.pk, sync, variant, &entry, actor)).await?
        {
            failpoints::reach(Step::VariantRetired);
            return Ok(self.remove_retired(&retired).await?);
        }
        if self.delete_undeployed_variant(connection, sync, variant, &entry, actor).await? {
            return Ok(());
        }
        let (environment, key) = (connection.environment, &connection.integration_key);
        self.find_deployed(environment, connection.integration, key, sync).await?;
        Err(SyncError::UnknownVariant { sync: sync.clone(), variant: variant.clone() })
    }

    async fn retire(
        &self,
        connection: ConnectionPk,
        sync: &FunctionName,
        variant: &Variant,
        entry: &NewEntry,
        actor: &Actor,
    ) -> sqlx::Result<Option<Retired>> {
        let mut tx = self.store.begin().await?;
        let retired = schedules::retire_variant(&mut tx, connection, sync, variant).await?;
        if retired.is_some() {
            audit_log::write(&mut tx, actor, entry).await?;
        }
        tx.commit().await?;
        Ok(retired)
    }

    /// Removes the records of a variant whose sync is no longer deployed and whose schedule was therefore removed.
    /// Returns `false` if the sync is deployed or has no records of this variant.
    async fn delete_undeployed_variant(
        &self,
        connection: &ConnectionRoute,
        sync: &FunctionName,
        variant: &Variant,
        entry: &NewEntry,
        actor: &Actor,
    ) -> sqlx::Result<bool> {
        if self.functions.find_sync(connection.integration, sync).is_some() {
            return Ok(false);
        }
        let mut conn = self.store.connect_records().await?;
        let has_saved =
            !streams::list_of_sync(&mut conn, connection.pk, sync, variant, &[]).await?.is_empty();
        drop(conn);
        if has_saved {
            let fence = schedules::next_fence(&mut *self.store.connect().await?).await?;
            let tx = self.empty_variant(connection.pk, sync, variant, fence, &[]).await?;
            commit_records(&self.store, tx, actor, entry).await?;
        }
        Ok(has_saved)
    }

    /// Removes the records of a retired variant and finally the variant itself, so that an interrupted removal can be
    /// resumed.
    async fn remove_retired(&self, retired: &Retired) -> sqlx::Result<()> {
        let Retired { schedule, integration, connection, sync, variant, fence } = retired;
        let declared = self.functions.find_sync(*integration, sync).map(|sync| sync.models());
        let declared: Vec<_> = declared.iter().flatten().map(ToString::to_string).collect();
        self.empty_variant(*connection, sync, variant, *fence, &declared).await?.commit().await?;
        failpoints::reach(Step::VariantEmptied);

        let mut tx = self.store.begin().await?;
        connection_errors::clear(&mut tx, *connection, sync.as_str(), variant.as_str()).await?;
        schedules::delete_retired(&mut tx, *schedule).await?;
        tx.commit().await
    }

    /// Deletes the records of a variant, and prevents attempts with an older fencing token from writing more. The caller
    /// commits.
    async fn empty_variant(
        &self,
        connection: ConnectionPk,
        sync: &FunctionName,
        variant: &Variant,
        fence: i64,
        declared: &[String],
    ) -> sqlx::Result<RecordsTransaction> {
        let mut tx = self.store.begin_records().await?;
        // Another host may have finished the removal, and a client may have created the variant again. Then it must
        // stay.
        if closed_connections::hold_open(&mut tx, connection).await?
            && sync_states::fence_off(&mut tx, connection, sync, variant, fence).await?
        {
            let names = streams::list_of_sync(&mut tx, connection, sync, variant, declared).await?;
            for mut stream in streams::lock(&mut tx, connection, &names, Some(sync)).await? {
                records::delete_all(&mut tx, &mut stream).await?;
                streams::store_head(&mut tx, &stream).await?;
            }
        }
        Ok(tx)
    }

    /// Finishes interrupted removals of variants, until `shutdown`.
    pub async fn clean_up_variants(self: Arc<Self>, shutdown: CancellationToken) {
        let failure = "could not remove a deleted variant; retrying";
        sweep(&self.events, Event::Deletions, MAX_CHECK_INTERVAL, shutdown, failure, || {
            self.clean_up_one_variant()
        })
        .await;
    }

    /// Returns `false` if there is no retired variant.
    async fn clean_up_one_variant(&self) -> sqlx::Result<bool> {
        let retired = schedules::take_over_retired(&mut *self.store.connect().await?).await?;
        let Some(retired) = retired else { return Ok(false) };
        self.remove_retired(&retired).await?;
        Ok(true)
    }
}

fn variant_entry(
    action: AuditAction,
    connection: &ConnectionRoute,
    sync: &FunctionName,
    variant: &Variant,
) -> NewEntry {
    NewEntry::of_connection(
        connection.environment,
        action,
        &connection.integration_key,
        &connection.connection_id,
    )
    .with(json!({ "sync": sync.as_str(), "variant": variant.as_str() }))
}
