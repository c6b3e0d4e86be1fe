//! The credentials of a connection, and how they are added to a request.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use serde_json::{Map, Value};
use url::Url;

use super::boundary;
use super::error::{CredentialsUnavailable, EgressError};
use super::oauth1::{self, OAuth1Keys};
use super::wsse;
use syncline_providers::{Provider, SignatureMethod, Template, Variable};
use syncline_types::secret::Secret;

/// The prefix of a Basic authentication header's value.
const BASIC: &str = "Basic ";

/// The credentials of a connection, as far as requests need them.
#[derive(Debug, Clone)]
pub enum Credentials {
    None,
    ApiKey {
        api_key: Secret<String>,
    },
    /// Both are secret, because some providers use the API key as the user name.
    Basic {
        username: Secret<String>,
        password: Secret<String>,
    },
    /// The access token of OAuth 2 or of an app installation.
    OAuth2 {
        access_token: Secret<String>,
        /// The app's client id, which some providers require in addition to the token.
        client_id: Option<String>,
    },
    /// A token that was obtained with other credentials, and those credentials by field name of the provider file.
    Token {
        token: Secret<String>,
        fields: BTreeMap<String, Secret<String>>,
    },
    /// Signs every request.
    OAuth1(OAuth1Keys),
    /// Adds a new `UsernameToken` to every request.
    UsernameToken {
        username: Secret<String>,
        password: Secret<String>,
    },
}

impl Credentials {
    /// Returns all secret values.
    pub fn secrets(&self) -> Vec<&str> {
        let secrets: Vec<&Secret<String>> = match self {
            Self::None => Vec::new(),
            Self::ApiKey { api_key } => vec![api_key],
            Self::Basic { username, password } | Self::UsernameToken { username, password } => {
                vec![username, password]
            }
            Self::OAuth2 { access_token, .. } => vec![access_token],
            Self::Token { token, fields } => fields.values().chain([token]).collect(),
            Self::OAuth1(keys) => vec![&keys.consumer_secret, &keys.token, &keys.token_secret],
        };
        secrets.into_iter().map(|secret| secret.expose().as_str()).collect()
    }
}

/// Provides the credentials of a connection. Implemented where they are stored and refreshed.
#[async_trait]
pub trait CredentialSource: Send + Sync {
    /// Returns the current credentials, refreshed if they were about to expire. Called before every attempt.
    async fn current(&self) -> Result<Arc<Credentials>, CredentialsUnavailable>;

    /// Refreshes the credentials after the provider answered 401 to `rejected`. Called at most once for a request.
    /// Returns `None` if there are no newer credentials; the caller then receives the 401.
    async fn refresh_after_rejection(
        &self,
        rejected: &Arc<Credentials>,
    ) -> Result<Option<Arc<Credentials>>, CredentialsUnavailable>;

    /// Receives the final answer to a request that carried `used`, after all retries.
    async fn answered(&self, _used: &Arc<Credentials>, _answer: &FinalAnswer<'_>) {}
}

/// The final answer to a request that carried credentials, as far as it concerns them.
#[derive(Debug, Clone, Copy)]
pub struct FinalAnswer<'a> {
    pub host: &'a str,
    pub status: StatusCode,
    /// Whether the provider refused the request because of a rate limit. Some providers do so with 403.
    pub is_rate_limit: bool,
}

/// Credentials that are tested before they are stored.
pub struct FixedCredentials(Arc<Credentials>);

impl FixedCredentials {
    pub fn new(credentials: Credentials) -> Self {
        Self(Arc::new(credentials))
    }
}

#[async_trait]
impl CredentialSource for FixedCredentials {
    async fn current(&self) -> Result<Arc<Credentials>, CredentialsUnavailable> {
        Ok(Arc::clone(&self.0))
    }

    async fn refresh_after_rejection(
        &self,
        _rejected: &Arc<Credentials>,
    ) -> Result<Option<Arc<Credentials>>, CredentialsUnavailable> {
        Ok(None)
    }
}

/// What the provider file and the credentials add to one request to the provider. Created for every request, because a
/// signature must not be reused.
#[derive(Default)]
pub(super) struct Injection {
    /// The provider's default headers, which a guest can override.
    pub defaults: HeaderMap,
    /// The headers that carry the credentials. A guest can neither set nor read them.
    pub secret_headers: HeaderMap,
    /// The provider's parameters, which replace parameters of the same name. Logs contain only their names.
    query: Vec<(String, Secret<String>)>,
    /// Signs the complete request.
    signer: Option<Signer>,
}

/// Signs requests with OAuth 1, for one provider and one connection.
struct Signer {
    keys: OAuth1Keys,
    method: SignatureMethod,
    realm: Option<String>,
}

impl Injection {
    pub fn new(
        provider: &Provider,
        config: &Map<String, Value>,
        credentials: &Credentials,
    ) -> Result<Self, EgressError> {
        let credentials = &PerRequestToken::new(credentials, provider);
        let render = |template: &Template| render(template, provider, config, credentials);
        let mut injection = Self::default();
        for (key, template) in &provider.proxy.headers {
            if let Some(value) = render(template)? {
                injection.add_header(key.name().clone(), &value, template.has_credentials())?;
            }
        }
        for (name, template) in &provider.proxy.query {
            if let Some(value) = render(template)? {
                injection.query.push((name.clone(), value.into()));
            }
        }
        if let Some(basic) = &provider.proxy.basic {
            if let (Some(username), Some(password)) = (render(&basic.username)?, render(&basic.password)?) {
                injection.add_header(AUTHORIZATION, &basic_header(&username, &password), true)?;
            }
        } else if !provider.proxy.places_credentials()
            && let Some((name, value)) = default_header(credentials)
            && !injection.secret_headers.contains_key(&name)
        {
            injection.add_header(name, &value, true)?;
        }
        if let Credentials::OAuth1(keys) = credentials.credentials {
            injection.signer = Some(Signer {
                keys: keys.clone(),
                method: provider.signature_method.unwrap_or_default(),
                realm: oauth1::realm(provider.auth_mode, config),
            });
        }
        Ok(injection)
    }

    /// Returns the header that only the host can set, because it is added to the complete request.
    pub fn reserved_header(&self) -> Option<&HeaderName> {
        self.signer.as_ref().map(|_| &AUTHORIZATION)
    }

    /// Whether a body with these headers is a form that the signature covers.
    pub fn signs_form(&self, headers: &HeaderMap) -> bool {
        self.signer.is_some() && oauth1::is_form(headers)
    }

    /// Signs a complete request. `form` is its body if the signature covers it.
    pub fn sign(
        &self,
        method: &Method,
        url: &Url,
        form: Option<&Bytes>,
        headers: &mut HeaderMap,
    ) -> Result<(), EgressError> {
        let Some(Signer { keys, method: signature, realm }) = &self.signer else { return Ok(()) };
        let form = form.map(|form| &form[..]);
        let value = oauth1::authorization(keys, *signature, realm.as_deref(), method, url, form);
        headers.insert(AUTHORIZATION, secret_value(&AUTHORIZATION, &value)?);
        Ok(())
    }

    /// Returns the credentials in all forms in which they are sent.
    ///
    /// Signatures are not included, because they are valid for one request only.
    pub fn secrets<'s>(&'s self, credentials: &'s Credentials) -> Vec<&'s str> {
        let encoded =
            self.secret_headers.values().filter_map(|value| value.to_str().ok()?.strip_prefix(BASIC));
        credentials.secrets().into_iter().chain(encoded).collect()
    }

    /// Adds the parameters to a URL and returns their names.
    pub fn add_query(&self, url: &mut Url) -> Vec<String> {
        let names: Vec<String> = self.query.iter().map(|(name, _)| name.clone()).collect();
        if !names.is_empty() {
            boundary::remove_query(url, &names);
            boundary::add_query(
                url,
                self.query.iter().map(|(name, value)| (name.as_str(), value.expose().as_str())),
            );
        }
        names
    }

    fn add_header(&mut self, name: HeaderName, value: &str, is_secret: bool) -> Result<(), EgressError> {
        let mut value = secret_value(&name, value)?;
        value.set_sensitive(is_secret);
        let headers = if is_secret { &mut self.secret_headers } else { &mut self.defaults };
        headers.insert(name, value);
        Ok(())
    }
}

/// The credentials, and a token that was created from them for this request only.
struct PerRequestToken<'a> {
    credentials: &'a Credentials,
    per_request: Option<Secret<String>>,
}

impl<'a> PerRequestToken<'a> {
    fn new(credentials: &'a Credentials, provider: &Provider) -> Self {
        let per_request = match credentials {
            Credentials::UsernameToken { username, password } => {
                let scheme = provider.signature.unwrap_or_default();
                Some(wsse::username_token(scheme, username.expose(), password.expose()))
            }
            _ => None,
        };
        Self { credentials, per_request }
    }

    fn value(&self, variable: &Variable) -> Option<&str> {
        let secret = match (self.credentials, variable) {
            (Credentials::ApiKey { api_key }, Variable::ApiKey) => api_key,
            (Credentials::Basic { username, .. }, Variable::Username) => username,
            (Credentials::Basic { password, .. }, Variable::Password) => password,
            (Credentials::OAuth2 { access_token, .. }, Variable::AccessToken) => access_token,
            (Credentials::OAuth2 { client_id, .. }, Variable::ClientId) => return client_id.as_deref(),
            (Credentials::Token { token, .. }, Variable::AccessToken) => token,
            (Credentials::Token { fields, .. }, Variable::Credential(name)) => fields.get(name)?,
            (Credentials::Token { fields, .. }, Variable::ClientId) => fields.get("client_id")?,
            (Credentials::OAuth1(keys), Variable::ClientId) => return Some(&keys.consumer_key),
            (Credentials::UsernameToken { .. }, Variable::AccessToken) => self.per_request.as_ref()?,
            (Credentials::UsernameToken { username, .. }, Variable::Credential(name))
                if name == "username" =>
            {
                username
            }
            (Credentials::UsernameToken { password, .. }, Variable::Credential(name))
                if name == "password" =>
            {
                password
            }
            _ => return None,
        };
        Some(secret.expose())
    }
}

/// Renders a template. Returns `None` if it refers to an optional configuration value that is not set.
fn render(
    template: &Template,
    provider: &Provider,
    config: &Map<String, Value>,
    credentials: &PerRequestToken<'_>,
) -> Result<Option<String>, EgressError> {
    enum Missing {
        Answer,
        Other(EgressError),
    }
    let rendered = template.render(|variable| match variable {
        Variable::ConnectionConfig(name) => match provider.answer(config, name) {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(Missing::Answer),
            Err(unusable) => Err(Missing::Other(EgressError::invalid(unusable.to_string()))),
        },
        _ => match credentials.value(variable) {
            Some(value) => Ok(Cow::Borrowed(value)),
            None => Err(Missing::Other(
                CredentialsUnavailable {
                    reason: format!(
                        "the provider file uses `{variable}`, which the connection's credentials do not contain"
                    ),
                }
                .into(),
            )),
        },
    });
    match rendered {
        Ok(text) => Ok(Some(text)),
        Err(Missing::Answer) => Ok(None),
        Err(Missing::Other(error)) => Err(error),
    }
}

/// The default header for the credentials of a provider whose file does not define one.
fn default_header(credentials: &PerRequestToken<'_>) -> Option<(HeaderName, String)> {
    match credentials.credentials {
        Credentials::Basic { username, password } => {
            Some((AUTHORIZATION, basic_header(username.expose(), password.expose())))
        }
        Credentials::OAuth2 { access_token: token, .. } | Credentials::Token { token, .. } => {
            Some((AUTHORIZATION, format!("Bearer {}", token.expose())))
        }
        Credentials::UsernameToken { .. } => {
            credentials.per_request.as_ref().map(|token| (wsse::HEADER, token.expose().clone()))
        }
        Credentials::None | Credentials::ApiKey { .. } | Credentials::OAuth1(_) => None,
    }
}

fn secret_value(name: &HeaderName, value: &str) -> Result<HeaderValue, CredentialsUnavailable> {
    let mut value = HeaderValue::from_str(value).map_err(|_| CredentialsUnavailable {
        reason: format!(
            "the connection's credentials or configuration contain characters that are not allowed in the header \
             `{name}`"
        ),
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn basic_header(username: &str, password: &str) -> String {
    format!("{BASIC}{}", STANDARD.encode(format!("{username}:{password}")))
}
