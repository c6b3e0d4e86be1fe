//! What browsers are told of who may call the API: everybody, since a key is what protects it, not the origin.
//!
//! The layer answers every `OPTIONS` as a preflight. For a provider one may be a request like any other, so those
//! through `/proxy` that are none pass the layer under another name.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderName, Method, header};
use tower_http::cors::{AllowOrigin, CorsLayer};

use super::proxy;

/// Marks a request whose method is `OPTIONS` in truth.
#[derive(Clone)]
struct AsksOptions;

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
        .expose_headers([
            header::AUTHORIZATION,
            header::ETAG,
            header::CONTENT_TYPE,
            header::CONTENT_LENGTH,
            proxy::FROM_PROVIDER,
        ])
        .max_age(Duration::from_secs(600))
}

/// Around the layer.
pub(super) fn set_options_aside(mut request: Request) -> Request {
    let path = request.uri().path();
    let is_for_provider = path == "/proxy" || path.starts_with("/proxy/");
    if request.method() == Method::OPTIONS && is_for_provider && !is_preflight(&request) {
        request.extensions_mut().insert(AsksOptions);
        *request.method_mut() = Method::GET;
    }
    request
}

/// Within the layer.
pub(super) fn take_options_up(mut request: Request) -> Request {
    if request.extensions_mut().remove::<AsksOptions>().is_some() {
        *request.method_mut() = Method::OPTIONS;
    }
    request
}

/// <https://fetch.spec.whatwg.org/#cors-preflight-request>
fn is_preflight(request: &Request) -> bool {
    let headers = request.headers();
    headers.contains_key(header::ORIGIN) && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}
