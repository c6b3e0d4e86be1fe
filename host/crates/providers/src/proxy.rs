//! How requests to a provider's API are made: address, headers, rate limits and pagination.

use std::collections::BTreeMap;

use http::HeaderName;
use serde::{Deserialize, Serialize};

use super::template::{Template, Variable};
use super::url_template::UrlTemplate;

/// How requests to the provider's API are made.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Proxy {
    /// None if only the integration knows the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<UrlTemplate>,
    /// Lets an answer choose the whole host name. Accepted only in an operator's own files.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub free_host: bool,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<HeaderKey, Template>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub query: BTreeMap<String, Template>,
    /// Templates for basic authentication, if it is not simply user name and password.
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

/// A cheap request that the provider answers with 401 if the credentials are wrong. Any other response proves
/// nothing, because a key with few rights may not be allowed to make this request. If the endpoint contains an
/// answer, the request checks that the credentials belong to that account, and only a success confirms it.
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

/// The headers in which a provider states when to retry.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryHints {
    /// Headers with seconds or a date. `Retry-After` is always honoured and need not be listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<HeaderKey>,
    /// Headers with a point in time: seconds or milliseconds since 1970, or a date.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub at: Vec<HeaderKey>,
    /// Header with the number of remaining requests. If it is 0, a 403 means "too many requests" like a 429.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<HeaderKey>,
    /// Which requests share a limit. If there are too many, all of these requests wait.
    #[serde(default, skip_serializing_if = "LimitScope::is_connection")]
    pub scope: LimitScope,
}

/// Which requests a provider counts together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitScope {
    /// Requests of one account.
    #[default]
    Connection,
    /// Requests of the app for any account, which are those of all connections of an integration.
    Integration,
}

impl Verification {
    /// Returns the names of the answers that the request asks the provider to confirm.
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

/// The number of requests in a number of seconds, for all requests that the provider counts together
/// ([`LimitScope`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimit {
    pub requests: u32,
    pub per_seconds: u32,
}

/// How lists are read page by page. Paths are dotted paths in the response body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", deny_unknown_fields)]
pub enum Paginate {
    /// The response contains a token for the next page.
    Cursor {
        cursor_path_in_response: String,
        cursor_name_in_request: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit_name_in_request: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        response_path: Option<String>,
    },
    /// The response contains the URL of the next page, in its body or in its `Link` header.
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
    /// The request states how many items to skip.
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
    /// Whether a template places the key, password or token. If none does, the kind of the credentials decides.
    pub fn places_credentials(&self) -> bool {
        self.basic.is_some() || self.variables().any(|(_, variable)| variable.is_proof())
    }

    /// Whether requests contain the app's client id in addition to the credentials.
    pub fn wants_client_id(&self) -> bool {
        self.variables().any(|(_, variable)| *variable == Variable::ClientId)
    }

    /// Returns every template with the key at which it is written.
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

    /// Returns every variable with the key at which it is written.
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
        text.parse().map(Self).map_err(|_| format!("`{text}` is not a valid header name"))
    }
}

impl From<HeaderKey> for String {
    fn from(key: HeaderKey) -> String {
        key.0.to_string()
    }
}
