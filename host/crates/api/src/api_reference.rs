//! `/docs`: the API reference. Scalar renders the OpenAPI document in the browser. Its script is part of the binary, so
//! the page needs no other server.

use std::sync::LazyLock;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Response, header};
use axum::routing::get;
use sha2::{Digest, Sha256};

use syncline_web::static_files::answer;

const PAGE: &str = include_str!("../api-reference/index.html");
const START_SCRIPT: &str = include_str!("../api-reference/start.js");
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// Allows the page's own files and requests to this host. Scalar writes its styles into the page and draws its icons
/// from `data:` URLs.
const CONTENT_SECURITY_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; \
     font-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// Scalar's script, and its hash.
static SCALAR: LazyLock<(Bytes, [u8; 32])> = LazyLock::new(|| {
    let script = scalar_api_reference::get_asset("scalar.js").expect("the crate contains its script");
    let hash = Sha256::digest(&script).into();
    (script.into(), hash)
});

/// The routes of the page. They need no key: the document is the same for everyone.
pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new()
        .route("/docs", get(page))
        .route("/docs/start.js", get(start_script))
        .route("/docs/scalar.js", get(scalar_script))
}

async fn page(headers: HeaderMap) -> Response<Body> {
    let mut response = answer(PAGE, &Sha256::digest(PAGE), "text/html; charset=utf-8", &headers);
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY);
    response
}

async fn start_script(headers: HeaderMap) -> Response<Body> {
    answer(START_SCRIPT, &Sha256::digest(START_SCRIPT), JAVASCRIPT, &headers)
}

async fn scalar_script(headers: HeaderMap) -> Response<Body> {
    let (script, hash) = &*SCALAR;
    answer(script.clone(), hash, JAVASCRIPT, &headers)
}
