//! One provider of the catalogue. The keys of the TOML file and of the API's JSON are the same, so one set of types
//! serves both.

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

/// A provider. The JSON form is what clients see.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provider {
    /// The slug, which is also the name of the file.
    pub name: ProviderSlug,
    pub display_name: String,
    pub auth_mode: AuthMode,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// The provider's API documentation.
    pub docs: String,
    #[serde(skip_serializing)]
    pub source: Source,
    /// The background of the provider's monogram, as `#rrggbb`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub color: Option<String>,
    /// Questions for the end user's credentials.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub credentials: BTreeMap<String, Question>,
    /// Questions for other values, such as a subdomain.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub connection_config: BTreeMap<String, Question>,

    /// OAuth 1: where temporary credentials are requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_url: Option<UrlTemplate>,
    /// For OAuth 1 and TBA. The default is HMAC-SHA1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature_method: Option<SignatureMethod>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization_url: Option<UrlTemplate>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub authorization_params: BTreeMap<String, Template>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_url: Option<UrlTemplate>,
    /// Sent with every token request, including refreshes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub token_params: BTreeMap<String, Template>,
    /// Where tokens are refreshed, if not at `token_url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_url: Option<UrlTemplate>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refresh_params: BTreeMap<String, Template>,
    /// CUSTOM: the list of installations that a user's token gives access to.
    #[serde(default, skip_serializing)]
    pub installations_url: Option<UrlTemplate>,
    /// The default is the request body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_request_auth_method: Option<TokenRequestAuth>,
    /// The default is a form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_request_format: Option<BodyFormat>,
    /// The provider's name for `client_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id_param: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub default_scopes: Vec<String>,
    /// The default is a space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope_separator: Option<String>,
    /// PKCE is used unless the provider does not support it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable_pkce: bool,
    /// Where a token response deviates from OAuth 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_response: Option<TokenResponsePaths>,
    /// Tokens are refreshed when they have this many seconds left. The default is 900.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_expiration_buffer: Option<u32>,
    /// Lifetime in seconds of a token whose response does not state one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_lifetime: Option<u32>,

    /// How credentials are exchanged for a token: TWO_STEP, BILL, and JWT if the signed token is exchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_request: Option<TokenRequest>,
    /// How such a token is renewed, if the exchange need not be repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refresh_request: Option<TokenRequest>,
    /// JWT: the content that is signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jwt: Option<JwtRecipe>,
    /// SIGNATURE: how a request is signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<SignatureScheme>,

    #[serde(default)]
    pub proxy: Proxy,
    /// How webhooks of this provider are verified and read. None if they are not supported.
    #[serde(default, skip_serializing)]
    pub webhook: Option<Webhook>,
}

/// Where the client's id and secret are placed in a token request. Without a value, they are in the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenRequestAuth {
    /// In the `Authorization` header.
    Basic,
    /// Not at all.
    Custom,
}

/// The encoding of a request's fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BodyFormat {
    #[default]
    Form,
    Json,
    /// In the URL, with an empty body.
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

/// Dotted paths into a token response. The default of each is its place in RFC 6749.
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
    /// Replaces `token_url`, for a renewal at another address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<UrlTemplate>,
    #[serde(default)]
    pub format: BodyFormat,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<HeaderKey, Template>,
    /// In JSON, a dot in a name creates a nested object.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub body: BTreeMap<String, Template>,
}

/// Content and signature of a JWT.
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
    /// Claims in addition to `iat` and `exp`, which are always set.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub claims: BTreeMap<String, Template>,
    /// Lifetime in seconds.
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
    /// The `UsernameToken` of WS-Security in a header, which is new for each request.
    #[default]
    #[serde(rename = "WSSE")]
    Wsse,
    /// The same, with hexadecimal digits where the standard has bytes.
    #[serde(rename = "WSSE_HEX")]
    WsseHex,
}

impl Provider {
    /// Returns the address of the API for a connection, or `None` if the catalogue has none.
    pub fn base_url(&self, config: &Map<String, Value>) -> Result<Option<Url>, UnusableConfig> {
        self.proxy.base_url.as_ref().map(|template| self.render_url(template, config)).transpose()
    }

    /// Renders one of the provider's addresses for a connection.
    pub fn render_url(
        &self,
        template: &UrlTemplate,
        config: &Map<String, Value>,
    ) -> Result<Url, UnusableConfig> {
        template.render(|name| self.required_answer(config, name))
    }

    /// Renders the parameters of a flow's request for a connection. A parameter that uses an optional answer is
    /// omitted if the answer was not given.
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

    /// Renders a template that contains only answers, for a connection.
    pub fn render(&self, template: &Template, config: &Map<String, Value>) -> Result<String, UnusableConfig> {
        template.render(|variable| match variable {
            Variable::ConnectionConfig(name) => self.required_answer(config, name),
            // The rules of the catalogue reject all other variables.
            other => Err(UnusableConfig::Missing { name: other.to_string() }),
        })
    }

    fn is_optional(&self, name: &str) -> bool {
        self.connection_config.get(name).is_some_and(|question| question.optional)
    }

    /// Checks that every required question has a valid answer, so that the connection can be used.
    pub fn check_config(&self, config: &Map<String, Value>) -> Result<(), UnusableConfig> {
        for (name, question) in &self.connection_config {
            let answer = self.answer(config, name)?;
            if answer.is_none() && !question.optional && !question.automated {
                return Err(UnusableConfig::Missing { name: name.clone() });
            }
        }
        self.base_url(config).map(drop)
    }

    /// Returns the answer to a question of `connection_config`, or its default. The answer is checked again,
    /// because it may have been imported, or stored before the pattern changed.
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
