//! Finds the environment and the scopes of a secret key.
//!
//! Keys are cached only while this host receives revocations, so a revoked key stops working at once.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::cache::Cache;
use super::{ApiKey, Environment, EnvironmentError, Environments, InvalidSecretKey, Scope, Scopes};
use syncline_store::events::{Event, Events};
use syncline_store::{Store, keys};
use syncline_types::accounts::Role;
use syncline_types::actor::Identity;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::KeyPk;

const RECORD_USE_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum AuthError {
    #[error(transparent)]
    Malformed(#[from] InvalidSecretKey),
    #[error(
        "the secret key is not valid: it was revoked, or belongs to another installation; create one in the dashboard \
         or with `syncline keys create`"
    )]
    Unknown,
    #[error("the secret key lacks the scope `{}`; use a key that has it", .0.as_str())]
    MissingScope(Scope),
    #[error("the role `{role}` lacks the scope `{}`; ask an administrator for another role", scope.as_str())]
    RoleLacksScope { role: Role, scope: Scope },
    #[error("could not read the secret key from the database")]
    Store(#[from] sqlx::Error),
    #[error("could not load the secret key's environment")]
    Environment(#[from] EnvironmentError),
}

impl AuthError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Malformed(_) => ErrorCode::InvalidSecretKeyFormat,
            Self::Unknown => ErrorCode::UnknownAccount,
            Self::MissingScope(_) | Self::RoleLacksScope { .. } => ErrorCode::Forbidden,
            Self::Store(_) | Self::Environment(_) => ErrorCode::InternalServerError,
        }
    }
}

/// The client of a request with a valid secret key.
#[derive(Clone)]
pub struct Client {
    pub environment: Arc<Environment>,
    key: KeyPk,
    key_id: Uuid,
    key_name: String,
    key_hash: [u8; 32],
    scopes: Scopes,
}

impl Client {
    pub fn allows(&self, scope: Scope) -> bool {
        self.scopes.allow(scope)
    }

    pub fn scopes(&self) -> &Scopes {
        &self.scopes
    }

    pub fn key(&self) -> KeyPk {
        self.key
    }

    /// The author of the changes that are made with the client's key.
    pub fn identity(&self) -> Identity {
        Identity::ApiKey { id: self.key_id, name: self.key_name.clone() }
    }

    pub fn require(&self, scope: Scope) -> Result<(), AuthError> {
        if self.allows(scope) { Ok(()) } else { Err(AuthError::MissingScope(scope)) }
    }
}

pub struct Authenticator {
    store: Store,
    environments: Arc<Environments>,
    events: Arc<Events>,
    clients: Cache<[u8; 32], Arc<Client>>,
    used: Mutex<HashSet<i64>>,
    invalidated: watch::Sender<()>,
}

impl Authenticator {
    pub fn new(store: Store, environments: Arc<Environments>, events: Arc<Events>) -> Arc<Self> {
        Arc::new(Self {
            store,
            environments,
            clients: Cache::new(Arc::clone(&events)),
            events,
            used: Mutex::default(),
            invalidated: watch::Sender::default(),
        })
    }

    pub async fn authenticate(&self, key: &str) -> Result<Arc<Client>, AuthError> {
        self.find(ApiKey::parse(key)?.hash()).await
    }

    /// Authenticates a long-running request again. Fails once its key has been revoked.
    pub async fn authenticate_again(&self, client: &Client) -> Result<Arc<Client>, AuthError> {
        self.find(client.key_hash).await
    }

    /// Notifies when keys may have been revoked, after they were dropped from the cache.
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.invalidated.subscribe()
    }

    async fn find(&self, hash: [u8; 32]) -> Result<Arc<Client>, AuthError> {
        let client = self.clients.get(hash, self.look_up(hash)).await?;
        self.used.lock().unwrap_or_else(PoisonError::into_inner).insert(client.key.0);
        Ok(client)
    }

    async fn look_up(&self, hash: [u8; 32]) -> Result<Arc<Client>, AuthError> {
        let mut conn = self.store.connect().await?;
        let stored = keys::find_by_hash(&mut conn, &hash).await?.ok_or(AuthError::Unknown)?;
        drop(conn);
        let environment = self.environments.get(stored.environment).await?;
        let scopes = Scopes::new(stored.scopes);
        Ok(Arc::new(Client {
            environment,
            key: stored.pk,
            key_id: stored.id,
            key_name: stored.name,
            key_hash: hash,
            scopes,
        }))
    }

    /// Drops the cached keys of this host. Other hosts do the same when they receive the event of a revocation.
    pub(crate) fn forget(&self) {
        self.clients.invalidate();
        self.invalidated.send_replace(());
    }

    /// Drops cached keys after keys were revoked, until `shutdown`.
    pub async fn invalidate(self: Arc<Self>, shutdown: CancellationToken) {
        let mut events = self.events.subscribe();
        // Events may have been missed before the subscription.
        self.forget();
        while let Some(Some(event)) = shutdown.run_until_cancelled(events.next()).await {
            if matches!(event, Event::Keys | Event::Missed) {
                self.forget();
            }
        }
    }

    /// Stores when keys were last used, until `shutdown`.
    pub async fn note_use(self: Arc<Self>, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(tokio::time::sleep(RECORD_USE_EVERY)).await.is_some() {
            let used: Vec<i64> =
                std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner))
                    .into_iter()
                    .collect();
            if used.is_empty() {
                continue;
            }
            let stored = async { keys::note_used(&mut *self.store.connect().await?, &used).await };
            if let Err(error) = stored.await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not store when keys were last used"
                );
            }
        }
    }
}
