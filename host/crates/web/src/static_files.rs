//! Answers requests for the embedded files of web pages.

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;

use syncline_crypto::hex;

/// Returns a file, or 304 if the browser has this version. Browsers revalidate a file on each use, so an upgrade of the
/// host takes effect at once.
pub fn answer(
    body: impl Into<Bytes>,
    hash: &[u8],
    content_type: &'static str,
    headers: &HeaderMap,
) -> Response<Body> {
    let tag = format!("\"{}\"", hex(&hash[..16]));
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known = known.flat_map(|value| value.split(',')).any(|value| {
        let value = value.trim();
        value == "*" || value.trim_start_matches("W/") == tag
    });
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, HeaderValue::from_static(content_type))], body.into()).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, HeaderValue::from_str(&tag).expect("hexadecimal digits are plain"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
