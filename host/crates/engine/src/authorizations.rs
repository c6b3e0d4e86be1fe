//! Authorization flows in which an end user's browser visits the provider and returns: OAuth 2, OAuth 1, and the
//! installation of an app.
//!
//! At the start, the browser receives a state, which the provider returns, and a cookie. Both are stored as hashes. The
//! callback must present both, once, while its session is still open. So a callback that another person has started,
//! observed or already used is rejected.

mod answers;
mod callback;
mod error;
mod listeners;
mod outcome;
mod start;

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::callback::Callback;
pub use self::error::AuthorizationError;
pub use self::outcome::Outcome;
pub use self::start::{ReturnPath, StartRequest, StartedAuthorization};

use self::listeners::Listeners;
use crate::connect_sessions::ConnectSessions;
use crate::connections::Connections;
use crate::connections::typed::TypedConnections;
use crate::credentials::sealed::open_app_credentials;
use syncline_auth::{AppCredentials, ClientOverride, Environment, Environments};
use syncline_crypto::AssociatedData;
use syncline_egress::EgressGateway;
use syncline_providers::Catalogue;
use syncline_store::Store;
use syncline_store::events::Events;
use syncline_store::integrations::Integration;
use syncline_types::secret::{Secret, serialize_exposed, serialize_exposed_option};

/// How long an end user may stay at the provider, in seconds.
pub const AUTHORIZATION_SECONDS: i32 = 60 * 60;

/// The encrypted part of an authorization in progress.
#[derive(Debug, Serialize, Deserialize)]
struct AuthorizationSecrets {
    /// Sent again when the code is exchanged, with exactly the same text.
    redirect_uri: String,
    #[serde(default, serialize_with = "serialize_exposed_option")]
    pkce_verifier: Option<Secret<String>>,
    /// The token of OAuth 1's temporary credentials, and its secret.
    #[serde(default)]
    temporary: Option<TemporaryToken>,
    #[serde(default)]
    own_client: Option<ClientOverride>,
    #[serde(default, serialize_with = "serialize_exposed_option")]
    own_refresh_token: Option<Secret<String>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct TemporaryToken {
    token: String,
    #[serde(serialize_with = "serialize_exposed")]
    secret: Secret<String>,
}

/// Sends end users to providers and completes the callbacks.
pub struct Authorizations {
    store: Store,
    events: Arc<Events>,
    environments: Arc<Environments>,
    catalogue: Arc<Catalogue>,
    gateway: Arc<EgressGateway>,
    sessions: Arc<ConnectSessions>,
    connections: Arc<Connections>,
    typed: Arc<TypedConnections>,
    /// Cancelled when the shutdown begins. Requests then stop waiting for an outcome.
    stopping: CancellationToken,
    listeners: Arc<Listeners>,
    /// Callbacks in progress. They finish even if the browser disconnects.
    running: TaskTracker,
}

/// Dependencies of [`Authorizations`].
pub struct AuthorizationParts {
    pub store: Store,
    pub events: Arc<Events>,
    pub environments: Arc<Environments>,
    pub catalogue: Arc<Catalogue>,
    pub gateway: Arc<EgressGateway>,
    pub sessions: Arc<ConnectSessions>,
    pub connections: Arc<Connections>,
    pub typed: Arc<TypedConnections>,
    pub stopping: CancellationToken,
}

impl Authorizations {
    pub fn new(parts: AuthorizationParts) -> Arc<Self> {
        let AuthorizationParts {
            store,
            events,
            environments,
            catalogue,
            gateway,
            sessions,
            connections,
            typed,
            stopping,
        } = parts;
        let running = TaskTracker::new();
        Arc::new(Self {
            store,
            events,
            environments,
            catalogue,
            gateway,
            sessions,
            connections,
            typed,
            stopping,
            listeners: Arc::default(),
            running,
        })
    }

    /// Decrypts the credentials of the integration's app.
    fn open_app(
        &self,
        environment: &Environment,
        integration: &Integration,
    ) -> Result<AppCredentials, AuthorizationError> {
        let app = open_app_credentials(environment, integration)?;
        app.ok_or_else(|| AuthorizationError::NoApp(integration.unique_key.clone()))
    }
}

fn associated_data(id: &str) -> AssociatedData<'_> {
    AssociatedData { column: "authorizations.sealed_secrets", row: id }
}

fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}
