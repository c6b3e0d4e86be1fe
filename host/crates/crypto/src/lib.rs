//! Encrypts secrets at rest with AES-256-GCM. Each environment has a data key, which the operator's encryption key
//! wraps.
//!
//! Every encrypted value is bound to the place where it is stored, so a ciphertext that is copied to another row or
//! column cannot be decrypted. An encryption key wraps only data keys, so replacing it changes few rows. A data key
//! has versions. An encrypted value names its version, so hosts can read values while a data key is replaced.

mod data_key;
mod master_keys;
mod record_keys;

use aes_gcm::aead::{Aead, KeyInit, Payload};
use aes_gcm::{Aes256Gcm, Key, Nonce};
use rand::TryRngCore;
use rand::rngs::OsRng;
use zeroize::Zeroizing;

pub use data_key::{DataKey, DataKeyVersion};
pub use master_keys::MasterKeys;
pub use record_keys::{PayloadKey, PayloadKeys, RecordKeys, new_record_key};

const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 12;

/// The bytes of a key.
type KeyBytes = Zeroizing<[u8; KEY_BYTES]>;

#[derive(Debug, thiserror::Error)]
pub enum CryptoError {
    #[error(
        "the encryption key is malformed: {problem}; it must have the form `id:base64` with 32 bytes in Base64, as \
         `syncline keys encryption` prints it"
    )]
    MalformedMasterKey { problem: &'static str },
    #[error(
        "this database needs the encryption key `{id}`, which is missing from SYNCLINE_ENCRYPTION_KEY; add it"
    )]
    MissingMasterKey { id: String },
    #[error(
        "a stored secret is encrypted with version {version} of the data key, which this host does not know"
    )]
    UnknownVersion { version: i32 },
    #[error("the payload is encrypted with record key {number}, which this host does not know")]
    UnknownRecordKey { number: i32 },
    #[error("the environment has no record key to encrypt payloads with")]
    NoRecordKey,
    #[error("a stored secret cannot be decrypted: it was modified, moved, or encrypted with another key")]
    DoesNotOpen,
}

/// The place where an encrypted value is stored: its table and column, and a text that identifies the row permanently.
#[derive(Debug, Clone, Copy)]
pub struct AssociatedData<'a> {
    pub column: &'a str,
    pub row: &'a str,
}

impl AssociatedData<'_> {
    fn associated_data(&self) -> Vec<u8> {
        format!("{}\0{}", self.column, self.row).into_bytes()
    }
}

/// Returns random bytes from the operating system's generator.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    OsRng.try_fill_bytes(&mut bytes).expect("the operating system has a random generator");
    bytes
}

/// Returns lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn encrypt(key: &[u8; KEY_BYTES], associated_data: &AssociatedData<'_>, plaintext: &[u8]) -> Vec<u8> {
    let nonce = random_bytes::<NONCE_BYTES>();
    let payload = Payload { msg: plaintext, aad: &associated_data.associated_data() };
    let ciphertext = Aes256Gcm::new(Key::<Aes256Gcm>::from_slice(key))
        .encrypt(Nonce::from_slice(&nonce), payload)
        .expect("AES-GCM accepts texts of up to 64 GB");
    [nonce.as_slice(), &ciphertext].concat()
}

fn decrypt(
    key: &[u8; KEY_BYTES],
    associated_data: &AssociatedData<'_>,
    sealed: &[u8],
) -> Result<Vec<u8>, CryptoError> {
    let (nonce, ciphertext) = sealed.split_at_checked(NONCE_BYTES).ok_or(CryptoError::DoesNotOpen)?;
    let payload = Payload { msg: ciphertext, aad: &associated_data.associated_data() };
    Aes256Gcm::new(Key::<Aes256Gcm>::from_slice(key))
        .decrypt(Nonce::from_slice(nonce), payload)
        .map_err(|_| CryptoError::DoesNotOpen)
}
