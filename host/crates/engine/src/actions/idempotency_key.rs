//! Idempotency-Keys of clients.

use std::fmt;
use std::str::FromStr;

use syncline_types::ids::MAX_NAME_BYTES;

/// The name that a client gives to one request, however many times it sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be 1 to {MAX_NAME_BYTES} printable ASCII characters")]
pub struct InvalidIdempotencyKey;

impl FromStr for IdempotencyKey {
    type Err = InvalidIdempotencyKey;

    fn from_str(text: &str) -> Result<Self, InvalidIdempotencyKey> {
        let is_printable = text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if text.is_empty() || text.len() > MAX_NAME_BYTES || !is_printable {
            return Err(InvalidIdempotencyKey);
        }
        Ok(Self(text.to_owned()))
    }
}

impl IdempotencyKey {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
