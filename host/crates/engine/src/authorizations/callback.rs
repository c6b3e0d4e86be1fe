//! Completes an authorization at the callback: checks it and creates the connection.

use std::net::IpAddr;
use std::sync::Arc;

use serde_json::{Map, Value};
use subtle::ConstantTimeEq;
use url::{Url, form_urlencoded};

use crate::authorizations::start::cookie_name;
use crate::authorizations::{
    AuthorizationError, AuthorizationSecrets, Authorizations, Outcome, answers, associated_data, hash,
};
use crate::connect_sessions::ConnectSession;
use crate::connections::AuthenticatedConnection;
use syncline_auth::flows::{Flow, FlowError};
use syncline_auth::{OAuth2Token, StoredCredentials};
use syncline_providers::{AuthMode, Provider};
use syncline_store::authorizations::{self, Authorization};
use syncline_store::connections::Connection;
use syncline_store::integrations::{self, Integration};
use syncline_types::actor::Actor;
use syncline_types::secret::Secret;

const MAX_QUOTED_CHARS: usize = 300;

/// A callback request with its query and cookies. Nothing in it has been verified.
pub struct Callback {
    pub query: String,
    pub cookies: Vec<(String, String)>,
    /// The address of the browser's network connection, for the audit log.
    pub address: Option<IpAddr>,
    /// The id of the request, for the audit log.
    pub request_id: Option<String>,
}

impl Authorizations {
    /// Creates a connection from a callback, and publishes the outcome.
    pub async fn complete(self: &Arc<Self>, callback: Callback) -> Result<Outcome, AuthorizationError> {
        let state = callback.param("state").ok_or(AuthorizationError::NoState)?;
        let mut conn = self.store.connect().await?;
        let found = authorizations::find(&mut conn, &hash(&state)).await?;
        let authorization = found.ok_or(AuthorizationError::UnknownState)?;
        let name = cookie_name(authorization.id);
        let is_same_browser = callback.cookies.iter().any(|(given, value)| {
            *given == name && bool::from(hash(value).as_slice().ct_eq(&authorization.browser_hash))
        });
        // Checked before the state is used up, so that others who know the state cannot use it.
        if !is_same_browser {
            return Err(AuthorizationError::OtherBrowser);
        }
        if !authorizations::take(&mut conn, authorization.pk).await? {
            return Err(AuthorizationError::UnknownState);
        }
        let integration = integrations::get(&mut conn, authorization.integration).await?;
        let integration = integration.ok_or(AuthorizationError::UnknownState)?;
        drop(conn);
        // The code can be used only once, so this finishes even if the browser disconnects.
        let this = Arc::clone(self);
        let finished =
            self.running.spawn(async move { this.finish(authorization, integration, &callback).await });
        finished.await.map_err(AuthorizationError::internal)?
    }

    async fn finish(
        self: &Arc<Self>,
        authorization: Authorization,
        integration: Integration,
        callback: &Callback,
    ) -> Result<Outcome, AuthorizationError> {
        let session = self.sessions.open(&authorization.session_token_hash).await;
        let connected = match &session {
            Ok(session) => self.make_connection(session, &authorization, &integration, callback).await,
            Err(_) => Err(AuthorizationError::SessionEnded),
        };
        let outcome = Outcome::of(&integration.unique_key, connected.as_ref());
        if let Some(listener) = authorization.listener {
            self.publish_outcome(authorization.session, listener, &outcome).await;
        }
        let Err(error) = connected else { return Ok(outcome) };
        // If a function rejects a reconnected connection, the connection's error already notifies the backend. If
        // another request replaced the connection, that request notifies it.
        let is_notified = |session: &ConnectSession| match error {
            AuthorizationError::Refused(_) => session.reconnects.is_some(),
            AuthorizationError::Overtaken => true,
            _ => false,
        };
        if let Ok(session) = &session
            && !is_notified(session)
            && let Err(error) =
                self.connections.note_failed(session, &integration, error.code(), &error.to_string()).await
        {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "could not write the outbound webhook about a failed authorization"
            );
        }
        Err(error)
    }

    async fn make_connection(
        self: &Arc<Self>,
        session: &ConnectSession,
        authorization: &Authorization,
        integration: &Integration,
        callback: &Callback,
    ) -> Result<Connection, AuthorizationError> {
        session.require(&integration.unique_key)?;
        let environment = &session.environment;
        let provider = self.catalogue.find(&integration.provider);
        let provider =
            provider.ok_or_else(|| AuthorizationError::UnknownProvider(integration.provider.clone()))?;
        let opened = environment
            .data_key
            .open(associated_data(&authorization.id.to_string()), &authorization.sealed_secrets)?;
        let secrets: AuthorizationSecrets = serde_json::from_slice(&opened)?;
        let mut config = authorization.connection_config.as_object().cloned().unwrap_or_default();
        callback.refuse_error()?;
        check_issuer(&provider, &config, callback)?;
        let app = self.open_app(environment, integration)?;
        let flow = Flow::new(&self.gateway, &provider, &config, Some(&app));
        let flow = flow.with_override(secrets.own_client.as_ref());
        let (credentials, response) = callback.authenticate(provider.auth_mode, &flow, secrets).await?;
        answers::add_automated(&provider, &mut config, &callback.query, &response)?;
        self.typed.verify(integration, &provider, &config, &credentials, app.oauth()).await?;
        let authenticated = AuthenticatedConnection {
            reconnects: session.reconnects.as_ref().map(|target| target.pk),
            credentials,
            connection_config: config,
            tags: session.tags.clone(),
            end_user: session.end_user.clone(),
            webhook_url_override: session.webhook_url_override.clone(),
        };
        let actor = Actor {
            identity: session.identity(),
            address: callback.address,
            request_id: callback.request_id.clone(),
        };
        Ok(self.connections.connect(environment, integration, authenticated, &actor).await?)
    }
}

impl Callback {
    fn param(&self, wanted: &str) -> Option<String> {
        let found = form_urlencoded::parse(self.query.as_bytes()).find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.into_owned()).filter(|value| !value.is_empty())
    }

    fn required(&self, name: &'static str) -> Result<String, AuthorizationError> {
        self.param(name).ok_or(AuthorizationError::Missing(name))
    }

    /// Returns the provider's error, which has one of several forms.
    fn refuse_error(&self) -> Result<(), AuthorizationError> {
        let code = self.param("error");
        // OAuth 1 defines no error code; its providers use the parameter `denied`.
        let is_denied = matches!(code.as_deref(), Some("access_denied" | "user_denied" | "consent_required"))
            || self.param("denied").is_some();
        let description = ["error_description", "error_message", "error_reason"];
        let description = description.into_iter().find_map(|name| self.param(name));
        let code = code.or_else(|| self.param("error_message")).or_else(|| self.param("status_code"));
        let message = match (&code, description) {
            (Some(code), Some(description)) if *code != description => format!("{description} ({code})"),
            (Some(code), _) => code.clone(),
            (None, _) => String::new(),
        };
        if is_denied {
            return Err(AuthorizationError::Denied(plain(&message)));
        }
        match code {
            Some(_) => Err(AuthorizationError::Provider(plain(&message))),
            None => Ok(()),
        }
    }

    /// Returns the credentials, and the token response from which the entry extracts values.
    async fn authenticate(
        &self,
        mode: AuthMode,
        flow: &Flow<'_>,
        secrets: AuthorizationSecrets,
    ) -> Result<(StoredCredentials, Secret<String>), AuthorizationError> {
        match mode {
            AuthMode::OAuth1 => {
                let temporary = secrets.temporary.ok_or(FlowError::NothingToRenewWith)?;
                if self.required("oauth_token")? != temporary.token {
                    return Err(AuthorizationError::UnknownState);
                }
                let verifier = self.required("oauth_verifier")?;
                let token = flow.token_credentials(&temporary.token, &temporary.secret, &verifier).await?;
                let raw = token.raw.clone();
                let credentials = StoredCredentials::OAuth1 {
                    oauth_token: token.token.into(),
                    oauth_token_secret: token.secret,
                    raw: token.raw,
                };
                Ok((credentials, raw))
            }
            AuthMode::App => {
                let app = flow.installation_token(&self.installation()?).await?;
                let raw = app.raw.clone();
                Ok((StoredCredentials::App(app), raw))
            }
            AuthMode::Custom => {
                let installation = self.installation()?;
                let (user, raw) = self.exchange_code(flow, secrets).await?;
                if !flow.may_use(&user.access_token, &installation).await? {
                    return Err(AuthorizationError::OthersInstallation);
                }
                let app = flow.installation_token(&installation).await?;
                Ok((StoredCredentials::Custom { app, user: Some(user) }, raw))
            }
            _ => {
                let (token, raw) = self.exchange_code(flow, secrets).await?;
                Ok((StoredCredentials::OAuth2(token), raw))
            }
        }
    }

    async fn exchange_code(
        &self,
        flow: &Flow<'_>,
        secrets: AuthorizationSecrets,
    ) -> Result<(OAuth2Token, Secret<String>), AuthorizationError> {
        let code = self.required("code")?;
        let response =
            flow.exchange_code(code, secrets.pkce_verifier.as_ref(), &secrets.redirect_uri).await?;
        let raw = response.raw.clone();
        let token = OAuth2Token {
            access_token: response.access_token,
            refresh_token: secrets.own_refresh_token.or(response.refresh_token),
            expires_at: response.expires_at,
            config_override: secrets.own_client,
            raw: response.raw,
        };
        Ok((token, raw))
    }

    fn installation(&self) -> Result<String, AuthorizationError> {
        match self.param("installation_id") {
            Some(id) => Ok(id),
            None if self.param("setup_action").as_deref() == Some("request") => {
                Err(AuthorizationError::InstallationRequested)
            }
            None => Err(AuthorizationError::Missing("installation_id")),
        }
    }
}

/// RFC 9207: an issuer in the callback must be the provider of this authorization. Otherwise, another provider at which
/// the end user has an account could be made to disclose its code. Entries contain no issuers, so the origin is
/// compared.
fn check_issuer(
    provider: &Provider,
    config: &Map<String, Value>,
    callback: &Callback,
) -> Result<(), AuthorizationError> {
    let Some(given) = callback.param("iss") else { return Ok(()) };
    let origin = Url::parse(&given).map(|url| url.origin());
    let known = [&provider.authorization_url, &provider.token_url].into_iter().flatten();
    let known = known.filter_map(|template| provider.render_url(template, config).ok());
    if known.into_iter().any(|url| origin.as_ref().is_ok_and(|origin| *origin == url.origin())) {
        return Ok(());
    }
    Err(AuthorizationError::Issuer { given: plain(&given) })
}

/// Shortens a provider's text to one line.
fn plain(text: &str) -> String {
    let line = text.split(|c: char| c.is_control() || c.is_whitespace()).filter(|word| !word.is_empty());
    line.collect::<Vec<_>>().join(" ").chars().take(MAX_QUOTED_CHARS).collect()
}
