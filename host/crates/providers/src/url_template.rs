//! Provider addresses, which can contain answers of the end user:
//! `https://${connectionConfig.subdomain}.zendesk.com`.
//!
//! Credentials are sent to the resulting host, so an answer must not be able to choose it freely. In a host name,
//! an answer can contain only letters, digits, `.`, `_` and `-`, and the end of the host name is fixed.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use url::Url;

use super::template::{InvalidTemplate, Part, Template, Variable};

/// All characters except the unreserved ones of RFC 3986.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// An `https` or `http` URL without query, whose host and path can contain answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UrlTemplate {
    text: String,
    /// `https://` or `http://`.
    scheme: String,
    host: Template,
    port: Option<u16>,
    /// Empty, or starts with `/`.
    path: Template,
}

/// The reason why a text is not a valid provider address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUrlTemplate {
    #[error(transparent)]
    Template(#[from] InvalidTemplate),
    #[error("`{text}` must be an https URL without user, query and fragment")]
    NotAUrl { text: String },
    #[error("`${{{variable}}}` is not allowed in an address; use connectionConfig.NAME")]
    Credential { variable: Variable },
}

/// The reason why a connection has no usable address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnusableConfig {
    #[error(
        "the connection's configuration has no `{name}`, which this provider needs; set it when the account is \
         connected or imported"
    )]
    Missing { name: String },
    #[error("`{name}` of the connection's configuration must match `{pattern}`")]
    Pattern { name: String, pattern: String },
    #[error("`{name}` of the connection's configuration must be one of {}", choices.join(", "))]
    Choice { name: String, choices: Vec<String> },
    #[error("`{name}` of the connection's configuration must be part of a host name")]
    NotAHostName { name: String },
    #[error("`{name}` of the connection's configuration must be part of a path, not `.` or `..`")]
    NotAPathSegment { name: String },
    #[error("the connection's configuration does not make a URL of `{template}`")]
    NotAUrl { template: String },
}

impl UnusableConfig {
    /// Returns the name of the answer that caused the error.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Missing { name }
            | Self::Pattern { name, .. }
            | Self::Choice { name, .. }
            | Self::NotAHostName { name }
            | Self::NotAPathSegment { name } => Some(name),
            Self::NotAUrl { .. } => None,
        }
    }
}

impl UrlTemplate {
    /// Returns the names of the answers in the host name.
    pub fn host_answers(&self) -> impl Iterator<Item = &str> {
        config_names(&self.host)
    }

    /// Returns the names of all answers in the address.
    pub fn answers(&self) -> impl Iterator<Item = &str> {
        config_names(&self.host).chain(config_names(&self.path))
    }

    /// Whether the host name ends in a fixed domain such as `.zendesk.com`, which no answer can change. An answer
    /// with a list of choices counts as fixed: `choices` returns the list, which is empty for free answers.
    pub fn has_fixed_domain<'c>(&self, choices: impl Fn(&str) -> &'c [String]) -> bool {
        // Every possible end of the host name, after the last free answer.
        let mut hosts = vec![String::new()];
        let mut is_all_fixed = true;
        for part in self.host.parts() {
            match part {
                Part::Literal(literal) => hosts.iter_mut().for_each(|host| host.push_str(literal)),
                Part::Variable(variable) => match choices(config_name(variable)) {
                    [] => {
                        is_all_fixed = false;
                        hosts = vec![String::new()];
                    }
                    choices => {
                        hosts = choices
                            .iter()
                            .flat_map(|choice| hosts.iter().map(move |host| format!("{host}{choice}")))
                            .collect();
                    }
                },
            }
        }
        let ends_in_domain = |end: &String| {
            end.starts_with('.') && end[1..].split('.').filter(|label| !label.is_empty()).count() >= 2
        };
        is_all_fixed || hosts.iter().all(ends_in_domain)
    }

    /// Returns the URL for a connection. `answer` returns the value of an answer.
    pub fn render<'v>(
        &self,
        answer: impl Fn(&str) -> Result<Cow<'v, str>, UnusableConfig>,
    ) -> Result<Url, UnusableConfig> {
        let host = self.host.render(|variable| {
            let name = config_name(variable);
            let value = answer(name)?;
            let harmless = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
            if value.is_empty() || !value.bytes().all(harmless) {
                return Err(UnusableConfig::NotAHostName { name: name.to_owned() });
            }
            Ok(value)
        })?;
        let path = self.path.render(|variable| {
            let name = config_name(variable);
            let value = answer(name)?;
            if value.bytes().all(|b| b == b'.') {
                return Err(UnusableConfig::NotAPathSegment { name: name.to_owned() });
            }
            Ok(Cow::Owned(utf8_percent_encode(&value, SEGMENT).to_string()))
        })?;
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        Url::parse(&format!("{}{host}{port}{path}", self.scheme))
            .map_err(|_| UnusableConfig::NotAUrl { template: self.text.clone() })
    }
}

impl TryFrom<String> for UrlTemplate {
    type Error = InvalidUrlTemplate;

    fn try_from(text: String) -> Result<Self, InvalidUrlTemplate> {
        let not_a_url = || InvalidUrlTemplate::NotAUrl { text: text.clone() };
        let scheme = ["https://", "http://"].into_iter().find(|scheme| text.starts_with(scheme));
        let scheme = scheme.ok_or_else(not_a_url)?;
        let rest = &text[scheme.len()..];
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().map_err(|_| not_a_url())?)),
            None => (authority, None),
        };
        let literal = |b: u8| b.is_ascii_alphanumeric() || b"-._${}".contains(&b);
        if host.is_empty() || !host.bytes().all(literal) || path.contains(['?', '#', '\\']) {
            return Err(not_a_url());
        }
        let template = Self {
            scheme: scheme.to_owned(),
            host: Template::try_from(host.to_owned())?,
            port,
            path: Template::try_from(path.to_owned())?,
            text: text.clone(),
        };
        let credential = |variable: &&Variable| variable.is_credential();
        if let Some(variable) =
            template.host.variables().chain(template.path.variables()).find(credential).cloned()
        {
            return Err(InvalidUrlTemplate::Credential { variable });
        }
        // Rendering with a harmless answer finds mistakes that only the URL parser knows, such as an empty label.
        template.render(|_| Ok("a".into())).map_err(|_| not_a_url())?;
        Ok(template)
    }
}

impl From<UrlTemplate> for String {
    fn from(template: UrlTemplate) -> String {
        template.text
    }
}

fn config_names(template: &Template) -> impl Iterator<Item = &str> {
    template.variables().map(config_name)
}

/// Parsing rejects all other kinds of variables.
fn config_name(variable: &Variable) -> &str {
    match variable {
        Variable::ConnectionConfig(name) => name,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn template(text: &str) -> Result<UrlTemplate, InvalidUrlTemplate> {
        text.to_owned().try_into()
    }

    fn render(text: &str, answer: &str) -> Result<String, UnusableConfig> {
        let url = template(text).unwrap().render(|_| Ok(Cow::Owned(answer.to_owned())))?;
        Ok(url.to_string())
    }

    #[test]
    fn answers_are_filled_into_host_and_path() {
        let base = "https://${connectionConfig.a}.example.com:8443/${connectionConfig.b}/v1";
        assert_eq!(render(base, "acme").unwrap(), "https://acme.example.com:8443/acme/v1");
        let path = "https://example.com/x/${connectionConfig.b}";
        assert_eq!(render(path, "a/../b?c#d").unwrap(), "https://example.com/x/a%2F..%2Fb%3Fc%23d");
    }

    #[test]
    fn an_answer_cannot_choose_another_host() {
        let base = "https://${connectionConfig.subdomain}.zendesk.com";
        for answer in [
            "",
            "evil.com/",
            "evil.com#",
            "evil.com?",
            "a@evil.com",
            "evil.com:1",
            "e\u{2f}",
            "é",
            "%2f",
            "a b",
        ] {
            let refusal = render(base, answer).unwrap_err();
            assert_eq!(refusal, UnusableConfig::NotAHostName { name: "subdomain".to_owned() }, "{answer}");
            assert_eq!(refusal.name(), Some("subdomain"));
        }
        assert!(matches!(
            render("https://example.com/x/${connectionConfig.b}", ".."),
            Err(UnusableConfig::NotAPathSegment { .. })
        ));
    }

    #[test]
    fn a_fixed_domain_has_two_labels_after_the_last_answer() {
        let fixed = |text: &str| template(text).unwrap().has_fixed_domain(|_| &[]);
        assert!(fixed("https://api.stripe.com"));
        assert!(fixed("https://${connectionConfig.s}.zendesk.com/api"));
        assert!(fixed("https://a.${connectionConfig.s}.b.${connectionConfig.t}.example.org"));
        assert!(!fixed("https://${connectionConfig.host}"));
        assert!(!fixed("https://api.${connectionConfig.domain}/v1"));
        assert!(!fixed("https://${connectionConfig.name}.com"));
        assert!(!fixed("https://${connectionConfig.name}zendesk.com"));
    }

    #[test]
    fn an_answer_from_a_list_counts_as_fixed() {
        let regions = ["zoho.com".to_owned(), "zoho.com.au".to_owned()];
        let fixed = |text: &str| {
            let choices = |name: &str| if name == "region" { &regions[..] } else { &[] };
            template(text).unwrap().has_fixed_domain(choices)
        };
        assert!(fixed("https://accounts.${connectionConfig.region}"));
        assert!(fixed("https://${connectionConfig.free}.${connectionConfig.region}"));
        assert!(!fixed("https://${connectionConfig.free}${connectionConfig.region}"));
        assert!(!fixed("https://${connectionConfig.region}.${connectionConfig.free}"));
    }

    #[test]
    fn an_invalid_address_is_refused() {
        for text in [
            "",
            "ftp://example.com",
            "https://",
            "https:///path",
            "https://u:p@example.com",
            "https://example.com/?a=b",
            "https://example.com:port",
            "https://exa mple.com",
        ] {
            assert!(template(text).is_err(), "{text}");
        }
        assert!(matches!(
            template("https://${apiKey}.example.com"),
            Err(InvalidUrlTemplate::Credential { .. })
        ));
    }

    proptest! {
        #[test]
        fn no_answer_can_change_the_domain(answer in ".{0,40}") {
            if let Ok(url) = render("https://${connectionConfig.s}.zendesk.com/api", &answer) {
                let url = Url::parse(&url).unwrap();
                prop_assert!(url.host_str().unwrap().ends_with(".zendesk.com"), "{}", url);
                prop_assert_eq!(url.path(), "/api");
                prop_assert_eq!(url.port(), None);
            }
        }
    }
}
