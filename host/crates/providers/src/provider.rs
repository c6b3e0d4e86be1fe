//! One entry of the catalogue: what the host has to know of a provider. The keys of the TOML file are
//! those that clients see in JSON, so one set of types serves both.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;

use super::auth_mode::AuthMode;
use super::key_encoding::KeyEncoding;
use super::proxy::{HeaderKey, Proxy};
use super::question::Question;
use super::source::Source;
use super::template::{Template, Variable};
use super::url_template::{UnusableConfig, UrlTemplate};
use super::webhook::Webhook;
use syncline_types::ids::ProviderSlug;

/// What is known of a provider. As JSON it is what clients are shown.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    /// The slug; the file is named after it.
    pub name: ProviderSlug,
    pub display_name: String,
    pub auth_mode: AuthMode,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// The provider's own manual.
    pub docs: String,
    #[serde(skip_serializing)]
    pub source: Source,
    /// The background of the provider's monogram, as `#rrggbb`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub color: Option<String>,
    /// What the end user is asked for to prove who they are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub credentials: BTreeMap<String, Question>,
    /// What the end user is asked for beside the credentials, such as a subdomain.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub connection_config: BTreeMap<String, Question>,

    /// OAuth 1: where the temporary credentials come from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_url: Option<UrlTemplate>,
    /// OAuth 1 and TBA; HMAC-SHA1 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature_method: Option<SignatureMethod>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization_url: Option<UrlTemplate>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub authorization_params: BTreeMap<String, Template>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_url: Option<UrlTemplate>,
    /// Sent with every token request, also those that refresh.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub token_params: BTreeMap<String, Template>,
    /// Where tokens are refreshed, if not at `token_url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_url: Option<UrlTemplate>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refresh_params: BTreeMap<String, Template>,
    /// CUSTOM: where a user's token lists the installations that the user may use.
    #[serde(default, skip_serializing)]
    pub installations_url: Option<UrlTemplate>,
    /// In the body unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_request_auth_method: Option<TokenRequestAuth>,
    /// A form unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_request_format: Option<BodyFormat>,
    /// What this provider calls `client_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id_param: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub default_scopes: Vec<String>,
    /// A space unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope_separator: Option<String>,
    /// PKCE is used unless the provider cannot do it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable_pkce: bool,
    /// Where a token response keeps what it keeps elsewhere than OAuth 2 says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_response: Option<TokenResponsePaths>,
    /// Tokens are refreshed when they have this many seconds left; 900 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_expiration_buffer: Option<u32>,
    /// How many seconds a token lives whose response does not say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_lifetime: Option<u32>,

    /// How credentials are exchanged for a token: TWO_STEP and BILL, and JWT where the signed token is exchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_request: Option<TokenRequest>,
    /// How such a token is renewed, where that needs less than the exchange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_request: Option<TokenRequest>,
    /// JWT: what is signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtRecipe>,
    /// SIGNATURE: how a request is signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<SignatureScheme>,

    #[serde(default)]
    pub proxy: Proxy,
    /// How its webhooks are taken; none if they are not.
    #[serde(default, skip_serializing)]
    pub webhook: Option<Webhook>,
}

/// Where the client's id and secret go in a token request; without it, into the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenRequestAuth {
    /// Into the `Authorization` header.
    Basic,
    /// Nowhere.
    Custom,
}

/// How the fields of a request are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BodyFormat {
    #[default]
    Form,
    Json,
    /// Into the URL; the body stays empty.
    Query,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignatureMethod {
    #[default]
    #[serde(rename = "HMAC-SHA1")]
    HmacSha1,
    #[serde(rename = "HMAC-SHA256")]
    HmacSha256,
    #[serde(rename = "PLAINTEXT")]
    Plaintext,
}

/// Dotted paths into a token response. What is not given stands where RFC 6749 puts it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenResponsePaths {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_token: Option<String>,
    /// Seconds from now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<String>,
    /// A date, or seconds or milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
}

/// A request that exchanges credentials for a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// In place of `token_url`, for a renewal at another address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<UrlTemplate>,
    #[serde(default)]
    pub format: BodyFormat,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<HeaderKey, Template>,
    /// A dot in a name makes an object of what is before it, in JSON.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub body: BTreeMap<String, Template>,
}

/// What a JWT holds and how it is signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JwtRecipe {
    pub algorithm: JwtAlgorithm,
    /// The secret, or the private key in PEM.
    pub key: Template,
    #[serde(default)]
    pub key_encoding: KeyEncoding,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub header: BTreeMap<String, Template>,
    /// Beside `iat` and `exp`, which are always there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: BTreeMap<String, Template>,
    /// Seconds.
    pub expires_in: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JwtAlgorithm {
    #[serde(rename = "HS256")]
    Hs256,
    #[serde(rename = "RS256")]
    Rs256,
    #[serde(rename = "ES256")]
    Es256,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignatureScheme {
    /// The `UsernameToken` of WS-Security in a header, new for each request.
    #[default]
    #[serde(rename = "WSSE")]
    Wsse,
    /// The same with hexadecimal digits where the standard has bytes.
    #[serde(rename = "WSSE_HEX")]
    WsseHex,
}

impl Provider {
    /// The address of the API for a connection with this configuration. `None` if the catalogue has none.
    pub fn base_url(&self, config: &Map<String, Value>) -> Result<Option<Url>, UnusableConfig> {
        self.proxy.base_url.as_ref().map(|template| self.render_url(template, config)).transpose()
    }

    /// One of the entry's addresses, for a connection with this configuration.
    pub fn render_url(
        &self,
        template: &UrlTemplate,
        config: &Map<String, Value>,
    ) -> Result<Url, UnusableConfig> {
        template.render(|name| self.required_answer(config, name))
    }

    /// Parameters of a request of the flow, for a connection with this configuration. One that asks for an
    /// optional answer that was not given is left out.
    pub fn render_params<'a>(
        &self,
        params: impl IntoIterator<Item = (&'a String, &'a Template)>,
        config: &Map<String, Value>,
    ) -> Result<Vec<(String, String)>, UnusableConfig> {
        let mut rendered = Vec::new();
        for (name, template) in params {
            match self.render(template, config) {
                Ok(value) => rendered.push((name.clone(), value)),
                Err(UnusableConfig::Missing { name }) if self.is_optional(&name) => {}
                Err(unusable) => return Err(unusable),
            }
        }
        Ok(rendered)
    }

    /// A template in which only answers stand, for a connection with this configuration.
    pub fn render(&self, template: &Template, config: &Map<String, Value>) -> Result<String, UnusableConfig> {
        template.render(|variable| match variable {
            Variable::ConnectionConfig(name) => self.required_answer(config, name),
            // The rules let nothing else in.
            other => Err(UnusableConfig::Missing { name: other.to_string() }),
        })
    }

    fn is_optional(&self, name: &str) -> bool {
        self.connection_config.get(name).is_some_and(|question| question.optional)
    }

    /// Checks that a connection with this configuration can be used: every question that needs an answer has one.
    pub fn check_config(&self, config: &Map<String, Value>) -> Result<(), UnusableConfig> {
        for (name, question) in &self.connection_config {
            let answer = self.answer(config, name)?;
            if answer.is_none() && !question.optional && !question.automated {
                return Err(UnusableConfig::Missing { name: name.clone() });
            }
        }
        self.base_url(config).map(drop)
    }

    /// What was answered to a question of `connection_config`, else its default; checked again, since the
    /// configuration may have been imported or stored before the pattern was what it is now.
    pub fn answer<'a>(
        &'a self,
        config: &'a Map<String, Value>,
        name: &str,
    ) -> Result<Option<Cow<'a, str>>, UnusableConfig> {
        let question = self.connection_config.get(name);
        let given = match config.get(name) {
            Some(Value::String(text)) if !text.is_empty() => Some(Cow::Borrowed(text.as_str())),
            Some(Value::Number(number)) => Some(Cow::Owned(number.to_string())),
            _ => question.and_then(|question| question.default_value.as_deref()).map(Cow::Borrowed),
        };
        if let (Some(given), Some(question)) = (&given, question)
            && !question.choices.is_empty()
            && !question.choices.iter().any(|choice| choice == given)
        {
            return Err(UnusableConfig::Choice { name: name.to_owned(), choices: question.choices.clone() });
        }
        if let Some(given) = &given
            && let Some(pattern) = question.and_then(|question| question.pattern.as_ref())
            && !pattern.matches(given)
        {
            return Err(UnusableConfig::Pattern {
                name: name.to_owned(),
                pattern: pattern.as_str().to_owned(),
            });
        }
        Ok(given)
    }

    fn required_answer<'a>(
        &'a self,
        config: &'a Map<String, Value>,
        name: &str,
    ) -> Result<Cow<'a, str>, UnusableConfig> {
        self.answer(config, name)?.ok_or_else(|| UnusableConfig::Missing { name: name.to_owned() })
    }
}
