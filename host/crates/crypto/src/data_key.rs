//! The key that encrypts one environment's secrets, in all versions that stored values still use.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use zeroize::Zeroizing;

use super::{AssociatedData, CryptoError, KeyBytes, decrypt, encrypt};

/// Format of values from before data keys had versions. They use version 1 and do not name it.
const UNVERSIONED: u8 = 1;
/// Format of values that name their version in four big-endian bytes. SQL queries read these bytes too.
const VERSIONED: u8 = 2;
const VERSION_BYTES: usize = 4;

/// One version of a data key.
pub struct DataKeyVersion(pub(super) KeyBytes);

/// Encrypts with the active version and decrypts with the version that a value names. All holders of a shared
/// `DataKey` see the versions that [`learn`](Self::learn) adds.
pub struct DataKey(RwLock<Versions>);

struct Versions {
    keys: BTreeMap<i32, DataKeyVersion>,
    active: i32,
}

impl DataKey {
    /// # Panics
    /// If the active version is not among them.
    pub fn new(keys: BTreeMap<i32, DataKeyVersion>, active: i32) -> Self {
        assert!(keys.contains_key(&active), "the active version is among the versions");
        Self(RwLock::new(Versions { keys, active }))
    }

    /// Adopts the versions and the active version of another copy. Versions that the copy lacks are kept, because
    /// values that they encrypted may already have been read.
    pub fn learn(&self, other: Self) {
        let other = other.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut versions = self.0.write().unwrap_or_else(PoisonError::into_inner);
        versions.keys.extend(other.keys);
        versions.active = other.active;
    }

    pub fn active_version(&self) -> i32 {
        self.versions().active
    }

    pub fn newest_version(&self) -> i32 {
        let versions = self.versions();
        versions.keys.last_key_value().map_or(versions.active, |(newest, _)| *newest)
    }

    pub fn seal(&self, associated_data: AssociatedData<'_>, plaintext: &[u8]) -> Vec<u8> {
        let versions = self.versions();
        let mut sealed = vec![VERSIONED];
        sealed.extend_from_slice(&versions.active.to_be_bytes());
        sealed.extend(encrypt(&versions.keys[&versions.active].0, &associated_data, plaintext));
        sealed
    }

    pub fn open(
        &self,
        associated_data: AssociatedData<'_>,
        sealed: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
        let (version, rest) = match sealed {
            [UNVERSIONED, rest @ ..] => (1, rest),
            [VERSIONED, rest @ ..] => {
                let (version, rest) =
                    rest.split_first_chunk::<VERSION_BYTES>().ok_or(CryptoError::DoesNotOpen)?;
                (i32::from_be_bytes(*version), rest)
            }
            _ => return Err(CryptoError::DoesNotOpen),
        };
        let versions = self.versions();
        let key = versions.keys.get(&version).ok_or(CryptoError::UnknownVersion { version })?;
        decrypt(&key.0, &associated_data, rest).map(Zeroizing::new)
    }

    fn versions(&self) -> RwLockReadGuard<'_, Versions> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: AssociatedData<'_> = AssociatedData { column: "connections.sealed_credentials", row: "1" };

    fn key(versions: &[i32], active: i32) -> DataKey {
        let version = |number: i32| DataKeyVersion(Zeroizing::new([number as u8; 32]));
        DataKey::new(versions.iter().map(|number| (*number, version(*number))).collect(), active)
    }

    #[test]
    fn a_value_decrypts_only_in_its_own_row_and_column() {
        let key = key(&[1], 1);
        let sealed = key.seal(PLACE, b"secret");
        assert_eq!(key.open(PLACE, &sealed).unwrap().as_slice(), b"secret");
        assert!(key.open(AssociatedData { row: "2", ..PLACE }, &sealed).is_err());
        assert!(
            key.open(AssociatedData { column: "integrations.sealed_credentials", ..PLACE }, &sealed).is_err()
        );
        assert!(key.open(PLACE, &sealed[..sealed.len() - 1]).is_err());
        assert!(key.open(PLACE, &sealed[..3]).is_err());
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
    }

    #[test]
    fn a_value_decrypts_with_the_version_that_encrypted_it() {
        let holder = key(&[1], 1);
        let old = holder.seal(PLACE, b"old");
        holder.learn(key(&[1, 2], 1));
        assert_eq!((holder.active_version(), holder.newest_version()), (1, 2));
        let new = key(&[1, 2], 2).seal(PLACE, b"new");
        assert_eq!(holder.open(PLACE, &new).unwrap().as_slice(), b"new");
        holder.learn(key(&[2], 2));
        assert_eq!(holder.open(PLACE, &old).unwrap().as_slice(), b"old", "version 1 is kept");
        assert_eq!(key(&[2], 2).open(PLACE, &holder.seal(PLACE, b"now")).unwrap().as_slice(), b"now");
        let unknown = key(&[1], 1).open(PLACE, &new);
        assert!(matches!(unknown, Err(CryptoError::UnknownVersion { version: 2 })));
    }

    #[test]
    fn a_value_with_a_changed_version_does_not_decrypt() {
        let both = key(&[1, 2], 2);
        let mut sealed = both.seal(PLACE, b"secret");
        sealed[4] = 1;
        assert!(matches!(both.open(PLACE, &sealed), Err(CryptoError::DoesNotOpen)));
    }

    #[test]
    fn an_unversioned_value_decrypts_with_the_first_version() {
        let both = key(&[1, 2], 2);
        let mut sealed = vec![UNVERSIONED];
        sealed.extend(encrypt(&Zeroizing::new([1; 32]), &PLACE, b"secret"));
        assert_eq!(both.open(PLACE, &sealed).unwrap().as_slice(), b"secret");
    }
}
