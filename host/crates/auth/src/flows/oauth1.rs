//! OAuth 1 (RFC 5849): temporary credentials, and the token that they are exchanged for.

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH};
use http::{HeaderValue, Request};
use serde_json::Value;
use url::Url;

use super::token_response::{parse, provider_error, unexpected_answer};
use super::{Flow, FlowError, MAX_RESPONSE_BYTES, OAuthClient, TIMEOUT};
use syncline_egress::Handshake;
use syncline_types::secret::Secret;

/// A token, temporary or final, with the secret that signs requests with it.
#[derive(Debug)]
pub struct OAuth1Token {
    pub token: String,
    pub secret: Secret<String>,
    /// The whole response as JSON text.
    pub raw: Secret<String>,
}

impl Flow<'_> {
    /// Requests temporary credentials, with which an end user is redirected to the provider. The provider redirects
    /// back to `callback`.
    pub async fn temporary_credentials(&self, callback: &str) -> Result<OAuth1Token, FlowError> {
        let template =
            self.provider.request_url.as_ref().ok_or(FlowError::IncompleteProvider("request_url"))?;
        let url = self.provider.render_url(template, self.connection_config)?;
        self.request_oauth1_token(url, Handshake::Temporary { callback }).await
    }

    /// Exchanges the temporary credentials for the token, after the end user has returned with a verifier.
    pub async fn token_credentials(
        &self,
        token: &str,
        token_secret: &Secret<String>,
        verifier: &str,
    ) -> Result<OAuth1Token, FlowError> {
        let template = self.provider.token_url.as_ref().ok_or(FlowError::IncompleteProvider("token_url"))?;
        let url = self.provider.render_url(template, self.connection_config)?;
        self.request_oauth1_token(url, Handshake::Token { token, token_secret, verifier }).await
    }

    async fn request_oauth1_token(
        &self,
        url: Url,
        handshake: Handshake<'_>,
    ) -> Result<OAuth1Token, FlowError> {
        let OAuthClient { id, secret } = self.client.as_ref().ok_or(FlowError::NoClient)?;
        let secret = secret.as_ref().ok_or(FlowError::NoClient)?;
        let method = self.provider.signature_method.unwrap_or_default();
        let header = HeaderValue::from_str(&handshake.authorization(id, secret, method, &url));
        let mut header = header.map_err(|_| FlowError::NoClient)?;
        header.set_sensitive(true);
        let request = Request::post(url.as_str()).header(AUTHORIZATION, header).header(CONTENT_LENGTH, "0");
        let request = request.body(Bytes::new()).map_err(|_| FlowError::IncompleteProvider("request_url"))?;
        let answer = self.gateway.send_own(request, TIMEOUT, MAX_RESPONSE_BYTES).await?;
        let parsed = parse(&answer.body).ok_or_else(|| unexpected_answer(answer.status, &answer.body))?;
        let text = |name: &str| parsed.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        match (text("oauth_token"), text("oauth_token_secret")) {
            (Some(token), Some(secret)) if answer.status.is_success() => Ok(OAuth1Token {
                token: token.to_owned(),
                secret: secret.into(),
                raw: parsed.to_string().into(),
            }),
            _ => Err(provider_error(answer.status, &parsed, &handshake.mask(secret))),
        }
    }
}
