//! Replaces keys while hosts are running: encryption keys, which wrap data keys, and data keys, which encrypt
//! everything else.
//!
//! A data key is replaced in steps. A crash can interrupt any of them, and the next attempt continues: store a new
//! version; wait until every live host can decrypt with it; activate it; wait until every live host encrypts with it;
//! encrypt all values again in small batches; delete the old versions. The database refuses to delete a version that a
//! value still needs.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::{Environment, EnvironmentError, Environments};
use syncline_crypto::{AssociatedData, CryptoError};
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::sealed::{SealedColumn, SealedValue};
use syncline_store::{data_keys, environments, hosts, sealed};
use syncline_types::actor::Actor;
use syncline_types::audit_log::AuditAction;
use syncline_types::ids::{EnvironmentName, EnvironmentPk};

/// Longer than a host takes to notice a change without a notification.
const HOSTS_TIMEOUT: Duration = Duration::from_secs(60);
const HOSTS_POLL_INTERVAL: Duration = Duration::from_millis(50);
const BATCH: i64 = 100;
/// With this many values that cannot be decrypted, the cause is not a single damaged row.
const MAX_UNREADABLE: usize = 100;

#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    #[error(
        "hosts without the encryption key `{id}`: {hosts}; add it to their SYNCLINE_ENCRYPTION_KEY, restart them and \
         repeat the command"
    )]
    HostsWithoutKey { hosts: i64, id: String },
    #[error(
        "hosts that did not confirm the new data key within {} s: {hosts}; no data is lost, repeat the command",
        HOSTS_TIMEOUT.as_secs()
    )]
    HostsUnaware { hosts: i64 },
    #[error(
        "{} stored secrets of environment `{environment}` cannot be decrypted; they and the old data key were kept \
         unchanged: {}",
        .places.len(), .places.join(", ")
    )]
    Unreadable { environment: EnvironmentName, places: Vec<String> },
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error("could not access the database")]
    Store(#[from] sqlx::Error),
}

/// The result of a data key's rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Resealed {
    /// The version that now encrypts new values.
    pub version: i32,
    /// The number of values that this attempt encrypted again.
    pub values: u64,
}

impl Environments {
    /// Wraps all data keys with the active encryption key. Returns how many were wrapped by another key.
    pub async fn rewrap_data_keys(&self, actor: &Actor) -> Result<usize, RotationError> {
        let id = self.master_keys.active_id();
        let mut conn = self.store.connect().await?;
        let hosts = hosts::count_without_encryption_key(&mut conn, id).await?;
        if hosts > 0 {
            return Err(RotationError::HostsWithoutKey { hosts, id: id.to_owned() });
        }
        let versions = data_keys::list(&mut conn).await?;
        drop(conn);
        let mut rewrapped = 0;
        for stored in versions {
            let environment = stored.environment_id.to_string();
            let wrapped = self.master_keys.rewrap_version(&environment, stored.version, &stored.wrapped_key);
            let wrapped = match wrapped {
                Ok(wrapped) => wrapped,
                Err(source) => {
                    let environment = self.get(stored.environment).await?.name.clone();
                    return Err(EnvironmentError::DataKey { environment, source }.into());
                }
            };
            let Some(wrapped) = wrapped else { continue };
            let mut tx = self.store.begin().await?;
            if data_keys::replace_wrapped(&mut tx, &stored, &wrapped).await? {
                let entry = NewEntry::of_environment(stored.environment, AuditAction::DataKeyRewrapped)
                    .with(json!({ "version": stored.version, "encryption_key": id }));
                audit_log::write(&mut tx, actor, &entry).await?;
                rewrapped += 1;
            }
            tx.commit().await?;
        }
        Ok(rewrapped)
    }

    /// Replaces an environment's data key, and encrypts everything again with the new one. Continues an interrupted
    /// attempt. Calls `progress` with the number of values done so far.
    pub async fn rotate_data_key(
        &self,
        pk: EnvironmentPk,
        progress: &(dyn Fn(u64) + Sync),
        actor: &Actor,
    ) -> Result<Resealed, RotationError> {
        let environment = self.get(pk).await?;
        let version = self.ensure_newer_version(&environment).await?;
        self.wait_for_hosts(pk, version, false).await?;
        let mut tx = self.store.begin().await?;
        environments::lock(&mut tx, pk).await?;
        // An interrupted attempt may have activated the version.
        if data_keys::activate(&mut tx, pk, version).await? {
            let entry = NewEntry::of_environment(pk, AuditAction::DataKeyRotated);
            audit_log::write(&mut tx, actor, &entry.with(json!({ "version": version }))).await?;
        }
        tx.commit().await?;
        self.reload().await?;
        self.wait_for_hosts(pk, version, true).await?;
        let mut values = 0;
        loop {
            values += self.reseal(&environment, version, &|more| progress(values + more)).await?;
            if data_keys::remove_before(&mut *self.store.connect().await?, pk, version).await? {
                return Ok(Resealed { version, values });
            }
            // A value that was encrypted before the new version became active was stored meanwhile, so the loop
            // repeats.
        }
    }

    /// Returns the version that an interrupted attempt has created, or creates a new one.
    async fn ensure_newer_version(&self, environment: &Environment) -> Result<i32, RotationError> {
        let mut tx = self.store.begin().await?;
        if !environments::lock(&mut tx, environment.pk).await? {
            return Err(EnvironmentError::Unknown(environment.pk).into());
        }
        let versions: Vec<i32> = data_keys::list(&mut tx)
            .await?
            .iter()
            .filter(|stored| stored.environment == environment.pk)
            .map(|stored| stored.version)
            .collect();
        let newest = versions.last().copied().unwrap_or_default();
        if versions.len() > 1 {
            return Ok(newest);
        }
        let version = newest + 1;
        let (_, wrapped) = self.master_keys.new_version(&environment.id.to_string(), version);
        data_keys::create(&mut tx, environment.pk, version, &wrapped, false).await?;
        tx.commit().await?;
        Ok(version)
    }

    async fn wait_for_hosts(
        &self,
        environment: EnvironmentPk,
        version: i32,
        as_active: bool,
    ) -> Result<(), RotationError> {
        let deadline = Instant::now() + HOSTS_TIMEOUT;
        loop {
            let mut conn = self.store.connect().await?;
            let hosts = data_keys::count_unaware_hosts(&mut conn, environment, version, as_active).await?;
            drop(conn);
            if hosts == 0 {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(RotationError::HostsUnaware { hosts });
            }
            tokio::time::sleep(HOSTS_POLL_INTERVAL).await;
        }
    }

    async fn reseal(
        &self,
        environment: &Environment,
        version: i32,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<u64, RotationError> {
        let mut conn = self.store.connect().await?;
        let (mut resealed_count, mut unreadable) = (0, Vec::new());
        for column in sealed::columns(&mut conn).await? {
            let mut skipped = Vec::new();
            loop {
                let batch =
                    sealed::list_before(&mut conn, &column, environment.pk, version, &skipped, BATCH).await?;
                if batch.is_empty() || skipped.len() > MAX_UNREADABLE {
                    break;
                }
                for value in batch {
                    match reseal_value(environment, &column, &value) {
                        Ok(resealed) => {
                            sealed::replace(&mut conn, &column, &value, &resealed).await?;
                            resealed_count += 1;
                        }
                        Err(_) => skipped.push(value.row_name),
                    }
                }
                progress(resealed_count);
            }
            unreadable.extend(skipped.iter().map(|row| format!("{} of {row}", column.name())));
        }
        if unreadable.is_empty() {
            return Ok(resealed_count);
        }
        Err(RotationError::Unreadable { environment: environment.name.clone(), places: unreadable })
    }
}

fn reseal_value(
    environment: &Environment,
    column: &SealedColumn,
    value: &SealedValue,
) -> Result<Vec<u8>, CryptoError> {
    let name = column.name();
    let associated_data = AssociatedData { column: &name, row: &value.row_name };
    let opened = environment.data_key.open(associated_data, &value.sealed)?;
    Ok(environment.data_key.seal(associated_data, &opened))
}
