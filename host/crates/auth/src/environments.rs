//! Caches environments with their decrypted data keys, and checks that this host has the right encryption keys.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use chrono::{DateTime, Utc};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::cache::Cache;
use super::{SigningKey, signing_keys};
use syncline_crypto::{CryptoError, DataKey, MasterKeys, RecordKeys};
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::data_keys::{KnownVersions, StoredVersion};
use syncline_store::environments::StoredEnvironment;
use syncline_store::events::{Event, Events};
use syncline_store::{Store, closed_connections, data_keys, environments};
use syncline_telemetry::clock::Clock;
use syncline_types::actor::Actor;
use syncline_types::audit_log::AuditAction;
use syncline_types::environment_settings::{EnvironmentSettings, SettingsChange};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{EnvironmentName, EnvironmentPk};

/// The environment that hosts create when they start, unless it exists.
pub const DEFAULT_ENVIRONMENT: &str = "dev";

/// The number of connections to close in one transaction. Each of them takes a lock.
const CLOSE_BATCH_SIZE: usize = 200;

#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    #[error(
        "the encryption key `{id}` is not the key that this database was encrypted with; use the previous \
         SYNCLINE_ENCRYPTION_KEY, or give the new key another id"
    )]
    OtherMasterKey { id: String },
    #[error(
        "the data key of environment `{environment}` cannot be decrypted; check SYNCLINE_ENCRYPTION_KEY, or restore a \
         backup"
    )]
    DataKey { environment: EnvironmentName, source: CryptoError },
    #[error("environment `{environment}` has no data key; restore a backup")]
    NoDataKey { environment: EnvironmentName },
    #[error("environment {0} does not exist")]
    Unknown(EnvironmentPk),
    #[error(
        "a webhook signing key of environment `{environment}` cannot be decrypted; check SYNCLINE_ENCRYPTION_KEY, or \
         restore a backup"
    )]
    SigningKey { environment: EnvironmentName, source: CryptoError },
    #[error(
        "a record key of environment `{environment}` cannot be decrypted; check SYNCLINE_ENCRYPTION_KEY, or restore a \
         backup"
    )]
    RecordKey { environment: EnvironmentName, source: CryptoError },
    #[error("there is no environment `{0}`; `syncline env list` lists them")]
    NotFound(Uuid),
    #[error("an environment with the name `{0}` exists; choose another name")]
    Duplicate(EnvironmentName),
    #[error("the environment `{DEFAULT_ENVIRONMENT}` cannot be deleted: every host creates it at its start")]
    DefaultStays,
    #[error("the previous signing key is still valid; rotate again after it has expired")]
    SigningKeysOverlap,
    #[error("could not access environments in the database")]
    Store(#[from] sqlx::Error),
}

impl EnvironmentError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound(_) => ErrorCode::UnknownEnvironment,
            Self::Duplicate(_) => ErrorCode::DuplicateEnvironment,
            Self::DefaultStays => ErrorCode::CannotDeleteDefaultEnvironment,
            Self::SigningKeysOverlap => ErrorCode::MultipleWebhookSigningKeys,
            Self::OtherMasterKey { .. }
            | Self::DataKey { .. }
            | Self::NoDataKey { .. }
            | Self::Unknown(_)
            | Self::SigningKey { .. }
            | Self::RecordKey { .. }
            | Self::Store(_) => ErrorCode::InternalServerError,
        }
    }
}

/// An environment with its decrypted data key.
#[derive(Debug)]
pub struct Environment {
    pub pk: EnvironmentPk,
    pub id: Uuid,
    pub name: EnvironmentName,
    pub created_at: DateTime<Utc>,
    pub data_key: DataKey,
}

/// All environments that this host knows.
pub struct Environments {
    pub(super) clock: Clock,
    pub(super) store: Store,
    events: Arc<Events>,
    pub(super) master_keys: MasterKeys,
    known: RwLock<HashMap<EnvironmentPk, Arc<Environment>>>,
    settings: Cache<EnvironmentPk, Arc<EnvironmentSettings>>,
    pub(super) signing_keys: Cache<EnvironmentPk, Arc<[SigningKey]>>,
    pub(super) record_keys: Cache<EnvironmentPk, Arc<RecordKeys>>,
}

impl Environments {
    /// Checks the encryption keys against the database, creates the default environment if it does not exist, and
    /// decrypts all data keys.
    pub async fn open(
        clock: Clock,
        store: Store,
        master_keys: MasterKeys,
        events: Arc<Events>,
    ) -> Result<Arc<Self>, EnvironmentError> {
        let environments = Arc::new(Self {
            clock,
            store,
            events: Arc::clone(&events),
            master_keys,
            known: RwLock::default(),
            settings: Cache::new(Arc::clone(&events)),
            signing_keys: Cache::new(Arc::clone(&events)),
            record_keys: Cache::new(events),
        });
        environments.check_fingerprints().await?;
        let name = EnvironmentName::from_stored(DEFAULT_ENVIRONMENT.to_owned());
        match environments.create(&name, &Actor::host()).await {
            Ok(_) | Err(EnvironmentError::Duplicate(_)) => {}
            Err(error) => return Err(error),
        }
        environments.reload().await?;
        environments.store_fingerprints().await?;
        Ok(environments)
    }

    /// Fails if an encryption key has the id of a different key that this database was encrypted with.
    async fn check_fingerprints(&self) -> Result<(), EnvironmentError> {
        let mut conn = self.store.connect().await?;
        for (id, fingerprint) in self.master_keys.fingerprints() {
            let known = environments::find_fact(&mut conn, &key_fact(id)).await?;
            if known.is_some_and(|known| known != fingerprint) {
                return Err(EnvironmentError::OtherMasterKey { id: id.to_owned() });
            }
        }
        Ok(())
    }

    /// Stores the fingerprints of the encryption keys. This happens after they have decrypted every data key, so that
    /// a wrong key cannot reserve the id of the right one.
    async fn store_fingerprints(&self) -> Result<(), EnvironmentError> {
        let mut conn = self.store.connect().await?;
        for (id, fingerprint) in self.master_keys.fingerprints() {
            if environments::remember_fact(&mut conn, &key_fact(id), &fingerprint).await? != fingerprint {
                return Err(EnvironmentError::OtherMasterKey { id: id.to_owned() });
            }
        }
        Ok(())
    }

    /// Creates an environment with its own data key and signing key.
    pub async fn create(
        &self,
        name: &EnvironmentName,
        actor: &Actor,
    ) -> Result<Arc<Environment>, EnvironmentError> {
        let id = Uuid::new_v4();
        let (data_key, wrapped) = self.master_keys.new_data_key(&id.to_string());
        let mut tx = self.store.begin().await?;
        let created = environments::create(&mut tx, id, name).await?;
        let pk = created.ok_or_else(|| EnvironmentError::Duplicate(name.clone()))?;
        data_keys::create(&mut tx, pk, data_key.active_version(), &wrapped, true).await?;
        signing_keys::create(&mut tx, pk, &data_key).await?;
        let entry = NewEntry::of_environment(pk, AuditAction::EnvironmentCreated);
        audit_log::write(&mut tx, actor, &entry).await?;
        tx.commit().await?;
        self.reload().await?;
        self.get(pk).await
    }

    /// Deletes an environment with everything that belongs to it.
    pub async fn delete(&self, pk: EnvironmentPk, actor: &Actor) -> Result<(), EnvironmentError> {
        let mut tx = self.store.begin().await?;
        if !environments::lock(&mut tx, pk).await? {
            // Another request has deleted the environment.
            return Ok(());
        }
        // Written first, because an entry takes the name from the environment's row.
        let entry = NewEntry::of_environment(pk, AuditAction::EnvironmentDeleted);
        audit_log::write(&mut tx, actor, &entry).await?;
        let connections = environments::delete(&mut tx, pk).await?;
        tx.commit().await?;
        for part in connections.chunks(CLOSE_BATCH_SIZE) {
            let mut tx = self.store.begin_records().await?;
            closed_connections::close(&mut tx, part).await?;
            tx.commit().await?;
        }
        self.forget();
        self.reload().await
    }

    /// Returns all environments, in the order of their creation.
    pub fn list(&self) -> Vec<Arc<Environment>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = known.values().cloned().collect();
        all.sort_by_key(|environment| environment.pk);
        all
    }

    /// Returns the environment with this row number.
    pub async fn get(&self, pk: EnvironmentPk) -> Result<Arc<Environment>, EnvironmentError> {
        if let Some(environment) = self.find_known(pk) {
            return Ok(environment);
        }
        self.reload().await?;
        self.find_known(pk).ok_or(EnvironmentError::Unknown(pk))
    }

    /// Returns the environment with this name, if this host knows it.
    pub fn find_by_name(&self, name: &str) -> Option<Arc<Environment>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.values().find(|environment| environment.name.as_str() == name).cloned()
    }

    /// Returns the settings of an environment.
    pub async fn settings(&self, pk: EnvironmentPk) -> Result<Arc<EnvironmentSettings>, EnvironmentError> {
        let read = async {
            let found = environments::settings(&mut *self.store.connect().await?, pk).await?;
            found.map(Arc::new).ok_or(EnvironmentError::Unknown(pk))
        };
        self.settings.get(pk, read).await
    }

    /// Changes some settings, on all hosts.
    pub async fn change_settings(
        &self,
        pk: EnvironmentPk,
        change: &SettingsChange,
        actor: &Actor,
    ) -> Result<(), EnvironmentError> {
        let mut tx = self.store.begin().await?;
        environments::change_settings(&mut tx, pk, change).await?;
        // Without the values: a URL may contain a secret.
        let entry = NewEntry::of_environment(pk, AuditAction::EnvironmentSettingsChanged)
            .with(json!({ "settings": change.names() }));
        audit_log::write(&mut tx, actor, &entry).await?;
        tx.commit().await?;
        self.forget();
        Ok(())
    }

    /// Invalidates cached settings, signing keys and record keys after a change.
    pub fn forget(&self) {
        self.settings.invalidate();
        self.signing_keys.invalidate();
        self.record_keys.invalidate();
    }

    /// Invalidates cached values of environments after changes on any host, until `shutdown`.
    pub async fn invalidate(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        // Events may have been missed before the subscription.
        self.forget();
        while let Some(Some(event)) = shutdown.run_until_cancelled(events.next()).await {
            if matches!(event, Event::Environments | Event::Missed) {
                self.forget();
            }
        }
    }

    fn find_known(&self, pk: EnvironmentPk) -> Option<Arc<Environment>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(&pk).cloned()
    }

    /// Returns the environment with this id, even if another host has just created it.
    pub async fn get_by_id(&self, id: Uuid) -> Result<Arc<Environment>, EnvironmentError> {
        let find = || self.list().into_iter().find(|environment| environment.id == id);
        if let Some(environment) = find() {
            return Ok(environment);
        }
        self.reload().await?;
        find().ok_or(EnvironmentError::NotFound(id))
    }

    /// Reads all environments, and decrypts new versions of their data keys.
    pub async fn reload(&self) -> Result<(), EnvironmentError> {
        let mut tx = self.store.begin_snapshot().await?;
        let stored = environments::list(&mut tx).await?;
        let mut versions: HashMap<EnvironmentPk, Vec<StoredVersion>> = HashMap::new();
        for version in data_keys::list(&mut tx).await? {
            versions.entry(version.environment).or_default().push(version);
        }
        drop(tx);
        let mut opened = Vec::new();
        for row in stored {
            let data_key = self.unwrap(&row, versions.get(&row.pk).map_or(&[][..], Vec::as_slice))?;
            opened.push((row, data_key));
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *known);
        for (row, data_key) in opened {
            // Existing holders of an environment also receive its new versions.
            let environment = match before.remove(&row.pk) {
                Some(environment) => {
                    environment.data_key.learn(data_key);
                    environment
                }
                None => Arc::new(Environment {
                    pk: row.pk,
                    id: row.id,
                    name: row.name,
                    created_at: row.created_at,
                    data_key,
                }),
            };
            known.insert(row.pk, environment);
        }
        Ok(())
    }

    /// Reloads the environments, and confirms in the database which data-key versions this host knows.
    pub async fn follow(&self, host: Uuid) -> Result<(), EnvironmentError> {
        self.reload().await?;
        let known: Vec<_> = self
            .list()
            .iter()
            .map(|environment| KnownVersions {
                environment: environment.pk,
                newest: environment.data_key.newest_version(),
                active: environment.data_key.active_version(),
            })
            .collect();
        Ok(data_keys::confirm(&mut *self.store.connect().await?, host, &known).await?)
    }

    /// Returns the ids of the encryption keys that this host was configured with.
    pub fn encryption_key_ids(&self) -> Vec<String> {
        self.master_keys.ids().map(str::to_owned).collect()
    }

    fn unwrap(
        &self,
        row: &StoredEnvironment,
        versions: &[StoredVersion],
    ) -> Result<DataKey, EnvironmentError> {
        let id = row.id.to_string();
        let active = versions.iter().find(|version| version.is_active);
        let active = active.ok_or_else(|| EnvironmentError::NoDataKey { environment: row.name.clone() })?;
        let opened = versions.iter().map(|stored| {
            let key = self.master_keys.unwrap_version(&id, stored.version, &stored.wrapped_key)?;
            Ok((stored.version, key))
        });
        let opened = opened
            .collect::<Result<_, _>>()
            .map_err(|source| EnvironmentError::DataKey { environment: row.name.clone(), source })?;
        Ok(DataKey::new(opened, active.version))
    }
}

fn key_fact(id: &str) -> String {
    format!("encryption key {id}")
}
