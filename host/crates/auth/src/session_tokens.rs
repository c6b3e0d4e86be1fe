//! Tokens of connect sessions, which browsers use instead of a secret key.

use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use syncline_crypto::{hex, random_bytes};

/// The prefix of tokens, by which existing clients and secret scanners recognize them.
const PREFIX: &str = "nango_connect_session_";
const DIGITS: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a connect session token must be `{PREFIX}` followed by {DIGITS} characters 0-9 or a-f")]
pub struct InvalidSessionToken;

/// The plain token of a session.
pub struct SessionToken(Zeroizing<String>);

impl SessionToken {
    /// Generates a token of 256 random bits.
    pub fn generate() -> Self {
        Self(Zeroizing::new(format!("{PREFIX}{}", hex(&random_bytes::<32>()))))
    }

    pub fn parse(text: &str) -> Result<Self, InvalidSessionToken> {
        let digits = text.strip_prefix(PREFIX).ok_or(InvalidSessionToken)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if digits.len() != DIGITS || !digits.bytes().all(is_digit) {
            return Err(InvalidSessionToken);
        }
        Ok(Self(Zeroizing::new(text.to_owned())))
    }

    /// Whether a text starts like a session token, even if the rest is malformed.
    pub fn is_meant_by(text: &str) -> bool {
        text.starts_with(PREFIX)
    }

    /// Returns the hash that is stored and looked up. Because of the hash, the duration of a lookup discloses nothing
    /// about a token.
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }

    pub fn expose(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_matches_the_pattern_that_clients_check() {
        let token = SessionToken::generate();
        let pattern = regex::Regex::new("^nango_connect_session_[0-9a-f]{64}$").unwrap();
        assert!(pattern.is_match(token.expose()));
        assert_eq!(SessionToken::parse(token.expose()).unwrap().hash(), token.hash());
        assert_ne!(SessionToken::generate().hash(), token.hash());
    }

    #[test]
    fn malformed_tokens_are_rejected() {
        let token = SessionToken::generate();
        for text in [
            "",
            PREFIX,
            &token.expose()[1..],
            &token.expose().to_uppercase(),
            &token.expose()[..token.expose().len() - 1],
            &format!("{}0", token.expose()),
            &token.expose().replace(PREFIX, "nango_connect_sessions"),
        ] {
            assert!(SessionToken::parse(text).is_err(), "{text}");
        }
    }
}
