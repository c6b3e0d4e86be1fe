//! How credentials are obtained from a provider and renewed: one file per kind of exchange. Everything goes
//! through the gate; nothing here is stored.

mod error;
mod oauth2;
mod token_response;

use std::sync::Arc;

use serde_json::{Map, Value};

pub use error::FlowError;
pub use oauth2::{AuthorizationRequest, authorization_url};
pub use token_response::TokenResponse;

use super::{ClientCredentialsToken, OAuth2Token, StoredCredentials};
use crate::egress::Gate;
use crate::providers::Provider;
use crate::secret::Secret;

/// The app that tokens are asked for with.
#[derive(Debug, Clone)]
pub struct OAuthClient {
    pub id: String,
    /// None for a public client.
    pub secret: Option<Secret<String>>,
}

/// Whose tokens they are, and what reaches their provider.
pub struct Flow<'a> {
    pub gate: &'a Gate,
    pub provider: &'a Arc<Provider>,
    pub connection_config: &'a Map<String, Value>,
    /// The integration's app. None where each connection brings what is needed.
    pub client: Option<OAuthClient>,
    /// Joined and sent where the grant takes them.
    pub scopes: Vec<String>,
}

impl Flow<'_> {
    /// Obtains new credentials with what the old ones hold. The old ones may be of no use afterwards, so the new
    /// ones must not be lost.
    pub async fn renew(&self, stored: &StoredCredentials) -> Result<StoredCredentials, FlowError> {
        match stored {
            StoredCredentials::OAuth2(token) => {
                let flow = self.with_override(token.config_override.as_ref());
                let refresh_token = token.refresh_token.as_ref().ok_or(FlowError::NothingToRenewWith)?;
                let renewed = flow.refresh(refresh_token).await?;
                Ok(StoredCredentials::OAuth2(OAuth2Token {
                    // A provider that does not rotate refresh tokens sends none.
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
            StoredCredentials::ApiKey { .. }
            | StoredCredentials::Basic { .. }
            | StoredCredentials::None
            | StoredCredentials::OAuth1 { .. }
            | StoredCredentials::TokenBased { .. }
            | StoredCredentials::App(_)
            | StoredCredentials::Custom { .. }
            | StoredCredentials::Jwt(_)
            | StoredCredentials::TwoStep(_)
            | StoredCredentials::Bill(_)
            | StoredCredentials::Signature(_) => Err(FlowError::NothingToRenewWith),
        }
    }

    /// The same flow with another app.
    pub fn with_client(&self, client: OAuthClient) -> Flow<'_> {
        Flow {
            gate: self.gate,
            provider: self.provider,
            connection_config: self.connection_config,
            client: Some(client),
            scopes: self.scopes.clone(),
        }
    }

    /// The same flow with a connection's own app, where it brings one.
    fn with_override(&self, own: Option<&super::ClientOverride>) -> Flow<'_> {
        let base = self.client.as_ref();
        let id = own.and_then(|own| own.client_id.clone()).or_else(|| base.map(|client| client.id.clone()));
        let secret = own
            .and_then(|own| own.client_secret.clone())
            .or_else(|| base.and_then(|client| client.secret.clone()));
        Flow {
            gate: self.gate,
            provider: self.provider,
            connection_config: self.connection_config,
            client: id.map(|id| OAuthClient { id, secret }),
            scopes: self.scopes.clone(),
        }
    }
}
