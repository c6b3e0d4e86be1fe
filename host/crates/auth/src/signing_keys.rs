//! The keys that sign an environment's outbound webhooks, in the format of Standard Webhooks: `whsec_` and Base64.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;
use zeroize::Zeroizing;

use super::{Environment, EnvironmentError, Environments};
use syncline_crypto::{AssociatedData, CryptoError, DataKey, random_bytes};
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::environments;
use syncline_store::signing_keys::{self, StoredSigningKey};
use syncline_types::actor::Actor;
use syncline_types::audit_log::AuditAction;
use syncline_types::ids::EnvironmentPk;
use syncline_types::secret::Secret;

/// How long a rotated key remains valid in addition to the new one.
pub const SIGNING_KEY_OVERLAP: Duration = Duration::from_secs(24 * 60 * 60);

const PREFIX: &str = "whsec_";
const KEY_BYTES: usize = 32;

/// A decrypted signing key.
#[derive(Debug, Clone)]
pub struct SigningKey {
    pub id: Uuid,
    text: Secret<String>,
    pub created_at: DateTime<Utc>,
    /// When the key expires. `None` until it is rotated.
    pub expires_at: Option<DateTime<Utc>>,
}

impl SigningKey {
    /// Returns the text for receivers: `whsec_` and the bytes in Base64.
    pub fn expose_text(&self) -> &str {
        self.text.expose()
    }

    /// Returns the key of the HMAC that Standard Webhooks defines.
    pub fn expose_bytes(&self) -> Zeroizing<Vec<u8>> {
        let encoded = self.text.expose().strip_prefix(PREFIX).unwrap_or_default();
        Zeroizing::new(STANDARD.decode(encoded).unwrap_or_default())
    }

    fn is_valid(&self, now: DateTime<Utc>) -> bool {
        self.expires_at.is_none_or(|expires_at| expires_at > now)
    }

    fn open(environment: &Environment, stored: &StoredSigningKey) -> Result<Self, CryptoError> {
        let row = stored.id.to_string();
        let opened = environment.data_key.open(associated_data(&row), &stored.sealed_key)?;
        let text = String::from_utf8(opened.to_vec()).map_err(|_| CryptoError::DoesNotOpen)?;
        Ok(Self {
            id: stored.id,
            text: Secret::new(text),
            created_at: stored.created_at,
            expires_at: stored.expires_at,
        })
    }
}

/// What happens to the previous keys in a rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FormerKeys {
    /// They remain valid for [`SIGNING_KEY_OVERLAP`], so that receivers can switch to the new key.
    Overlap,
    /// They expire at once, for example because they were disclosed.
    EndNow,
}

impl Environments {
    /// Returns the environment's valid signing keys, newest first. There is at least one.
    pub async fn signing_keys(&self, pk: EnvironmentPk) -> Result<Vec<SigningKey>, EnvironmentError> {
        let keys = self.signing_keys.get(pk, self.read_signing_keys(pk)).await?;
        let now = self.clock.now();
        Ok(keys.iter().filter(|key| key.is_valid(now)).cloned().collect())
    }

    /// Returns the environment's valid signing keys for a client, and records that the client has read them.
    pub async fn reveal_signing_keys(
        &self,
        pk: EnvironmentPk,
        actor: &Actor,
    ) -> Result<Vec<SigningKey>, EnvironmentError> {
        let keys = self.signing_keys(pk).await?;
        let ids: Vec<Uuid> = keys.iter().map(|key| key.id).collect();
        let entry =
            NewEntry::of_environment(pk, AuditAction::CredentialsRead).with(json!({ "signing_keys": ids }));
        audit_log::write(&mut *self.store.connect().await?, actor, &entry).await?;
        Ok(keys)
    }

    /// Creates a new key, which signs on all hosts from now on.
    pub async fn rotate_signing_key(
        &self,
        pk: EnvironmentPk,
        former: FormerKeys,
        actor: &Actor,
    ) -> Result<SigningKey, EnvironmentError> {
        let environment = self.get(pk).await?;
        let mut tx = self.store.begin().await?;
        if !environments::lock(&mut tx, pk).await? {
            return Err(EnvironmentError::Unknown(pk));
        }
        let overlap = match former {
            FormerKeys::Overlap => SIGNING_KEY_OVERLAP,
            FormerKeys::EndNow => Duration::ZERO,
        };
        if former == FormerKeys::Overlap && signing_keys::list_valid(&mut tx, pk).await?.len() > 1 {
            return Err(EnvironmentError::SigningKeysOverlap);
        }
        signing_keys::expire_all(&mut tx, pk, overlap).await?;
        create(&mut tx, pk, &environment.data_key).await?;
        let valid = open_valid(&mut tx, &environment).await?;
        let entry = NewEntry::of_environment(pk, AuditAction::SigningKeyRotated)
            .with(json!({ "previous_keys_end_now": former == FormerKeys::EndNow }));
        audit_log::write(&mut tx, actor, &entry).await?;
        tx.commit().await?;
        self.signing_keys.invalidate();
        valid.into_iter().next().ok_or(EnvironmentError::Unknown(pk))
    }

    async fn read_signing_keys(&self, pk: EnvironmentPk) -> Result<Arc<[SigningKey]>, EnvironmentError> {
        let environment = self.get(pk).await?;
        let mut conn = self.store.connect().await?;
        let valid = open_valid(&mut conn, &environment).await?;
        if !valid.is_empty() {
            return Ok(valid.into());
        }
        // Environments that an earlier version created have no signing key. The lock ensures that only one host
        // creates it.
        drop(conn);
        let mut tx = self.store.begin().await?;
        environments::lock(&mut tx, pk).await?;
        let mut valid = open_valid(&mut tx, &environment).await?;
        if valid.is_empty() {
            create(&mut tx, pk, &environment.data_key).await?;
            valid = open_valid(&mut tx, &environment).await?;
        }
        tx.commit().await?;
        Ok(valid.into())
    }
}

async fn open_valid(
    conn: &mut PgConnection,
    environment: &Environment,
) -> Result<Vec<SigningKey>, EnvironmentError> {
    let stored = signing_keys::list_valid(conn, environment.pk).await?;
    let opened = stored.iter().map(|stored| SigningKey::open(environment, stored));
    opened
        .collect::<Result<_, _>>()
        .map_err(|source| EnvironmentError::SigningKey { environment: environment.name.clone(), source })
}

/// Generates a key and stores it encrypted.
pub(super) async fn create(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    data_key: &DataKey,
) -> sqlx::Result<()> {
    let id = Uuid::new_v4();
    let bytes = Zeroizing::new(random_bytes::<KEY_BYTES>());
    let text = Zeroizing::new(format!("{PREFIX}{}", STANDARD.encode(bytes.as_slice())));
    let sealed = data_key.seal(associated_data(&id.to_string()), text.as_bytes());
    signing_keys::create(conn, environment, id, &sealed).await
}

fn associated_data(row: &str) -> AssociatedData<'_> {
    AssociatedData { column: "outbound_webhook_signing_keys.sealed_key", row }
}

#[cfg(test)]
mod tests {
    use syncline_telemetry::clock::Clock;

    use super::*;

    #[test]
    fn a_rotated_key_signs_until_the_overlap_has_passed() {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let clock = time.clock();
        let key = |expires_at| SigningKey {
            id: Uuid::nil(),
            text: Secret::new(String::new()),
            created_at: clock.now(),
            expires_at,
        };
        let (active, rotated) = (key(None), key(Some(clock.now() + SIGNING_KEY_OVERLAP)));
        let valid = || [&active, &rotated].map(|key| key.is_valid(clock.now()));
        time.advance(SIGNING_KEY_OVERLAP / 2);
        assert_eq!(valid(), [true, true]);
        time.advance(SIGNING_KEY_OVERLAP / 2);
        assert_eq!(valid(), [true, false]);
    }
}
