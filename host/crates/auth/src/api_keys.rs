//! Creates and revokes secret keys of environments.

mod secret_key;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;

pub use self::secret_key::{ApiKey, InvalidSecretKey, check_key_name};

use super::{Authenticator, Scopes};
use syncline_store::Store;
use syncline_store::audit_log::{self, NewEntry};
pub use syncline_store::keys::KeyListing;
use syncline_store::keys::{self, NewKey, RevokedKey};
use syncline_types::actor::Actor;
use syncline_types::audit_log::{AuditAction, TargetKind};
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
    #[error("there is no valid secret key `{0}` in this environment; `syncline keys list` lists them")]
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
    authenticator: Arc<Authenticator>,
}

impl ApiKeys {
    pub fn new(store: Store, authenticator: Arc<Authenticator>) -> Self {
        Self { store, authenticator }
    }

    /// Creates a key with a name that no other valid key of the environment has.
    pub async fn create(
        &self,
        environment: EnvironmentPk,
        name: &str,
        scopes: &Scopes,
        actor: &Actor,
    ) -> Result<CreatedApiKey, ApiKeyError> {
        let key = ApiKey::generate();
        let mut tx = self.store.begin().await?;
        let created = store_key(&mut tx, environment, name, scopes, &key, actor).await?;
        let created = created.ok_or_else(|| ApiKeyError::Duplicate(name.to_owned()))?;
        tx.commit().await?;
        Ok(CreatedApiKey { id: created.id, key, created_at: created.created_at })
    }

    /// Lists the valid keys of an environment, without the keys themselves.
    pub async fn list(&self, environment: EnvironmentPk) -> Result<Vec<KeyListing>, ApiKeyError> {
        Ok(keys::list_of_environment(&mut *self.store.connect().await?, environment).await?)
    }

    /// Revokes a key on all hosts.
    pub async fn revoke(
        &self,
        environment: EnvironmentPk,
        id: Uuid,
        actor: &Actor,
    ) -> Result<(), ApiKeyError> {
        let mut tx = self.store.begin().await?;
        let revoked = keys::revoke_by_id(&mut tx, environment, id).await?.ok_or(ApiKeyError::Unknown(id))?;
        note_revoked(&mut tx, environment, &revoked, actor).await?;
        tx.commit().await?;
        self.authenticator.forget();
        Ok(())
    }

    /// Revokes the keys with this name or id on all hosts. Returns whether there was one.
    pub async fn revoke_by_name_or_id(
        &self,
        environment: EnvironmentPk,
        name_or_id: &str,
        actor: &Actor,
    ) -> Result<bool, ApiKeyError> {
        let mut tx = self.store.begin().await?;
        let revoked = keys::revoke(&mut tx, environment, name_or_id).await?;
        for key in &revoked {
            note_revoked(&mut tx, environment, key, actor).await?;
        }
        tx.commit().await?;
        self.authenticator.forget();
        Ok(!revoked.is_empty())
    }

    /// Whether the installation has any valid key.
    pub async fn any_exists(&self) -> Result<bool, ApiKeyError> {
        Ok(keys::any_exists(&mut *self.store.connect().await?).await?)
    }

    /// Makes `key` the only valid key of the environment with this name. Does nothing if it already is.
    pub async fn replace(
        &self,
        environment: EnvironmentPk,
        name: &str,
        scopes: &Scopes,
        key: &ApiKey,
        actor: &Actor,
    ) -> Result<(), ApiKeyError> {
        let mut tx = self.store.begin().await?;
        if let Some(revoked) = keys::revoke_replaced(&mut tx, environment, name, &key.hash()).await? {
            note_revoked(&mut tx, environment, &revoked, actor).await?;
        }
        // Another host may have stored the same key a moment ago.
        store_key(&mut tx, environment, name, scopes, key, actor).await?;
        Ok(tx.commit().await?)
    }
}

/// Stores a key. Returns `None` if the environment has a valid key with this name, or the key itself exists.
async fn store_key(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    name: &str,
    scopes: &Scopes,
    key: &ApiKey,
    actor: &Actor,
) -> sqlx::Result<Option<keys::CreatedKey>> {
    let new =
        NewKey { environment, name, prefix: key.shown_prefix(), hash: &key.hash(), scopes: scopes.names() };
    let created = keys::create(conn, &new).await?;
    if let Some(created) = &created {
        let id = created.id.to_string();
        let entry = NewEntry::new(environment, AuditAction::ApiKeyCreated, TargetKind::ApiKey, id)
            .with(json!({ "name": name, "scopes": scopes.names() }));
        audit_log::write(conn, actor, &entry).await?;
    }
    Ok(created)
}

async fn note_revoked(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    revoked: &RevokedKey,
    actor: &Actor,
) -> sqlx::Result<()> {
    let id = revoked.id.to_string();
    let entry = NewEntry::new(environment, AuditAction::ApiKeyRevoked, TargetKind::ApiKey, id)
        .with(json!({ "name": revoked.name }));
    audit_log::write(conn, actor, &entry).await
}
