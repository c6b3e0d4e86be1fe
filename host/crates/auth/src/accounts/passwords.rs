//! Hashes passwords with Argon2id, and checks them.

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Argon2, password_hash};
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use syncline_crypto::{hex, random_bytes};

const MIN_CHARACTERS: usize = 12;
/// Long enough for any pass phrase. Without a limit, hashing a long text would take long.
pub(super) const MAX_BYTES: usize = 1_000;

/// A password that is long enough for a new account.
#[derive(Clone)]
pub struct Password(Zeroizing<String>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the password must have at least {MIN_CHARACTERS} characters, and at most {MAX_BYTES} bytes")]
pub struct WeakPassword;

impl Password {
    pub fn new(text: String) -> Result<Self, WeakPassword> {
        let text = Zeroizing::new(text);
        if text.chars().count() < MIN_CHARACTERS || text.len() > MAX_BYTES {
            return Err(WeakPassword);
        }
        Ok(Self(text))
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HashingError {
    #[error("the stored hash of the password is malformed")]
    Argon2(#[from] password_hash::Error),
    #[error("the thread that hashes passwords ended early")]
    Thread(#[from] tokio::task::JoinError),
}

/// Hashes a password with a new salt. Waits until `permits` allow the memory that this needs.
pub(super) async fn hash_password(permits: &Semaphore, password: Password) -> Result<String, HashingError> {
    let _permit = permits.acquire().await.expect("the semaphore is never closed");
    tokio::task::spawn_blocking(move || Ok(hash(&password.0)?)).await?
}

/// Whether a typed password has this hash.
pub(super) async fn verify_password(
    permits: &Semaphore,
    typed: String,
    hash: String,
) -> Result<bool, HashingError> {
    let typed = Zeroizing::new(typed);
    let _permit = permits.acquire().await.expect("the semaphore is never closed");
    let check = move || {
        let hash = PasswordHash::new(&hash)?;
        match Argon2::default().verify_password(typed.as_bytes(), &hash) {
            Ok(()) => Ok(true),
            Err(password_hash::Error::Password) => Ok(false),
            Err(error) => Err(error.into()),
        }
    };
    tokio::task::spawn_blocking(check).await?
}

/// Returns the hash of a random password.
pub(super) fn decoy_hash() -> String {
    hash(&hex(&random_bytes::<16>())).expect("any text has a hash")
}

fn hash(password: &str) -> Result<String, password_hash::Error> {
    let salt = SaltString::encode_b64(&random_bytes::<16>())?;
    Ok(Argon2::default().hash_password(password.as_bytes(), &salt)?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_password_itself_has_its_hash() {
        let permits = Semaphore::new(1);
        let password = Password::new("correct horse battery".to_owned()).unwrap();
        let hash = hash_password(&permits, password).await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert!(verify_password(&permits, "correct horse battery".to_owned(), hash.clone()).await.unwrap());
        assert!(!verify_password(&permits, "Correct horse battery".to_owned(), hash).await.unwrap());
    }

    #[test]
    fn short_and_excessive_passwords_are_rejected() {
        for text in ["", "elevenchars", &"x".repeat(1_001)] {
            assert!(Password::new(text.to_owned()).is_err(), "{}", text.len());
        }
        assert!(Password::new("zwölf Zeichen".to_owned()).is_ok());
    }
}
