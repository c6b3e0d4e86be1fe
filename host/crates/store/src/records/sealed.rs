//! Payloads in their stored form: plain, or encrypted if the model requires it.

use crate::streams::StreamKey;
use syncline_crypto::{AssociatedData, CryptoError, PayloadKeys};

/// A payload in the form in which it is stored.
pub(super) struct SealedPayload<'r> {
    pub(super) key: Option<i32>,
    pub(super) hash: [u8; 16],
    pub(super) payload: Option<&'r str>,
    pub(super) sealed: Option<Vec<u8>>,
}

/// A stored payload that cannot be decrypted.
#[derive(Debug, thiserror::Error)]
#[error("record `{external_id}` of stream {} of connection {} cannot be decrypted", .stream.number, .stream.connection)]
struct Unreadable {
    external_id: String,
    stream: StreamKey,
    source: CryptoError,
}

impl<'r> SealedPayload<'r> {
    pub(super) fn new(
        keys: &PayloadKeys,
        external_id: &str,
        plain_hash: &[u8; 16],
        payload: &'r str,
    ) -> sqlx::Result<Self> {
        let stored = match keys.sealing().map_err(into_decode_error)? {
            None => Self { key: None, hash: *plain_hash, payload: Some(payload), sealed: None },
            Some(key) => Self {
                key: Some(key.number()),
                hash: key.hash(plain_hash),
                payload: None,
                sealed: Some(key.seal(associated_data(external_id), payload)),
            },
        };
        Ok(stored)
    }
}

/// Whether a stored hash, which was made with this key, is the hash of a payload.
pub(super) fn is_hash_of(
    keys: &PayloadKeys,
    key: Option<i32>,
    stored: &[u8; 16],
    plain: &[u8; 16],
) -> sqlx::Result<bool> {
    Ok(match key {
        None => stored == plain,
        Some(number) => *stored == keys.get(number).map_err(into_decode_error)?.hash(plain),
    })
}

/// Decrypts the payload of a row.
pub(super) fn open(
    keys: &PayloadKeys,
    stream: StreamKey,
    external_id: &str,
    key: Option<i32>,
    sealed: &[u8],
) -> sqlx::Result<String> {
    let key = keys.get(key.unwrap_or_default());
    key.and_then(|key| key.open(associated_data(external_id), sealed)).map_err(|source| {
        let unreadable = Unreadable { external_id: external_id.to_owned(), stream, source };
        sqlx::Error::Decode(Box::new(unreadable))
    })
}

/// Returns the number of the missing record key, if that is why a payload could not be decrypted.
pub fn missing_key(error: &sqlx::Error) -> Option<i32> {
    let sqlx::Error::Decode(error) = error else { return None };
    let source = match error.downcast_ref::<Unreadable>() {
        Some(unreadable) => Some(&unreadable.source),
        None => error.downcast_ref::<CryptoError>(),
    };
    match source {
        Some(CryptoError::UnknownRecordKey { number }) => Some(*number),
        _ => None,
    }
}

fn into_decode_error(error: CryptoError) -> sqlx::Error {
    sqlx::Error::Decode(Box::new(error))
}

fn associated_data(external_id: &str) -> AssociatedData<'_> {
    AssociatedData { column: "records.payload_ciphertext", row: external_id }
}
