//! Creates and revokes secret keys of environments.

mod secret_key;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use uuid::Uuid;

pub use self::secret_key::{ApiKey, InvalidSecretKey, check_key_name};

use super::Scopes;
use syncline_store::Store;
use syncline_store::events::{Event, Events};
pub use syncline_store::keys::KeyListing;
use syncline_store::keys::{self, NewKey};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::EnvironmentPk;

/// A new key. The key itself is only available now, because only its hash is stored.
pub struct CreatedApiKey {
    pub id: Uuid,
    pub key: ApiKey,
    pub created_at: DateTime<Utc>,
}

/// Why a key was not created or revoked.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeyError {
    #[error("there is no valid secret key `{0}` in this environment")]
    Unknown(Uuid),
    #[error("a valid key with the name `{0}` exists; choose another `display_name`")]
    Duplicate(String),
    #[error("could not write the secret key to the database")]
    Store(#[from] sqlx::Error),
}

impl ApiKeyError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown(_) => ErrorCode::UnknownApiKey,
            Self::Duplicate(_) => ErrorCode::DuplicateApiKey,
            Self::Store(_) => ErrorCode::InternalServerError,
        }
    }
}

/// Creates and revokes secret keys.
pub struct ApiKeys {
    store: Store,
    events: Arc<Events>,
}

impl ApiKeys {
    pub fn new(store: Store, events: Arc<Events>) -> Self {
        Self { store, events }
    }

    /// Creates a key with a name that no other valid key of the environment has.
    pub async fn create(
        &self,
        environment: EnvironmentPk,
        name: &str,
        scopes: &Scopes,
    ) -> Result<CreatedApiKey, ApiKeyError> {
        let key = ApiKey::generate();
        let new = NewKey {
            environment,
            name,
            prefix: key.shown_prefix(),
            hash: &key.hash(),
            scopes: scopes.names(),
        };
        let created = keys::create(&mut *self.store.connect().await?, &new).await?;
        let created = created.ok_or_else(|| ApiKeyError::Duplicate(name.to_owned()))?;
        Ok(CreatedApiKey { id: created.id, key, created_at: created.created_at })
    }

    /// Lists the valid keys of an environment, without the keys themselves.
    pub async fn list(&self, environment: EnvironmentPk) -> Result<Vec<KeyListing>, ApiKeyError> {
        Ok(keys::list_of_environment(&mut *self.store.connect().await?, environment).await?)
    }

    /// Revokes a key on all hosts.
    pub async fn revoke(&self, environment: EnvironmentPk, id: Uuid) -> Result<(), ApiKeyError> {
        if !keys::revoke_by_id(&mut *self.store.connect().await?, environment, id).await? {
            return Err(ApiKeyError::Unknown(id));
        }
        self.events.publish(Event::Keys);
        Ok(())
    }
}
