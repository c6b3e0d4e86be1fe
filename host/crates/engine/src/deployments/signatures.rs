//! The minisign signatures of bundles, and the keys with which an environment requires them to be signed.

use chrono::{DateTime, Utc};
use minisign_verify::{PublicKey, Signature};

use syncline_store::Store;
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::bundles::{self, StoredBundleKey};
use syncline_types::actor::Actor;
use syncline_types::audit_log::{AuditAction, TargetKind};
use syncline_types::ids::EnvironmentPk;

/// A public key that an environment trusts.
#[derive(Debug, Clone)]
pub struct BundleKey {
    pub name: String,
    /// As base64, like the second line of a `.pub` file of minisign.
    pub public_key: String,
    pub created_at: DateTime<Utc>,
}

#[derive(Debug, thiserror::Error)]
pub enum BundleKeyError {
    #[error(
        "this is not a public key of minisign; use the file `minisign.pub` or its second line, such as `RWQf6LRCGA9i5…`"
    )]
    Malformed,
    #[error("a bundle key with the name `{0}` exists; choose another name, or remove it first")]
    Duplicate(String),
    #[error("there is no bundle key `{0}`; `syncline env bundle-keys list` lists the keys")]
    Unknown(String),
    #[error("the name of a bundle key must consist of 1 to 100 characters on one line")]
    Name,
    #[error("could not access the bundle keys in the database")]
    Store(#[from] sqlx::Error),
}

/// Why a bundle is rejected by an environment that requires signatures.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error(
        "this environment requires signed bundles, and this one has no signature; sign the file with \
         `minisign -Sm bundle.tar`, and deploy it with `syncline deploy bundle.tar`"
    )]
    Missing,
    #[error(
        "the signature is not a signature of minisign; send the content of the `.minisig` file, unchanged"
    )]
    Malformed,
    #[error("the bundle was signed with a key that this environment does not trust; it trusts {trusted}")]
    UnknownKey { trusted: String },
    #[error("the signature does not belong to this bundle; sign the bundle again after every change")]
    Mismatch,
}

/// Lists the keys that an environment trusts. Without keys, it accepts unsigned bundles.
pub async fn list_bundle_keys(
    store: &Store,
    environment: EnvironmentPk,
) -> Result<Vec<BundleKey>, BundleKeyError> {
    let keys = bundles::list_keys(&mut *store.connect().await?, environment).await?;
    let key = |StoredBundleKey { name, public_key, created_at }| BundleKey { name, public_key, created_at };
    Ok(keys.into_iter().map(key).collect())
}

/// Adds a key that an environment trusts. `text` is the key, or the content of its `.pub` file.
pub async fn add_bundle_key(
    store: &Store,
    environment: EnvironmentPk,
    name: &str,
    text: &str,
    actor: &Actor,
) -> Result<(), BundleKeyError> {
    let is_name =
        !name.trim().is_empty() && name.chars().count() <= 100 && !name.chars().any(char::is_control);
    if !is_name {
        return Err(BundleKeyError::Name);
    }
    let key = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    PublicKey::from_base64(key).map_err(|_| BundleKeyError::Malformed)?;
    let mut tx = store.begin().await?;
    if !bundles::add_key(&mut tx, environment, name, key).await? {
        return Err(BundleKeyError::Duplicate(name.to_owned()));
    }
    let entry = NewEntry::new(environment, AuditAction::BundleKeyAdded, TargetKind::BundleKey, name);
    audit_log::write(&mut tx, actor, &entry).await?;
    Ok(tx.commit().await?)
}

pub async fn remove_bundle_key(
    store: &Store,
    environment: EnvironmentPk,
    name: &str,
    actor: &Actor,
) -> Result<(), BundleKeyError> {
    let mut tx = store.begin().await?;
    if !bundles::remove_key(&mut tx, environment, name).await? {
        return Err(BundleKeyError::Unknown(name.to_owned()));
    }
    let entry = NewEntry::new(environment, AuditAction::BundleKeyRemoved, TargetKind::BundleKey, name);
    audit_log::write(&mut tx, actor, &entry).await?;
    Ok(tx.commit().await?)
}

/// Checks the signature of a bundle's file. Returns the name of the key that signed it, or `None` if no key is trusted
/// and bundles need no signature.
pub(super) fn check_signature(
    bundle: &[u8],
    signature: Option<&str>,
    trusted: &[StoredBundleKey],
) -> Result<Option<String>, SignatureError> {
    if trusted.is_empty() {
        return Ok(None);
    }
    let signature = Signature::decode(signature.ok_or(SignatureError::Missing)?)
        .map_err(|_| SignatureError::Malformed)?;
    let mut is_known = false;
    for key in trusted {
        // A key that cannot be parsed was not stored by this program, and verifies nothing.
        let Ok(public_key) = PublicKey::from_base64(&key.public_key) else { continue };
        match public_key.verify(bundle, &signature, false) {
            Ok(()) => return Ok(Some(key.name.clone())),
            Err(minisign_verify::Error::UnexpectedKeyId) => {}
            Err(_) => is_known = true,
        }
    }
    if is_known {
        return Err(SignatureError::Mismatch);
    }
    let trusted: Vec<_> = trusted.iter().map(|key| format!("`{}`", key.name)).collect();
    Err(SignatureError::UnknownKey { trusted: trusted.join(", ") })
}
