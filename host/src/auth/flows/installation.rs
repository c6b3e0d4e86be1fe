//! The token of an app's installation: asked for with a token that the app itself has signed.

use bytes::Bytes;
use chrono::Utc;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH};
use http::{HeaderValue, Request};
use serde_json::{Map, Value, json};

use super::{Flow, FlowError, MAX_RESPONSE_BYTES, TIMEOUT, TokenResponse};
use crate::auth::{InstallableApp, InstallationToken, sign_jwt};
use crate::providers::{AuthMode, JwtAlgorithm, TokenResponsePaths};
use crate::secret::Secret;

/// Providers take ten minutes at most, counted by their own clock.
const LIFETIME_SECONDS: i64 = 9 * 60;
/// How much our clock may be ahead of the provider's.
const CLOCK_SKEW_SECONDS: i64 = 60;
const INSTALLATION: &str = "installation_id";

impl Flow<'_> {
    /// A new token of an installation.
    pub async fn installation_token(&self, installation: &str) -> Result<InstallationToken, FlowError> {
        let app = self.installable_app()?;
        let mut config = self.connection_config.clone();
        config.insert(INSTALLATION.to_owned(), installation.into());
        // Where a user consents too, `token_url` is for the user's token, and so is `token_response`.
        let (template, paths) = match self.provider.auth_mode {
            AuthMode::Custom => (self.provider.refresh_url.as_ref(), None),
            _ => (self.provider.token_url.as_ref(), self.provider.token_response.clone()),
        };
        let template = template.ok_or(FlowError::IncompleteProvider("token_url"))?;
        let url = self.provider.render_url(template, &config)?;
        let signed = signed_by(app)?;
        let header = HeaderValue::from_str(&format!("Bearer {}", signed.expose()));
        let mut header = header.map_err(|_| FlowError::NoClient)?;
        header.set_sensitive(true);
        let request = Request::post(url.as_str())
            .header(AUTHORIZATION, header)
            .header(ACCEPT, "application/json")
            .header(CONTENT_LENGTH, "0")
            .body(Bytes::new())
            .map_err(|_| FlowError::IncompleteProvider("token_url"))?;
        let answer = self.gate.send_own(request, TIMEOUT, MAX_RESPONSE_BYTES).await?;
        let paths = paths.unwrap_or_else(|| TokenResponsePaths {
            access_token: Some("token".to_owned()),
            ..TokenResponsePaths::default()
        });
        let lifetime = self.provider.token_lifetime;
        let read = TokenResponse::read_at(&paths, lifetime, answer.status, &answer.body, Utc::now())?;
        Ok(InstallationToken {
            app_id: Some(app.app_id.clone()),
            installation_id: installation.to_owned(),
            access_token: Some(read.access_token),
            expires_at: read.expires_at,
            jwt_token: None,
            raw: read.raw,
        })
    }
}

fn signed_by(app: &InstallableApp) -> Result<Secret<String>, FlowError> {
    let now = Utc::now().timestamp();
    let claims = json!({
        "iss": app.app_id, "iat": now - CLOCK_SKEW_SECONDS, "exp": now + LIFETIME_SECONDS,
    });
    let claims: Map<String, Value> = claims.as_object().cloned().unwrap_or_default();
    let key = Secret::new(app.private_key.expose().clone().into_bytes());
    Ok(sign_jwt(JwtAlgorithm::Rs256, &key, &Map::new(), &claims)?)
}
