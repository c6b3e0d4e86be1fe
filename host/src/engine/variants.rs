//! Further instances of a sync for one connection: each has its own schedule, records and checkpoint.

use uuid::Uuid;

use super::functions::hold_active_syncs;
use super::{ConnectionRoute, DeployedFunction, Engine};
use crate::ids::{ConnectionPk, FunctionName, Variant};
use crate::store::connection_errors::{self, Failing};
use crate::store::records;
use crate::store::schedules::{self, NewVariant};
use crate::store::{streams, sync_states};

/// How many instances a sync of one connection may have, the base variant among them.
pub const MAX_VARIANTS: i64 = 100;

/// Why a variant was not made.
#[derive(Debug, thiserror::Error)]
pub enum VariantError {
    #[error("the sync is not deployed any more")]
    SyncGone,
    #[error("the sync has this variant already")]
    Exists,
    #[error("the sync has {MAX_VARIANTS} variants already, which is the most")]
    TooMany,
    #[error("the variant could not be stored")]
    Store(#[from] sqlx::Error),
}

impl Engine {
    /// Makes a variant, due at once if the sync starts by itself. Gives the id of its schedule.
    pub async fn create_variant(
        &self,
        connection: &ConnectionRoute,
        sync: &FunctionName,
        variant: &Variant,
    ) -> Result<Uuid, VariantError> {
        let mut tx = self.store.begin().await?;
        let active = hold_active_syncs(&mut tx, connection.environment, connection.integration).await?;
        let spec = active.iter().find(|spec| spec.name == *sync).ok_or(VariantError::SyncGone)?;
        let connection = connection.pk;
        let new =
            NewVariant { connection, sync, variant, auto_start: spec.auto_start, most: MAX_VARIANTS };
        let made = schedules::create_variant(&mut tx, &new).await?;
        let Some(id) = made else {
            let taken = schedules::find_variant(&mut tx, connection, sync, variant).await?;
            return Err(if taken.is_some() { VariantError::Exists } else { VariantError::TooMany });
        };
        schedules::notify_due(&mut tx).await?;
        tx.commit().await?;
        Ok(id)
    }

    /// Removes a variant with its records and checkpoint. A run in progress can write nothing more from here on.
    /// `false`: there is no such variant. What was interrupted is finished by asking again.
    pub async fn delete_variant(
        &self,
        connection: ConnectionPk,
        sync: &DeployedFunction,
        variant: &Variant,
    ) -> sqlx::Result<bool> {
        let mut tx = self.store.begin().await?;
        if !schedules::retire_variant(&mut tx, connection, &sync.name, variant).await? {
            return Ok(false);
        }
        let fence = schedules::next_fence(&mut tx).await?;
        tx.commit().await?;

        let mut tx = self.store.begin_records().await?;
        sync_states::shut_out(&mut tx, connection, &sync.name, variant, fence).await?;
        let names: Vec<_> = sync.models.keys().map(|model| (model.clone(), variant.clone())).collect();
        for mut stream in streams::lock(&mut tx, connection, &names, Some(&sync.name)).await? {
            records::delete_all(&mut tx, &mut stream).await?;
            streams::store_head(&mut tx, &stream).await?;
        }
        tx.commit().await?;

        // Last, so that a deletion that was cut short can be asked for again.
        let mut conn = self.store.connect().await?;
        let failing = Failing::Sync { name: sync.name.as_str(), variant: variant.as_str() };
        connection_errors::clear(&mut conn, connection, failing).await?;
        schedules::delete_variant(&mut conn, connection, &sync.name, variant).await?;
        Ok(true)
    }
}
