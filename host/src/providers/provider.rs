//! One entry of the catalogue: what the host has to know of a provider. The keys of the TOML file are
//! those that clients see in JSON, so one set of types serves both.

use std::borrow::Cow;
use std::collections::BTreeMap;

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;

use super::auth_mode::AuthMode;
use super::proxy::Proxy;
use super::question::Question;
use super::url_template::{UnusableConfig, UrlTemplate};
use crate::ids::ProviderSlug;

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
    /// What the end user is asked for to prove who they are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub credentials: BTreeMap<String, Question>,
    /// What the end user is asked for beside the credentials, such as a subdomain.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub connection_config: BTreeMap<String, Question>,

    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization_url: Option<UrlTemplate>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub authorization_params: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_url: Option<UrlTemplate>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub token_params: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_request_auth_method: Option<TokenRequestAuth>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub default_scopes: Vec<String>,
    /// A space unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope_separator: Option<String>,
    /// PKCE is used unless the provider cannot do it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disable_pkce: bool,

    #[serde(default)]
    pub proxy: Proxy,
}

/// Where the facts of an entry were read, and when.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub address: String,
    pub checked_at: NaiveDate,
}

/// Where the client's id and secret go in a token request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenRequestAuth {
    Basic,
    Custom,
    PrivateKeyJwt,
}

impl Provider {
    /// The address of the API for a connection with this configuration. `None` if the catalogue has none.
    pub fn base_url(&self, config: &Map<String, Value>) -> Result<Option<Url>, UnusableConfig> {
        let render = |template: &UrlTemplate| template.render(|name| self.required_answer(config, name));
        self.proxy.base_url.as_ref().map(render).transpose()
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
