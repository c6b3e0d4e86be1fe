//! CORS: pages of every origin can call the API, because keys protect it and not origins.
//!
//! The layer answers every `OPTIONS` request as a preflight. Requests through `/proxy` can use `OPTIONS` for the
//! provider, so those that are not preflights pass the layer with a different method.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderName, Method, header};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::{proxy, rate_limit_headers};

/// Marks a request whose original method is `OPTIONS`.
#[derive(Clone)]
struct OriginallyOptions;

pub(super) fn layer() -> CorsLayer {
    const ALLOWED: [&str; 12] = [
        "authorization",
        "content-type",
        "accept",
        "origin",
        "x-requested-with",
        "nango-activity-log-id",
        "nango-is-dry-run",
        "nango-is-sync",
        "provider-config-key",
        "connection-id",
        "sentry-trace",
        "baggage",
    ];
    CorsLayer::new()
        .allow_origin(AllowOrigin::any())
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE])
        .allow_headers(ALLOWED.map(HeaderName::from_static))
        .expose_headers(
            [
                header::AUTHORIZATION,
                header::ETAG,
                header::CONTENT_TYPE,
                header::CONTENT_LENGTH,
                proxy::FROM_PROVIDER,
            ]
            .into_iter()
            .chain(rate_limit_headers::HEADERS)
            .collect::<Vec<_>>(),
        )
        .max_age(Duration::from_secs(600))
}

/// Replaces the method before the layer.
pub(super) fn set_options_aside(mut request: Request) -> Request {
    let path = request.uri().path();
    let is_for_provider = path == "/proxy" || path.starts_with("/proxy/");
    if request.method() == Method::OPTIONS && is_for_provider && !is_preflight(&request) {
        request.extensions_mut().insert(OriginallyOptions);
        *request.method_mut() = Method::GET;
    }
    request
}

/// Restores the method after the layer.
pub(super) fn take_options_up(mut request: Request) -> Request {
    if request.extensions_mut().remove::<OriginallyOptions>().is_some() {
        *request.method_mut() = Method::OPTIONS;
    }
    request
}

/// <https://fetch.spec.whatwg.org/#cors-preflight-request>
fn is_preflight(request: &Request) -> bool {
    let headers = request.headers();
    headers.contains_key(header::ORIGIN) && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}
