//! Creates connections from credentials that end users type in. The credentials are tested before they are stored.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::{Map, Value};

use crate::connect_sessions::{ConnectSession, SessionError};
use crate::connections::Connections;
use crate::connections::{AuthenticatedConnection, ConnectError};
use crate::credentials::sealed::open_app_credentials;
use crate::functions::Functions;
use crate::lookup::{LookupError, find_integration};
use syncline_auth::flows::{Flow, FlowError, TypedFields};
use syncline_auth::{AppCredentials, AppCredentialsError, ClientOverride, OAuthApp, StoredCredentials};
use syncline_egress::{self as egress, Credentials, EgressError, EgressGateway, FixedCredentials};
use syncline_providers::{AuthMode, Catalogue, Provider, Verification, VerificationMethod};
use syncline_store::Store;
use syncline_store::connections::{self, Connection};
use syncline_store::integrations::Integration;
use syncline_types::actor::Actor;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{IntegrationKey, ProviderSlug};

/// Short, because an end user is waiting.
const VERIFICATION_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// The values that an end user entered. Required values are present and have the right format.
#[derive(Debug)]
pub struct TypedCredentials {
    pub fields: TypedFields,
    /// The end user's own app, which replaces the integration's app.
    pub own_client: Option<ClientOverride>,
    pub connection_config: Map<String, Value>,
}

/// The integration and provider that an end user connects to.
#[derive(Debug)]
pub struct TypedTarget {
    pub integration: Integration,
    pub provider: Arc<Provider>,
    /// The configuration of the connection that is being reconnected. Empty for a new connection.
    pub earlier_config: Map<String, Value>,
}

/// Why no connection was created from the entered credentials. The messages are for end users.
#[derive(Debug, thiserror::Error)]
pub enum TypedConnectionError {
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error(transparent)]
    Session(#[from] SessionError),
    #[error("there is no provider `{0}` in the catalogue; `GET /providers` lists all providers")]
    UnknownProvider(ProviderSlug),
    #[error("integration `{integration}` uses auth mode {actual}; this endpoint is for auth mode {expected}")]
    OtherAuthMode { integration: IntegrationKey, actual: AuthMode, expected: AuthMode },
    #[error("{provider} does not accept these credentials; check them and try again")]
    Rejected { provider: String },
    #[error("{provider} does not accept these credentials: {reason}")]
    Refused { provider: String, reason: FlowError },
    #[error("these credentials cannot be sent to {provider}: {reason}")]
    Unsendable { provider: String, reason: String },
    #[error("{provider} could not confirm that these credentials belong to the account; try again")]
    Unconfirmed { provider: String },
    #[error("{provider} did not return a token: {reason}")]
    NoToken { provider: String, reason: FlowError },
    #[error("the integration has no consumer key and secret; set its `credentials`, or send your own")]
    NoClient,
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the credentials of the integration's app cannot be decrypted")]
    App(#[from] AppCredentialsError),
}

impl TypedConnectionError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Lookup(error) => error.code(),
            Self::Session(error) => error.code(),
            Self::Connect(error) => error.code(),
            Self::UnknownProvider(_) => ErrorCode::UnknownProvider,
            Self::OtherAuthMode { .. } => ErrorCode::InvalidAuthMode,
            Self::Rejected { .. }
            | Self::Refused { .. }
            | Self::Unconfirmed { .. }
            | Self::Unsendable { .. } => ErrorCode::ConnectionTestFailed,
            Self::NoToken { .. } => ErrorCode::RequestTokenExternalError,
            Self::NoClient => ErrorCode::MissingClientId,
            Self::App(_) => ErrorCode::InternalServerError,
        }
    }

    /// The code in the outbound webhook about the failure. `None` if the credentials themselves were not rejected.
    fn client_code(&self, session: &ConnectSession) -> Option<ErrorCode> {
        match self {
            Self::Rejected { .. }
            | Self::Refused { .. }
            | Self::Unconfirmed { .. }
            | Self::NoToken { .. } => Some(ErrorCode::ConnectionTestFailed),
            // For a reconnected connection, the connection's authentication error already notifies the backend.
            Self::Connect(ConnectError::Refused(_)) if session.reconnects.is_none() => {
                Some(ErrorCode::ConnectionValidationFailed)
            }
            Self::Lookup(_)
            | Self::Session(_)
            | Self::UnknownProvider(_)
            | Self::OtherAuthMode { .. }
            | Self::Connect(_)
            | Self::Unsendable { .. }
            | Self::NoClient
            | Self::App(_) => None,
        }
    }
}

/// Creates connections from credentials that end users type in.
pub struct TypedConnections {
    store: Store,
    catalogue: Arc<Catalogue>,
    gateway: Arc<EgressGateway>,
    functions: Arc<Functions>,
    connections: Arc<Connections>,
}

impl TypedConnections {
    pub fn new(
        store: Store,
        catalogue: Arc<Catalogue>,
        gateway: Arc<EgressGateway>,
        functions: Arc<Functions>,
        connections: Arc<Connections>,
    ) -> Arc<Self> {
        Arc::new(Self { store, catalogue, gateway, functions, connections })
    }

    /// Looks up the integration and provider that an end user connects to with credentials of this auth mode.
    pub async fn target(
        &self,
        session: &ConnectSession,
        key: &IntegrationKey,
        mode: AuthMode,
    ) -> Result<TypedTarget, TypedConnectionError> {
        session.require(key)?;
        let mut conn = self.store.connect().await.map_err(LookupError::from)?;
        let integration = find_integration(&mut conn, session.environment.pk, key).await?;
        let before = match &session.reconnects {
            Some(reconnected) => {
                connections::get(&mut conn, reconnected.pk).await.map_err(LookupError::from)?
            }
            None => None,
        };
        drop(conn);
        let provider = self.catalogue.find(&integration.provider);
        let provider =
            provider.ok_or_else(|| TypedConnectionError::UnknownProvider(integration.provider.clone()))?;
        if provider.auth_mode != mode {
            let (integration, actual) = (key.clone(), provider.auth_mode);
            return Err(TypedConnectionError::OtherAuthMode { integration, actual, expected: mode });
        }
        let earlier_config = match before.map(|connection| connection.connection_config) {
            Some(Value::Object(config)) => config,
            _ => Map::new(),
        };
        Ok(TypedTarget { provider: Arc::clone(&provider), integration, earlier_config })
    }

    /// Exchanges the credentials for tokens if necessary, tests them, and stores the connection. If they are rejected,
    /// an outbound webhook notifies the backend.
    pub async fn connect(
        &self,
        session: &ConnectSession,
        target: &TypedTarget,
        typed: TypedCredentials,
        actor: &Actor,
    ) -> Result<Connection, TypedConnectionError> {
        let TypedTarget { integration, provider, .. } = target;
        let connected = self.try_connect(session, integration, provider, typed, actor).await;
        if let Err(error) = &connected
            && let Some(code) = error.client_code(session)
            && let Err(error) =
                self.connections.note_failed(session, integration, code, &error.to_string()).await
        {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "could not write the outbound webhook about rejected credentials"
            );
        }
        connected
    }

    async fn try_connect(
        &self,
        session: &ConnectSession,
        integration: &Integration,
        provider: &Arc<Provider>,
        typed: TypedCredentials,
        actor: &Actor,
    ) -> Result<Connection, TypedConnectionError> {
        let TypedCredentials { fields, own_client, connection_config } = typed;
        let app = open_app_credentials(&session.environment, integration)?;
        let flow = Flow::new(&self.gateway, provider, &connection_config, app.as_ref());
        let credentials = flow.authenticate(fields, own_client).await;
        let credentials = credentials.map_err(|error| authentication_error(provider, error))?;
        let oauth = app.as_ref().and_then(AppCredentials::oauth);
        self.verify(integration, provider, &connection_config, &credentials, oauth).await?;
        let authenticated = AuthenticatedConnection {
            reconnects: session.reconnects.as_ref().map(|reconnected| reconnected.pk),
            credentials,
            connection_config,
            tags: session.tags.clone(),
            end_user: session.end_user.clone(),
            webhook_url_override: session.webhook_url_override.clone(),
        };
        Ok(self.connections.connect(&session.environment, integration, authenticated, actor).await?)
    }

    /// Makes the provider's verification request. Only an explicit rejection counts as one: if the provider is not
    /// reachable or forbids this request, the credentials may still be good. If the request must confirm an answer, an
    /// inconclusive result is an error.
    pub(crate) async fn verify(
        &self,
        integration: &Integration,
        provider: &Arc<Provider>,
        connection_config: &Map<String, Value>,
        credentials: &StoredCredentials,
        app: Option<&OAuthApp>,
    ) -> Result<(), TypedConnectionError> {
        if credentials.lack_a_token() {
            return Ok(());
        }
        let in_requests = credentials.for_requests(app).map_err(|_| TypedConnectionError::NoClient)?;
        let Some(verification) = provider.proxy.verification.as_ref() else { return Ok(()) };
        let name = || provider.display_name.clone();
        let endpoint = provider.render(&verification.endpoint, connection_config).map_err(|unusable| {
            TypedConnectionError::Unsendable { provider: name(), reason: unusable.to_string() }
        })?;
        let request = verification_request(verification, endpoint);
        let route = self.verification_route(integration, provider, connection_config, in_requests);
        let confirms = verification.confirmed_answers().next().is_some();
        match self.gateway.send(&route, request, &()).await {
            Ok(answer) if answer.status.is_success() => Ok(()),
            Ok(answer) if answer.status == StatusCode::UNAUTHORIZED => {
                Err(TypedConnectionError::Rejected { provider: name() })
            }
            Ok(_) if !confirms => Ok(()),
            Ok(answer)
                if answer.status.is_client_error() && answer.status != StatusCode::TOO_MANY_REQUESTS =>
            {
                Err(TypedConnectionError::Rejected { provider: name() })
            }
            Ok(_) => Err(TypedConnectionError::Unconfirmed { provider: name() }),
            Err(EgressError::CredentialsUnavailable(unavailable)) => {
                Err(TypedConnectionError::Unsendable { provider: name(), reason: unavailable.reason })
            }
            Err(error) => {
                tracing::info!(provider = %provider.name, error = %error, "could not test new credentials");
                if confirms { Err(TypedConnectionError::Unconfirmed { provider: name() }) } else { Ok(()) }
            }
        }
    }

    fn verification_route(
        &self,
        integration: &Integration,
        provider: &Arc<Provider>,
        connection_config: &Map<String, Value>,
        credentials: Credentials,
    ) -> egress::Route {
        egress::Route {
            provider: Arc::clone(provider),
            base_url: self.functions.base_url_of(integration.pk),
            connection_config: connection_config.clone(),
            usual_base: egress::UsualBase::default(),
            allow_hosts: Vec::new(),
            credentials: Arc::new(FixedCredentials::new(credentials)),
            max_response_bytes: Some(MAX_RESPONSE_BYTES),
            rate_limiter: Arc::new(()),
        }
    }
}

fn verification_request(verification: &Verification, endpoint: String) -> egress::Request {
    let method = match verification.method {
        VerificationMethod::Get => "GET",
        VerificationMethod::Head => "HEAD",
        VerificationMethod::Post => "POST",
    };
    egress::Request {
        method: method.to_owned(),
        url: endpoint,
        retries: Some(0),
        timeout: Some(VERIFICATION_TIMEOUT),
        ..egress::Request::default()
    }
}

fn authentication_error(provider: &Provider, reason: FlowError) -> TypedConnectionError {
    let provider = provider.display_name.clone();
    match reason {
        FlowError::Refused { .. } if !reason.is_temporary() => {
            TypedConnectionError::Refused { provider, reason }
        }
        FlowError::Jwt(_) | FlowError::KeyEncoding(_) | FlowError::Unsendable { .. } => {
            TypedConnectionError::Unsendable { provider, reason: reason.to_string() }
        }
        reason => TypedConnectionError::NoToken { provider, reason },
    }
}
