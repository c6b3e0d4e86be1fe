//! Checks the headers that a caller sets, and composes the headers that are sent.

use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::credentials::Injection;
use super::error::EgressError;

/// The host sets these headers itself, depending on what it sends and can decode. A caller's values are ignored.
const IGNORED: [HeaderName; 2] = [CONTENT_LENGTH, ACCEPT_ENCODING];

/// Rejected, because they change the framing or the destination of the message, or instruct a proxy on the way.
const REJECTED: [HeaderName; 11] = [
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

/// Parses a caller's headers. A name may occur several times.
pub(super) fn parse(headers: &[(String, String)]) -> Result<HeaderMap, EgressError> {
    let mut parsed = HeaderMap::new();
    for (name, value) in headers {
        let name: HeaderName = name.parse().map_err(|_| {
            EgressError::invalid(format!("`{}` is not a valid header name", name.escape_debug()))
        })?;
        reject_reserved(&name)?;
        if IGNORED.contains(&name) {
            continue;
        }
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| {
            EgressError::invalid(format!(
                "the value of header `{name}` must not contain line breaks or control characters"
            ))
        })?;
        parsed.append(name, value);
    }
    Ok(parsed)
}

/// Checks the headers of a forwarded request. With `decodes`, the host chooses the accepted compression.
pub(super) fn check(mut headers: HeaderMap, decodes: bool) -> Result<HeaderMap, EgressError> {
    headers.keys().try_for_each(reject_reserved)?;
    headers.remove(CONTENT_LENGTH);
    if decodes {
        headers.remove(ACCEPT_ENCODING);
    }
    Ok(headers)
}

fn reject_reserved(name: &HeaderName) -> Result<(), EgressError> {
    if REJECTED.contains(name) {
        return Err(EgressError::invalid(format!(
            "the header `{name}` cannot be set: the host sets it itself"
        )));
    }
    Ok(())
}

/// Composes the headers for the provider: its default headers, which the caller's headers override, and the
/// credentials.
pub(super) fn merge(caller: &HeaderMap, injection: &Injection) -> Result<HeaderMap, EgressError> {
    let mut reserved = injection.secret_headers.keys().chain(injection.reserved_header());
    if let Some(name) = reserved.find(|name| caller.contains_key(*name)) {
        return Err(EgressError::invalid(format!(
            "the header `{name}` cannot be set: the host sends the connection's credentials in it"
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
    fn the_callers_headers_keep_their_order() {
        let parsed = parse(&headers(&[("X-A", "1"), ("x-a", "2"), ("Accept", "é")])).unwrap();
        assert_eq!(parsed.get_all("x-a").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(parsed["accept"], "é".as_bytes());
    }

    #[test]
    fn headers_that_the_host_computes_are_ignored() {
        let parsed = parse(&headers(&[("Content-Length", "1"), ("Accept-Encoding", "zstd")])).unwrap();
        assert!(parsed.is_empty());
    }

    #[test]
    fn framing_headers_and_header_injection_are_rejected() {
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
    fn a_caller_overrides_default_headers_but_not_credentials() {
        let mut injection = Injection::default();
        injection.defaults.insert("accept", HeaderValue::from_static("a/b"));
        injection.secret_headers.insert("x-key", HeaderValue::from_static("s3cret"));
        let merged = merge(&parse(&headers(&[("accept", "c/d")])).unwrap(), &injection).unwrap();
        assert_eq!(merged.get_all("accept").iter().collect::<Vec<_>>(), ["c/d"]);
        assert_eq!(merged["x-key"], "s3cret");
        let rejected = merge(&parse(&headers(&[("X-Key", "mine")])).unwrap(), &injection).unwrap_err();
        assert_eq!(
            rejected.to_string(),
            "the header `x-key` cannot be set: the host sends the connection's credentials in it"
        );
    }
}
