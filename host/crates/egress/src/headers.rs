//! Which headers a caller may set, and what is sent in the end.

use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::credentials::Injection;
use super::error::EgressError;

/// Set by the host itself from what it sends and can read, so that a caller's own are of no effect.
const IGNORED: [HeaderName; 2] = [CONTENT_LENGTH, ACCEPT_ENCODING];

/// Would change how the message is framed, where it goes, or what a proxy on the way does with it.
const REFUSED: [HeaderName; 11] = [
    HOST,
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    HeaderName::from_static("http2-settings"),
];

/// Reads a caller's headers. A name may occur several times.
pub(super) fn parse(headers: &[(String, String)]) -> Result<HeaderMap, EgressError> {
    let mut parsed = HeaderMap::new();
    for (name, value) in headers {
        let name: HeaderName = name.parse().map_err(|_| {
            EgressError::invalid(format!("`{}` is not the name of a header", name.escape_debug()))
        })?;
        refuse_own(&name)?;
        if IGNORED.contains(&name) {
            continue;
        }
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| {
            EgressError::invalid(format!(
                "the value of header `{name}` must have no line break or control character"
            ))
        })?;
        parsed.append(name, value);
    }
    Ok(parsed)
}

/// Checks the headers of a request that is forwarded. With `decodes`, the host says itself which compression it
/// reads.
pub(super) fn check(mut headers: HeaderMap, decodes: bool) -> Result<HeaderMap, EgressError> {
    headers.keys().try_for_each(refuse_own)?;
    headers.remove(CONTENT_LENGTH);
    if decodes {
        headers.remove(ACCEPT_ENCODING);
    }
    Ok(headers)
}

fn refuse_own(name: &HeaderName) -> Result<(), EgressError> {
    if REFUSED.contains(name) {
        return Err(EgressError::invalid(format!("the header `{name}` cannot be set: it is the host's own")));
    }
    Ok(())
}

/// What is sent to the provider itself: its own headers, the caller's over them, and the credentials.
pub(super) fn merge(caller: &HeaderMap, injection: &Injection) -> Result<HeaderMap, EgressError> {
    let mut reserved = injection.secret_headers.keys().chain(injection.reserved_header());
    if let Some(name) = reserved.find(|name| caller.contains_key(*name)) {
        return Err(EgressError::invalid(format!(
            "the header `{name}` cannot be set: the host puts the connection's credentials there"
        )));
    }
    let mut merged = caller.clone();
    for (name, value) in &injection.defaults {
        merged.entry(name).or_insert_with(|| value.clone());
    }
    merged.extend(injection.secret_headers.clone());
    Ok(merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_callers_headers_are_kept_in_order() {
        let parsed = parse(&headers(&[("X-A", "1"), ("x-a", "2"), ("Accept", "é")])).unwrap();
        assert_eq!(parsed.get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(parsed["accept"], "é".as_bytes());
    }

    #[test]
    fn what_the_host_computes_is_ignored() {
        let parsed = parse(&headers(&[("Content-Length", "1"), ("Accept-Encoding", "zstd")])).unwrap();
        assert!(parsed.is_empty());
    }

    #[test]
    fn framing_and_injection_are_refused() {
        for (name, value) in [
            ("Host", "evil.com"),
            ("transfer-encoding", "chunked"),
            ("CONNECTION", "close"),
            ("proxy-authorization", "x"),
            ("x-a\r\nx-b", "1"),
            ("x-a:", "1"),
            ("", "1"),
            ("x-a", "1\r\nhost: evil.com"),
            ("x-a", "1\n"),
            ("x-a", "\0"),
        ] {
            let error = parse(&headers(&[(name, value)])).unwrap_err();
            assert_eq!(error.code().as_str(), "invalid-request", "{name}: {value}");
        }
    }

    #[test]
    fn the_providers_own_headers_give_way_and_the_credentials_do_not() {
        let mut injection = Injection::default();
        injection.defaults.insert("accept", HeaderValue::from_static("a/b"));
        injection.secret_headers.insert("x-key", HeaderValue::from_static("s3cret"));
        let merged = merge(&parse(&headers(&[("accept", "c/d")])).unwrap(), &injection).unwrap();
        assert_eq!(merged.get_all("accept").iter().collect::<Vec<_>>(), ["c/d"]);
        assert_eq!(merged["x-key"], "s3cret");
        let refused = merge(&parse(&headers(&[("X-Key", "mine")])).unwrap(), &injection).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the header `x-key` cannot be set: the host puts the connection's credentials there"
        );
    }
}
