//! Secrets at rest: AES-256-GCM with a data key for each environment, wrapped by the operator's master key.
//!
//! Every sealed value is bound to the place it is stored in, so that a ciphertext copied to another row or
//! column does not open. A master key wraps
//! nothing but data keys, so replacing it concerns one row an environment.

use std::fmt;

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Key, Nonce};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rand::TryRngCore;
use rand::rngs::OsRng;
use zeroize::Zeroizing;

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 12;
const FORMAT: u8 = 1;

#[derive(Debug, thiserror::Error)]
pub enum CryptoError {
    #[error(
        "an encryption key must read `id:base64` with 32 bytes behind the base64, such as the output of `syncline keys encryption`; {problem}"
    )]
    MalformedMasterKey { problem: &'static str },
    #[error(
        "the encryption key `{id}` is needed to read this database and is not in SYNCLINE_ENCRYPTION_KEY"
    )]
    MissingMasterKey { id: String },
    #[error("a stored secret does not open: it was changed, moved, or sealed with another key")]
    DoesNotOpen,
}

/// Where a sealed value is stored: table and column, and what identifies the row for good.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub column: &'static str,
    pub row: &'a str,
}

impl Place<'_> {
    fn associated_data(&self) -> Vec<u8> {
        format!("{}\0{}", self.column, self.row).into_bytes()
    }
}

/// The operator's keys: the first is used for new wrapping, the others still open what they wrapped.
pub struct MasterKeys(Vec<MasterKey>);

struct MasterKey {
    id: String,
    bytes: Zeroizing<[u8; KEY_BYTES]>,
}

impl MasterKeys {
    /// Reads `id:base64`, or several of them separated by commas.
    pub fn parse(text: &str) -> Result<Self, CryptoError> {
        let malformed = |problem| CryptoError::MalformedMasterKey { problem };
        let mut keys: Vec<MasterKey> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (id, encoded) = part.split_once(':').ok_or(malformed("there is no `:`"))?;
            if id.is_empty()
                || id.len() > 64
                || !id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
            {
                return Err(malformed("the id must be 1 to 64 of letters, digits, `_`, `-` and `.`"));
            }
            if keys.iter().any(|key| key.id == id) {
                return Err(malformed("an id stands there twice"));
            }
            let decoded =
                Zeroizing::new(STANDARD.decode(encoded).map_err(|_| malformed("it is not base64"))?);
            let bytes = decoded.as_slice().try_into().map_err(|_| malformed("it is not 32 bytes long"))?;
            keys.push(MasterKey { id: id.to_owned(), bytes: Zeroizing::new(bytes) });
        }
        Ok(Self(keys))
    }

    /// A new random key as text for [`MasterKeys::parse`].
    pub fn generate(id: &str) -> Zeroizing<String> {
        Zeroizing::new(format!("{id}:{}", STANDARD.encode(random_bytes::<KEY_BYTES>())))
    }

    /// Each key's id with a fingerprint that tells keys apart without giving them away.
    pub fn fingerprints(&self) -> impl Iterator<Item = (&str, String)> {
        self.0.iter().map(|key| {
            let digest = blake3::derive_key("syncline 2026 master key fingerprint", key.bytes.as_slice());
            (key.id.as_str(), hex(&digest[..8]))
        })
    }

    /// A key for another purpose, derived from the active one.
    pub fn derive(&self, purpose: &str) -> [u8; KEY_BYTES] {
        blake3::derive_key(purpose, self.active().bytes.as_slice())
    }

    /// Makes a data key and its wrapped form, which is what is stored.
    pub fn new_data_key(&self, environment: &str) -> (DataKey, Vec<u8>) {
        let bytes = Zeroizing::new(random_bytes::<KEY_BYTES>());
        let active = self.active();
        let mut wrapped = vec![FORMAT, active.id.len() as u8];
        wrapped.extend_from_slice(active.id.as_bytes());
        wrapped.extend(encrypt(&active.bytes, &Self::place(environment), bytes.as_slice()));
        (DataKey(bytes), wrapped)
    }

    /// Opens a wrapped data key with whichever master key wrapped it.
    pub fn unwrap_data_key(&self, environment: &str, wrapped: &[u8]) -> Result<DataKey, CryptoError> {
        let [FORMAT, id_bytes, rest @ ..] = wrapped else { return Err(CryptoError::DoesNotOpen) };
        let (id, sealed) = rest.split_at_checked(usize::from(*id_bytes)).ok_or(CryptoError::DoesNotOpen)?;
        let key =
            self.0.iter().find(|key| key.id.as_bytes() == id).ok_or_else(|| {
                CryptoError::MissingMasterKey { id: String::from_utf8_lossy(id).into_owned() }
            })?;
        let bytes = Zeroizing::new(decrypt(&key.bytes, &Self::place(environment), sealed)?);
        let bytes = bytes.as_slice().try_into().map_err(|_| CryptoError::DoesNotOpen)?;
        Ok(DataKey(Zeroizing::new(bytes)))
    }

    fn active(&self) -> &MasterKey {
        &self.0[0]
    }

    fn place(environment: &str) -> Place<'_> {
        Place { column: "environments.data_key", row: environment }
    }
}

impl fmt::Debug for MasterKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| &key.id)).finish()
    }
}

/// The key that seals one environment's secrets.
#[derive(Clone)]
pub struct DataKey(Zeroizing<[u8; KEY_BYTES]>);

impl DataKey {
    pub fn seal(&self, place: Place<'_>, plaintext: &[u8]) -> Vec<u8> {
        let mut sealed = vec![FORMAT];
        sealed.extend(encrypt(&self.0, &place, plaintext));
        sealed
    }

    pub fn open(&self, place: Place<'_>, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, CryptoError> {
        let [FORMAT, rest @ ..] = sealed else { return Err(CryptoError::DoesNotOpen) };
        decrypt(&self.0, &place, rest).map(Zeroizing::new)
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(***)")
    }
}

/// Bytes from the operating system's generator.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    OsRng.try_fill_bytes(&mut bytes).expect("the operating system has a random generator");
    bytes
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn encrypt(key: &[u8; KEY_BYTES], place: &Place<'_>, plaintext: &[u8]) -> Vec<u8> {
    let nonce = random_bytes::<NONCE_BYTES>();
    let payload = Payload { msg: plaintext, aad: &place.associated_data() };
    let ciphertext = Aes256Gcm::new(Key::<Aes256Gcm>::from_slice(key))
        .encrypt(Nonce::from_slice(&nonce), payload)
        .expect("AES-GCM takes any text under 64 GB");
    [nonce.as_slice(), &ciphertext].concat()
}

fn decrypt(key: &[u8; KEY_BYTES], place: &Place<'_>, sealed: &[u8]) -> Result<Vec<u8>, CryptoError> {
    let (nonce, ciphertext) = sealed.split_at_checked(NONCE_BYTES).ok_or(CryptoError::DoesNotOpen)?;
    let payload = Payload { msg: ciphertext, aad: &place.associated_data() };
    Aes256Gcm::new(Key::<Aes256Gcm>::from_slice(key))
        .decrypt(Nonce::from_slice(nonce), payload)
        .map_err(|_| CryptoError::DoesNotOpen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place<'_> = Place { column: "connections.sealed_credentials", row: "1" };

    fn master(ids: &[&str]) -> String {
        ids.iter()
            .map(|id| format!("{id}:{}", STANDARD.encode([id.len() as u8; 32])))
            .collect::<Vec<_>>()
            .join(",")
    }

    #[test]
    fn a_sealed_value_opens_only_in_its_place() {
        let (key, _) = MasterKeys::parse(&master(&["a"])).unwrap().new_data_key("dev");
        let sealed = key.seal(PLACE, b"secret");
        assert_eq!(key.open(PLACE, &sealed).unwrap().as_slice(), b"secret");
        assert!(key.open(Place { row: "2", ..PLACE }, &sealed).is_err());
        assert!(key.open(Place { column: "integrations.sealed_credentials", ..PLACE }, &sealed).is_err());
        assert!(key.open(PLACE, &sealed[..sealed.len() - 1]).is_err());
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
    }

    #[test]
    fn a_data_key_opens_with_the_master_key_that_wrapped_it() {
        let (key, wrapped) = MasterKeys::parse(&master(&["a"])).unwrap().new_data_key("dev");
        let sealed = key.seal(PLACE, b"secret");
        let rotated = MasterKeys::parse(&master(&["bb", "a"])).unwrap();
        let unwrapped = rotated.unwrap_data_key("dev", &wrapped).unwrap();
        assert_eq!(unwrapped.open(PLACE, &sealed).unwrap().as_slice(), b"secret");
        assert!(rotated.unwrap_data_key("prod", &wrapped).is_err(), "bound to its environment");
        let stranger = MasterKeys::parse(&master(&["bb"])).unwrap().unwrap_data_key("dev", &wrapped);
        assert!(matches!(stranger, Err(CryptoError::MissingMasterKey { id }) if id == "a"));
    }

    #[test]
    fn malformed_master_keys_say_what_is_wrong() {
        for (text, problem) in [
            ("nothing", "there is no `:`"),
            ("a:!!", "it is not base64"),
            ("a:AAAA", "it is not 32 bytes long"),
            (&format!("{0},{0}", master(&["a"])), "an id stands there twice"),
        ] {
            assert!(MasterKeys::parse(text).unwrap_err().to_string().ends_with(problem), "{text}");
        }
    }
}
