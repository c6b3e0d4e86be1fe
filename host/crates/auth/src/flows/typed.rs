//! Converts the fields that an end user entered to stored credentials.

use super::exchange::TypedFields;
use super::{Flow, FlowError, OAuthClient};
use crate::{ClientCredentialsToken, ClientOverride, ExchangedToken, StoredCredentials};
use syncline_providers::AuthMode;
use syncline_types::secret::Secret;

impl Flow<'_> {
    /// Creates credentials from the entered fields, and obtains the token that they need. The caller has checked that
    /// all required fields are present. If the provider is unreachable and the token can be obtained later, the
    /// credentials are accepted without a token.
    pub async fn authenticate(
        &self,
        mut fields: TypedFields,
        own_client: Option<ClientOverride>,
    ) -> Result<StoredCredentials, FlowError> {
        let mut take =
            |name: &str| fields.remove(name).ok_or_else(|| FlowError::MissingCredential(name.to_owned()));
        match self.provider.auth_mode {
            AuthMode::ApiKey => Ok(StoredCredentials::ApiKey { api_key: take("apiKey")? }),
            AuthMode::Basic => {
                let or_empty =
                    |field: Result<Secret<String>, _>| field.unwrap_or_else(|_: FlowError| "".into());
                Ok(StoredCredentials::Basic {
                    username: or_empty(take("username")),
                    password: or_empty(take("password")),
                })
            }
            AuthMode::None => Ok(StoredCredentials::None),
            AuthMode::TokenBased => Ok(StoredCredentials::TokenBased {
                token_id: take("token_id")?,
                token_secret: take("token_secret")?,
                config_override: own_client,
            }),
            AuthMode::OAuth2ClientCredentials => {
                let client_id = take("client_id")?.expose().clone();
                let client_secret = Some(take("client_secret")?);
                let client = OAuthClient { id: client_id.clone(), secret: client_secret.clone() };
                let obtained = self.with_client(client).client_credentials().await?;
                Ok(StoredCredentials::ClientCredentials(ClientCredentialsToken {
                    token: obtained.access_token,
                    expires_at: obtained.expires_at,
                    client_id,
                    client_secret,
                    client_certificate: None,
                    client_private_key: None,
                    raw: obtained.raw,
                }))
            }
            AuthMode::Jwt => Ok(StoredCredentials::Jwt(self.exchange_if_reachable(fields).await?)),
            AuthMode::TwoStep => Ok(StoredCredentials::TwoStep(self.exchange_if_reachable(fields).await?)),
            AuthMode::Bill => Ok(StoredCredentials::Bill(self.exchange_if_reachable(fields).await?)),
            AuthMode::Signature => Ok(StoredCredentials::Signature(without_token(fields))),
            AuthMode::OAuth1
            | AuthMode::OAuth2
            | AuthMode::Custom
            | AuthMode::App
            | AuthMode::McpOAuth2
            | AuthMode::McpOAuth2Generic
            | AuthMode::InstallPlugin
            | AuthMode::AwsSigV4 => Err(FlowError::NothingToRenewWith),
        }
    }

    async fn exchange_if_reachable(&self, fields: TypedFields) -> Result<ExchangedToken, FlowError> {
        match self.exchange(fields.clone()).await {
            Err(error) if error.is_temporary() => Ok(without_token(fields)),
            outcome => outcome,
        }
    }
}

fn without_token(fields: TypedFields) -> ExchangedToken {
    ExchangedToken { fields, token: None, refresh_token: None, expires_at: None, raw: "{}".into() }
}
