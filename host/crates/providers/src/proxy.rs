//! How requests to a provider's API are made: where to, with what, and how it answers when it is busy.

use std::collections::BTreeMap;

use http::HeaderName;
use serde::{Deserialize, Serialize};

use super::template::{Template, Variable};
use super::url_template::UrlTemplate;

/// How requests to the provider's API are made.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proxy {
    /// None for a provider whose address only the integration knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<UrlTemplate>,
    /// Lets an answer choose the whole host. Only in an operator's own files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub free_host: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<HeaderKey, Template>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub query: BTreeMap<String, Template>,
    /// What basic authentication is made of, where it is not just the user name and the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basic: Option<BasicTemplates>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
    #[serde(default)]
    pub retry: RetryHints,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limit: Option<RateLimit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paginate: Option<Paginate>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BasicTemplates {
    pub username: Template,
    pub password: Template,
}

/// A cheap request that the provider answers with 401 if the credentials are bad. Any other answer proves
/// nothing against them: a key with few rights may well be forbidden what is asked here. Where the endpoint names an
/// answer, the request asks whether the credentials are for that, and only a success says so.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verification {
    pub method: VerificationMethod,
    /// Resolved against the base URL.
    pub endpoint: Template,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum VerificationMethod {
    Get,
    Head,
    Post,
}

/// The headers by which a provider says when to come back.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryHints {
    /// Hold seconds or a date. `Retry-After` always counts and need not be named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<HeaderKey>,
    /// Hold a time: seconds or milliseconds since 1970, or a date.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<HeaderKey>,
    /// Holds the requests that are left. With 0 in it, 403 means "too many requests" as 429 does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<HeaderKey>,
    /// Whose requests are counted together: when they are too many, all of them wait.
    #[serde(default, skip_serializing_if = "LimitScope::is_connection")]
    pub scope: LimitScope,
}

/// Whose requests a provider counts together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitScope {
    /// Those of one account.
    #[default]
    Connection,
    /// Those of the app, for whatever account: those of all connections of an integration.
    Integration,
}

impl Verification {
    /// The answers that it asks the provider to confirm.
    pub fn confirmed_answers(&self) -> impl Iterator<Item = &str> {
        self.endpoint.variables().filter_map(|variable| match variable {
            Variable::ConnectionConfig(name) => Some(name.as_str()),
            _ => None,
        })
    }
}

impl LimitScope {
    fn is_connection(&self) -> bool {
        *self == Self::Connection
    }
}

/// How many requests may be made in how many seconds, by those whom the provider counts together ([`LimitScope`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    pub requests: u32,
    pub per_seconds: u32,
}

/// How lists are read page by page. Paths are dotted, into the body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Paginate {
    /// The answer has a token for the next page.
    Cursor {
        cursor_path_in_response: String,
        cursor_name_in_request: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_name_in_request: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        response_path: Option<String>,
    },
    /// The answer has the URL of the next page, in its body or in its `Link` header.
    Link {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        link_path_in_response_body: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        link_rel_in_response_header: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_name_in_request: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        response_path: Option<String>,
    },
    /// The request counts what to skip.
    Offset {
        offset_name_in_request: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_name_in_request: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        response_path: Option<String>,
    },
}

/// The name of an HTTP header, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HeaderKey(HeaderName);

impl Proxy {
    /// Whether a template says where the key, the password or the token goes. If none does, the kind of
    /// credentials decides.
    pub fn places_credentials(&self) -> bool {
        self.basic.is_some() || self.variables().any(|(_, variable)| variable.is_proof())
    }

    /// Whether requests carry the id of the app beside the credentials.
    pub fn wants_client_id(&self) -> bool {
        self.variables().any(|(_, variable)| *variable == Variable::ClientId)
    }

    /// Every template in it, with the key under which it is written.
    pub(super) fn templates(&self) -> impl Iterator<Item = (String, &Template)> {
        let headers =
            self.headers.iter().map(|(name, template)| (format!("proxy.headers.{}", name.0), template));
        let query = self.query.iter().map(|(name, template)| (format!("proxy.query.{name}"), template));
        let basic = self.basic.iter().flat_map(|basic| {
            [
                ("proxy.basic.username".to_owned(), &basic.username),
                ("proxy.basic.password".to_owned(), &basic.password),
            ]
        });
        headers.chain(query).chain(basic)
    }

    /// Every variable in it, with the key under which it is written.
    pub(super) fn variables(&self) -> impl Iterator<Item = (String, &Variable)> {
        self.templates()
            .flat_map(|(key, template)| template.variables().map(move |variable| (key.clone(), variable)))
    }
}

impl HeaderKey {
    pub fn name(&self) -> &HeaderName {
        &self.0
    }
}

impl PartialOrd for HeaderKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for HeaderKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.as_str().cmp(other.0.as_str())
    }
}

impl TryFrom<String> for HeaderKey {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| format!("`{text}` is not the name of a header"))
    }
}

impl From<HeaderKey> for String {
    fn from(key: HeaderKey) -> String {
        key.0.to_string()
    }
}
