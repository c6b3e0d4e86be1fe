//! The accounts of people who use the dashboard: their roles, sessions and one-time links.
//!
//! A role is a set of the scopes that secret keys have, so people and keys are subject to the same checks.

pub(super) mod passwords;
pub(super) mod sign_in;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use zeroize::Zeroizing;

pub use syncline_store::accounts::StoredAccount as Account;

use self::passwords::{Password, hash_password, verify_password};
use super::{AuthError, Scope, ScopePreset, Scopes};
use syncline_crypto::{hex, random_bytes};
use syncline_store::Store;
use syncline_store::accounts::{
    self, LinkPurpose as StoredPurpose, NewAccount, NewAccountSession, StoredAccountSession,
};
use syncline_store::audit_log::{self, NewEntry};
use syncline_types::accounts::Role;
use syncline_types::actor::{Actor, Identity};
use syncline_types::audit_log::{AuditAction, TargetKind};
use syncline_types::error_code::ErrorCode;

/// A session ends after this time, even if it is used.
const SESSION_LIFETIME: Duration = Duration::from_secs(30 * 24 * 3600);
/// A session ends when it is not used for this time.
const SESSION_MAX_IDLE: Duration = Duration::from_secs(3 * 24 * 3600);
/// The time of the last use is stored at most this often.
const NOTE_USE_EVERY: chrono::TimeDelta = chrono::TimeDelta::minutes(1);
const LINK_LIFETIME: Duration = Duration::from_secs(3 * 24 * 3600);
const SWEEP_EVERY: Duration = Duration::from_secs(3600);
const FAILURES_KEPT_FOR: Duration = Duration::from_secs(24 * 3600);
/// Passwords that are hashed at the same time. Each takes 19 MiB of memory and a core for about 20 ms.
const MAX_HASHES: usize = 2;
const MAX_NAME_CHARACTERS: usize = 100;
const MAX_EMAIL_BYTES: usize = 254;
/// Longest header of a browser that is stored with its session, in bytes.
const MAX_USER_AGENT_BYTES: usize = 300;

/// Why an account or a link could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    #[error("there is no account `{0}`; it may have been deleted")]
    Unknown(Uuid),
    #[error("an account with the address `{0}` exists; use another address, or change that account")]
    Duplicate(Email),
    #[error("the name must have 1 to {MAX_NAME_CHARACTERS} characters")]
    InvalidName,
    #[error("this is the only administrator who can sign in; make another account an administrator first")]
    LastAdministrator,
    #[error("this link was used, has expired or never existed; ask an administrator for a new one")]
    InvalidLink,
    #[error("the current password is wrong; enter it again, or ask an administrator for a new password link")]
    WrongPassword,
    #[error("there is no such session; it may have ended")]
    UnknownSession,
    #[error("could not access accounts in the database")]
    Store(#[from] sqlx::Error),
    #[error("could not hash the password")]
    Hashing(#[from] passwords::HashingError),
}

impl AccountError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Unknown(_) => ErrorCode::UnknownDashboardAccount,
            Self::Duplicate(_) => ErrorCode::DuplicateDashboardAccount,
            Self::InvalidName => ErrorCode::InvalidBody,
            Self::LastAdministrator => ErrorCode::LastAdministrator,
            Self::InvalidLink => ErrorCode::InvalidAccountLink,
            Self::WrongPassword => ErrorCode::SignInFailed,
            Self::UnknownSession => ErrorCode::UnknownDashboardSession,
            Self::Store(_) | Self::Hashing(_) => ErrorCode::InternalServerError,
        }
    }
}

/// An email address in lower case. Only its form is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Email(String);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be an email address, such as ada@example.com")]
pub struct InvalidEmail;

impl FromStr for Email {
    type Err = InvalidEmail;

    fn from_str(text: &str) -> Result<Self, InvalidEmail> {
        let text = text.trim().to_lowercase();
        let is_plain = |part: &str| {
            !part.is_empty()
                && !part.chars().any(|c| c.is_whitespace() || c.is_control() || "@<>,;\"".contains(c))
        };
        match text.split_once('@') {
            Some((local, domain)) if text.len() <= MAX_EMAIL_BYTES && is_plain(local) && is_plain(domain) => {
                Ok(Self(text))
            }
            _ => Err(InvalidEmail),
        }
    }
}

impl Email {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }
}

impl fmt::Display for Email {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A secret that a browser keeps in a cookie, or that is part of a link. Only its hash is stored.
struct Token(Zeroizing<String>);

impl Token {
    fn generate() -> Self {
        Self(Zeroizing::new(hex(&random_bytes::<32>())))
    }

    fn hash(&self) -> [u8; 32] {
        hash_token(&self.0)
    }
}

fn hash_token(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// The token of a new session, for the browser's cookie.
pub struct NewSession(Token);

impl NewSession {
    pub fn expose(&self) -> &str {
        &self.0.0
    }
}

/// The token of a new one-time link.
pub struct AccountLink(Token);

impl AccountLink {
    pub fn expose(&self) -> &str {
        &self.0.0
    }
}

/// What a one-time link is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkPurpose {
    /// Creating the first account.
    FirstAccount,
    /// Choosing the password of the account with this address.
    Password { email: String },
}

/// A signed-in person.
#[derive(Debug, Clone)]
pub struct SignedIn {
    pub account: Account,
    pub session: Uuid,
    scopes: Scopes,
    /// Proves that a form was served to this session.
    form_token: String,
}

impl SignedIn {
    pub fn allows(&self, scope: Scope) -> bool {
        self.scopes.allow(scope)
    }

    pub fn scopes(&self) -> &Scopes {
        &self.scopes
    }

    pub fn require(&self, scope: Scope) -> Result<(), AuthError> {
        if self.allows(scope) {
            Ok(())
        } else {
            Err(AuthError::RoleLacksScope { role: self.account.role, scope })
        }
    }

    /// The author of changes that this person makes.
    pub fn identity(&self) -> Identity {
        identity(&self.account)
    }

    pub fn form_token(&self) -> &str {
        &self.form_token
    }
}

/// A session of an account, as its owner sees it.
pub type AccountSession = StoredAccountSession;

/// The accounts of an installation.
pub struct Accounts {
    store: Store,
    /// Limits how many passwords are hashed at the same time.
    hashing: Arc<Semaphore>,
    /// A hash of a random password. Checking it takes as long as checking that of an account.
    decoy_hash: String,
}

impl Accounts {
    pub fn new(store: Store) -> Arc<Self> {
        let decoy_hash = passwords::decoy_hash();
        Arc::new(Self { store, hashing: Arc::new(Semaphore::new(MAX_HASHES)), decoy_hash })
    }

    /// Creates an account for a person who chooses a password with the returned link.
    pub async fn invite(
        &self,
        email: &Email,
        name: &str,
        role: Role,
        actor: &Actor,
    ) -> Result<(Account, AccountLink), AccountError> {
        check_name(name)?;
        let link = AccountLink(Token::generate());
        let mut tx = self.store.begin().await?;
        let new = NewAccount { email: email.as_str(), name: name.trim(), role, password_hash: None };
        let created = accounts::create(&mut tx, &new).await?;
        let account = created.ok_or_else(|| AccountError::Duplicate(email.clone()))?;
        accounts::replace_link(&mut tx, Some(account.pk), &link.0.hash(), LINK_LIFETIME).await?;
        let entry = entry(AuditAction::AccountCreated, &account).with(json!({ "role": role }));
        audit_log::write(&mut tx, actor, &entry).await?;
        tx.commit().await?;
        Ok((account, link))
    }

    /// Returns a link with which the first account can be created, or `None` if there is an account. Earlier links stop
    /// working.
    pub async fn first_account_link(&self) -> Result<Option<AccountLink>, AccountError> {
        let mut tx = self.store.begin().await?;
        accounts::lock_administrators(&mut tx).await?;
        if accounts::any_exists(&mut tx).await? {
            return Ok(None);
        }
        let link = AccountLink(Token::generate());
        accounts::replace_link(&mut tx, None, &link.0.hash(), LINK_LIFETIME).await?;
        tx.commit().await?;
        Ok(Some(link))
    }

    /// Returns what a one-time link is for. Does not use it up.
    pub async fn link_purpose(&self, token: &str) -> Result<LinkPurpose, AccountError> {
        let mut tx = self.store.begin().await?;
        let purpose =
            accounts::lock_link(&mut tx, &hash_token(token)).await?.ok_or(AccountError::InvalidLink)?;
        Ok(match purpose {
            StoredPurpose::FirstAccount => LinkPurpose::FirstAccount,
            StoredPurpose::Password(account) => LinkPurpose::Password { email: account.email },
        })
    }

    /// Creates the first account, an administrator, with a link from [`Self::first_account_link`].
    pub async fn create_first(
        &self,
        token: &str,
        email: &Email,
        name: &str,
        password: &Password,
        source: impl FnOnce(Identity) -> Actor,
    ) -> Result<Account, AccountError> {
        check_name(name)?;
        let hash = hash_password(&self.hashing, password.clone()).await?;
        let mut tx = self.store.begin().await?;
        accounts::lock_administrators(&mut tx).await?;
        match accounts::lock_link(&mut tx, &hash_token(token)).await? {
            Some(StoredPurpose::FirstAccount) if !accounts::any_exists(&mut tx).await? => {}
            _ => return Err(AccountError::InvalidLink),
        }
        let new = NewAccount {
            email: email.as_str(),
            name: name.trim(),
            role: Role::Administrator,
            password_hash: Some(&hash),
        };
        let created = accounts::create(&mut tx, &new).await?;
        let account = created.ok_or_else(|| AccountError::Duplicate(email.clone()))?;
        accounts::delete_links(&mut tx, None).await?;
        let entry = entry(AuditAction::AccountCreated, &account).with(json!({ "role": Role::Administrator }));
        audit_log::write(&mut tx, &source(identity(&account)), &entry).await?;
        tx.commit().await?;
        Ok(account)
    }

    /// Sets the password of the account of a one-time link, and ends its sessions.
    pub async fn set_password(
        &self,
        token: &str,
        password: &Password,
        source: impl FnOnce(Identity) -> Actor,
    ) -> Result<Account, AccountError> {
        let hash = hash_password(&self.hashing, password.clone()).await?;
        let mut tx = self.store.begin().await?;
        let Some(StoredPurpose::Password(account)) = accounts::lock_link(&mut tx, &hash_token(token)).await?
        else {
            return Err(AccountError::InvalidLink);
        };
        accounts::set_password(&mut tx, account.pk, &hash).await?;
        accounts::delete_links(&mut tx, Some(account.pk)).await?;
        accounts::delete_sessions(&mut tx, account.pk, None).await?;
        let email = Email(account.email.clone());
        accounts::clear_sign_in_failures(&mut tx, &email.hash()).await?;
        let entry = entry(AuditAction::AccountPasswordChanged, &account);
        audit_log::write(&mut tx, &source(identity(&account)), &entry).await?;
        tx.commit().await?;
        Ok(account)
    }

    /// Changes the password of a signed-in person, and ends the other sessions.
    pub async fn change_password(
        &self,
        person: &SignedIn,
        current: &str,
        new: &Password,
        actor: &Actor,
    ) -> Result<(), AccountError> {
        let known = person.account.password_hash.clone().ok_or(AccountError::WrongPassword)?;
        if !verify_password(&self.hashing, current.to_owned(), known).await? {
            return Err(AccountError::WrongPassword);
        }
        let hash = hash_password(&self.hashing, new.clone()).await?;
        let mut tx = self.store.begin().await?;
        accounts::set_password(&mut tx, person.account.pk, &hash).await?;
        accounts::delete_sessions(&mut tx, person.account.pk, Some(person.session)).await?;
        accounts::delete_links(&mut tx, Some(person.account.pk)).await?;
        let entry = entry(AuditAction::AccountPasswordChanged, &person.account);
        audit_log::write(&mut tx, actor, &entry).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Creates a link with which the person can choose a new password. The old password is valid until then.
    pub async fn new_password_link(
        &self,
        id: Uuid,
        actor: &Actor,
    ) -> Result<(Account, AccountLink), AccountError> {
        let link = AccountLink(Token::generate());
        let mut tx = self.store.begin().await?;
        let account = accounts::lock(&mut tx, id).await?.ok_or(AccountError::Unknown(id))?;
        accounts::replace_link(&mut tx, Some(account.pk), &link.0.hash(), LINK_LIFETIME).await?;
        let entry = entry(AuditAction::AccountPasswordLinkCreated, &account);
        audit_log::write(&mut tx, actor, &entry).await?;
        tx.commit().await?;
        Ok((account, link))
    }

    pub async fn list(&self) -> Result<Vec<Account>, AccountError> {
        Ok(accounts::list(&mut *self.store.connect().await?).await?)
    }

    /// Changes the role of an account. Its sessions have the new role with their next request.
    pub async fn set_role(&self, id: Uuid, role: Role, actor: &Actor) -> Result<(), AccountError> {
        let mut tx = self.store.begin().await?;
        let administrators = accounts::lock_administrators(&mut tx).await?;
        let account = accounts::lock(&mut tx, id).await?.ok_or(AccountError::Unknown(id))?;
        if role != Role::Administrator {
            check_not_last(&account, administrators)?;
        }
        accounts::set_role(&mut tx, account.pk, role).await?;
        let entry = entry(AuditAction::AccountRoleChanged, &account)
            .with(json!({ "from": account.role, "to": role }));
        audit_log::write(&mut tx, actor, &entry).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Deletes an account with its sessions.
    pub async fn delete(&self, id: Uuid, actor: &Actor) -> Result<(), AccountError> {
        let mut tx = self.store.begin().await?;
        let administrators = accounts::lock_administrators(&mut tx).await?;
        let account = accounts::lock(&mut tx, id).await?.ok_or(AccountError::Unknown(id))?;
        check_not_last(&account, administrators)?;
        accounts::delete(&mut tx, account.pk).await?;
        audit_log::write(&mut tx, actor, &entry(AuditAction::AccountDeleted, &account)).await?;
        tx.commit().await?;
        Ok(())
    }

    /// Starts a session.
    pub async fn start_session(
        &self,
        account: &Account,
        user_agent: Option<&str>,
        source: impl FnOnce(Identity) -> Actor,
    ) -> Result<NewSession, AccountError> {
        let token = Token::generate();
        let actor = source(identity(account));
        let address = actor.address.map(|address| address.to_string());
        let user_agent = user_agent.map(|agent| {
            let end = agent.floor_char_boundary(MAX_USER_AGENT_BYTES);
            syncline_types::sanitize::sanitize_text(&agent[..end])
        });
        let new = NewAccountSession {
            account: account.pk,
            token_hash: &token.hash(),
            address: address.as_deref(),
            user_agent: user_agent.as_deref(),
            lifetime: SESSION_LIFETIME,
        };
        let mut tx = self.store.begin().await?;
        accounts::create_session(&mut tx, &new).await?;
        audit_log::write(&mut tx, &actor, &entry(AuditAction::AccountSignedIn, account)).await?;
        tx.commit().await?;
        Ok(NewSession(token))
    }

    /// Returns the person of a session, or `None` if it has ended.
    pub async fn find_session(&self, token: &str) -> Result<Option<SignedIn>, AccountError> {
        let mut conn = self.store.connect().await?;
        let Some(found) = accounts::find_session(&mut conn, &hash_token(token), SESSION_MAX_IDLE).await?
        else {
            return Ok(None);
        };
        if Utc::now() - found.last_used_at > NOTE_USE_EVERY {
            accounts::note_session_used(&mut conn, found.id).await?;
        }
        let scopes = Scopes::new(scopes_of(found.account.role));
        let form_token = hex(&Sha256::digest(format!("form of {token}").as_bytes())[..]);
        Ok(Some(SignedIn { account: found.account, session: found.id, scopes, form_token }))
    }

    /// Lists the sessions of a person, the most recently used first.
    pub async fn sessions(&self, person: &SignedIn) -> Result<Vec<AccountSession>, AccountError> {
        let mut conn = self.store.connect().await?;
        Ok(accounts::list_sessions(&mut conn, person.account.pk, SESSION_MAX_IDLE).await?)
    }

    /// Ends one of the person's sessions.
    pub async fn end_session(
        &self,
        person: &SignedIn,
        session: Uuid,
        actor: &Actor,
    ) -> Result<(), AccountError> {
        let mut tx = self.store.begin().await?;
        if !accounts::delete_session(&mut tx, person.account.pk, session).await? {
            return Err(AccountError::UnknownSession);
        }
        audit_log::write(&mut tx, actor, &entry(AuditAction::AccountSignedOut, &person.account)).await?;
        Ok(tx.commit().await?)
    }

    /// Deletes expired sessions, links and failed sign-ins, until `shutdown`.
    pub async fn sweep(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(SWEEP_EVERY);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            let swept = async {
                let mut conn = self.store.connect().await?;
                accounts::delete_expired(&mut conn, SESSION_MAX_IDLE, FAILURES_KEPT_FOR).await
            };
            if let Some(Err(error)) = shutdown.run_until_cancelled(swept).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not remove expired sessions of the dashboard; retrying"
                );
            }
        }
    }
}

/// The author of changes that the person of an account makes.
fn identity(account: &Account) -> Identity {
    Identity::Account { id: account.id, email: account.email.clone() }
}

fn entry(action: AuditAction, account: &Account) -> NewEntry {
    NewEntry::of_installation(action, TargetKind::Account, &account.email)
}

/// The scopes of a role. They are those of secret keys.
fn scopes_of(role: Role) -> Vec<String> {
    match role {
        Role::Viewer => ScopePreset::ReadOnly,
        Role::Developer => ScopePreset::Full,
        Role::Administrator => ScopePreset::Account,
    }
    .scopes()
}

fn check_name(name: &str) -> Result<(), AccountError> {
    let length = name.trim().chars().count();
    if length == 0 || length > MAX_NAME_CHARACTERS || name.chars().any(char::is_control) {
        return Err(AccountError::InvalidName);
    }
    Ok(())
}

fn check_not_last(account: &Account, administrators: i64) -> Result<(), AccountError> {
    let counts = account.role == Role::Administrator && account.password_hash.is_some();
    if counts && administrators <= 1 { Err(AccountError::LastAdministrator) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_email_address_is_checked_and_lowercased() {
        assert_eq!(" Ada@Example.com ".parse::<Email>().unwrap().as_str(), "ada@example.com");
        for text in ["", "ada", "@example.com", "ada@", "a da@example.com", "a@b@c", "a\n@b", "<a@b>"] {
            assert_eq!(text.parse::<Email>(), Err(InvalidEmail), "{text:?}");
        }
    }

    #[test]
    fn each_role_has_the_scopes_of_the_one_before() {
        for pair in Role::ALL.windows(2) {
            let (lower, higher) = (Scopes::new(scopes_of(pair[0])), Scopes::new(scopes_of(pair[1])));
            for scope in Scope::ALL {
                assert!(!lower.allow(*scope) || higher.allow(*scope), "{pair:?} {scope:?}");
            }
        }
    }

    #[test]
    fn a_viewer_can_change_nothing_and_reads_no_secrets() {
        let scopes = Scopes::new(scopes_of(Role::Viewer));
        for scope in Scope::ALL.iter().filter(|scope| scopes.allow(**scope)) {
            let name = scope.as_str();
            assert!(
                ["read", "list", "list_functions"].contains(&name.rsplit(':').next().unwrap_or_default()),
                "{name}"
            );
        }
        assert!(!scopes.allow(Scope::VariablesRead));
    }
}
