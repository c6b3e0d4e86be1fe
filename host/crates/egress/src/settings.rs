//! The settings of outgoing requests.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use url::{Host, Url};

/// The egress gateway's limits and exceptions. The defaults suit a host that serves many connections.
#[derive(Debug, Clone)]
pub struct EgressSettings {
    /// Hosts that may have private addresses and may be reached without TLS, from `SYNCLINE_EGRESS_ALLOW`.
    pub allow: Vec<HostPort>,
    /// Maximum size of an answer after decompression.
    pub max_response_bytes: usize,
    /// Default time limit of one attempt, including its redirects and its body.
    pub request_timeout: Duration,
    /// Maximum time limit that a request can set.
    pub max_request_timeout: Duration,
    pub connect_timeout: Duration,
    /// Maximum silence while a request is forwarded: of the client within its body, and of the provider before and
    /// within its answer.
    pub forward_timeout: Duration,
    /// Maximum size of a forwarded request's body.
    pub max_forward_bytes: u64,
    /// Up to this many bytes of a forwarded body are buffered in memory, so that it can be sent again.
    pub kept_forward_bytes: usize,
    /// Maximum number of attempts, whatever a request asks for.
    pub max_attempts: u32,
    /// Default number of retries of a method that is safe to repeat.
    pub default_retries: u8,
    /// The wait before the first retry. It doubles with each further retry.
    pub first_backoff: Duration,
    /// Maximum wait before a retry. If a provider asks for more, the request is not retried and the caller receives
    /// the answer.
    pub max_wait: Duration,
}

impl Default for EgressSettings {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            max_response_bytes: 64 * 1024 * 1024,
            request_timeout: Duration::from_secs(30),
            max_request_timeout: Duration::from_secs(300),
            connect_timeout: Duration::from_secs(10),
            forward_timeout: Duration::from_secs(60),
            max_forward_bytes: 1024 * 1024 * 1024,
            kept_forward_bytes: 1024 * 1024,
            max_attempts: 6,
            default_retries: 2,
            first_backoff: Duration::from_secs(1),
            max_wait: Duration::from_secs(60),
        }
    }
}

/// An entry of the allow list: a host with a port. Both must match exactly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPort {
    host: Host,
    port: u16,
}

/// Why a text is not a valid allow list. The message shows valid entries.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` must be a host and a port, such as `localhost:9000` or `[::1]:9000`")]
pub struct InvalidHostPort {
    given: String,
}

impl HostPort {
    /// Parses `host:port,host:port`. Ignores empty entries and spaces around entries.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, InvalidHostPort> {
        text.split(',').map(str::trim).filter(|entry| !entry.is_empty()).map(str::parse).collect()
    }

    pub(super) fn matches(&self, url: &Url) -> bool {
        url.port_or_known_default() == Some(self.port)
            && url.host().is_some_and(|host| host.to_owned() == self.host)
    }
}

impl FromStr for HostPort {
    type Err = InvalidHostPort;

    fn from_str(text: &str) -> Result<Self, InvalidHostPort> {
        let invalid = || InvalidHostPort { given: text.to_owned() };
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let host = Host::parse(host).map_err(|_| invalid())?;
        let port = port.parse().map_err(|_| invalid())?;
        Ok(Self { host, port })
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_parsed_and_normalized_like_urls() {
        let list = HostPort::parse_list("LocalHost:9000, 0x7f.1:80,,[0:0::1]:443,").unwrap();
        let displayed: Vec<String> = list.iter().map(ToString::to_string).collect();
        assert_eq!(displayed, ["localhost:9000", "127.0.0.1:80", "[::1]:443"]);
        assert_eq!(HostPort::parse_list(""), Ok(vec![]));
    }

    #[test]
    fn an_entry_without_host_or_port_is_rejected() {
        for entry in
            ["localhost", "localhost:", ":80", "localhost:http", "::1:80", "http://localhost:80", "a b:1"]
        {
            let error = HostPort::parse_list(entry).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{entry}` must be a host and a port")), "{error}");
        }
    }

    #[test]
    fn both_host_and_port_must_match() {
        let entry: HostPort = "localhost:80".parse().unwrap();
        let matches = |url: &str| entry.matches(&Url::parse(url).unwrap());
        assert!(matches("http://localhost/"));
        assert!(matches("https://LOCALHOST:80/x"));
        assert!(!matches("https://localhost/"));
        assert!(!matches("http://localhost:81/"));
        assert!(!matches("http://127.0.0.1/"));
        assert!(!matches("http://localhost./"));
    }
}
