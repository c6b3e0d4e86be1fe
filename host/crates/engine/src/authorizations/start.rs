//! Starts authorizations: sends an end user's browser to the provider.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};
use url::Url;
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::authorizations::{
    AUTHORIZATION_SECONDS, AuthorizationError, AuthorizationSecrets, Authorizations, Outcome, TemporaryToken,
    answers, associated_data, hash,
};
use crate::connect_sessions::ConnectSession;
use syncline_auth::flows::{AuthorizationRequest, Flow, FlowError, authorization_url};
use syncline_auth::{AppCredentials, ClientOverride};
use syncline_crypto::random_bytes;
use syncline_providers::{AuthMode, Provider};
use syncline_store::authorizations::{self, NewAuthorization};
use syncline_store::{connections, integrations};
use syncline_types::ids::IntegrationKey;
use syncline_types::secret::Secret;

/// Parameters that decide who receives access, how, and to what. The entry, the integration and the session set them,
/// never a browser. `request` and `request_uri` would replace all other parameters.
const RESERVED_PARAMS: [&str; 12] = [
    "response_type",
    "response_mode",
    "state",
    "redirect_uri",
    "client_id",
    "client_secret",
    "code_challenge",
    "code_challenge_method",
    "request",
    "request_uri",
    "claims",
    "authorization_details",
];
/// A parameter with this value removes one of the entry's parameters. The published client sends it for `undefined`.
const REMOVED: &str = "undefined";

/// A browser's request to start an authorization.
#[derive(Debug)]
pub struct StartRequest {
    pub integration: IntegrationKey,
    /// The answers to the entry's questions, as text.
    pub answers: Map<String, Value>,
    /// Scopes for the user, if the provider distinguishes them from those of the app.
    pub user_scopes: Option<String>,
    /// Additional parameters of the provider's page. Those that a browser may not choose are ignored.
    pub authorization_params: BTreeMap<String, String>,
    /// The end user's own client, which replaces the integration's.
    pub own_client: Option<ClientOverride>,
    /// The end user's own refresh token, which replaces the one that the provider issues.
    pub own_refresh_token: Option<Secret<String>>,
    /// Receives the outcome.
    pub listener: Option<Uuid>,
    /// The callback URL, unless the environment sets another one.
    pub callback_url: String,
}

/// An authorization that has started.
#[derive(Debug)]
pub struct StartedAuthorization {
    pub url: Url,
    /// The cookie that the browser must present at the callback, and its path.
    pub cookie_name: String,
    pub cookie_value: Secret<String>,
    pub returns_to: ReturnPath,
}

/// The route of the callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReturnPath {
    OAuthCallback,
    AppSetup,
}

/// The provider's page, and the data that is stored until the callback.
struct Page {
    url: Url,
    pkce_verifier: Option<Secret<String>>,
    temporary: Option<TemporaryToken>,
}

impl Authorizations {
    /// Starts an authorization for the end user of a session, and returns the provider's page. If it is rejected, the
    /// listener is notified as well.
    pub async fn start(
        &self,
        session: &ConnectSession,
        request: StartRequest,
    ) -> Result<StartedAuthorization, AuthorizationError> {
        let (integration, listener) = (request.integration.clone(), request.listener);
        let started = self.try_start(session, request).await;
        if let (Err(error), Some(listener)) = (&started, listener) {
            self.publish_outcome(session.pk, listener, &Outcome::of(&integration, Err(error))).await;
        }
        started
    }

    async fn try_start(
        &self,
        session: &ConnectSession,
        request: StartRequest,
    ) -> Result<StartedAuthorization, AuthorizationError> {
        session.require(&request.integration)?;
        let environment = &session.environment;
        let mut conn = self.store.connect().await?;
        let integration = integrations::find(&mut conn, environment.pk, &request.integration).await?;
        let integration =
            integration.ok_or_else(|| AuthorizationError::UnknownIntegration(request.integration.clone()))?;
        let before = match &session.reconnects {
            Some(target) => {
                let found = connections::get(&mut conn, target.pk).await?;
                Some(found.ok_or(AuthorizationError::TargetGone)?.connection_config)
            }
            None => None,
        };
        drop(conn);
        let provider = self.catalogue.find(&integration.provider);
        let provider =
            provider.ok_or_else(|| AuthorizationError::UnknownProvider(integration.provider.clone()))?;
        let mode = provider.auth_mode;
        let returns_to = match mode {
            AuthMode::OAuth1 | AuthMode::OAuth2 | AuthMode::Custom => ReturnPath::OAuthCallback,
            AuthMode::App => ReturnPath::AppSetup,
            _ => return Err(AuthorizationError::OtherMode { integration: request.integration, mode }),
        };
        let key = &integration.unique_key;
        let config = answers::of_start(&provider, session, key, before.as_ref(), request.answers)?;
        let app = self.open_app(environment, &integration)?;
        let settings = self.environments.settings(environment.pk).await?;
        let redirect_uri = match &settings.callback_url {
            Some(url) => url.as_str().to_owned(),
            None => request.callback_url,
        };
        let state = random_text();
        let defaults = session.defaults(key);
        let user_scopes = defaults.and_then(|defaults| defaults.user_scopes.clone()).or(request.user_scopes);
        let mut params = request.authorization_params;
        params.retain(|name, _| is_allowed_from_browsers(&provider, name));
        params.extend(user_scopes.map(|scopes| ("user_scope".to_owned(), scopes)));
        params.extend(defaults.into_iter().flat_map(|defaults| defaults.authorization_params.clone()));
        let checked = CheckedStart {
            provider: &provider,
            config: &config,
            app: &app,
            flow: Flow::new(&self.gateway, &provider, &config, Some(&app))
                .with_override(request.own_client.as_ref()),
            state: &state,
            redirect_uri: &redirect_uri,
            params,
        };
        let page = checked.page().await?;
        let secrets = AuthorizationSecrets {
            redirect_uri,
            pkce_verifier: page.pkce_verifier,
            temporary: page.temporary,
            own_client: request.own_client,
            own_refresh_token: request.own_refresh_token,
        };
        let id = Uuid::new_v4();
        let cookie_value = random_text();
        let secrets = Zeroizing::new(serde_json::to_vec(&secrets)?);
        let sealed = environment.data_key.seal(associated_data(&id.to_string()), &secrets);
        let new = NewAuthorization {
            id,
            environment: environment.pk,
            integration: integration.pk,
            session: session.pk,
            state_hash: hash(state.expose()),
            browser_hash: hash(cookie_value.expose()),
            connection_config: &Value::Object(config),
            sealed_secrets: &sealed,
            listener: request.listener,
            lifetime_seconds: AUTHORIZATION_SECONDS,
        };
        if !authorizations::create(&mut *self.store.connect().await?, &new).await? {
            return Err(AuthorizationError::UnknownIntegration(request.integration));
        }
        Ok(StartedAuthorization { url: page.url, cookie_name: cookie_name(id), cookie_value, returns_to })
    }
}

/// A validated request to start an authorization.
struct CheckedStart<'a> {
    provider: &'a Provider,
    config: &'a Map<String, Value>,
    app: &'a AppCredentials,
    flow: Flow<'a>,
    state: &'a Secret<String>,
    redirect_uri: &'a str,
    params: BTreeMap<String, String>,
}

impl CheckedStart<'_> {
    async fn page(&self) -> Result<Page, AuthorizationError> {
        match self.provider.auth_mode {
            AuthMode::OAuth1 => self.oauth1_page().await,
            AuthMode::App | AuthMode::Custom => self.installation_page(),
            _ => self.oauth2_page(),
        }
    }

    fn oauth2_page(&self) -> Result<Page, AuthorizationError> {
        let pkce_verifier = (!self.provider.disable_pkce).then(random_text);
        let own_scopes = answers::scopes_override(self.config);
        let params: Vec<(String, String)> = self.remaining_params().collect();
        let request = AuthorizationRequest {
            client_id: &self.flow.client().ok_or(FlowError::NoClient)?.id,
            redirect_uri: self.redirect_uri,
            state: self.state,
            scopes: own_scopes.as_deref().unwrap_or(self.flow.scopes()),
            pkce_verifier: pkce_verifier.as_ref(),
            params: &params,
        };
        let mut url = authorization_url(self.provider, self.config, &request)?;
        self.remove_params(&mut url);
        Ok(Page { url, pkce_verifier, temporary: None })
    }

    /// Requests temporary credentials first. The provider's redirect contains no state, so the state is part of the
    /// callback URL.
    async fn oauth1_page(&self) -> Result<Page, AuthorizationError> {
        let mut callback = parse_url(self.redirect_uri, "redirect_uri")?;
        callback.query_pairs_mut().append_pair("state", self.state.expose());
        let temporary = self.flow.temporary_credentials(callback.as_str()).await?;
        let template = self.provider.authorization_url.as_ref();
        let template = template.ok_or(FlowError::IncompleteProvider("authorization_url"))?;
        let mut url = self.provider.render_url(template, self.config)?;
        let own_scopes = answers::scopes_override(self.config);
        let scopes = own_scopes.as_deref().unwrap_or(self.flow.scopes());
        let own = self.provider.render_params(&self.provider.authorization_params, self.config)?;
        let mut params: BTreeMap<String, String> = own.into_iter().collect();
        if !scopes.is_empty() {
            let separator = self.provider.scope_separator.as_deref().unwrap_or(" ");
            params.insert("scope".to_owned(), scopes.join(separator));
        }
        params.extend(self.remaining_params());
        params.insert("oauth_token".to_owned(), temporary.token.clone());
        url.query_pairs_mut().extend_pairs(&params);
        self.remove_params(&mut url);
        let temporary = TemporaryToken { token: temporary.token, secret: temporary.secret };
        Ok(Page { url, pkce_verifier: None, temporary: Some(temporary) })
    }

    fn installation_page(&self) -> Result<Page, AuthorizationError> {
        let app = self.app.app().ok_or(FlowError::NoClient)?;
        let mut url = parse_url(&app.app_link, "app_link")?;
        url.path_segments_mut()
            .map_err(|()| FlowError::IncompleteProvider("app_link"))?
            .pop_if_empty()
            .extend(["installations", "new"]);
        url.query_pairs_mut().append_pair("state", self.state.expose());
        Ok(Page { url, pkce_verifier: None, temporary: None })
    }

    fn remaining_params(&self) -> impl Iterator<Item = (String, String)> {
        let params = self.params.iter().filter(|(_, value)| *value != REMOVED);
        params.map(|(name, value)| (name.clone(), value.clone()))
    }

    fn remove_params(&self, url: &mut Url) {
        let is_removed = |name: &str| {
            self.provider.authorization_params.contains_key(name)
                && self.params.get(name).is_some_and(|value| value == REMOVED)
        };
        let remaining: Vec<(String, String)> =
            url.query_pairs().into_owned().filter(|(name, _)| !is_removed(name)).collect();
        url.query_pairs_mut().clear().extend_pairs(&remaining);
    }
}

/// Returns whether a browser may choose this parameter of the provider's page. Scopes have many names:
/// `optional_scope`, `bot_scopes`, `include_granted_scopes`. The request has a separate member for the user's scopes.
fn is_allowed_from_browsers(provider: &Provider, name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_of_oauth1 = provider.auth_mode == AuthMode::OAuth1 && name.starts_with("oauth_");
    let is_client = provider.client_id_param.as_deref().is_some_and(|param| name.eq_ignore_ascii_case(param));
    !(is_of_oauth1 || is_client || name.contains("scope") || RESERVED_PARAMS.contains(&name.as_str()))
}

/// The name of the cookie that binds an authorization to a browser. Each authorization has its own, so that one browser
/// can have several in progress.
pub(super) fn cookie_name(authorization: Uuid) -> String {
    format!("syncline_oauth_{}", authorization.simple())
}

/// Returns 256 random bits as text.
fn random_text() -> Secret<String> {
    URL_SAFE_NO_PAD.encode(random_bytes::<32>()).into()
}

fn parse_url(text: &str, what: &'static str) -> Result<Url, FlowError> {
    Url::parse(text).map_err(|_| FlowError::IncompleteProvider(what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_may_set_display_parameters_but_not_the_access_granted() {
        let provider = |more: &str| -> Provider {
            let entry = format!(
                "name = \"acme\"\ndisplay_name = \"Acme\"\ndocs = \"https://acme.example\"\n{more}\n\
                 [source]\naddress = \"https://acme.example\"\nchecked_at = \"2026-11-21\""
            );
            toml::from_str(&entry).unwrap()
        };
        let oauth2 = provider("auth_mode = \"OAUTH2\"\nclient_id_param = \"client_key\"");
        let oauth1 = provider("auth_mode = \"OAUTH1\"");
        for name in ["prompt", "access_type", "audience", "login_hint", "resource", "duration", "name"] {
            assert!(
                is_allowed_from_browsers(&oauth2, name) && is_allowed_from_browsers(&oauth1, name),
                "{name}"
            );
        }
        for name in ["scope", "SCOPE", "bot_scopes", "response_type", "response_mode", "request", "state"] {
            assert!(
                !is_allowed_from_browsers(&oauth2, name) && !is_allowed_from_browsers(&oauth1, name),
                "{name}"
            );
        }
        assert!(!is_allowed_from_browsers(&oauth2, "client_key"));
        assert!(!is_allowed_from_browsers(&oauth1, "oauth_callback"));
    }
}
