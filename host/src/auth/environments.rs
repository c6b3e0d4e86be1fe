//! Environments with their data keys open, and the check that this host has the right master keys.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::broadcast::error::RecvError;
use uuid::Uuid;

use super::SigningKey;
use super::remembered::Remembered;
use crate::crypto::{CryptoError, DataKey, MasterKeys};
use crate::environment_settings::{EnvironmentSettings, SettingsChange};
use crate::ids::{EnvironmentName, EnvironmentPk};
use crate::store::environments::StoredEnvironment;
use crate::store::notices::{Notice, Notices};
use crate::store::{Store, environments};

/// The environment that the first start makes.
pub const DEFAULT_ENVIRONMENT: &str = "dev";

#[derive(Debug, thiserror::Error)]
pub enum EnvironmentError {
    #[error(
        "the encryption key `{id}` is not the one that this database was written with; give the host the same \
         SYNCLINE_ENCRYPTION_KEY as before, or another id for a new key"
    )]
    OtherMasterKey { id: String },
    #[error("the data key of environment `{environment}` cannot be opened: {source}")]
    DataKey { environment: EnvironmentName, source: CryptoError },
    #[error("environment {0} does not exist")]
    Unknown(EnvironmentPk),
    #[error("a webhook signing key of environment `{environment}` cannot be opened: {source}")]
    SigningKey { environment: EnvironmentName, source: CryptoError },
    #[error("environments could not be read")]
    Store(#[from] sqlx::Error),
}

/// An environment whose secrets can be sealed and opened.
#[derive(Debug)]
pub struct Environment {
    pub pk: EnvironmentPk,
    pub id: Uuid,
    pub name: EnvironmentName,
    pub data_key: DataKey,
}

/// All environments that this host has met.
pub struct Environments {
    pub(super) store: Store,
    master_keys: MasterKeys,
    known: RwLock<HashMap<EnvironmentPk, Arc<Environment>>>,
    settings: Remembered<EnvironmentPk, Arc<EnvironmentSettings>>,
    pub(super) signing_keys: Remembered<EnvironmentPk, Arc<[SigningKey]>>,
}

impl Environments {
    /// Checks the master keys against the database, makes the default environment if there is none, and opens
    /// every data key.
    pub async fn open(
        store: Store,
        master_keys: MasterKeys,
        notices: Arc<Notices>,
    ) -> Result<Arc<Self>, EnvironmentError> {
        let mut conn = store.connect().await?;
        for (id, fingerprint) in master_keys.fingerprints() {
            let fact = format!("encryption key {id}");
            if environments::remember_fact(&mut conn, &fact, &fingerprint).await? != fingerprint {
                return Err(EnvironmentError::OtherMasterKey { id: id.to_owned() });
            }
        }
        let id = Uuid::new_v4();
        let (_, wrapped) = master_keys.new_data_key(&id.to_string());
        let name = EnvironmentName::from_stored(DEFAULT_ENVIRONMENT.to_owned());
        environments::create_if_missing(&mut conn, id, &name, &wrapped).await?;
        drop(conn);
        let environments = Arc::new(Self {
            store,
            master_keys,
            known: RwLock::default(),
            settings: Remembered::new(Arc::clone(&notices)),
            signing_keys: Remembered::new(Arc::clone(&notices)),
        });
        environments.reload().await?;
        tokio::spawn(forget_on_notice(Arc::clone(&environments), notices));
        Ok(environments)
    }

    /// The environment of that row.
    pub async fn get(&self, pk: EnvironmentPk) -> Result<Arc<Environment>, EnvironmentError> {
        if let Some(environment) = self.find_known(pk) {
            return Ok(environment);
        }
        self.reload().await?;
        self.find_known(pk).ok_or(EnvironmentError::Unknown(pk))
    }

    /// The environment of that name.
    pub fn find_by_name(&self, name: &str) -> Option<Arc<Environment>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.values().find(|environment| environment.name.as_str() == name).cloned()
    }

    /// What the environment of that row sets.
    pub async fn settings(&self, pk: EnvironmentPk) -> Result<Arc<EnvironmentSettings>, EnvironmentError> {
        let read = async {
            let found = environments::settings(&mut *self.store.connect().await?, pk).await?;
            found.map(Arc::new).ok_or(EnvironmentError::Unknown(pk))
        };
        self.settings.get(pk, read).await
    }

    /// Sets some of it, for every host at once.
    pub async fn change_settings(
        &self,
        pk: EnvironmentPk,
        change: &SettingsChange,
    ) -> Result<(), EnvironmentError> {
        let mut tx = self.store.begin().await?;
        environments::change_settings(&mut tx, pk, change).await?;
        tx.commit().await?;
        self.settings.forget();
        Ok(())
    }

    fn find_known(&self, pk: EnvironmentPk) -> Option<Arc<Environment>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(&pk).cloned()
    }

    async fn reload(&self) -> Result<(), EnvironmentError> {
        let mut conn = self.store.connect().await?;
        let stored = environments::list(&mut conn).await?;
        let known =
            stored.into_iter().map(|row| self.unwrap(row).map(|opened| (opened.pk, Arc::new(opened))));
        let known = known.collect::<Result<HashMap<_, _>, _>>()?;
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(())
    }

    fn unwrap(&self, row: StoredEnvironment) -> Result<Environment, EnvironmentError> {
        let data_key = self
            .master_keys
            .unwrap_data_key(&row.id.to_string(), &row.wrapped_data_key)
            .map_err(|source| EnvironmentError::DataKey { environment: row.name.clone(), source })?;
        Ok(Environment { pk: row.pk, id: row.id, name: row.name, data_key })
    }
}

async fn forget_on_notice(environments: Arc<Environments>, notices: Arc<Notices>) {
    let mut notices = notices.subscribe();
    loop {
        match notices.recv().await {
            Ok(Notice::Environments | Notice::Missed) | Err(RecvError::Lagged(_)) => {
                environments.settings.forget();
                environments.signing_keys.forget();
            }
            Ok(_) => {}
            Err(RecvError::Closed) => return,
        }
    }
}
