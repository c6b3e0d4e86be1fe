//! The entries of an integration's `allow_hosts`.

use std::fmt;
use std::str::FromStr;

use url::{Host, Url};

/// A host pattern: `files.example.com`, or `*.example.com` for all hosts below it, each with an optional `:port`.
/// Without a port, the pattern matches the default port of the URL's scheme.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPattern {
    host: Host,
    /// Whether the pattern matches the hosts below `host` instead of `host` itself.
    below: bool,
    port: Option<u16>,
}

/// Why a text is not a valid pattern. The message shows valid ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` must be a host such as `files.example.com`, `*.example.com` or `files.example.com:8443`")]
pub struct InvalidHostPattern {
    given: String,
}

impl HostPattern {
    pub fn matches(&self, url: &Url) -> bool {
        let port_matches = match self.port {
            Some(port) => url.port_or_known_default() == Some(port),
            // The URL parser drops a port that is the scheme's default.
            None => url.port().is_none(),
        };
        port_matches && url.host().is_some_and(|host| self.matches_host(&host))
    }

    fn matches_host(&self, host: &Host<&str>) -> bool {
        match (&self.host, host) {
            (Host::Domain(parent), Host::Domain(given)) if self.below => {
                given.strip_suffix(parent.as_str()).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
            }
            (own, given) => !self.below && *own == given.to_owned(),
        }
    }
}

impl FromStr for HostPattern {
    type Err = InvalidHostPattern;

    fn from_str(text: &str) -> Result<Self, InvalidHostPattern> {
        let invalid = || InvalidHostPattern { given: text.to_owned() };
        let (below, rest) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse().map_err(|_| invalid())?)),
            _ => (rest, None),
        };
        let host = Host::parse(host).map_err(|_| invalid())?;
        // `*` in another place, or directly below a top-level domain, would match far more hosts than intended.
        let is_valid = match &host {
            Host::Domain(domain) => {
                !domain.contains('*') && (!below || domain.trim_matches('.').contains('.'))
            }
            Host::Ipv4(_) | Host::Ipv6(_) => !below,
        };
        if is_valid { Ok(Self { host, below, port }) } else { Err(invalid()) }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.below { "*." } else { "" };
        write!(f, "{star}{}", self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, url: &str) -> bool {
        pattern.parse::<HostPattern>().unwrap().matches(&Url::parse(url).unwrap())
    }

    #[test]
    fn a_host_matches_only_itself() {
        assert!(matches("files.example.com", "https://FILES.example.com/a"));
        assert!(matches("files.example.com", "https://files.example.com:443/a"));
        assert!(matches("files.example.com:8443", "https://files.example.com:8443/"));
        assert!(!matches("files.example.com", "https://files.example.com:8443/"));
        assert!(!matches("files.example.com", "https://a.files.example.com/"));
        assert!(!matches("example.com", "https://notexample.com/"));
        assert!(matches("[2606:4700::1]:8443", "https://[2606:4700::1]:8443/"));
    }

    #[test]
    fn a_star_matches_every_host_below() {
        assert!(matches("*.example.com", "https://a.example.com/"));
        assert!(matches("*.example.com", "https://a.b.example.com/"));
        assert!(!matches("*.example.com", "https://example.com/"));
        assert!(!matches("*.example.com", "https://.example.com/"));
        assert!(!matches("*.example.com", "https://evilexample.com/"));
        assert!(!matches("*.example.com", "https://a.example.com.evil.org/"));
    }

    #[test]
    fn too_broad_and_malformed_patterns_are_rejected() {
        for text in [
            "",
            "*",
            "*.",
            "*.com",
            "*.com.",
            "a.*.com",
            "*.1.2.3.4",
            "https://example.com",
            "example.com/x",
            "a:b",
        ] {
            assert!(text.parse::<HostPattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_pattern_is_displayed_as_it_was_parsed() {
        for text in ["files.example.com", "*.example.com:8443", "[::1]:80", "[::1]"] {
            assert_eq!(text.parse::<HostPattern>().unwrap().to_string(), text);
        }
    }
}
