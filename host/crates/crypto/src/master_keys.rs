//! The operator's encryption keys. They wrap data keys and nothing else.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::{
    AssociatedData, CryptoError, DataKey, DataKeyVersion, KEY_BYTES, KeyBytes, decrypt, encrypt, hex,
    random_bytes,
};

/// Format of wrapped keys from before data keys had versions. It does not bind a key to its version.
const UNVERSIONED: u8 = 1;
const VERSIONED: u8 = 2;

/// The operator's encryption keys. The first one is active and wraps new data keys. The others only unwrap existing
/// ones.
pub struct MasterKeys(Vec<MasterKey>);

struct MasterKey {
    id: String,
    bytes: KeyBytes,
}

impl MasterKeys {
    /// Parses `id:base64`, or several of them separated by commas. The first one is active.
    pub fn parse(text: &str) -> Result<Self, CryptoError> {
        let malformed = |problem| CryptoError::MalformedMasterKey { problem };
        let mut keys: Vec<MasterKey> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (id, encoded) = part.split_once(':').ok_or(malformed("the `:` is missing"))?;
            if id.is_empty()
                || id.len() > 64
                || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
            {
                return Err(malformed("the id must consist of 1 to 64 letters, digits, `_`, `-` and `.`"));
            }
            if keys.iter().any(|key| key.id == id) {
                return Err(malformed("two keys have the same id"));
            }
            let decoded = Zeroizing::new(
                STANDARD.decode(encoded).map_err(|_| malformed("the part after `:` is not Base64"))?,
            );
            let bytes =
                decoded.as_slice().try_into().map_err(|_| malformed("the key does not have 32 bytes"))?;
            keys.push(MasterKey { id: id.to_owned(), bytes: Zeroizing::new(bytes) });
        }
        Ok(Self(keys))
    }

    /// Generates a random key, as text for [`MasterKeys::parse`].
    pub fn generate(id: &str) -> Zeroizing<String> {
        Zeroizing::new(format!("{id}:{}", STANDARD.encode(random_bytes::<KEY_BYTES>())))
    }

    /// Returns each key's id with a fingerprint, which identifies the key without disclosing it.
    pub fn fingerprints(&self) -> impl Iterator<Item = (&str, String)> {
        self.0.iter().map(|key| {
            let digest = blake3::derive_key("syncline 2026 master key fingerprint", key.bytes.as_slice());
            (key.id.as_str(), hex(&digest[..8]))
        })
    }

    /// Derives a key for another purpose from the active key.
    pub fn derive(&self, purpose: &str) -> [u8; KEY_BYTES] {
        blake3::derive_key(purpose, self.active().bytes.as_slice())
    }

    /// Generates a data key. Returns it with the wrapped form of its first version, which is to be stored.
    pub fn new_data_key(&self, environment: &str) -> (DataKey, Vec<u8>) {
        let (version, wrapped) = self.new_version(environment, 1);
        (DataKey::new([(1, version)].into(), 1), wrapped)
    }

    /// Generates a further version of a data key. Returns it with its wrapped form.
    pub fn new_version(&self, environment: &str, version: i32) -> (DataKeyVersion, Vec<u8>) {
        let key = Zeroizing::new(random_bytes::<KEY_BYTES>());
        let wrapped = self.wrap(environment, version, &key);
        (DataKeyVersion(key), wrapped)
    }

    /// Unwraps a version of a data key with the encryption key that wrapped it.
    pub fn unwrap_version(
        &self,
        environment: &str,
        version: i32,
        wrapped: &[u8],
    ) -> Result<DataKeyVersion, CryptoError> {
        let (format, id, sealed) = parts(wrapped).ok_or(CryptoError::DoesNotOpen)?;
        let row = match (format, version) {
            (UNVERSIONED, 1) => environment.to_owned(),
            (VERSIONED, _) => row(environment, version),
            _ => return Err(CryptoError::DoesNotOpen),
        };
        let key =
            self.0.iter().find(|key| key.id.as_bytes() == id).ok_or_else(|| {
                CryptoError::MissingMasterKey { id: String::from_utf8_lossy(id).into_owned() }
            })?;
        let bytes = Zeroizing::new(decrypt(&key.bytes, &associated_data(&row), sealed)?);
        let bytes = bytes.as_slice().try_into().map_err(|_| CryptoError::DoesNotOpen)?;
        Ok(DataKeyVersion(Zeroizing::new(bytes)))
    }

    /// Wraps a version again with the active key. Returns `None` if the active key wrapped it already.
    pub fn rewrap_version(
        &self,
        environment: &str,
        version: i32,
        wrapped: &[u8],
    ) -> Result<Option<Vec<u8>>, CryptoError> {
        let opened = self.unwrap_version(environment, version, wrapped)?;
        let is_current = parts(wrapped)
            .is_some_and(|(format, id, _)| format == VERSIONED && id == self.active().id.as_bytes());
        Ok((!is_current).then(|| self.wrap(environment, version, &opened.0)))
    }

    pub fn active_id(&self) -> &str {
        &self.active().id
    }

    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|key| &*key.id)
    }

    fn wrap(&self, environment: &str, version: i32, key: &KeyBytes) -> Vec<u8> {
        let active = self.active();
        let mut wrapped = vec![VERSIONED, active.id.len() as u8];
        wrapped.extend_from_slice(active.id.as_bytes());
        wrapped.extend(encrypt(&active.bytes, &associated_data(&row(environment, version)), key.as_slice()));
        wrapped
    }

    fn active(&self) -> &MasterKey {
        &self.0[0]
    }
}

/// Splits a wrapped key into its format, the id of the encryption key, and the encrypted bytes.
fn parts(wrapped: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let [format, id_bytes, rest @ ..] = wrapped else { return None };
    let (id, sealed) = rest.split_at_checked(usize::from(*id_bytes))?;
    Some((*format, id, sealed))
}

fn row(environment: &str, version: i32) -> String {
    format!("{environment}/{version}")
}

fn associated_data(row: &str) -> AssociatedData<'_> {
    AssociatedData { column: "environments.data_key", row }
}

impl fmt::Debug for MasterKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| &key.id)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: AssociatedData<'_> = AssociatedData { column: "connections.sealed_credentials", row: "1" };

    fn master(ids: &[&str]) -> MasterKeys {
        let text: Vec<_> =
            ids.iter().map(|id| format!("{id}:{}", STANDARD.encode([id.len() as u8; 32]))).collect();
        MasterKeys::parse(&text.join(",")).unwrap()
    }

    /// Unwraps a data key that has only one version.
    fn unwrap(keys: &MasterKeys, environment: &str, wrapped: &[u8]) -> Result<DataKey, CryptoError> {
        Ok(DataKey::new([(1, keys.unwrap_version(environment, 1, wrapped)?)].into(), 1))
    }

    #[test]
    fn a_data_key_unwraps_with_the_encryption_key_that_wrapped_it() {
        let (key, wrapped) = master(&["a"]).new_data_key("dev");
        let sealed = key.seal(PLACE, b"secret");
        let rotated = master(&["bb", "a"]);
        let unwrapped = unwrap(&rotated, "dev", &wrapped).unwrap();
        assert_eq!(unwrapped.open(PLACE, &sealed).unwrap().as_slice(), b"secret");
        assert!(unwrap(&rotated, "prod", &wrapped).is_err(), "bound to its environment");
        assert!(rotated.unwrap_version("dev", 2, &wrapped).is_err(), "bound to its version");
        let other_keys = unwrap(&master(&["bb"]), "dev", &wrapped);
        assert!(matches!(other_keys, Err(CryptoError::MissingMasterKey { id }) if id == "a"));
    }

    #[test]
    fn a_rewrapped_data_key_needs_only_the_new_encryption_key() {
        let (key, wrapped) = master(&["a"]).new_data_key("dev");
        let sealed = key.seal(PLACE, b"secret");
        let both = master(&["bb", "a"]);
        let rewrapped = both.rewrap_version("dev", 1, &wrapped).unwrap().expect("another key wrapped it");
        let unwrapped = unwrap(&master(&["bb"]), "dev", &rewrapped).unwrap();
        assert_eq!(unwrapped.open(PLACE, &sealed).unwrap().as_slice(), b"secret");
        assert_eq!(both.rewrap_version("dev", 1, &rewrapped).unwrap(), None);
    }

    #[test]
    fn an_unversioned_wrapped_key_still_unwraps() {
        let keys = master(&["a"]);
        let bytes = [7; KEY_BYTES];
        let mut wrapped = vec![UNVERSIONED, 1, b'a'];
        wrapped.extend(encrypt(&keys.active().bytes, &associated_data("dev"), &bytes));
        assert_eq!(keys.unwrap_version("dev", 1, &wrapped).unwrap().0.as_slice(), bytes);
        assert!(keys.unwrap_version("dev", 2, &wrapped).is_err());
        let rewrapped = keys.rewrap_version("dev", 1, &wrapped).unwrap().expect("the format is outdated");
        assert_eq!(keys.unwrap_version("dev", 1, &rewrapped).unwrap().0.as_slice(), bytes);
    }

    #[test]
    fn malformed_encryption_keys_are_rejected_with_the_reason() {
        let key = format!("a:{}", STANDARD.encode([1; 32]));
        for (text, problem) in [
            ("nothing", "the `:` is missing"),
            ("a:!!", "the part after `:` is not Base64"),
            ("a:AAAA", "the key does not have 32 bytes"),
            (&format!("{key},{key}"), "two keys have the same id"),
        ] {
            assert!(MasterKeys::parse(text).unwrap_err().to_string().contains(problem), "{text}");
        }
    }
}
