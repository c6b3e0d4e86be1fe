//! Decides where a request may go: to the provider, with credentials, or to the integration's `allow_hosts`, without
//! credentials. Resolves the caller's path or URL against these destinations, or rejects it.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use url::{Url, form_urlencoded};

use super::error::EgressError;
use super::host_pattern::HostPattern;

/// All characters except the unreserved characters of RFC 3986.
const QUERY_PART: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub(super) struct Boundary<'a> {
    /// The provider's base URL for this connection. `None` for a provider without a fixed base URL.
    pub base: Option<&'a Url>,
    /// Replaces the base URL for this request's paths. The caller has checked that it is an allowed destination.
    pub base_override: Option<Url>,
    pub allow_hosts: &'a [HostPattern],
}

/// The destination of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Provider,
    AllowedHost,
}

impl Boundary<'_> {
    /// Resolves a path or a full URL, and appends query parameters.
    pub fn resolve(&self, given: &str, query: &[(String, String)]) -> Result<(Url, Side), EgressError> {
        if given.chars().any(char::is_control) {
            return Err(EgressError::invalid("the URL must not contain line breaks or control characters"));
        }
        let mut url = if has_scheme(given) { absolute(given)? } else { self.relative(given)? };
        url.set_fragment(None);
        add_query(&mut url, query.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let side = self.side(&url)?;
        Ok((url, side))
    }

    /// Classifies a URL. Fails if it is neither the provider's nor an allowed host's.
    pub fn side(&self, url: &Url) -> Result<Side, EgressError> {
        if self.base.is_some_and(|base| same_origin(base, url)) {
            return Ok(Side::Provider);
        }
        let is_override =
            self.base_override.as_ref().is_some_and(|base_override| same_origin(base_override, url));
        if is_override || self.allow_hosts.iter().any(|pattern| pattern.matches(url)) {
            return Ok(Side::AllowedHost);
        }
        Err(EgressError::HostNotAllowed { host: host_of(url) })
    }

    /// Appends a path to the base URL. The path cannot leave the base URL with `..`, whether plain or percent-encoded.
    fn relative(&self, given: &str) -> Result<Url, EgressError> {
        let base = self.base_override.as_ref().or(self.base).ok_or_else(|| {
            EgressError::invalid(
                "this provider has no base URL: set `base_url` of the integration, or send a full URL",
            )
        })?;
        let given = given.split_once('#').map_or(given, |(before, _)| before);
        let (path, query) = match given.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (given, None),
        };
        let base_path = base.path().trim_end_matches('/');
        let slash = if path.is_empty() || path.starts_with(['/', '\\']) { "" } else { "/" };
        let mut url = base.clone();
        url.set_path(&format!("{base_path}{slash}{path}"));
        url.set_query(query);
        let stays_in_base =
            url.path().strip_prefix(base_path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if !stays_in_base || leaves_base_when_decoded(url.path()) {
            return Err(EgressError::invalid("the path must not leave the provider's base URL with `..`"));
        }
        Ok(url)
    }
}

/// Compares URLs that have a host as [`Url::origin`] does, without allocating the origins.
pub(super) fn same_origin(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme()
        && one.host() == other.host()
        && one.port_or_known_default() == other.port_or_known_default()
}

/// Appends percent-encoded parameters to the query.
pub(super) fn add_query<'a>(url: &mut Url, pairs: impl Iterator<Item = (&'a str, &'a str)>) {
    let mut query = url.query().unwrap_or_default().to_owned();
    for (name, value) in pairs {
        if !query.is_empty() && !query.ends_with('&') {
            query.push('&');
        }
        query.extend(utf8_percent_encode(name, QUERY_PART));
        query.push('=');
        query.extend(utf8_percent_encode(value, QUERY_PART));
    }
    url.set_query((!query.is_empty()).then_some(query.as_str()));
}

/// Removes all parameters with these names. The other parameters keep their spelling.
pub(super) fn remove_query(url: &mut Url, names: &[String]) {
    let Some(query) = url.query() else { return };
    let is_named = |pair: &&str| {
        let name = form_urlencoded::parse(pair.as_bytes()).next().map(|(name, _)| name.into_owned());
        name.is_some_and(|name| names.contains(&name))
    };
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_named(pair)).collect();
    let rest = rest.join("&");
    url.set_query((!rest.is_empty()).then_some(rest.as_str()));
}

/// Returns the host as error messages show it, with its port unless it is the default port.
pub(super) fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn absolute(given: &str) -> Result<Url, EgressError> {
    let url =
        Url::parse(given).map_err(|error| EgressError::invalid(format!("the URL is malformed: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(EgressError::invalid(format!(
            "the URL's scheme must be `https` (got `{}`)",
            url.scheme()
        )));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(EgressError::invalid("the URL must not contain a user or password"));
    }
    Ok(url)
}

/// Returns the part of a full URL that follows a base URL: a path with its query. Returns `None` if the URL does not
/// start with the base URL, or is not a full URL.
pub(super) fn behind<'g>(given: &'g str, base: &Url) -> Option<&'g str> {
    let url = has_scheme(given).then(|| absolute(given).ok())??;
    let base_path = base.path().trim_end_matches('/');
    let rest = url.path().strip_prefix(base_path)?;
    if !same_origin(&url, base) || !(rest.is_empty() || rest.starts_with('/')) {
        return None;
    }
    // Taken from the text as given, because the parser may have normalized it.
    let (_, after_scheme) = given.split_once("://")?;
    let path_and_query = after_scheme.find(['/', '?']).map_or("", |start| &after_scheme[start..]);
    path_and_query.strip_prefix(base_path)
}

/// Whether a text starts with `scheme://`, so that it is not a path.
fn has_scheme(text: &str) -> bool {
    text.split_once("://").is_some_and(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    })
}

/// Whether a path contains `..` for a server that decodes it before splitting it, as some do.
fn leaves_base_when_decoded(path: &str) -> bool {
    percent_decode_str(path)
        .collect::<Vec<u8>>()
        .split(|b| b"/\\".contains(b))
        .any(|segment| segment == b"..")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn resolve_against(
        base: &str,
        given: &str,
        query: &[(&str, &str)],
    ) -> Result<(String, Side), EgressError> {
        let allow_hosts = ["files.example.com".parse().unwrap(), "*.cdn.example.com".parse().unwrap()];
        let base = Url::parse(base).unwrap();
        let boundary = Boundary { base: Some(&base), base_override: None, allow_hosts: &allow_hosts };
        let query: Vec<_> =
            query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        boundary.resolve(given, &query).map(|(url, side)| (url.to_string(), side))
    }

    #[test]
    fn a_path_is_appended_to_the_base_url() {
        for (base, given, expected) in [
            ("https://api.x.com", "/v1/a", "https://api.x.com/v1/a"),
            ("https://api.x.com", "v1/a", "https://api.x.com/v1/a"),
            ("https://api.x.com", "", "https://api.x.com/"),
            ("https://api.x.com/v0", "", "https://api.x.com/v0"),
            ("https://api.x.com/v0", "/", "https://api.x.com/v0/"),
            ("https://api.x.com/v0/", "/a/", "https://api.x.com/v0/a/"),
            ("https://api.x.com/v0?z=1", "/a?b=c", "https://api.x.com/v0/a?b=c"),
            ("https://api.x.com/v0", "?b=c", "https://api.x.com/v0?b=c"),
            ("https://api.x.com/v0", "/a/../b", "https://api.x.com/v0/b"),
            ("https://api.x.com", "/a b/%2Fc#frag", "https://api.x.com/a%20b/%2Fc"),
            ("https://api.x.com", "/a/./b/%2e/c\\d%5C", "https://api.x.com/a/b/c/d%5C"),
            ("https://api.x.com", "/\"<>`{}|^[]'é", "https://api.x.com/%22%3C%3E%60%7B%7D|^[]'%C3%A9"),
            (
                "https://api.x.com",
                "/?\"<>'é`{}|^[]\\%2e",
                "https://api.x.com/?%22%3C%3E%27%C3%A9`{}|^[]\\%2e",
            ),
            ("https://api.x.com", "/a?", "https://api.x.com/a"),
            ("https://api.x.com", "//evil.com/a", "https://api.x.com//evil.com/a"),
            ("https://api.x.com", "@evil.com", "https://api.x.com/@evil.com"),
            ("https://api.x.com", ":8080/", "https://api.x.com/:8080/"),
            ("https://api.x.com", "\\\\evil.com", "https://api.x.com//evil.com"),
            ("https://api.x.com", "javascript:alert(1)", "https://api.x.com/javascript:alert(1)"),
            ("https://api.x.com", "/go?to=https://y.com", "https://api.x.com/go?to=https://y.com"),
            ("https://api.x.com:8443/v0", "/a", "https://api.x.com:8443/v0/a"),
        ] {
            let resolved = resolve_against(base, given, &[]);
            assert_eq!(resolved, Ok((expected.to_owned(), Side::Provider)), "{base} + {given}");
        }
    }

    #[test]
    fn a_path_cannot_leave_the_base_url() {
        for given in [
            "..",
            "/..",
            "/../v1",
            "/a/../../v1",
            "/%2e%2e/v1",
            "/.%2E/v1",
            "\\..\\v1",
            "/..%2fv1",
            "/a%2f..%2f..%5cv1",
            "/../v0x",
        ] {
            let rejected = resolve_against("https://api.x.com/v0", given, &[]).unwrap_err();
            assert_eq!(rejected.code().as_str(), "invalid-request", "{given}");
        }
    }

    #[test]
    fn parameters_are_appended_in_order_and_encoded() {
        let query = [("a", "1&b=2"), ("a", "ü "), ("page[size]", "+")];
        let (url, _) = resolve_against("https://api.x.com", "/l?x=%20y", &query).unwrap();
        assert_eq!(url, "https://api.x.com/l?x=%20y&a=1%26b%3D2&a=%C3%BC%20&page%5Bsize%5D=%2B");
        let (url, _) =
            resolve_against("https://api.x.com", "https://files.example.com/l", &[("a", "1")]).unwrap();
        assert_eq!(url, "https://files.example.com/l?a=1");
    }

    #[test]
    fn a_parameter_is_removed_in_any_encoding() {
        let mut url = Url::parse("https://x.com/?a=%20&k%65y=1&key&b=2&key=3").unwrap();
        remove_query(&mut url, &["key".to_owned()]);
        assert_eq!(url.as_str(), "https://x.com/?a=%20&b=2");
        remove_query(&mut url, &["a".to_owned(), "b".to_owned()]);
        assert_eq!(url.as_str(), "https://x.com/");
    }

    #[test]
    fn only_the_providers_origin_counts_as_the_provider() {
        let side = |given: &str| resolve_against("https://api.x.com/v0", given, &[]).map(|(_, side)| side);
        assert_eq!(side("https://api.x.com/elsewhere"), Ok(Side::Provider));
        assert_eq!(side("HTTPS://API.X.COM:443/v0"), Ok(Side::Provider));
        assert_eq!(side("https://files.example.com/a"), Ok(Side::AllowedHost));
        assert_eq!(side("https://a.cdn.example.com/a"), Ok(Side::AllowedHost));
        for given in [
            "http://api.x.com/v0",
            "https://api.x.com:8443/",
            "https://api.x.com./",
            "https://api.x.com.evil.com/",
            "https://evil.com/api.x.com",
            "https://127.0.0.1/",
        ] {
            assert_eq!(side(given).unwrap_err().code().as_str(), "host-not-allowed", "{given}");
        }
        for given in [
            "ftp://api.x.com/",
            "file:///etc/passwd",
            "https://",
            "https://u:p@api.x.com/",
            "https://u@api.x.com/",
            "/a\nb",
        ] {
            assert_eq!(side(given).unwrap_err().code().as_str(), "invalid-request", "{given}");
        }
    }

    #[test]
    fn without_a_base_url_only_full_urls_are_accepted() {
        let allow_hosts = ["files.example.com".parse().unwrap()];
        let boundary = Boundary { base: None, base_override: None, allow_hosts: &allow_hosts };
        assert!(boundary.resolve("https://files.example.com/", &[]).is_ok());
        assert_eq!(boundary.resolve("/a", &[]).unwrap_err().code().as_str(), "invalid-request");
    }

    #[test]
    fn a_path_is_appended_to_an_override_without_credentials() {
        let base = Url::parse("https://api.x.com/v0").unwrap();
        let boundary = Boundary {
            base: Some(&base),
            base_override: Some(Url::parse("https://eu.x.com/v1").unwrap()),
            allow_hosts: &[],
        };
        let (url, side) = boundary.resolve("/a", &[]).unwrap();
        assert_eq!((url.as_str(), side), ("https://eu.x.com/v1/a", Side::AllowedHost));
        assert!(boundary.resolve("/../v0", &[]).is_err());
        let (_, side) = boundary.resolve("https://api.x.com/v0/a", &[]).unwrap();
        assert_eq!(side, Side::Provider);
    }

    #[test]
    fn the_part_after_the_base_url_is_found() {
        let base = Url::parse("https://api.x.com/v0").unwrap();
        for (given, rest) in [
            ("https://api.x.com/v0/a%2Fb?c=d", Some("/a%2Fb?c=d")),
            ("HTTPS://API.x.com/v0", Some("")),
            ("https://api.x.com/v0?c=d", Some("?c=d")),
            ("https://api.x.com/v0x", None),
            ("https://api.x.com/", None),
            ("http://api.x.com/v0/a", None),
            ("https://u@api.x.com/v0/a", None),
            ("/v0/a", None),
        ] {
            assert_eq!(behind(given, &base), rest, "{given}");
        }
    }

    proptest! {
        #[test]
        fn every_accepted_path_stays_in_the_base_url(
            given in r"[a-zA-Z0-9./\\%:@?#&=+ \[\]é2eEfF5cC-]{0,40}",
        ) {
            if let Ok((url, side)) = resolve_against("https://api.x.com/v0", &given, &[]) {
                prop_assert_eq!(side, Side::Provider);
                let url = Url::parse(&url).unwrap();
                prop_assert_eq!(url.host_str(), Some("api.x.com"));
                let inside = url.path() == "/v0" || url.path().starts_with("/v0/");
                prop_assert!(inside || has_scheme(&given), "{}", url);
                prop_assert!(url.username().is_empty() && url.port().is_none());
            }
        }

        #[test]
        fn parameters_are_read_as_they_were_written(pairs in proptest::collection::vec((".{1,8}", ".{0,8}"), 0..5)) {
            let borrowed: Vec<(&str, &str)> = pairs.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            let (url, _) = resolve_against("https://api.x.com", "/l", &borrowed).unwrap();
            let read: Vec<(String, String)> =
                Url::parse(&url).unwrap().query_pairs().map(|(n, v)| (n.into_owned(), v.into_owned())).collect();
            prop_assert_eq!(read, pairs);
        }
    }
}
