//! Environments with their data keys open, and the check that this host has the right master keys.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use uuid::Uuid;

use crate::crypto::{CryptoError, DataKey, MasterKeys};
use crate::ids::{EnvironmentName, EnvironmentPk};
use crate::store::environments::StoredEnvironment;
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
    store: Store,
    master_keys: MasterKeys,
    known: RwLock<HashMap<EnvironmentPk, Arc<Environment>>>,
}

impl Environments {
    /// Checks the master keys against the database, makes the default environment if there is none, and opens
    /// every data key.
    pub async fn open(store: Store, master_keys: MasterKeys) -> Result<Self, EnvironmentError> {
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
        let environments = Self { store, master_keys, known: RwLock::default() };
        environments.reload().await?;
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
