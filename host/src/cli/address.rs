//! Addresses of hosts: `http` or `https` URLs to which paths are appended.

use std::fmt;

use url::Url;

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
    fn paths_are_appended_to_an_address_with_or_without_a_slash() {
        for text in ["https://example.com/api", "https://example.com/api/"] {
            let address = HttpAddress::parse_host(text).unwrap();
            assert_eq!(address.to_string(), "https://example.com/api");
            assert_eq!(address.at("runs?limit=5").unwrap().as_str(), "https://example.com/api/runs?limit=5");
        }
        assert_eq!(HttpAddress::parse_host("http://[::1]:80").unwrap().to_string(), "http://[::1]");
    }
}
