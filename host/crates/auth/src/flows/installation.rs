//! Obtains tokens of app installations, with a token that the app itself has signed.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH};
use http::{HeaderValue, Request};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::token_response::{parse, provider_error, unexpected_answer};
use super::{Flow, FlowError, MAX_RESPONSE_BYTES, TIMEOUT, TokenResponse};
use crate::{InstallableApp, InstallationToken, sign_jwt};
use syncline_providers::{AuthMode, JwtAlgorithm, TokenResponsePaths};
use syncline_types::secret::{Mask, Secret};

/// Providers accept at most ten minutes, measured by their own clock.
const LIFETIME_SECONDS: i64 = 9 * 60;
/// The tolerated difference by which this host's clock is ahead of the provider's.
const CLOCK_SKEW_SECONDS: i64 = 60;
const INSTALLATION: &str = "installation_id";
/// The size of one page of a user's installations, and the maximum number of pages.
const PAGE_SIZE: usize = 100;
const MAX_PAGES: usize = 50;

/// One page of the installations that a user can access.
#[derive(Deserialize)]
struct InstallationList {
    installations: Vec<ListedInstallation>,
}

#[derive(Deserialize)]
struct ListedInstallation {
    id: u64,
}

impl Flow<'_> {
    /// Obtains a new token of an installation.
    pub async fn installation_token(&self, installation: &str) -> Result<InstallationToken, FlowError> {
        let app = self.installable_app()?;
        let mut config = self.connection_config.clone();
        config.insert(INSTALLATION.to_owned(), installation.into());
        // In the auth mode `CUSTOM`, `token_url` and `token_response` describe the user's token.
        let (template, paths) = match self.provider.auth_mode {
            AuthMode::Custom => (self.provider.refresh_url.as_ref(), None),
            _ => (self.provider.token_url.as_ref(), self.provider.token_response.clone()),
        };
        let template = template.ok_or(FlowError::IncompleteProvider("token_url"))?;
        let url = self.provider.render_url(template, &config)?;
        let signed = app.sign_token(self.gateway.clock().now())?;
        let request = Request::post(url.as_str())
            .header(AUTHORIZATION, bearer(&signed)?)
            .header(ACCEPT, "application/json")
            .header(CONTENT_LENGTH, "0")
            .body(Bytes::new())
            .map_err(|_| FlowError::IncompleteProvider("token_url"))?;
        let answer = self.gateway.send_own(request, TIMEOUT, MAX_RESPONSE_BYTES).await?;
        let paths = paths.unwrap_or_else(|| TokenResponsePaths {
            access_token: Some("token".to_owned()),
            ..TokenResponsePaths::default()
        });
        let lifetime = self.provider.token_lifetime;
        let sent = Mask::of([signed.expose().as_str()]);
        let read = TokenResponse::read_at(
            &paths,
            lifetime,
            answer.status,
            &answer.body,
            &sent,
            self.gateway.clock().now(),
        )?;
        Ok(InstallationToken {
            app_id: Some(app.app_id.clone()),
            installation_id: installation.to_owned(),
            access_token: Some(read.access_token),
            expires_at: read.expires_at,
            jwt_token: None,
            raw: read.raw,
        })
    }

    /// Whether the user of this token can access the installation, according to the provider. The installation id
    /// comes from the browser, whose user may have changed it.
    pub async fn may_use(&self, user: &Secret<String>, installation: &str) -> Result<bool, FlowError> {
        let template = self.provider.installations_url.as_ref();
        let template = template.ok_or(FlowError::IncompleteProvider("installations_url"))?;
        let mut url = self.provider.render_url(template, self.connection_config)?;
        for page in 1..=MAX_PAGES {
            let (size, number) = (PAGE_SIZE.to_string(), page.to_string());
            url.query_pairs_mut().clear().append_pair("per_page", &size).append_pair("page", &number);
            let listed = self.list_installations(url.as_str(), user).await?;
            if listed.iter().any(|listed| listed.id.to_string() == installation) {
                return Ok(true);
            }
            if listed.len() < PAGE_SIZE {
                break;
            }
        }
        Ok(false)
    }

    async fn list_installations(
        &self,
        url: &str,
        user: &Secret<String>,
    ) -> Result<Vec<ListedInstallation>, FlowError> {
        let request = Request::get(url)
            .header(AUTHORIZATION, bearer(user)?)
            .header(ACCEPT, "application/json")
            .body(Bytes::new())
            .map_err(|_| FlowError::IncompleteProvider("installations_url"))?;
        let answer = self.gateway.send_own(request, TIMEOUT, MAX_RESPONSE_BYTES).await?;
        if !answer.status.is_success() {
            let sent = Mask::of([user.expose().as_str()]);
            return Err(provider_error(answer.status, &parse(&answer.body).unwrap_or_default(), &sent));
        }
        let listed = serde_json::from_slice::<InstallationList>(&answer.body);
        Ok(listed.map_err(|_| unexpected_answer(answer.status, &answer.body))?.installations)
    }
}

fn bearer(token: &Secret<String>) -> Result<HeaderValue, FlowError> {
    let header = HeaderValue::from_str(&format!("Bearer {}", token.expose()));
    let mut header = header.map_err(|_| FlowError::Unsendable { header: AUTHORIZATION.to_string() })?;
    header.set_sensitive(true);
    Ok(header)
}

impl InstallableApp {
    /// Signs a new token of the app itself, which authorizes requests for tokens of its installations.
    pub fn sign_token(&self, now: DateTime<Utc>) -> Result<Secret<String>, FlowError> {
        let now = now.timestamp();
        let claims = json!({
            "iss": self.app_id, "iat": now - CLOCK_SKEW_SECONDS, "exp": now + LIFETIME_SECONDS,
        });
        let claims: Map<String, Value> = claims.as_object().cloned().unwrap_or_default();
        let key = Secret::new(self.private_key.expose().clone().into_bytes());
        Ok(sign_jwt(JwtAlgorithm::Rs256, &key, &Map::new(), &claims)?)
    }
}
