//! Requests and responses, as a recording contains them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use syncline_sandbox::{Failure, Request, Response};
use url::form_urlencoded;

/// Headers whose values are always masked.
const SECRET_HEADERS: [&str; 5] =
    ["authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key"];
const MASKED: &str = "***";

/// One request of the function, with the response or the failure that it received. It has neither if the run ended
/// before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    pub request: RecordedRequest,
    /// The time from the request to the response, in microseconds.
    pub took_us: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<RecordedResponse>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<RecordedFailure>,
    /// The run ended here, because the provider asked for a pause of this many milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limited_ms: Option<u64>,
}

/// A request as the function sent it, without the credentials that the host adds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedRequest {
    pub method: String,
    /// With all query parameters.
    pub url: String,
    /// Each has the form `name: value`. Names are in lower case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// A body that is not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedResponse {
    pub status: u16,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<String>,
}

/// A request that received no response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedFailure {
    pub code: String,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
}

impl RecordedRequest {
    /// Records a request, and masks its secrets by `mask`.
    pub(crate) fn new(request: &Request, mask: &dyn Fn(&str) -> String) -> Self {
        let mut url = request.url.clone();
        if !request.query.is_empty() {
            let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(&request.query).finish();
            let (before, fragment) =
                url.split_once('#').map_or((url.as_str(), None), |(url, fragment)| (url, Some(fragment)));
            let separator = if before.contains('?') { '&' } else { '?' };
            let fragment = fragment.map(|fragment| format!("#{fragment}")).unwrap_or_default();
            url = format!("{before}{separator}{query}{fragment}");
        }
        let (body, body_base64) = split_body(request.body.as_deref().unwrap_or_default());
        let mut headers = header_lines(&request.headers, mask);
        headers.sort();
        Self {
            method: request.method.to_ascii_uppercase(),
            url: mask(&url),
            headers,
            body: body.map(|body| mask(&body)),
            body_base64,
        }
    }

    /// Whether a request receives the response of another one. Headers may differ.
    pub(crate) fn asks_the_same(&self, other: &Self) -> bool {
        (&self.method, &self.url, &self.body, &self.body_base64)
            == (&other.method, &other.url, &other.body, &other.body_base64)
    }

    /// The method and URL.
    pub fn name(&self) -> String {
        format!("{} {}", self.method, self.url)
    }
}

impl RecordedResponse {
    pub(crate) fn new(response: &Response, mask: &dyn Fn(&str) -> String) -> Self {
        let (body, body_base64) = split_body(&response.body);
        Self {
            status: response.status,
            headers: header_lines(&response.headers, mask),
            body: body.map(|body| mask(&body)),
            body_base64,
        }
    }

    /// The response for the guest.
    pub(crate) fn to_response(&self) -> Response {
        let headers = self.headers.iter().map(|line| {
            let (name, value) = line.split_once(':').unwrap_or((line, ""));
            (name.trim().to_owned(), value.trim().to_owned())
        });
        let body = match (&self.body, &self.body_base64) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(encoded)) => STANDARD.decode(encoded).unwrap_or_default(),
            (None, None) => Vec::new(),
        };
        Response { status: self.status, headers: headers.collect(), body }
    }

    /// Whether the body can be decoded.
    pub(crate) fn has_valid_body(&self) -> bool {
        self.body_base64.as_ref().is_none_or(|encoded| STANDARD.decode(encoded).is_ok())
    }
}

impl RecordedFailure {
    pub(crate) fn new(failure: &Failure, mask: &dyn Fn(&str) -> String) -> Self {
        let Failure { code, message, details } = failure;
        Self { code: code.clone(), message: mask(message), details: details.as_deref().map(mask) }
    }

    pub(crate) fn to_failure(&self) -> Failure {
        Failure { code: self.code.clone(), message: self.message.clone(), details: self.details.clone() }
    }
}

/// Whether the values of a header are always masked.
pub(crate) fn is_secret_header(name: &str) -> bool {
    SECRET_HEADERS.iter().any(|secret| name.eq_ignore_ascii_case(secret))
}

/// The body as text, or else in Base64.
fn split_body(body: &[u8]) -> (Option<String>, Option<String>) {
    match str::from_utf8(body) {
        Ok("") => (None, None),
        Ok(text) => (Some(text.to_owned()), None),
        Err(_) => (None, Some(STANDARD.encode(body))),
    }
}

fn header_lines(headers: &[(String, String)], mask: &dyn Fn(&str) -> String) -> Vec<String> {
    let line = |(name, value): &(String, String)| {
        let name = name.to_ascii_lowercase();
        let value = if is_secret_header(&name) { MASKED.to_owned() } else { mask(value) };
        format!("{name}: {value}")
    };
    headers.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Request {
        Request {
            method: "get".to_owned(),
            url: "/items?a=1".to_owned(),
            query: vec![("b".to_owned(), "x y".to_owned())],
            headers: vec![
                ("X-Own".to_owned(), "planted".to_owned()),
                ("Authorization".to_owned(), "Basic abc".to_owned()),
            ],
            body: Some(vec![0xff]),
            retries: None,
            timeout_ms: None,
        }
    }

    #[test]
    fn a_request_is_recorded_in_one_form() {
        let recorded = RecordedRequest::new(&request(), &|text| text.replace("planted", "***"));
        assert_eq!(recorded.name(), "GET /items?a=1&b=x+y");
        assert_eq!(recorded.headers, ["authorization: ***", "x-own: ***"]);
        assert_eq!((recorded.body, recorded.body_base64.as_deref()), (None, Some("/w==")));
    }

    #[test]
    fn a_response_is_restored() {
        for body in [&b"{}"[..], b"", b"\xff\x00"] {
            let headers = vec![("content-type".to_owned(), "a: b".to_owned())];
            let response = Response { status: 200, headers, body: body.to_vec() };
            let restored = RecordedResponse::new(&response, &str::to_owned).to_response();
            assert_eq!(
                (restored.status, restored.headers, restored.body),
                (200, response.headers, body.to_vec())
            );
        }
    }
}
