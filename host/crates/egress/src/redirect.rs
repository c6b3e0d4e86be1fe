//! Computes the request that follows a redirect. Pure: the caller checks whether the destination is allowed.

use http::{HeaderMap, Method, StatusCode, header};
use url::Url;

/// The maximum number of redirects in one attempt.
pub(super) const MAX_REDIRECTS: usize = 5;

/// The request that follows a redirect.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    pub url: Url,
    pub method: Method,
    pub keeps_body: bool,
}

/// Returns the request that a redirect asks for, with the same rules as browsers. Returns `None` if the answer is not
/// a redirect or its `Location` is not a valid URL. The caller then receives the answer itself.
pub(super) fn redirect(
    from: &Url,
    method: &Method,
    status: StatusCode,
    headers: &HeaderMap,
) -> Option<Redirect> {
    let (method, keeps_body) = match status {
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND if *method == Method::POST => (Method::GET, false),
        StatusCode::SEE_OTHER if *method != Method::GET && *method != Method::HEAD => (Method::GET, false),
        StatusCode::MOVED_PERMANENTLY
        | StatusCode::FOUND
        | StatusCode::SEE_OTHER
        | StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT => (method.clone(), true),
        _ => return None,
    };
    let mut url = from.join(headers.get(header::LOCATION)?.to_str().ok()?).ok()?;
    url.set_fragment(None);
    // A user and password in the `Location` come from the provider and are not sent.
    url.set_username("").ok()?;
    url.set_password(None).ok()?;
    Some(Redirect { url, method, keeps_body })
}

/// Removes the caller's headers that must not be sent in the next request. Another origin receives only the content
/// type of a body that it receives, too.
pub(super) fn keep_headers(caller: &mut HeaderMap, same_origin: bool, keeps_body: bool) {
    let body_headers = [header::CONTENT_TYPE, header::CONTENT_ENCODING, header::CONTENT_LANGUAGE];
    if !keeps_body {
        for name in &body_headers {
            caller.remove(name);
        }
    }
    if !same_origin {
        let content_type = caller.remove(header::CONTENT_TYPE);
        caller.clear();
        if let Some(content_type) = content_type {
            caller.insert(header::CONTENT_TYPE, content_type);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn follow(method: Method, status: u16, location: &str) -> Option<(String, String, bool)> {
        let from = Url::parse("https://api.x.com/v1/a?q=1").unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::LOCATION, HeaderValue::from_str(location).unwrap());
        redirect(&from, &method, StatusCode::from_u16(status).unwrap(), &headers)
            .map(|next| (next.url.to_string(), next.method.to_string(), next.keeps_body))
    }

    #[test]
    fn methods_are_rewritten_as_browsers_do() {
        let method = |method: Method, status| {
            let (_, method, keeps_body) = follow(method, status, "/b").unwrap();
            (method, keeps_body)
        };
        for status in [301, 302, 303] {
            assert_eq!(method(Method::POST, status), ("GET".to_owned(), false));
        }
        assert_eq!(method(Method::PUT, 302), ("PUT".to_owned(), true));
        assert_eq!(method(Method::PUT, 303), ("GET".to_owned(), false));
        assert_eq!(method(Method::HEAD, 303), ("HEAD".to_owned(), true));
        for status in [307, 308] {
            assert_eq!(method(Method::POST, status), ("POST".to_owned(), true));
        }
    }

    #[test]
    fn the_location_is_resolved_against_the_request() {
        let location = |location| follow(Method::GET, 302, location).map(|(url, ..)| url);
        assert_eq!(location("b").as_deref(), Some("https://api.x.com/v1/b"));
        assert_eq!(location("//y.com/b#f").as_deref(), Some("https://y.com/b"));
        assert_eq!(location("https://u:p@y.com/").as_deref(), Some("https://y.com/"));
        assert_eq!(location("https://[").as_deref(), None);
        assert_eq!(location("data:text/plain,x").as_deref(), None);
    }

    #[test]
    fn other_statuses_are_not_redirects() {
        for status in [200, 300, 304, 305, 404] {
            assert_eq!(follow(Method::GET, status, "/b"), None, "{status}");
        }
    }

    #[test]
    fn another_origin_receives_only_the_content_type() {
        let headers = || {
            let mut headers = HeaderMap::new();
            headers.insert("x-tenant", HeaderValue::from_static("t"));
            headers.insert("content-type", HeaderValue::from_static("a/b"));
            headers
        };
        let left = |same_origin, keeps_body| {
            let mut headers = headers();
            keep_headers(&mut headers, same_origin, keeps_body);
            headers.keys().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(left(true, true), ["x-tenant", "content-type"]);
        assert_eq!(left(true, false), ["x-tenant"]);
        assert_eq!(left(false, true), ["content-type"]);
        assert!(left(false, false).is_empty());
    }
}
