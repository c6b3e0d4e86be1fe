//! Keeps the credentials of connections fresh: refreshes them before they expire, when a client reads them, and when a
//! provider rejects them.
//!
//! However many callers and hosts need new credentials, the provider receives one request: a lock orders the callers of
//! a host, and a lease orders the hosts. The lease is in a row, so no transaction is open during the request. The
//! provider's response is stored even if the caller disconnects, because it may have invalidated the old credentials.

pub(crate) mod rejection;
pub(crate) mod sealed;
pub(crate) mod source;

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::StreamExt;
use futures_util::stream;
use serde_json::Map;
use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::credentials::sealed::{
    OpenCredentialsError, associated_data, open_app_credentials, open_credentials,
};
use crate::outbound_webhooks::{self, AuthEvent, AuthOperation};
use syncline_auth::flows::{Flow, FlowError};
use syncline_auth::{AppCredentials, AppCredentialsError, Environment, Environments, StoredCredentials};
use syncline_egress::EgressGateway;
use syncline_providers::{Catalogue, Provider};
use syncline_store::Store;
use syncline_store::connection_errors::{self, Failing};
use syncline_store::connections::{self, Connection};
use syncline_store::integrations;
use syncline_store::refreshes::{self, RefreshState, RenewedCredentials};
use syncline_telemetry::clock::Clock;
use syncline_telemetry::metrics::metrics;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionPk, ProviderSlug};

/// A token that a client reads is valid for at least this long, or for half of its lifetime if that is shorter.
const DEFAULT_BUFFER_SECONDS: u32 = 900;
/// How long a shutdown waits for refreshes.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// Longer than a request to the provider may take, including the time to store its response.
const LEASE: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How long a caller waits for another host's refresh.
const MAX_WAIT: Duration = Duration::from_secs(45);
/// After a failed refresh, no request is sent to the provider for this long, unless a caller forces it.
const COOL_DOWN: TimeDelta = TimeDelta::seconds(30);
const MAX_FAILING_DAYS: i32 = 4;
/// Credentials that are younger than this were not rejected because they are outdated.
const MIN_AGE_TO_RENEW: TimeDelta = TimeDelta::seconds(30);
const BACKGROUND_INTERVAL: Duration = Duration::from_secs(2);
const BACKGROUND_RETRY: Duration = Duration::from_secs(300);
const BACKGROUND_BATCH: i64 = 64;
const BACKGROUND_CONCURRENCY: usize = 8;
/// How long the host tries to store new credentials while the database is unavailable.
const STORE_TIMEOUT: Duration = Duration::from_secs(120);

/// How fresh credentials must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// Refreshed if they expire soon.
    AsNeeded,
    /// Refreshed now, if they can be refreshed. A failure is an error even if the old credentials are still valid.
    Forced,
    /// Newer than this version, which the provider rejected.
    After { rejected_version: i64 },
    /// Refreshed ahead of time.
    Background,
}

/// A connection with usable credentials.
#[derive(Debug)]
pub struct LiveCredentials {
    pub connection: Connection,
    pub credentials: StoredCredentials,
}

impl LiveCredentials {
    /// Increases whenever the credentials are replaced.
    pub fn version(&self) -> i64 {
        self.connection.refresh.version
    }
}

/// Why there are no usable credentials. Clients see the messages.
#[derive(Debug, thiserror::Error)]
pub enum RefreshError {
    #[error("the connection was deleted")]
    Gone,
    #[error(
        "the provider `{0}` is not in this host's catalogue; add its file to SYNCLINE_PROVIDERS_DIR on every host"
    )]
    UnknownProvider(ProviderSlug),
    #[error("the credentials could not be refreshed: {}{}", .0, what_to_do(.0))]
    Failed(#[from] FlowError),
    #[error("the last refresh failed a moment ago; the next attempt is possible after {}", .retry_at.format("%T UTC"))]
    CoolingDown { retry_at: DateTime<Utc> },
    #[error("refreshing has failed on {MAX_FAILING_DAYS} days; the end user must reconnect")]
    Exhausted,
    #[error("the credentials have expired and have no refresh token; the end user must reconnect")]
    Expired,
    #[error("another refresh of these credentials is still in progress; try again")]
    Busy,
    #[error("the refresh was interrupted; try again")]
    Interrupted,
    #[error("the connection's credentials cannot be decrypted")]
    Open(#[from] OpenCredentialsError),
    #[error("the integration's app credentials cannot be decrypted")]
    OpenApp(#[from] AppCredentialsError),
    #[error("the connection could not be read or written")]
    Store(#[from] sqlx::Error),
}

impl RefreshError {
    /// Whether the host caused the error. Clients do not see the cause.
    pub fn is_internal(&self) -> bool {
        matches!(self, Self::Open(_) | Self::OpenApp(_) | Self::Store(_) | Self::Interrupted)
    }

    /// Whether the provider rejected the refresh, so that another attempt would fail too.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Failed(failed) if !failed.is_temporary())
    }
}

/// Decrypts the credentials of connections, and refreshes them when callers need it.
pub struct Credentials {
    pub(crate) clock: Clock,
    store: Store,
    environments: Arc<Environments>,
    catalogue: Arc<Catalogue>,
    gateway: Arc<EgressGateway>,
    /// Orders the callers on this host that refresh the same credentials.
    locks: moka::sync::Cache<ConnectionPk, Arc<tokio::sync::Mutex<()>>>,
    running: TaskTracker,
}

/// Encrypts credentials for the row of a connection, and decides when they are refreshed.
pub(crate) fn seal(
    environment: &Environment,
    provider: Option<&Provider>,
    connection: Uuid,
    credentials: &StoredCredentials,
    now: DateTime<Utc>,
) -> RenewedCredentials {
    let sealed = environment.data_key.seal(associated_data(&connection.to_string()), &credentials.to_bytes());
    RenewedCredentials {
        sealed,
        expire_at: credentials.expires_at(),
        due_at: provider.and_then(|provider| due_at(provider, credentials, now)),
    }
}

/// When a background task refreshes the credentials: a third earlier than a reader would.
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

/// When a reader refreshes the credentials: with three quarters of the background task's margin left.
fn readers_due_at(credentials: &StoredCredentials, state: RefreshState) -> Option<DateTime<Utc>> {
    let background = state.due_at?;
    match credentials.expires_at() {
        Some(expires_at) => Some(expires_at - (expires_at - background) * 3 / 4),
        None => Some(background),
    }
}

/// Decision about the current credentials.
enum RefreshDecision {
    Use,
    /// They are used, although they have expired and cannot be refreshed. Clients are notified once.
    UseExpired,
    Renew,
    Refuse(RefreshError),
}

fn decide(
    credentials: &StoredCredentials,
    state: RefreshState,
    freshness: Freshness,
    now: DateTime<Utc>,
) -> RefreshDecision {
    if !credentials.can_be_renewed() {
        let has_expired = credentials.expires_at().is_some_and(|expires_at| expires_at <= now);
        let is_new = has_expired && !state.is_exhausted;
        return if is_new { RefreshDecision::UseExpired } else { RefreshDecision::Use };
    }
    let is_due = match freshness {
        Freshness::Forced => return RefreshDecision::Renew,
        Freshness::After { rejected_version } => {
            let is_better = state.version > rejected_version;
            if is_better || now - state.changed_at < MIN_AGE_TO_RENEW {
                return RefreshDecision::Use;
            }
            true
        }
        Freshness::AsNeeded => readers_due_at(credentials, state).is_some_and(|at| at <= now),
        Freshness::Background => state.due_at.is_some_and(|at| at <= now),
    };
    if !is_due {
        return RefreshDecision::Use;
    }
    let is_usable =
        !credentials.lack_a_token() && credentials.expires_at().is_none_or(|expires_at| expires_at > now);
    let retry_at = state.failed_at.map(|failed_at| failed_at + COOL_DOWN).filter(|retry_at| *retry_at > now);
    match (state.is_exhausted, retry_at) {
        // Credentials that still work are used.
        (true, _) | (_, Some(_)) if is_usable => RefreshDecision::Use,
        (true, _) => RefreshDecision::Refuse(RefreshError::Exhausted),
        (false, Some(retry_at)) => RefreshDecision::Refuse(RefreshError::CoolingDown { retry_at }),
        (false, None) => RefreshDecision::Renew,
    }
}

impl Credentials {
    pub fn new(
        clock: Clock,
        store: Store,
        environments: Arc<Environments>,
        catalogue: Arc<Catalogue>,
        gateway: Arc<EgressGateway>,
    ) -> Arc<Self> {
        let locks = moka::sync::Cache::builder().time_to_idle(Duration::from_secs(300)).build();
        let running = TaskTracker::new();
        Arc::new(Self { clock, store, environments, catalogue, gateway, locks, running })
    }

    /// Waits for refreshes in progress, so that no provider's response is lost.
    pub async fn finish(&self) {
        self.running.close();
        if tokio::time::timeout(SHUTDOWN_TIMEOUT, self.running.wait()).await.is_err() {
            tracing::warn!("the shutdown interrupted refreshes of credentials");
        }
    }

    /// Returns the connection with its credentials, refreshed as `freshness` requires.
    pub async fn live(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: ConnectionPk,
        freshness: Freshness,
    ) -> Result<LiveCredentials, RefreshError> {
        let connection = self.read_connection(connection).await?;
        self.live_of(environment, connection, freshness).await
    }

    /// [`live`](Self::live), for a connection that was just read.
    pub async fn live_of(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: Connection,
        freshness: Freshness,
    ) -> Result<LiveCredentials, RefreshError> {
        let live = self.open_live(environment, connection)?;
        match decide(&live.credentials, live.connection.refresh, freshness, self.clock.now()) {
            RefreshDecision::Use => return Ok(live),
            RefreshDecision::UseExpired => {
                self.note_expiry(environment, &live).await?;
                return Ok(live);
            }
            RefreshDecision::Refuse(refusal) => return Err(refusal),
            RefreshDecision::Renew => {}
        }
        // The refresh continues even if the caller disconnects.
        let (pk, version) = (live.connection.pk, live.version());
        let task = Arc::clone(self).renew(Arc::clone(environment), pk, freshness, version);
        match self.running.spawn(task).await {
            Ok(renewed) => renewed,
            Err(_) => Err(RefreshError::Interrupted),
        }
    }

    /// Adds a new token of the app to the credentials of an app installation. Returns others unchanged.
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
        let credentials = live.credentials.with_app_token(app.sign_token(self.clock.now())?);
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
            // Another caller has refreshed them in the meantime.
            if live.version() > seen_version {
                return Ok(live);
            }
            match decide(&live.credentials, live.connection.refresh, freshness, self.clock.now()) {
                RefreshDecision::Use | RefreshDecision::UseExpired => return Ok(live),
                RefreshDecision::Refuse(refusal) => return Err(refusal),
                RefreshDecision::Renew => {}
            }
            let owner = Uuid::new_v4();
            let mut conn = self.store.connect().await?;
            let is_ours =
                refreshes::take_lease(&mut conn, connection, live.version(), owner, LEASE.as_secs_f64())
                    .await?;
            drop(conn);
            if is_ours {
                return self.renew_under_lease(&environment, live, freshness, owner).await;
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(RefreshError::Busy);
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn renew_under_lease(
        &self,
        environment: &Environment,
        live: LiveCredentials,
        freshness: Freshness,
        owner: Uuid,
    ) -> Result<LiveCredentials, RefreshError> {
        let provider = self.catalogue.find(&live.connection.provider);
        let provider =
            provider.ok_or_else(|| RefreshError::UnknownProvider(live.connection.provider.clone()))?;
        match self.ask_provider(environment, &provider, &live).await {
            Ok(credentials) => {
                let now = self.clock.now();
                let renewed = seal(environment, Some(&provider), live.connection.id, &credentials, now);
                self.store_renewed(&live, &renewed).await?;
                metrics().count_refresh("renewed");
                tracing::debug!(connection.pk = live.connection.pk.0, "refreshed credentials");
                self.open_live(environment, self.read_connection(live.connection.pk).await?)
            }
            Err(error) => {
                metrics().count_refresh("failed");
                tracing::info!(
                    connection.pk = live.connection.pk.0,
                    provider = %live.connection.provider,
                    error = %error,
                    "could not refresh credentials"
                );
                if !self.note_failure(environment, &live, owner, &error).await? {
                    // An end user may have reconnected during the refresh, so the failure concerns old credentials.
                    let current =
                        self.open_live(environment, self.read_connection(live.connection.pk).await?)?;
                    if current.version() > live.version() {
                        return Ok(current);
                    }
                }
                let is_usable = freshness != Freshness::Forced
                    && !live.credentials.lack_a_token()
                    && live.credentials.expires_at().is_some_and(|expires_at| expires_at > self.clock.now());
                match error {
                    RefreshError::Failed(failed) if failed.is_temporary() && is_usable => Ok(live),
                    error => Err(error),
                }
            }
        }
    }

    /// The app credentials of a connection's integration.
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
        let flow = Flow::new(&self.gateway, provider, config, app.as_ref());
        Ok(flow.renew(&live.credentials).await?)
    }

    /// Stores new credentials. Retries while the database is unavailable, since the old credentials may be invalid now.
    async fn store_renewed(
        &self,
        live: &LiveCredentials,
        renewed: &RenewedCredentials,
    ) -> Result<(), RefreshError> {
        let deadline = tokio::time::Instant::now() + STORE_TIMEOUT;
        let mut wait = Duration::from_millis(100);
        loop {
            let stored = async {
                let mut tx = self.store.begin().await?;
                let is_stored =
                    refreshes::succeed(&mut tx, live.connection.pk, live.version(), renewed).await?;
                tx.commit().await?;
                Ok::<_, sqlx::Error>(is_stored)
            };
            match stored.await {
                Ok(true) => return Ok(()),
                Ok(false) => {
                    // The connection was reconnected or deleted, so these credentials are obsolete.
                    tracing::info!(
                        connection.pk = live.connection.pk.0,
                        "dropped refreshed credentials: the connection has newer ones"
                    );
                    return Ok(());
                }
                Err(error) if tokio::time::Instant::now() + wait < deadline => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        connection.pk = live.connection.pk.0,
                        "could not store refreshed credentials; retrying"
                    );
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(5));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Records a failed refresh. Clients receive one webhook when a connection stops working, not one per attempt.
    /// Returns `false` if the failure no longer concerns the connection.
    async fn note_failure(
        &self,
        environment: &Environment,
        live: &LiveCredentials,
        owner: Uuid,
        error: &RefreshError,
    ) -> Result<bool, RefreshError> {
        let connection = &live.connection;
        let mut tx = self.store.begin().await?;
        if !refreshes::fail(&mut tx, connection.pk, live.version(), owner, MAX_FAILING_DAYS).await? {
            tx.rollback().await?;
            return Ok(false);
        }
        self.report(&mut tx, environment, connection, error).await?;
        tx.commit().await?;
        Ok(true)
    }

    /// Records that credentials which cannot be refreshed have expired.
    async fn note_expiry(
        &self,
        environment: &Environment,
        live: &LiveCredentials,
    ) -> Result<(), RefreshError> {
        let connection = &live.connection;
        let mut tx = self.store.begin().await?;
        if refreshes::give_up(&mut tx, connection.pk, live.version()).await? {
            self.report(&mut tx, environment, connection, &RefreshError::Expired).await?;
        }
        Ok(tx.commit().await?)
    }

    /// Stores the connection's authentication error. Writes an outbound webhook if the connection had none.
    async fn report(
        &self,
        conn: &mut PgConnection,
        environment: &Environment,
        connection: &Connection,
        error: &RefreshError,
    ) -> sqlx::Result<()> {
        const CODE: ErrorCode = ErrorCode::RefreshTokenExternalError;
        let message = error.to_string();
        let log_id = Uuid::new_v4();
        let is_new =
            connection_errors::set(conn, connection.pk, Failing::Auth, log_id, CODE, &message).await?;
        if is_new {
            let auth_mode = self.catalogue.find(&connection.provider).map(|provider| provider.auth_mode);
            let event = AuthEvent::of(connection, auth_mode, AuthOperation::Refresh);
            outbound_webhooks::note_auth(conn, environment, &event.failed(CODE, &message)).await?;
        }
        Ok(())
    }

    /// Refreshes credentials that expire soon, so that readers rarely wait.
    pub async fn renew_ahead(self: Arc<Self>, shutdown: CancellationToken) {
        while shutdown.run_until_cancelled(tokio::time::sleep(BACKGROUND_INTERVAL)).await.is_some() {
            if let Err(error) = self.renew_due(&shutdown).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not list connections whose credentials expire soon"
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
                // The error is stored on the connection.
                let _outcome = self.live(&environment, due.connection, Freshness::Background).await;
            });
            let renewals = stream::iter(renewals).buffer_unordered(BACKGROUND_CONCURRENCY).collect::<()>();
            if shutdown.run_until_cancelled(renewals).await.is_none() || is_all {
                return Ok(());
            }
        }
    }
}

/// What to do about a refresh that failed, unless the message of the error says it.
fn what_to_do(error: &FlowError) -> &'static str {
    match error {
        FlowError::Refused { .. }
        | FlowError::NotUnderstood { .. }
        | FlowError::Unreachable(_)
        | FlowError::MissingCredential(_)
        | FlowError::Unsendable { .. }
        | FlowError::Jwt(_)
        | FlowError::KeyEncoding(_) => "; try again, or let the end user reconnect",
        FlowError::Unavailable { .. }
        | FlowError::NotSent(_)
        | FlowError::Config(_)
        | FlowError::IncompleteProvider(_)
        | FlowError::NoClient
        | FlowError::NothingToRenewWith => "",
    }
}

#[cfg(test)]
mod tests {
    use syncline_auth::OAuth2Token;

    use super::*;

    fn token(expires_at: DateTime<Utc>) -> StoredCredentials {
        StoredCredentials::OAuth2(OAuth2Token {
            access_token: "access".to_owned().into(),
            refresh_token: Some("refresh".to_owned().into()),
            expires_at: Some(expires_at),
            config_override: None,
            raw: "{}".to_owned().into(),
        })
    }

    fn verdict(
        credentials: &StoredCredentials,
        state: RefreshState,
        freshness: Freshness,
        clock: &Clock,
    ) -> &'static str {
        match decide(credentials, state, freshness, clock.now()) {
            RefreshDecision::Use => "use",
            RefreshDecision::UseExpired => "use, although expired",
            RefreshDecision::Renew => "renew",
            RefreshDecision::Refuse(RefreshError::Exhausted) => "exhausted",
            RefreshDecision::Refuse(_) => "cooling down",
        }
    }

    #[test]
    fn credentials_are_refreshed_in_the_background_first_and_then_by_readers() {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let clock = time.clock();
        let hours = |hours| DateTime::UNIX_EPOCH + TimeDelta::hours(hours);
        let credentials = token(hours(10));
        let state = RefreshState {
            version: 1,
            due_at: Some(hours(6)),
            changed_at: hours(0),
            expire_at: Some(hours(10)),
            failed_at: None,
            failing_days: 0,
            is_exhausted: false,
        };
        let verdicts = || {
            [Freshness::Background, Freshness::AsNeeded, Freshness::Forced]
                .map(|freshness| verdict(&credentials, state, freshness, &clock))
        };
        assert_eq!(verdicts(), ["use", "use", "renew"]);
        time.advance(Duration::from_secs(6 * 3600));
        assert_eq!(verdicts(), ["renew", "use", "renew"]);
        time.advance(Duration::from_secs(3600));
        assert_eq!(verdicts(), ["renew", "renew", "renew"]);
    }

    #[test]
    fn a_failed_refresh_is_repeated_after_the_cool_down() {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let clock = time.clock();
        let start = clock.now();
        let credentials = token(start + TimeDelta::seconds(10));
        let state = RefreshState {
            version: 1,
            due_at: Some(start),
            changed_at: start,
            expire_at: Some(start + TimeDelta::seconds(10)),
            failed_at: Some(start),
            failing_days: 1,
            is_exhausted: false,
        };
        let as_needed = |state| verdict(&credentials, state, Freshness::AsNeeded, &clock);
        time.advance(Duration::from_secs(9));
        assert_eq!(as_needed(state), "use", "the token is still valid");
        time.advance(Duration::from_secs(1));
        assert_eq!(as_needed(state), "cooling down");
        time.advance(Duration::from_secs(20));
        assert_eq!(as_needed(state), "renew");
        assert_eq!(as_needed(RefreshState { is_exhausted: true, ..state }), "exhausted");
    }

    #[test]
    fn a_failed_refresh_says_once_what_to_do() {
        let message = |error: FlowError| RefreshError::Failed(error).to_string();
        assert_eq!(
            message(FlowError::MissingCredential("key".to_owned())),
            "the credentials could not be refreshed: the credentials have no `key`; try again, or let the end user \
             reconnect"
        );
        assert_eq!(
            message(FlowError::NothingToRenewWith),
            "the credentials could not be refreshed: these credentials cannot be refreshed, because they contain no \
             refresh token; the end user must reconnect"
        );
    }

    #[test]
    fn the_expiry_of_credentials_without_a_refresh_token_is_reported_once() {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let clock = time.clock();
        let expires_at = clock.now() + TimeDelta::hours(1);
        let mut credentials = token(expires_at);
        if let StoredCredentials::OAuth2(token) = &mut credentials {
            token.refresh_token = None;
        }
        let state = RefreshState {
            version: 1,
            due_at: None,
            changed_at: clock.now(),
            expire_at: Some(expires_at),
            failed_at: None,
            failing_days: 0,
            is_exhausted: false,
        };
        let forced = |state| verdict(&credentials, state, Freshness::Forced, &clock);
        assert_eq!(forced(state), "use");
        time.advance(Duration::from_secs(3600));
        assert_eq!(forced(state), "use, although expired");
        assert_eq!(forced(RefreshState { is_exhausted: true, ..state }), "use");
    }

    #[test]
    fn new_credentials_are_not_refreshed_after_a_rejection() {
        let time = Clock::manual(DateTime::UNIX_EPOCH);
        let clock = time.clock();
        let start = clock.now();
        let credentials = token(start + TimeDelta::hours(1));
        let state = RefreshState {
            version: 2,
            due_at: None,
            changed_at: start,
            expire_at: Some(start + TimeDelta::hours(1)),
            failed_at: None,
            failing_days: 0,
            is_exhausted: false,
        };
        let after =
            |rejected_version| verdict(&credentials, state, Freshness::After { rejected_version }, &clock);
        assert_eq!((after(1), after(2)), ("use", "use"));
        time.advance(Duration::from_secs(30));
        assert_eq!((after(1), after(2)), ("use", "renew"));
    }
}
