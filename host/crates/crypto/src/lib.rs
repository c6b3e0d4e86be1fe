//! Secrets at rest: AES-256-GCM with a data key for each environment, wrapped by the operator's master key.
//!
//! Every sealed value is bound to the place it is stored in, so that a ciphertext copied to another row or
//! column does not open. A master key wraps nothing but data keys, so replacing it concerns few rows. A data key has
//! versions, and a sealed value names its own, so that a data key is replaced while hosts go on reading.

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
        "an encryption key must read `id:base64` with 32 bytes behind the base64, such as the output of `syncline keys encryption`; {problem}"
    )]
    MalformedMasterKey { problem: &'static str },
    #[error(
        "the encryption key `{id}` is needed to read this database and is not in SYNCLINE_ENCRYPTION_KEY"
    )]
    MissingMasterKey { id: String },
    #[error("version {version} of the data key, which a stored secret is sealed with, is not known here")]
    UnknownVersion { version: i32 },
    #[error("the record key {number}, which the payload is sealed with, is not known here")]
    UnknownRecordKey { number: i32 },
    #[error("there is no record key to seal payloads with")]
    NoRecordKey,
    #[error("a stored secret does not open: it was changed, moved, or sealed with another key")]
    DoesNotOpen,
}

/// Where a sealed value is stored: table and column, and what identifies the row for good.
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

fn encrypt(key: &[u8; KEY_BYTES], associated_data: &AssociatedData<'_>, plaintext: &[u8]) -> Vec<u8> {
    let nonce = random_bytes::<NONCE_BYTES>();
    let payload = Payload { msg: plaintext, aad: &associated_data.associated_data() };
    let ciphertext = Aes256Gcm::new(Key::<Aes256Gcm>::from_slice(key))
        .encrypt(Nonce::from_slice(&nonce), payload)
        .expect("AES-GCM takes any text under 64 GB");
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
