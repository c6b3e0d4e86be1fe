//! Checks the address and password of a person who signs in, and slows down guessing.
//!
//! Failures are counted for each typed address, whether it has an account or not. After several failures in a row, the
//! address is locked for a time that doubles with each further failure. While it is locked, no password is checked.

use std::time::Duration;

use super::passwords::{self, verify_password};
use super::{Account, Accounts, Email};
use syncline_store::accounts;
use syncline_types::error_code::ErrorCode;

/// The failure in a row that locks an address first.
const FAILURES_BEFORE_LOCK: i32 = 5;
const FIRST_LOCK: Duration = Duration::from_secs(30);
const LONGEST_LOCK: Duration = Duration::from_secs(15 * 60);

/// Why a person was not signed in. The messages do not show whether an address has an account.
#[derive(Debug, thiserror::Error)]
pub enum SignInError {
    #[error(
        "the email address or the password is wrong; check both, or ask an administrator for a new password link"
    )]
    Wrong,
    #[error("too many failed attempts to sign in with this address; try again in {} s", .0.as_secs() + 1)]
    Locked(Duration),
    #[error("could not access accounts in the database")]
    Store(#[from] sqlx::Error),
    #[error("could not check the password")]
    Hashing(#[from] passwords::HashingError),
}

impl SignInError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Wrong => ErrorCode::SignInFailed,
            Self::Locked(_) => ErrorCode::SignInLocked,
            Self::Store(_) | Self::Hashing(_) => ErrorCode::InternalServerError,
        }
    }
}

impl Accounts {
    /// Returns the account with this address if the password is right.
    pub async fn sign_in(&self, email: &Email, password: &str) -> Result<Account, SignInError> {
        let email_hash = email.hash();
        let mut conn = self.store.connect().await?;
        if let Some(wait) = accounts::sign_in_lock(&mut conn, &email_hash).await? {
            return Err(SignInError::Locked(wait));
        }
        let account = accounts::find_by_email(&mut conn, email.as_str()).await?;
        // Counted before the slow check, so that concurrent requests cannot try more passwords than allowed.
        accounts::note_sign_in_failure(
            &mut conn,
            &email_hash,
            FAILURES_BEFORE_LOCK,
            FIRST_LOCK,
            LONGEST_LOCK,
        )
        .await?;
        drop(conn);
        let hash = account.as_ref().and_then(|account| account.password_hash.clone());
        let has_password = hash.is_some();
        // Checked even if there is no account, so that the duration discloses nothing.
        let hash = hash.unwrap_or_else(|| self.decoy_hash.clone());
        let is_right = password.len() <= passwords::MAX_BYTES
            && verify_password(&self.hashing, password.to_owned(), hash).await?;
        match account {
            Some(account) if is_right && has_password => {
                let mut conn = self.store.connect().await?;
                accounts::clear_sign_in_failures(&mut conn, &email_hash).await?;
                Ok(account)
            }
            _ => Err(SignInError::Wrong),
        }
    }
}
