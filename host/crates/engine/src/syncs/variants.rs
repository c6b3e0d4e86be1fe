//! Further instances of a sync for one connection: each has its own schedule, records and checkpoint.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connections::route::ConnectionRoute;
use crate::functions::hold_post_creation;
use crate::retry::retry_deadlocks;
use crate::sweep::sweep;
use crate::syncs::Syncs;
use crate::syncs::selection::SyncError;
use syncline_store::connection_errors::{self, Failing};
use syncline_store::events::Event;
use syncline_store::schedules::{self, NewVariant, Retired};
use syncline_store::{closed_connections, records, streams, sync_states};
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::ids::{ConnectionPk, FunctionName, Variant};

/// How many instances a sync of one connection may have, the base variant among them.
const MAX_VARIANTS: i64 = 100;

/// However quiet it is, retired variants are looked for after this long: a notification may have been lost.
const LOOK_EVERY: Duration = Duration::from_secs(5);

impl Syncs {
    /// Makes a variant, due at once if the sync starts by itself. Gives the id of its schedule.
    pub async fn create_variant(
        &self,
        connection: &ConnectionRoute,
        sync: &FunctionName,
        variant: &Variant,
    ) -> Result<Uuid, SyncError> {
        let mut tx = self.store.begin().await?;
        let active = hold_post_creation(&mut tx, connection.environment, connection.integration).await?;
        let spec = active.syncs.iter().find(|spec| spec.name == *sync).ok_or_else(|| {
            SyncError::UnknownSync { sync: sync.clone(), integration: connection.integration_key.clone() }
        })?;
        let connection = connection.pk;
        let new = NewVariant { connection, sync, variant, auto_start: spec.auto_start, most: MAX_VARIANTS };
        let made = schedules::create_variant(&mut tx, &new).await?;
        let Some(id) = made else {
            let taken = schedules::find_variant(&mut tx, connection, sync, variant).await?;
            return Err(match taken {
                Some(_) => SyncError::VariantExists,
                None => SyncError::TooManyVariants { most: MAX_VARIANTS },
            });
        };
        schedules::notify_due(&mut tx).await?;
        tx.commit().await?;
        Ok(id)
    }

    /// Removes a variant with its records and checkpoint. From here on nothing can request a run of it, and a run in
    /// progress can write nothing more. If this is interrupted, another host finishes it, or a repeated request.
    pub async fn delete_variant(
        &self,
        connection: &ConnectionRoute,
        sync: &FunctionName,
        variant: &Variant,
    ) -> Result<(), SyncError> {
        // A run that ends locks its own row before the schedule's, so the two may deadlock.
        if let Some(retired) = retry_deadlocks(|| self.retire(connection.pk, sync, variant)).await? {
            failpoints::reach(Step::VariantRetired);
            return Ok(self.remove_retired(&retired).await?);
        }
        if self.delete_left_variant(connection, sync, variant).await? {
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
    ) -> sqlx::Result<Option<Retired>> {
        let mut tx = self.store.begin().await?;
        let retired = schedules::retire_variant(&mut tx, connection, sync, variant).await?;
        tx.commit().await?;
        Ok(retired)
    }

    /// Removes what a variant has left of a sync that is not deployed any more, and whose schedules went with it. `false`: it
    /// is deployed, or never had the variant.
    async fn delete_left_variant(
        &self,
        connection: &ConnectionRoute,
        sync: &FunctionName,
        variant: &Variant,
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
            self.empty_variant(connection.pk, sync, variant, fence, &[]).await?;
        }
        Ok(has_saved)
    }

    /// Removes what a retired variant has left, and then itself, so that what is cut short is found again.
    async fn remove_retired(&self, retired: &Retired) -> sqlx::Result<()> {
        let Retired { schedule, integration, connection, sync, variant, fence } = retired;
        let declared = self.functions.find_sync(*integration, sync).map(|sync| sync.models());
        let declared: Vec<_> = declared.iter().flatten().map(ToString::to_string).collect();
        self.empty_variant(*connection, sync, variant, *fence, &declared).await?;
        failpoints::reach(Step::VariantEmptied);

        let mut tx = self.store.begin().await?;
        let failing = Failing::Sync { name: sync.as_str(), variant: variant.as_str() };
        connection_errors::clear(&mut tx, *connection, failing).await?;
        schedules::delete_retired(&mut tx, *schedule).await?;
        tx.commit().await
    }

    /// Deletes what a variant has saved, and keeps attempts below the fence from writing more.
    async fn empty_variant(
        &self,
        connection: ConnectionPk,
        sync: &FunctionName,
        variant: &Variant,
        fence: i64,
        declared: &[String],
    ) -> sqlx::Result<()> {
        let mut tx = self.store.begin_records().await?;
        // Somebody else may have come to the end of this, and the variant been made again; then it is not ours to touch.
        if closed_connections::hold_open(&mut tx, connection).await?
            && sync_states::fence_off(&mut tx, connection, sync, variant, fence).await?
        {
            let names = streams::list_of_sync(&mut tx, connection, sync, variant, declared).await?;
            for mut stream in streams::lock(&mut tx, connection, &names, Some(sync)).await? {
                records::delete_all(&mut tx, &mut stream).await?;
                streams::store_head(&mut tx, &stream).await?;
            }
        }
        tx.commit().await
    }

    /// Removes variants whose deletion was cut short, until `shutdown`.
    pub async fn clean_up_variants(self: Arc<Self>, shutdown: CancellationToken) {
        let failure = "a variant could not be removed; it will be tried again";
        sweep(&self.events, Event::Deletions, LOOK_EVERY, shutdown, failure, || self.clean_up_one_variant())
            .await;
    }

    /// `false`: there is none.
    async fn clean_up_one_variant(&self) -> sqlx::Result<bool> {
        let retired = schedules::take_over_retired(&mut *self.store.connect().await?).await?;
        let Some(retired) = retired else { return Ok(false) };
        self.remove_retired(&retired).await?;
        Ok(true)
    }
}
