//! Keeps connections' credentials fresh: before they end, when somebody reads them, and when a provider refuses
//! them.
//!
//! However many callers and hosts want new credentials, the provider is asked once: callers on a host take turns,
//! and hosts take a lease. The lease is a row's, never a transaction, while the provider is waited for. What the
//! provider answers is stored whoever has gone away meanwhile, since it may have made the old credentials useless.

pub(crate) mod sealed;
pub(crate) mod source;

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::StreamExt;
use futures_util::stream;
use serde_json::Map;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::credentials::sealed::{OpenCredentialsError, open_app_credentials, open_credentials, place};
use crate::outbound_webhooks::{self, AuthEvent, AuthOperation};
use syncline_auth::flows::{Flow, FlowError};
use syncline_auth::{AppCredentials, AppCredentialsError, Environment, Environments, StoredCredentials};
use syncline_egress::Gate;
use syncline_providers::{Catalogue, Provider};
use syncline_store::Store;
use syncline_store::connection_errors::{self, Failing};
use syncline_store::connections::{self, Connection};
use syncline_store::integrations;
use syncline_store::refreshes::{self, RefreshState, RenewedCredentials};
use syncline_telemetry::metrics::metrics;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionPk, ProviderSlug};

/// A token has at least this long left, or half of its life if that is shorter, when a client reads it.
const DEFAULT_BUFFER_SECONDS: u32 = 900;
/// How long a shutdown waits for refreshes.
const REFRESHES_END_WITHIN: Duration = Duration::from_secs(30);
/// Longer than the provider is waited for, with the time to store its answer.
const LEASE: Duration = Duration::from_secs(30);
const LOOK_WHILE_WAITING: Duration = Duration::from_millis(50);
/// How long a caller waits for another host's refresh.
const MAX_WAIT: Duration = Duration::from_secs(45);
/// After a failure nobody but those who force it asks the provider again for so long.
const COOL_DOWN: TimeDelta = TimeDelta::seconds(30);
const MAX_FAILING_DAYS: i32 = 4;
/// Credentials this young that the provider refuses are refused for another reason than their age.
const TOO_YOUNG_TO_BLAME: TimeDelta = TimeDelta::seconds(30);
const BACKGROUND_EVERY: Duration = Duration::from_secs(2);
const BACKGROUND_RETRY: Duration = Duration::from_secs(300);
const BACKGROUND_BATCH: i64 = 64;
const BACKGROUND_AT_ONCE: usize = 8;
/// An answer that cannot be stored is kept in memory and tried again for so long.
const STORE_FOR: Duration = Duration::from_secs(120);

/// How fresh credentials must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Renewed if they end soon.
    AsNeeded,
    /// Renewed now, if they can be.
    Forced,
    /// Better than those of this version, which the provider refused.
    After { rejected_version: i64 },
    /// Renewed ahead of time.
    Background,
}

/// A connection with credentials that can be used.
#[derive(Debug)]
pub struct LiveCredentials {
    pub connection: Connection,
    pub credentials: StoredCredentials,
}

impl LiveCredentials {
    /// Grows whenever they are replaced.
    pub fn version(&self) -> i64 {
        self.connection.refresh.version
    }
}

/// Why there are no usable credentials. The texts are for clients.
#[derive(Debug, thiserror::Error)]
pub enum RefreshError {
    #[error("the connection was deleted")]
    Gone,
    #[error("the provider `{0}` is not in this host's catalogue")]
    UnknownProvider(ProviderSlug),
    #[error("the credentials could not be refreshed: {0}")]
    Failed(#[from] FlowError),
    #[error("the last refresh failed a moment ago; it is tried again after {}", .retry_at.format("%T UTC"))]
    CoolingDown { retry_at: DateTime<Utc> },
    #[error("refreshing has failed on {MAX_FAILING_DAYS} days; the end user must connect again")]
    Exhausted,
    #[error("another refresh of these credentials does not come to its end")]
    Busy,
    #[error("the refresh ended unexpectedly")]
    Interrupted,
    #[error("the connection's credentials cannot be opened")]
    Open(#[from] OpenCredentialsError),
    #[error("the integration's app credentials cannot be opened")]
    OpenApp(#[from] AppCredentialsError),
    #[error("the connection could not be read or written")]
    Store(#[from] sqlx::Error),
}

impl RefreshError {
    /// Whether it is our own fault, and its cause nobody else's business.
    pub fn is_internal(&self) -> bool {
        matches!(self, Self::Open(_) | Self::OpenApp(_) | Self::Store(_) | Self::Interrupted)
    }

    /// Whether the provider said no, so that asking again brings nothing.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Failed(failed) if !failed.is_temporary())
    }
}

/// Live credentials: opened, and renewed as far as callers need it.
pub struct Credentials {
    store: Store,
    environments: Arc<Environments>,
    catalogue: Arc<Catalogue>,
    gate: Arc<Gate>,
    /// Callers on this host refresh the same credentials one after the other.
    locks: moka::sync::Cache<ConnectionPk, Arc<tokio::sync::Mutex<()>>>,
    running: TaskTracker,
}

/// Seals credentials for a connection's row, and plans when they are renewed.
pub(crate) fn seal(
    environment: &Environment,
    provider: Option<&Provider>,
    connection: Uuid,
    credentials: &StoredCredentials,
) -> RenewedCredentials {
    let sealed = environment.data_key.seal(place(&connection.to_string()), &credentials.to_bytes());
    let now = Utc::now();
    RenewedCredentials {
        sealed,
        expire_at: credentials.expires_at(),
        due_at: provider.and_then(|provider| due_at(provider, credentials, now)),
    }
}

/// When the background renews them: a third earlier than a reader would.
fn due_at(provider: &Provider, credentials: &StoredCredentials, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    if !credentials.can_be_renewed() {
        return None;
    }
    if credentials.lack_a_token() {
        return Some(now);
    }
    let expires_at = credentials.expires_at()?;
    let life = (expires_at - now).max(TimeDelta::zero());
    let buffer =
        TimeDelta::seconds(provider.token_expiration_buffer.unwrap_or(DEFAULT_BUFFER_SECONDS).into());
    Some(expires_at - (buffer * 4 / 3).min(life * 2 / 3))
}

/// When a reader renews them: with three quarters of the background's margin left.
fn readers_due_at(credentials: &StoredCredentials, state: RefreshState) -> Option<DateTime<Utc>> {
    let background = state.due_at?;
    match credentials.expires_at() {
        Some(expires_at) => Some(expires_at - (expires_at - background) * 3 / 4),
        None => Some(background),
    }
}

/// What to do about credentials as they are.
enum Verdict {
    Use,
    Renew,
    Refuse(RefreshError),
}

fn judge(live: &LiveCredentials, freshness: Freshness, now: DateTime<Utc>) -> Verdict {
    let (credentials, state) = (&live.credentials, live.connection.refresh);
    if !credentials.can_be_renewed() {
        return Verdict::Use;
    }
    let is_due = match freshness {
        Freshness::Forced => return Verdict::Renew,
        Freshness::After { rejected_version } => {
            let is_better = state.version > rejected_version;
            if is_better || now - state.changed_at < TOO_YOUNG_TO_BLAME {
                return Verdict::Use;
            }
            true
        }
        Freshness::AsNeeded => readers_due_at(credentials, state).is_some_and(|at| at <= now),
        Freshness::Background => state.due_at.is_some_and(|at| at <= now),
    };
    if !is_due {
        return Verdict::Use;
    }
    let is_usable =
        !credentials.lack_a_token() && credentials.expires_at().is_none_or(|expires_at| expires_at > now);
    let retry_at = state.failed_at.map(|failed_at| failed_at + COOL_DOWN).filter(|retry_at| *retry_at > now);
    match (state.is_exhausted, retry_at) {
        // What still works is no reason to refuse anything.
        (true, _) | (_, Some(_)) if is_usable => Verdict::Use,
        (true, _) => Verdict::Refuse(RefreshError::Exhausted),
        (false, Some(retry_at)) => Verdict::Refuse(RefreshError::CoolingDown { retry_at }),
        (false, None) => Verdict::Renew,
    }
}

impl Credentials {
    pub fn new(
        store: Store,
        environments: Arc<Environments>,
        catalogue: Arc<Catalogue>,
        gate: Arc<Gate>,
    ) -> Arc<Self> {
        let locks = moka::sync::Cache::builder().time_to_idle(Duration::from_secs(300)).build();
        Arc::new(Self { store, environments, catalogue, gate, locks, running: TaskTracker::new() })
    }

    /// Waits for the refreshes that are in progress: a provider's answer must not be lost.
    pub async fn finish(&self) {
        self.running.close();
        if tokio::time::timeout(REFRESHES_END_WITHIN, self.running.wait()).await.is_err() {
            tracing::warn!("some refreshes of credentials did not end in time");
        }
    }

    /// The connection with its credentials, renewed as far as `freshness` asks for it.
    pub async fn live(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: ConnectionPk,
        freshness: Freshness,
    ) -> Result<LiveCredentials, RefreshError> {
        let connection = self.read_connection(connection).await?;
        self.live_of(environment, connection, freshness).await
    }

    /// The same of a connection that was read a moment ago.
    pub async fn live_of(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: Connection,
        freshness: Freshness,
    ) -> Result<LiveCredentials, RefreshError> {
        let live = self.open_live(environment, connection)?;
        match judge(&live, freshness, Utc::now()) {
            Verdict::Use => return Ok(live),
            Verdict::Refuse(refusal) => return Err(refusal),
            Verdict::Renew => {}
        }
        // From here on it goes to its end even if whoever asked has gone away.
        let (pk, version) = (live.connection.pk, live.version());
        let task = Arc::clone(self).renew(Arc::clone(environment), pk, freshness, version);
        match self.running.spawn(task).await {
            Ok(renewed) => renewed,
            Err(_) => Err(RefreshError::Interrupted),
        }
    }

    /// The same credentials, with a new token of the app's own where they are of an app's installation.
    pub async fn with_app_token(
        &self,
        environment: &Environment,
        live: LiveCredentials,
    ) -> Result<LiveCredentials, RefreshError> {
        if live.credentials.installation().is_none() {
            return Ok(live);
        }
        let app = self.app_of(environment, &live.connection).await?;
        let app = app.as_ref().and_then(AppCredentials::app).ok_or(FlowError::NoClient)?;
        let credentials = live.credentials.with_app_token(app.sign_token()?);
        Ok(LiveCredentials { credentials, ..live })
    }

    async fn read_connection(&self, connection: ConnectionPk) -> Result<Connection, RefreshError> {
        let mut conn = self.store.connect().await?;
        connections::get(&mut conn, connection).await?.ok_or(RefreshError::Gone)
    }

    fn open_live(
        &self,
        environment: &Environment,
        connection: Connection,
    ) -> Result<LiveCredentials, RefreshError> {
        let credentials = open_credentials(environment, &connection)?;
        Ok(LiveCredentials { connection, credentials })
    }

    async fn renew(
        self: Arc<Self>,
        environment: Arc<Environment>,
        connection: ConnectionPk,
        freshness: Freshness,
        seen_version: i64,
    ) -> Result<LiveCredentials, RefreshError> {
        let lock = self.locks.get_with(connection, Arc::default);
        let _locked = lock.lock().await;
        let deadline = tokio::time::Instant::now() + MAX_WAIT;
        loop {
            let live = self.open_live(&environment, self.read_connection(connection).await?)?;
            // Whoever came first did it for all who wait.
            if live.version() > seen_version {
                return Ok(live);
            }
            match judge(&live, freshness, Utc::now()) {
                Verdict::Use => return Ok(live),
                Verdict::Refuse(refusal) => return Err(refusal),
                Verdict::Renew => {}
            }
            let owner = Uuid::new_v4();
            let mut conn = self.store.connect().await?;
            let is_ours =
                refreshes::take_lease(&mut conn, connection, live.version(), owner, LEASE.as_secs_f64())
                    .await?;
            drop(conn);
            if is_ours {
                return self.renew_under_lease(&environment, live, owner).await;
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(RefreshError::Busy);
            }
            tokio::time::sleep(LOOK_WHILE_WAITING).await;
        }
    }

    async fn renew_under_lease(
        &self,
        environment: &Environment,
        live: LiveCredentials,
        owner: Uuid,
    ) -> Result<LiveCredentials, RefreshError> {
        let provider = self.catalogue.find(&live.connection.provider);
        let provider =
            provider.ok_or_else(|| RefreshError::UnknownProvider(live.connection.provider.clone()))?;
        match self.ask_provider(environment, provider, &live).await {
            Ok(credentials) => {
                let renewed = seal(environment, Some(provider), live.connection.id, &credentials);
                self.store_renewed(&live, &renewed).await?;
                metrics().count_refresh("renewed");
                tracing::debug!(connection.pk = live.connection.pk.0, "credentials were refreshed");
                self.open_live(environment, self.read_connection(live.connection.pk).await?)
            }
            Err(error) => {
                metrics().count_refresh("failed");
                tracing::info!(
                    connection.pk = live.connection.pk.0,
                    provider = %live.connection.provider,
                    error = %error,
                    "credentials could not be refreshed"
                );
                self.note_failure(environment, provider, &live, owner, &error).await?;
                let is_usable = !live.credentials.lack_a_token()
                    && live.credentials.expires_at().is_some_and(|expires_at| expires_at > Utc::now());
                match error {
                    RefreshError::Failed(failed) if failed.is_temporary() && is_usable => Ok(live),
                    error => Err(error),
                }
            }
        }
    }

    /// The credentials of the app of a connection's integration.
    pub(crate) async fn app_of(
        &self,
        environment: &Environment,
        connection: &Connection,
    ) -> Result<Option<AppCredentials>, RefreshError> {
        let mut conn = self.store.connect().await?;
        let integration = integrations::find(&mut conn, environment.pk, &connection.integration_key).await?;
        drop(conn);
        let integration = integration.ok_or(RefreshError::Gone)?;
        Ok(open_app_credentials(environment, &integration)?)
    }

    async fn ask_provider(
        &self,
        environment: &Environment,
        provider: &Provider,
        live: &LiveCredentials,
    ) -> Result<StoredCredentials, RefreshError> {
        let connection = &live.connection;
        let app = self.app_of(environment, connection).await?;
        let no_config = Map::new();
        let config = connection.connection_config.as_object().unwrap_or(&no_config);
        let flow = Flow::new(&self.gate, provider, config, app.as_ref());
        Ok(flow.renew(&live.credentials).await?)
    }

    /// The old credentials may be worth nothing now, so a database that is away is waited for.
    async fn store_renewed(
        &self,
        live: &LiveCredentials,
        renewed: &RenewedCredentials,
    ) -> Result<(), RefreshError> {
        let deadline = tokio::time::Instant::now() + STORE_FOR;
        let mut wait = Duration::from_millis(100);
        loop {
            let stored = async {
                let mut conn = self.store.connect().await?;
                refreshes::succeed(&mut conn, live.connection.pk, live.version(), renewed).await
            };
            match stored.await {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    // Somebody connected anew, or deleted the connection: then these are nobody's.
                    tracing::info!(
                        connection.pk = live.connection.pk.0,
                        "refreshed credentials were dropped: the connection has others"
                    );
                    return Ok(());
                }
                Err(error) if tokio::time::Instant::now() + wait < deadline => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        connection.pk = live.connection.pk.0,
                        "refreshed credentials could not be stored yet"
                    );
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(5));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Clients are told when a connection stops working, not of every attempt after that.
    async fn note_failure(
        &self,
        environment: &Environment,
        provider: &Provider,
        live: &LiveCredentials,
        owner: Uuid,
        error: &RefreshError,
    ) -> Result<(), RefreshError> {
        const CODE: ErrorCode = ErrorCode::RefreshTokenExternalError;
        let connection = &live.connection;
        let message = error.to_string();
        let mut tx = self.store.begin().await?;
        refreshes::fail(&mut tx, connection.pk, owner, MAX_FAILING_DAYS).await?;
        let log_id = Uuid::new_v4();
        let is_new =
            connection_errors::set(&mut tx, connection.pk, Failing::Auth, log_id, CODE, &message).await?;
        if is_new {
            let event = AuthEvent::of(connection, Some(provider.auth_mode), AuthOperation::Refresh);
            outbound_webhooks::note_auth(&mut tx, environment, &event.failed(CODE, &message)).await?;
        }
        tx.commit().await?;
        Ok(())
    }

    /// Renews what will end soon, so that readers rarely wait.
    pub async fn renew_ahead(self: Arc<Self>, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(tokio::time::sleep(BACKGROUND_EVERY)).await.is_some() {
            if let Err(error) = self.renew_due(&shutdown).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "connections whose credentials end soon could not be listed"
                );
            }
        }
    }

    async fn renew_due(self: &Arc<Self>, shutdown: &CancellationToken) -> sqlx::Result<()> {
        loop {
            let mut conn = self.store.connect().await?;
            let due =
                refreshes::list_due(&mut conn, BACKGROUND_RETRY.as_secs_f64(), BACKGROUND_BATCH).await?;
            drop(conn);
            let is_all = (due.len() as i64) < BACKGROUND_BATCH;
            let renewals = due.into_iter().map(|due| async move {
                let Ok(environment) = self.environments.get(due.environment).await else { return };
                // What went wrong is noted on the connection.
                let _outcome = self.live(&environment, due.connection, Freshness::Background).await;
            });
            let renewals = stream::iter(renewals).buffer_unordered(BACKGROUND_AT_ONCE).collect::<()>();
            if shutdown.run_until_cancelled(renewals).await.is_none() || is_all {
                return Ok(());
            }
        }
    }
}
