//! What a connection proves itself with, and how that gets into a request.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};
use url::Url;

use super::boundary;
use super::error::EgressError;
use crate::providers::{Provider, Template, Variable};
use crate::secret::Secret;

/// The live credentials of a connection, as far as requests need them.
#[derive(Debug, Clone)]
pub enum Credentials {
    None,
    ApiKey {
        api_key: Secret<String>,
    },
    /// Both are secret: some providers take their key as the user name.
    Basic {
        username: Secret<String>,
        password: Secret<String>,
    },
    /// The access token of OAuth 2, or of an app's installation.
    OAuth2 {
        access_token: Secret<String>,
    },
    /// A token that was obtained with other credentials.
    Token {
        token: Secret<String>,
    },
}

/// Where the gate gets a connection's credentials. Implemented by whoever stores and refreshes them.
#[async_trait]
pub trait CredentialSource: Send + Sync {
    /// The credentials as they are now, refreshed if they were about to expire. Asked before every attempt.
    async fn current(&self) -> Result<Arc<Credentials>, CredentialsUnavailable>;

    /// Called once a request, when the provider answered 401 to `rejected`. `None` if there are no better ones:
    /// then the guest gets the 401.
    async fn refresh_after_rejection(
        &self,
        rejected: &Arc<Credentials>,
    ) -> Result<Option<Arc<Credentials>>, CredentialsUnavailable>;
}

/// Why a connection has no usable credentials. The reason is shown to guests.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct CredentialsUnavailable {
    pub reason: String,
}

/// What the provider's entry and the credentials add to a request to the provider itself.
#[derive(Default)]
pub(super) struct Injection {
    /// The provider's fixed headers, which a guest may replace.
    pub defaults: HeaderMap,
    /// What carries the credentials, which a guest can neither set nor see.
    pub secret_headers: HeaderMap,
    /// The provider's own parameters, in place of the guest's of the same name. Logs show only their names.
    query: Vec<(String, Secret<String>)>,
}

impl Injection {
    pub fn new(
        provider: &Provider,
        config: &Map<String, Value>,
        credentials: &Credentials,
    ) -> Result<Self, EgressError> {
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
            && let Some(value) = usual_header(credentials)
        {
            injection.add_header(AUTHORIZATION, &value, true)?;
        }
        Ok(injection)
    }

    /// Puts the parameters into a URL and gives their names.
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
        let mut value = HeaderValue::from_str(value).map_err(|_| CredentialsUnavailable {
            reason: format!("the header `{name}` cannot hold what this connection's credentials or configuration put in it"),
        })?;
        value.set_sensitive(is_secret);
        let headers = if is_secret { &mut self.secret_headers } else { &mut self.defaults };
        headers.insert(name, value);
        Ok(())
    }
}

/// `None` if the template asks for an optional answer that was not given: then it adds nothing.
fn render(
    template: &Template,
    provider: &Provider,
    config: &Map<String, Value>,
    credentials: &Credentials,
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
        _ => match credential(credentials, variable) {
            Some(value) => Ok(Cow::Borrowed(value)),
            None => Err(Missing::Other(
                CredentialsUnavailable {
                    reason: format!("the connection's credentials have no `{variable}`"),
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

fn credential<'a>(credentials: &'a Credentials, variable: &Variable) -> Option<&'a str> {
    let secret = match (credentials, variable) {
        (Credentials::ApiKey { api_key }, Variable::ApiKey) => api_key,
        (Credentials::Basic { username, .. }, Variable::Username) => username,
        (Credentials::Basic { password, .. }, Variable::Password) => password,
        (Credentials::OAuth2 { access_token }, Variable::AccessToken) => access_token,
        (Credentials::Token { token }, Variable::AccessToken) => token,
        _ => return None,
    };
    Some(secret.expose())
}

/// The `Authorization` header for a provider whose entry does not say where the credentials go.
fn usual_header(credentials: &Credentials) -> Option<String> {
    match credentials {
        Credentials::Basic { username, password } => Some(basic_header(username.expose(), password.expose())),
        Credentials::OAuth2 { access_token: token } | Credentials::Token { token } => {
            Some(format!("Bearer {}", token.expose()))
        }
        Credentials::None | Credentials::ApiKey { .. } => None,
    }
}

fn basic_header(username: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{username}:{password}")))
}
