//! Protection against requests from other sites, and the security headers of all responses.

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use url::Url;

use super::Dashboard;
use super::error::PageError;

/// Rejects a request that changes something if a browser sends it for a page of another site.
///
/// Browsers state the relation of the sites in `Sec-Fetch-Site`, or at least the page's origin in `Origin`. In addition,
/// every form contains a token of the session, which [`super::form`] checks.
pub(crate) async fn reject_cross_site_requests(request: Request, next: Next) -> Response {
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD);
    if is_safe || is_same_site(request.headers()) {
        next.run(request).await
    } else {
        PageError::CrossSite.into_response()
    }
}

fn is_same_site(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("malformed"));
    match (text(header::HeaderName::from_static("sec-fetch-site")), text(header::ORIGIN)) {
        (Some(relation), _) => matches!(relation, "same-origin" | "none"),
        (None, Some(origin)) => {
            let origin = Url::parse(origin).ok();
            let authority = origin.map(|url| url.authority().to_owned());
            authority.is_some() && authority.as_deref() == text(header::HOST)
        }
        // Not a browser, or a very old one. The form's token is still required.
        (None, None) => true,
    }
}

/// Allows a page to load only files of this host, to send forms only to it, and to be shown in no frame. Only the
/// preview of the Connect UI is in a frame of a page.
pub(crate) async fn set_headers(State(app): State<Dashboard>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let connect_ui = Url::parse(&app.connect_url).map(|url| url.origin().ascii_serialization());
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action \
         'self' {connect_ui}; frame-src 'self' {connect_ui}; frame-ancestors 'none'; base-uri 'none'; \
         require-trusted-types-for 'script'; trusted-types syncline",
        connect_ui = connect_ui.unwrap_or_default(),
    );
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'")),
    );
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    // Pages contain data of the installation, which must not stay on the disk of a shared computer.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (header::HeaderName::from_static(name), value.parse().unwrap()))
            .collect()
    }

    #[test]
    fn only_pages_of_this_host_can_send_forms() {
        for good in [
            &[][..],
            &[("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
            &[("host", "example.com:3003"), ("origin", "http://example.com:3003")],
        ] {
            assert!(is_same_site(&headers(good)), "{good:?}");
        }
        for bad in [
            &[("sec-fetch-site", "cross-site")][..],
            &[("sec-fetch-site", "same-site")],
            &[("host", "example.com"), ("origin", "http://evil.example")],
            &[("host", "example.com"), ("origin", "null")],
            &[("origin", "http://example.com")],
        ] {
            assert!(!is_same_site(&headers(bad)), "{bad:?}");
        }
    }
}
