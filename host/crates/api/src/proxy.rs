//! `/proxy/…`: sends requests of clients to providers and adds the credentials of a connection.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures_util::{Stream, StreamExt};
use url::Url;
use utoipa::OpenApi;

use super::body_memory;
use super::error::{ApiError, FieldError};
use super::extract::{ConnectionHeaders, EnvironmentAuth, flag_header};
use super::refusals::{self, codes_of};
use super::{App, method_not_allowed};
use syncline_auth::rights;
use syncline_egress::{
    AnswerBody, EgressError, ForwardedBody, ForwardedRequest, Response as Answer, TakeMemory,
};
use syncline_engine::RequestMemory;
use syncline_types::error_code::ErrorCode;

/// Headers with this prefix are forwarded without it.
const FORWARDED_PREFIX: &str = "nango-proxy-";
/// Marks responses of the provider. Responses of the host do not have this header.
pub(super) const FROM_PROVIDER: HeaderName = HeaderName::from_static("syncline-proxied");
const MAX_LOG_ID_BYTES: usize = 255;

/// Response headers that apply only to the connection between host and provider.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    FROM_PROVIDER,
];

/// Response headers that instruct browsers about the provider's host. They would apply to this host instead.
const OF_ITS_HOST: [HeaderName; 3] =
    [header::STRICT_TRANSPORT_SECURITY, header::ALT_SVC, HeaderName::from_static("clear-site-data")];

/// The codes that requests through the proxy add to those of their arguments.
const CODES: &[ErrorCode] = &[
    ErrorCode::UnknownProvider,
    ErrorCode::InvalidProxyRequest,
    ErrorCode::InvalidBody,
    ErrorCode::BodyTimeout,
    ErrorCode::PayloadTooLarge,
    ErrorCode::TooManyBodies,
    ErrorCode::HostNotAllowed,
    ErrorCode::AddressNotAllowed,
    ErrorCode::BaseUrlOverrideNotAllowed,
    ErrorCode::CredentialsUnavailable,
    ErrorCode::RateLimited,
    ErrorCode::RedirectNotAllowed,
    ErrorCode::TooManyRedirects,
    ErrorCode::UpstreamFailed,
    ErrorCode::UpstreamTimeout,
];

#[derive(OpenApi)]
#[openapi(paths(proxy))]
struct Document;

pub(super) fn openapi() -> utoipa::openapi::OpenApi {
    let mut openapi = Document::openapi();
    let codes = [&codes_of(proxy), CODES].concat();
    for item in openapi.paths.paths.values_mut() {
        let methods = [
            ("get", &mut item.get),
            ("put", &mut item.put),
            ("post", &mut item.post),
            ("delete", &mut item.delete),
            ("patch", &mut item.patch),
        ];
        for (method, operation) in methods {
            if let Some(operation) = operation {
                operation.operation_id = Some(format!("proxy_{method}"));
                refusals::add(operation, &codes);
            }
        }
    }
    openapi
}

/// Accepts any method, because only the provider knows which ones it supports. The exceptions are `CONNECT`, which
/// would open a tunnel, and `TRACE`, which would return the credentials.
pub(super) fn routes() -> Router<App> {
    let methods = any(proxy).connect(refuse_method).trace(refuse_method);
    Router::new()
        .route("/proxy", methods.clone())
        .route("/proxy/", methods.clone())
        .route("/proxy/{*path}", methods)
}

async fn refuse_method(request: Request) -> Response {
    const ALLOWED: HeaderValue = HeaderValue::from_static("GET,HEAD,POST,PUT,PATCH,DELETE,OPTIONS");
    ([(header::ALLOW, ALLOWED)], method_not_allowed(request).await).into_response()
}

/// Send a request through the proxy
///
/// Sends the request to the connection's provider with the credentials of the connection, and returns the response of
/// the provider unchanged. Every method works except `CONNECT` and `TRACE`. Bodies are streamed in both directions; a
/// request body can have 1 GiB.
///
/// The path after `/proxy` and the query are appended to the base URL of the provider. Headers with the prefix
/// `Nango-Proxy-` are sent without the prefix; of the other headers only `Content-Type` and `Content-Encoding` are
/// sent.
///
/// A response with `Syncline-Proxied: true` comes from the provider, whatever its status. A response without this
/// header is an error of the host. Needs the scope `environment:proxy`.
#[utoipa::path(
    method(get, post, put, patch, delete), path = "/proxy/{path}", tag = "Proxy",
    params(
        ("path" = String, Path, description = "The path after the provider's base URL. It can contain slashes. A full URL of an allowed host works, too."),
        ("Connection-Id" = String, Header, description = "The connection id. With `Provider-Config-Key`, it names the connection."),
        ("Provider-Config-Key" = String, Header, description = "The unique key of the integration."),
        ("Retries" = Option<u32>, Header, description = "Number of retries after a network error, a 429 or a 5xx status, at most 5. Default: 0."),
        ("Retry-On" = Option<String>, Header, description = "Further statuses to retry, separated by commas, such as `404,409`."),
        ("Base-Url-Override" = Option<String>, Header, description = "Another base URL for this request. Its host must be allowed."),
        ("Decompress" = Option<bool>, Header, description = "Decompresses the response of the provider. Default: `false`."),
        ("Forward-Headers-On-Redirect" = Option<bool>, Header, description = "Keeps forwarded headers when a redirect leads to another origin. Default: `false`."),
    ),
    responses(
        (
            status = 200, description = "The response of the provider. Its status, headers and body are returned unchanged.",
            headers(("Syncline-Proxied" = bool, description = "`true`: the response comes from the provider")),
            body = serde_json::Value, content_type = "application/json", example = json!({"id": "b-1", "name": "Ada"}),
        ),
    ),
)]
pub(super) async fn proxy(
    State(app): State<App>,
    client: EnvironmentAuth<rights::Proxy>,
    target: ConnectionHeaders,
    request: Request,
) -> Result<Response, ApiError> {
    let request = forwarded(request)?;
    let connection = app.find_connection(&client, &target).await?;
    Ok(answer(app.proxy.forward(&client.environment, &connection, request).await?))
}

fn forwarded(request: Request) -> Result<ForwardedRequest, ApiError> {
    let (parts, body) = request.into_parts();
    let headers = &parts.headers;
    let log_id = headers.get("nango-activity-log-id");
    if log_id.is_some_and(|id| id.len() > MAX_LOG_ID_BYTES) {
        return Err(refuse("nango-activity-log-id", "must be at most 255 bytes long"));
    }
    for name in ["nango-is-sync", "nango-is-dry-run"] {
        flag_header(headers, name)?;
    }
    Ok(ForwardedRequest {
        target: target(&parts.uri),
        base_override: base_override(headers)?,
        headers: forwarded_headers(headers)?,
        body: forwarded_body(&parts, body),
        retries: retries(headers)?,
        retry_on: retry_on(headers)?,
        decompress: flag_header(headers, "decompress")?,
        forward_headers_on_redirect: flag_header(headers, "forward-headers-on-redirect")?,
        method: parts.method,
    })
}

/// The part after `/proxy`, not decoded. A full URL is returned without the slash before it.
fn target(uri: &Uri) -> String {
    let path = uri.path().strip_prefix("/proxy").unwrap_or_default();
    let whole = path.strip_prefix('/').filter(|rest| {
        let lower = rest.get(..8).unwrap_or(rest).to_ascii_lowercase();
        lower.starts_with("http://") || lower.starts_with("https://")
    });
    let path = whole.unwrap_or(path);
    uri.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"))
}

fn base_override(headers: &HeaderMap) -> Result<Option<Url>, ApiError> {
    const NAME: &str = "base-url-override";
    let text = text(headers, NAME)?.unwrap_or_default();
    if text.is_empty() {
        return Ok(None);
    }
    let is_base = |url: &Url| {
        matches!(url.scheme(), "http" | "https")
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
    };
    let url = text.parse().ok().filter(is_base);
    let problem =
        "must be a URL such as https://eu.example.com/v1, without user name, password, query and fragment";
    url.map(Some).ok_or_else(|| refuse(NAME, problem))
}

fn retries(headers: &HeaderMap) -> Result<u8, ApiError> {
    const NAME: &str = "retries";
    match text(headers, NAME)? {
        None => Ok(0),
        Some(text) => match text.parse::<u32>() {
            Ok(number) => Ok(u8::try_from(number).unwrap_or(u8::MAX)),
            Err(_) => Err(refuse(NAME, "must be a whole number, 0 or more")),
        },
    }
}

fn retry_on(headers: &HeaderMap) -> Result<Vec<StatusCode>, ApiError> {
    const NAME: &str = "retry-on";
    let Some(text) = text(headers, NAME)? else { return Ok(Vec::new()) };
    let statuses: Option<_> = text.split(',').map(|status| status.parse().ok()).collect();
    statuses.ok_or_else(|| refuse(NAME, "must be HTTP statuses separated by commas, such as 404,409"))
}

fn text<'h>(headers: &'h HeaderMap, name: &'static str) -> Result<Option<&'h str>, ApiError> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    value.to_str().map(Some).map_err(|_| refuse(name, "must be printable ASCII"))
}

/// Returns the headers with the prefix, and those that describe the body.
fn forwarded_headers(headers: &HeaderMap) -> Result<HeaderMap, ApiError> {
    let mut forwarded = HeaderMap::new();
    for (name, value) in headers {
        let Some(bare) = name.as_str().strip_prefix(FORWARDED_PREFIX) else { continue };
        let bare: HeaderName = bare.parse().map_err(|_| {
            let problem = "the part after the prefix must be the name of a header";
            ApiError::Headers { errors: vec![FieldError::new("invalid_key", &[name.as_str()], problem)] }
        })?;
        forwarded.append(bare, value.clone());
    }
    for name in [header::CONTENT_TYPE, header::CONTENT_ENCODING] {
        if let Some(value) = headers.get(&name) {
            forwarded.entry(name).or_insert_with(|| value.clone());
        }
    }
    Ok(forwarded)
}

fn forwarded_body(parts: &Parts, body: Body) -> Option<ForwardedBody> {
    if body.is_end_stream() {
        return None;
    }
    let Parts { headers, extensions, .. } = parts;
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let incoming = body.into_data_stream().map(|chunk| chunk.map_err(|_| ()));
    let buffer = extensions.get::<RequestMemory>().map(|memory| {
        let mut held = memory.hold(body_memory::owner(extensions));
        Box::new(move |bytes| held.grow(bytes)) as TakeMemory
    });
    Some(ForwardedBody { incoming: Box::pin(incoming), announced_bytes: length, buffer })
}

fn refuse(name: &'static str, problem: &str) -> ApiError {
    ApiError::headers("invalid_format", &[name], problem)
}

/// Passes the provider's response on. If it is incomplete, the response to the client breaks off too, so that the
/// client notices.
fn answer(answer: Answer<AnswerBody>) -> Response {
    let Answer { status, mut headers, body } = answer;
    settle_length(status, &mut headers);
    remove_own(&mut headers);
    headers.insert(FROM_PROVIDER, HeaderValue::from_static("true"));
    let mut response = Response::new(Body::from_stream(Flushed { body, failure: None }));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// A body that reports a failure one poll later. When a body fails, hyper drops everything that it has not flushed,
/// which can be the head and all of a short response. It flushes when the body is pending.
struct Flushed {
    body: AnswerBody,
    failure: Option<EgressError>,
}

impl Stream for Flushed {
    type Item = Result<Bytes, EgressError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(failure) = self.failure.take() {
            return Poll::Ready(Some(Err(failure)));
        }
        match ready!(self.body.poll_next_unpin(cx)) {
            Some(Err(error)) => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    "the response of a provider broke off"
                );
                self.failure = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            part => Poll::Ready(part),
        }
    }
}

/// Keeps `Content-Length` only if it is the length of the body, and only once. It is not if there is a
/// `Transfer-Encoding` (RFC 9112, 6.3), and a 204 response must not have one (RFC 9110, 8.6).
fn settle_length(status: StatusCode, headers: &mut HeaderMap) {
    if !headers.contains_key(header::CONTENT_LENGTH) {
        return;
    }
    let is_framed_otherwise =
        status == StatusCode::NO_CONTENT || headers.contains_key(header::TRANSFER_ENCODING);
    match content_length(headers).filter(|_| !is_framed_otherwise) {
        Some(length) => {
            headers.insert(header::CONTENT_LENGTH, length.into());
        }
        None => {
            headers.remove(header::CONTENT_LENGTH);
        }
    }
}

/// The length, if all values agree. Some servers repeat it in a list or in several headers.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    let mut agreed = None;
    for value in headers.get_all(header::CONTENT_LENGTH) {
        for length in value.to_str().ok()?.split(',') {
            let length = length.trim().parse().ok()?;
            if *agreed.get_or_insert(length) != length {
                return None;
            }
        }
    }
    agreed
}

/// Removes the headers that must not reach the client.
fn remove_own(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    // This host decides which browsers can read the response.
    let of_cors = headers.keys().filter(|name| name.as_str().starts_with("access-control-")).cloned();
    let of_cors: Vec<HeaderName> = of_cors.collect();
    for name in named.iter().chain(&of_cors).chain(&HOP_BY_HOP).chain(&OF_ITS_HOST) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    fn refusal<T>(result: Result<T, ApiError>) -> String {
        result.err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn the_target_after_the_prefix_is_unchanged() {
        for (uri, expected) in [
            ("/proxy", ""),
            ("/proxy/", "/"),
            ("/proxy/v1/a%2Fb%20c?x=%20&y[]=+", "/v1/a%2Fb%20c?x=%20&y[]=+"),
            ("/proxy//v1", "//v1"),
            ("/proxy/https://api.x.com/v1?a=b", "https://api.x.com/v1?a=b"),
            ("/proxy/HTTP://api.x.com", "HTTP://api.x.com"),
            ("/proxy/ftp://api.x.com", "/ftp://api.x.com"),
            ("/proxy/../health", "/../health"),
        ] {
            assert_eq!(target(&uri.parse().unwrap()), expected, "{uri}");
        }
    }

    #[test]
    fn only_prefixed_and_body_headers_are_forwarded() {
        let forwarded = forwarded_headers(&headers(&[
            ("nango-proxy-x-tenant", "1"),
            ("nango-proxy-accept", "a/b"),
            ("authorization", "Bearer key"),
            ("cookie", "a"),
            ("content-type", "text/csv"),
            ("nango-proxy-content-encoding", "br"),
            ("content-encoding", "gzip"),
        ]))
        .unwrap();
        let expected = headers(&[
            ("x-tenant", "1"),
            ("accept", "a/b"),
            ("content-encoding", "br"),
            ("content-type", "text/csv"),
        ]);
        assert_eq!(forwarded, expected);
        assert!(forwarded_headers(&headers(&[("nango-proxy-", "1")])).is_err());
    }

    #[test]
    fn an_invalid_proxy_header_is_named_in_the_error() {
        for text in ["-1", "two", "1.5", ""] {
            assert!(refusal(retries(&headers(&[("retries", text)]))).starts_with("`retries`"), "{text}");
        }
        assert_eq!(retries(&headers(&[("retries", "1000")])).unwrap(), u8::MAX);
        for text in ["", "429,", "429, 500", "abc", "99", "1000"] {
            assert!(refusal(retry_on(&headers(&[("retry-on", text)]))).starts_with("`retry-on`"), "{text}");
        }
        assert_eq!(retry_on(&headers(&[("retry-on", "404,409")])).unwrap(), [404, 409]);
        for text in ["eu.x.com", "ftp://x.com", "https://u:p@x.com", "https://x.com/?a", "https://x.com/#a"] {
            let refused = refusal(base_override(&headers(&[("base-url-override", text)])));
            assert!(refused.starts_with("`base-url-override`"), "{text}");
        }
        assert_eq!(base_override(&headers(&[("base-url-override", "")])).unwrap(), None);
    }

    #[test]
    fn headers_of_the_hop_and_the_provider_host_are_removed() {
        let mut given = headers(&[
            ("content-length", "5"),
            ("etag", "1"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("keep-alive", "timeout=5"),
            ("access-control-allow-origin", "https://x.com"),
            ("strict-transport-security", "max-age=1"),
            ("syncline-proxied", "forged"),
        ]);
        remove_own(&mut given);
        assert_eq!(given, headers(&[("content-length", "5"), ("etag", "1")]));
    }

    #[test]
    fn content_length_is_kept_once_and_only_if_it_matches_the_body() {
        let settled = |status: u16, pairs: &[(&'static str, &str)]| {
            let mut given = HeaderMap::new();
            for (name, value) in pairs {
                given.append(*name, value.parse().unwrap());
            }
            settle_length(status.try_into().unwrap(), &mut given);
            let lengths = given.get_all("content-length").iter();
            lengths.map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(settled(200, &[]), [""; 0]);
        assert_eq!(settled(200, &[("content-length", "5")]), ["5"]);
        assert_eq!(settled(200, &[("content-length", "5, 5")]), ["5"]);
        assert_eq!(settled(200, &[("content-length", "5"), ("content-length", "05")]), ["5"]);
        assert_eq!(settled(304, &[("content-length", "5")]), ["5"]);
        assert_eq!(settled(204, &[("content-length", "0")]), [""; 0]);
        assert_eq!(settled(200, &[("content-length", "5"), ("transfer-encoding", "chunked")]), [""; 0]);
        for nonsense in ["5, 6", "-5", "five", ""] {
            assert_eq!(settled(200, &[("content-length", nonsense)]), [""; 0], "{nonsense}");
        }
    }
}
