//! Obtains and renews credentials at providers, with one file for each kind of exchange. All requests pass through the
//! egress gateway. Nothing is stored here.

#[cfg(test)]
mod catalogue_tests;
mod error;
mod exchange;
mod installation;
mod oauth1;
mod oauth2;
mod token_response;
mod typed;

use std::time::Duration;

use serde_json::{Map, Value};

pub use error::FlowError;
pub use exchange::{TokenRequestValues, TypedFields, token_request};
pub use oauth1::OAuth1Token;
pub use oauth2::{AuthorizationRequest, authorization_url};
pub use token_response::{TokenResponse, find as find_in_response};

use super::{
    AppCredentials, ClientCredentialsToken, ClientOverride, InstallableApp, OAuth2Token, StoredCredentials,
};
use syncline_egress::EgressGateway;
use syncline_providers::Provider;
use syncline_types::secret::Secret;

/// The time limit of one request to a token endpoint.
const TIMEOUT: Duration = Duration::from_secs(20);
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// The app that requests tokens.
#[derive(Debug, Clone)]
pub struct OAuthClient {
    pub id: String,
    /// `None` for a public client.
    pub secret: Option<Secret<String>>,
}

/// The provider, connection configuration and app with which tokens are obtained.
#[derive(Clone)]
pub struct Flow<'a> {
    gateway: &'a EgressGateway,
    provider: &'a Provider,
    connection_config: &'a Map<String, Value>,
    app: Option<&'a AppCredentials>,
    client: Option<OAuthClient>,
    scopes: &'a [String],
}

impl<'a> Flow<'a> {
    /// Creates a flow. `app` is the integration's app, or `None` if each connection has its own credentials.
    pub fn new(
        gateway: &'a EgressGateway,
        provider: &'a Provider,
        connection_config: &'a Map<String, Value>,
        app: Option<&'a AppCredentials>,
    ) -> Self {
        let oauth = app.and_then(AppCredentials::oauth);
        let client = oauth
            .map(|app| OAuthClient { id: app.client_id.clone(), secret: Some(app.client_secret.clone()) });
        let own_scopes = oauth.map(|app| app.scopes.as_slice()).filter(|scopes| !scopes.is_empty());
        let scopes = own_scopes.unwrap_or(&provider.default_scopes);
        Self { gateway, provider, connection_config, app, client, scopes }
    }

    /// Obtains new credentials with the stored ones. The provider may invalidate the stored ones, so the new ones must
    /// not be lost.
    pub async fn renew(&self, stored: &StoredCredentials) -> Result<StoredCredentials, FlowError> {
        match stored {
            StoredCredentials::OAuth2(token) => {
                let flow = self.with_override(token.config_override.as_ref());
                let refresh_token = token.refresh_token.as_ref().ok_or(FlowError::NothingToRenewWith)?;
                let renewed = flow.refresh(refresh_token).await?;
                Ok(StoredCredentials::OAuth2(OAuth2Token {
                    // A provider that does not rotate refresh tokens does not return a new one.
                    refresh_token: renewed.refresh_token.or_else(|| token.refresh_token.clone()),
                    access_token: renewed.access_token,
                    expires_at: renewed.expires_at,
                    config_override: token.config_override.clone(),
                    raw: renewed.raw,
                }))
            }
            StoredCredentials::ClientCredentials(token) => {
                let client = OAuthClient { id: token.client_id.clone(), secret: token.client_secret.clone() };
                let renewed = self.with_client(client).client_credentials().await?;
                Ok(StoredCredentials::ClientCredentials(ClientCredentialsToken {
                    token: renewed.access_token,
                    expires_at: renewed.expires_at,
                    raw: renewed.raw,
                    ..token.clone()
                }))
            }
            StoredCredentials::Jwt(token) => Ok(StoredCredentials::Jwt(self.renew_exchanged(token).await?)),
            StoredCredentials::TwoStep(token) => {
                Ok(StoredCredentials::TwoStep(self.renew_exchanged(token).await?))
            }
            StoredCredentials::Bill(token) => Ok(StoredCredentials::Bill(self.renew_exchanged(token).await?)),
            StoredCredentials::App(token) => {
                Ok(StoredCredentials::App(self.installation_token(&token.installation_id).await?))
            }
            StoredCredentials::Custom { app, user } => Ok(StoredCredentials::Custom {
                app: self.installation_token(&app.installation_id).await?,
                user: user.clone(),
            }),
            StoredCredentials::ApiKey { .. }
            | StoredCredentials::Basic { .. }
            | StoredCredentials::None
            | StoredCredentials::OAuth1 { .. }
            | StoredCredentials::TokenBased { .. }
            | StoredCredentials::Signature(_) => Err(FlowError::NothingToRenewWith),
        }
    }

    /// Returns the OAuth client that end users consent to.
    pub fn client(&self) -> Option<&OAuthClient> {
        self.client.as_ref()
    }

    /// Returns the scopes of the integration or, without them, the default scopes of the provider file.
    pub fn scopes(&self) -> &'a [String] {
        self.scopes
    }

    /// Returns the app that end users install.
    pub fn installable_app(&self) -> Result<&'a InstallableApp, FlowError> {
        self.app.and_then(AppCredentials::app).ok_or(FlowError::NoClient)
    }

    /// Returns the same flow with another client.
    #[must_use]
    pub fn with_client(&self, client: OAuthClient) -> Self {
        Self { client: Some(client), ..self.clone() }
    }

    /// Returns the same flow with a connection's own client. Values that it does not contain are those of the
    /// integration's client.
    #[must_use]
    pub fn with_override(&self, own: Option<&ClientOverride>) -> Self {
        let base = self.client.as_ref();
        let id = own.and_then(|own| own.client_id.clone()).or_else(|| base.map(|client| client.id.clone()));
        let secret = own
            .and_then(|own| own.client_secret.clone())
            .or_else(|| base.and_then(|client| client.secret.clone()));
        Self { client: id.map(|id| OAuthClient { id, secret }), ..self.clone() }
    }
}
