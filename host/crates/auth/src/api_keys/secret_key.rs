//! Secret keys: a prefix that secret scanners recognize, 256 random bits, and a checksum that detects mistyped keys.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use syncline_crypto::{hex, random_bytes};

const PREFIX: &str = "sk_syncline_";
const CHECKSUM_DIGITS: usize = 8;
/// The length of the part of a key that may be displayed.
const DISPLAYED_BYTES: usize = PREFIX.len() + 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSecretKey {
    #[error("the secret key was mistyped or cut off: its checksum is wrong")]
    Checksum,
    #[error("a secret key must have 16 to 255 printable characters")]
    Form,
}

/// The plain secret key.
pub struct ApiKey(Zeroizing<String>);

impl ApiKey {
    /// Generates a random key.
    pub fn generate() -> Self {
        let body = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(random_bytes::<32>()));
        let checksum = checksum(&body);
        Self(Zeroizing::new(body + &checksum))
    }

    /// Parses a generated key, whose checksum must be right, or any text that an operator chose as a key.
    pub fn parse(text: &str) -> Result<Self, InvalidSecretKey> {
        if !(16..=255).contains(&text.len()) || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(InvalidSecretKey::Form);
        }
        if text.starts_with(PREFIX) {
            let (body, given) = text.split_at(text.len() - CHECKSUM_DIGITS);
            if checksum(body) != given {
                return Err(InvalidSecretKey::Checksum);
            }
        }
        Ok(Self(Zeroizing::new(text.to_owned())))
    }

    /// Returns the hash that is stored and looked up.
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }

    /// Returns the beginning of the key, by which users recognize it. Empty for a key that an operator chose, because
    /// any part of it may be guessable.
    pub fn shown_prefix(&self) -> &str {
        if self.0.starts_with(PREFIX) { &self.0[..DISPLAYED_BYTES] } else { "" }
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

fn checksum(body: &str) -> String {
    hex(&Sha256::digest(body.as_bytes())[..CHECKSUM_DIGITS / 2])
}

/// Maximum length of a key's name, in characters.
const MAX_KEY_NAME_CHARS: usize = 255;

/// Checks the name of a key. The error contains the rule.
pub fn check_key_name(name: &str) -> Result<(), &'static str> {
    let is_long = name.chars().count() > MAX_KEY_NAME_CHARS;
    if name.trim().is_empty() || is_long || name.contains('\0') {
        return Err("must have 1 to 255 characters, at least one of which is not a space");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_key_parses_and_a_mistyped_one_does_not() {
        let key = ApiKey::generate();
        assert_eq!(ApiKey::parse(key.expose()).unwrap().hash(), key.hash());
        let mut mistyped = key.expose().to_owned();
        let letter = if mistyped.as_bytes()[20] == b'x' { "y" } else { "x" };
        mistyped.replace_range(20..21, letter);
        assert_eq!(ApiKey::parse(&mistyped).err(), Some(InvalidSecretKey::Checksum));
        assert_eq!(ApiKey::parse(&key.expose()[..40]).err(), Some(InvalidSecretKey::Checksum));
    }

    #[test]
    fn a_key_that_an_operator_chose_is_accepted() {
        assert!(ApiKey::parse("0b1e9a3c-8d2f-4a56-9c1d-2f3a4b5c6d7e").is_ok());
        assert_eq!(ApiKey::parse("short").err(), Some(InvalidSecretKey::Form));
        assert_eq!(ApiKey::parse("with a space in it").err(), Some(InvalidSecretKey::Form));
        assert_eq!(ApiKey::parse(&"x".repeat(256)).err(), Some(InvalidSecretKey::Form));
    }

    #[test]
    fn only_the_prefix_of_generated_keys_is_displayed() {
        let key = ApiKey::generate();
        assert_eq!(key.shown_prefix().len(), DISPLAYED_BYTES);
        assert_eq!(ApiKey::parse("chosen-by-an-operator").unwrap().shown_prefix(), "");
    }
}
