//! The keys that encrypt payloads of records whose model has `encrypt = true`.
//!
//! An environment has few record keys, which are random. Each stream has its own keys, derived from them: a key can
//! encrypt about 2^32 values with random GCM nonces, and no stream comes near that number. The derivation includes
//! connection and stream, and the associated data includes the record's id. So a ciphertext decrypts only in its own
//! row.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

use super::{AssociatedData, CryptoError, KEY_BYTES, KeyBytes, decrypt, encrypt, random_bytes};

const CIPHER_CONTEXT: &str = "syncline 2026-11-21 payloads of a stream";
const HASH_CONTEXT: &str = "syncline 2026-11-21 change hashes of a stream";

/// The record keys of one environment, by number.
#[derive(Default)]
pub struct RecordKeys(BTreeMap<i32, KeyBytes>);

/// The derived keys of one stream.
pub struct PayloadKeys {
    keys: BTreeMap<i32, PayloadKey>,
    seals: bool,
}

/// Encrypts and decrypts payloads of one stream.
pub struct PayloadKey {
    number: i32,
    cipher: KeyBytes,
    hash: KeyBytes,
}

/// Generates the bytes of a record key. Encrypt them before they are stored.
pub fn new_record_key() -> Zeroizing<Vec<u8>> {
    Zeroizing::new(random_bytes::<KEY_BYTES>().to_vec())
}

impl RecordKeys {
    /// Creates the keys from their bytes, by number.
    pub fn new<'b>(keys: impl IntoIterator<Item = (i32, &'b [u8])>) -> Result<Self, CryptoError> {
        let read = |(number, bytes): (i32, &[u8])| {
            let bytes = bytes.try_into().map_err(|_| CryptoError::DoesNotOpen)?;
            Ok((number, Zeroizing::new(bytes)))
        };
        keys.into_iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn has(&self, number: i32) -> bool {
        self.0.contains_key(&number)
    }

    /// Derives the keys of a stream. New payloads are encrypted only if `seals` is true.
    pub fn of_stream(&self, connection: i64, stream: i32, seals: bool) -> PayloadKeys {
        let derive = |context: &str, key: &KeyBytes| {
            let mut hasher = blake3::Hasher::new_derive_key(context);
            hasher.update(key.as_slice());
            hasher.update(&connection.to_be_bytes());
            hasher.update(&stream.to_be_bytes());
            Zeroizing::new(*hasher.finalize().as_bytes())
        };
        let derived = self.0.iter().map(|(number, key)| {
            let (cipher, hash) = (derive(CIPHER_CONTEXT, key), derive(HASH_CONTEXT, key));
            (*number, PayloadKey { number: *number, cipher, hash })
        });
        PayloadKeys { keys: derived.collect(), seals }
    }
}

impl PayloadKeys {
    /// Returns the key that encrypts new payloads, or `None` if they are stored unencrypted.
    pub fn sealing(&self) -> Result<Option<&PayloadKey>, CryptoError> {
        if !self.seals {
            return Ok(None);
        }
        self.keys.last_key_value().map(|(_, newest)| Some(newest)).ok_or(CryptoError::NoRecordKey)
    }

    /// Returns the key that encrypted a stored payload.
    pub fn get(&self, number: i32) -> Result<&PayloadKey, CryptoError> {
        self.keys.get(&number).ok_or(CryptoError::UnknownRecordKey { number })
    }
}

impl PayloadKey {
    pub fn number(&self) -> i32 {
        self.number
    }

    pub fn seal(&self, associated_data: AssociatedData<'_>, payload: &str) -> Vec<u8> {
        encrypt(&self.cipher, &associated_data, payload.as_bytes())
    }

    pub fn open(&self, associated_data: AssociatedData<'_>, sealed: &[u8]) -> Result<String, CryptoError> {
        let opened = decrypt(&self.cipher, &associated_data, sealed)?;
        String::from_utf8(opened).map_err(|_| CryptoError::DoesNotOpen)
    }

    /// Returns a keyed hash of a change hash. Stored plainly, a change hash would let a reader of the database confirm
    /// a guess about the payload. The input is the plain change hash, so it works for rows without a payload, too.
    pub fn hash(&self, plain: &[u8]) -> [u8; 16] {
        let mut short = [0; 16];
        short.copy_from_slice(&blake3::keyed_hash(&self.hash, plain).as_bytes()[..16]);
        short
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: AssociatedData<'_> = AssociatedData { column: "records.payload_ciphertext", row: "a" };

    fn keys(numbers: &[u8]) -> RecordKeys {
        let bytes: Vec<[u8; KEY_BYTES]> = numbers.iter().map(|number| [*number; KEY_BYTES]).collect();
        let numbered =
            numbers.iter().zip(&bytes).map(|(number, bytes)| (i32::from(*number), bytes.as_slice()));
        RecordKeys::new(numbered).unwrap()
    }

    #[test]
    fn a_payload_decrypts_only_in_its_own_row() {
        let keys = keys(&[1]);
        let own = keys.of_stream(7, 3, true);
        let sealed = own.sealing().unwrap().unwrap().seal(PLACE, r#"{"id":"a"}"#);
        assert_eq!(own.get(1).unwrap().open(PLACE, &sealed).unwrap(), r#"{"id":"a"}"#);
        assert!(own.get(1).unwrap().open(AssociatedData { row: "b", ..PLACE }, &sealed).is_err());
        assert!(
            own.get(1).unwrap().open(AssociatedData { column: "dead_letters", ..PLACE }, &sealed).is_err()
        );
        for (connection, stream) in [(7, 4), (8, 3)] {
            let other = keys.of_stream(connection, stream, true);
            assert!(other.get(1).unwrap().open(PLACE, &sealed).is_err(), "{connection} {stream}");
        }
    }

    #[test]
    fn the_newest_key_encrypts_and_older_keys_still_decrypt() {
        let before = keys(&[1]).of_stream(1, 1, true);
        let old = before.sealing().unwrap().unwrap().seal(PLACE, "old");
        let now = keys(&[1, 2]).of_stream(1, 1, true);
        assert_eq!(now.sealing().unwrap().unwrap().number(), 2);
        assert_eq!(now.get(1).unwrap().open(PLACE, &old).unwrap(), "old");
        assert!(matches!(before.get(2), Err(CryptoError::UnknownRecordKey { number: 2 })));
        assert!(keys(&[]).of_stream(1, 1, false).sealing().unwrap().is_none());
        assert!(matches!(keys(&[]).of_stream(1, 1, true).sealing(), Err(CryptoError::NoRecordKey)));
    }

    #[test]
    fn a_hash_depends_on_the_key_and_the_stream() {
        let hash = |connection| keys(&[1]).of_stream(connection, 1, true).get(1).unwrap().hash(&[5; 16]);
        assert_ne!(hash(1), [5; 16]);
        assert_ne!(hash(1), hash(2), "equal payloads of two streams have different hashes");
        assert_eq!(hash(1), hash(1));
    }
}
