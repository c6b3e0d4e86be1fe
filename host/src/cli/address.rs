//! Addresses of hosts: `http` or `https` URLs to which paths are appended.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use url::{Host, Url};

/// A URL without a trailing slash.
#[derive(Debug, Clone)]
pub(super) struct HttpAddress(Url);

impl HttpAddress {
    /// The address at which clients reach this host from elsewhere.
    pub(super) fn parse_public(text: &str) -> Result<Self, String> {
        Self::parse(text, "https://syncline.example.com")
    }

    /// The address of a host to which a command sends requests.
    pub(super) fn parse_host(text: &str) -> Result<Self, String> {
        Self::parse(text, "http://127.0.0.1:3003")
    }

    fn parse(text: &str, example: &str) -> Result<Self, String> {
        let url = Url::parse(text).ok().filter(|url| {
            matches!(url.scheme(), "http" | "https")
                && url.has_host()
                && url.query().is_none()
                && url.fragment().is_none()
        });
        url.map(Self).ok_or_else(|| format!("it must be an address such as {example}"))
    }

    /// Whether only processes on this machine can listen at the address.
    pub(super) fn is_on_this_machine(&self) -> bool {
        match self.0.host() {
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => false,
        }
    }

    /// The address and port at which a host of this machine listens to be reached here.
    pub(super) fn to_listen(&self) -> Option<SocketAddr> {
        let port = self.0.port_or_known_default()?;
        let ip: IpAddr = match self.0.host()? {
            Host::Ipv4(address) => address.into(),
            Host::Ipv6(address) => address.into(),
            Host::Domain(_) => Ipv4Addr::LOCALHOST.into(),
        };
        let is_plain = self.0.scheme() == "http" && matches!(self.0.path(), "" | "/");
        (is_plain && self.is_on_this_machine()).then(|| SocketAddr::new(ip, port))
    }

    /// Returns the URL of a path, which may include a query.
    pub(super) fn at(&self, path: &str) -> Result<Url, url::ParseError> {
        format!("{self}/{path}").parse()
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_http_or_https_and_a_host() {
        for text in ["example.com", "foo", "127.0.0.1:3003", "localhost:3000", "ftp://example.com", "http://"]
        {
            let refusal = HttpAddress::parse_public(text).unwrap_err();
            assert_eq!(refusal, "it must be an address such as https://syncline.example.com", "{text}");
        }
        for text in ["https://example.com?a=b", "https://example.com#a"] {
            assert!(HttpAddress::parse_public(text).is_err(), "paths cannot be appended to {text}");
        }
        assert!(HttpAddress::parse_host("foo").unwrap_err().ends_with("such as http://127.0.0.1:3003"));
    }

    #[test]
    fn a_host_on_this_machine_has_an_address_to_listen_on() {
        let to_listen =
            |text| HttpAddress::parse_host(text).unwrap().to_listen().map(|address| address.to_string());
        assert_eq!(to_listen("http://localhost:4000").as_deref(), Some("127.0.0.1:4000"));
        assert_eq!(to_listen("http://[::1]:4000/").as_deref(), Some("[::1]:4000"));
        for elsewhere in ["http://192.0.2.1:3003", "https://127.0.0.1:3003", "http://127.0.0.1:3003/syncline"]
        {
            assert_eq!(to_listen(elsewhere), None, "{elsewhere}");
        }
    }

    #[test]
    fn paths_are_appended_to_an_address_with_or_without_a_slash() {
        for text in ["https://example.com/api", "https://example.com/api/"] {
            let address = HttpAddress::parse_host(text).unwrap();
            assert_eq!(address.to_string(), "https://example.com/api");
            assert_eq!(address.at("runs?limit=5").unwrap().as_str(), "https://example.com/api/runs?limit=5");
        }
        assert_eq!(HttpAddress::parse_host("http://[::1]:80").unwrap().to_string(), "http://[::1]");
    }
}
