//! Requests to the provider. The host adds the connection's credentials; a function never sees them.
//!
//! ```
//! # use syncline_sdk::{http, testing::Host};
//! # use serde::Deserialize;
//! # let host = Host::new();
//! # host.answer("GET /v1/customers/cus_1?expand=tax", 200, &serde_json::json!({"email": "a@example.com"}));
//! # #[derive(Deserialize)] struct Customer { email: String }
//! let customer: Customer = http::get("/v1/customers/cus_1").query("expand", "tax").send_ok()?.json()?;
//! # assert_eq!(customer.email, "a@example.com");
//! # Ok::<(), syncline_sdk::Error>(())
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::bindings::syncline::integration::provider as wire;
use crate::{Error, Result, host};

mod form;

/// How much of a body is kept in the details of a `provider-http-error`.
const MAX_ERROR_BODY_BYTES: usize = 10_000;

/// A request under construction. `url` is a path such as `/v1/customers`, resolved against the provider's base
/// URL, or a whole URL on one of the provider's hosts or of the integration's `allow_hosts`.
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is sent"]
pub struct Request {
    inner: wire::Request,
    /// A body that could not be written. Told when the request is sent, so that building stays one chain.
    error: Option<Error>,
}

/// Reads.
pub fn get(url: impl Into<String>) -> Request {
    Request::new("GET", url)
}

/// Creates, or whatever the provider uses it for.
pub fn post(url: impl Into<String>) -> Request {
    Request::new("POST", url)
}

/// Replaces.
pub fn put(url: impl Into<String>) -> Request {
    Request::new("PUT", url)
}

/// Changes.
pub fn patch(url: impl Into<String>) -> Request {
    Request::new("PATCH", url)
}

/// Deletes.
pub fn delete(url: impl Into<String>) -> Request {
    Request::new("DELETE", url)
}

/// Sends many requests at once and gives the answers in the same order. The host decides how many are under
/// way at a time.
pub fn send_all(requests: impl IntoIterator<Item = Request>) -> Vec<Result<Response>> {
    let requests: Vec<Request> = requests.into_iter().collect();
    let (sound, targets): (Vec<_>, Vec<_>) = requests
        .iter()
        .filter(|request| request.error.is_none())
        .map(|request| (request.inner.clone(), request.target()))
        .unzip();
    let mut answers = host::provider::send_all(&sound).into_iter().zip(targets);
    requests
        .into_iter()
        .map(|request| match request.error {
            Some(error) => Err(error),
            None => match answers.next() {
                Some((answer, target)) => Response::from_wire(answer, target),
                None => Err(Error::new("network-error", "the host gave fewer answers than requests")),
            },
        })
        .collect()
}

impl Request {
    /// A request with any method.
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        let inner = wire::Request {
            method: method.into(),
            url: url.into(),
            query: Vec::new(),
            headers: Vec::new(),
            body: None,
            retries: None,
            timeout_ms: None,
        };
        Self { inner, error: None }
    }

    /// Appends a parameter to the URL's query; the host percent-encodes it.
    pub fn query(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.inner.query.push((name.into(), value.to_string()));
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.inner.headers.push((name.into(), value.into()));
        self
    }

    /// A body of bytes as they are.
    pub fn body(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.inner.body = Some(bytes.into());
        self
    }

    /// A JSON body.
    pub fn json(self, body: &impl Serialize) -> Self {
        let written = serde_json::to_vec(body).map_err(|error| error.to_string());
        self.written_body(written, "application/json", "JSON")
    }

    /// A form body. Nested fields are written as `address[city]=Berlin`, absent ones not at all.
    pub fn form(self, body: &impl Serialize) -> Self {
        self.written_body(form::write(body), "application/x-www-form-urlencoded", "a form")
    }

    /// How often to try again after a network error, 429 or 5xx. By default the host tries again where the
    /// method is safe to repeat.
    pub fn retries(mut self, retries: u8) -> Self {
        self.inner.retries = Some(retries);
        self
    }

    /// The time for one attempt.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.inner.timeout_ms = Some(timeout.as_millis().try_into().unwrap_or(u32::MAX));
        self
    }

    /// Sends it and waits for the whole answer. An error status is an answer too.
    pub fn send(self) -> Result<Response> {
        let target = self.target();
        match self.error {
            Some(error) => Err(error),
            None => Response::from_wire(host::provider::send(&self.inner), target),
        }
    }

    /// [`send`](Self::send) and [`error_for_status`](Response::error_for_status) in one.
    pub fn send_ok(self) -> Result<Response> {
        self.send()?.error_for_status()
    }

    pub(crate) fn target(&self) -> String {
        format!("{} {}", self.inner.method, self.inner.url)
    }

    /// Sets a parameter, in place of one of the same name.
    pub(crate) fn set_query(&mut self, name: &str, value: String) {
        self.inner.query.retain(|(present, _)| present != name);
        self.inner.query.push((name.to_owned(), value));
    }

    /// The same request to another URL that brings its own query.
    pub(crate) fn redirect(&mut self, url: String) {
        self.inner.url = url;
        self.inner.query.clear();
    }

    fn written_body(mut self, written: Result<Vec<u8>, String>, content_type: &str, form: &str) -> Self {
        match written {
            Ok(bytes) => self.header("content-type", content_type).body(bytes),
            Err(problem) => {
                let message = format!("the body of {} cannot be written as {form}: {problem}", self.target());
                self.error = Some(Error::new("invalid-request", message));
                self
            }
        }
    }
}

/// What the provider answered.
#[derive(Debug, Clone)]
pub struct Response {
    inner: wire::Response,
    /// The request's method and URL, for messages.
    target: String,
}

impl Response {
    /// The HTTP status.
    pub fn status(&self) -> u16 {
        self.inner.status
    }

    /// The first header of that name, whatever its case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().find(|(present, _)| present.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// All headers, with names in lower case.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.inner.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The body, decompressed.
    pub fn bytes(&self) -> &[u8] {
        &self.inner.body
    }

    /// The body as text.
    pub fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.inner.body).map_err(|error| self.unexpected(&error))
    }

    /// The body, read as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.inner.body).map_err(|error| self.unexpected(&error))
    }

    /// An answer with a status of 400 or above becomes the error `provider-http-error`, which the caller of an
    /// action sees as 424. Its details hold the status, the headers, and the first 10,000 bytes of the body: whoever
    /// needs more looks at [`status`](Self::status) before, and makes an error of its own.
    pub fn error_for_status(self) -> Result<Self> {
        if self.inner.status < 400 {
            return Ok(self);
        }
        let mut headers = BTreeMap::<&str, String>::new();
        // A session cookie would be a secret, and details are kept and shown.
        for (name, value) in self.headers().filter(|(name, _)| *name != "set-cookie") {
            headers
                .entry(name)
                .and_modify(|values| *values = format!("{values}, {value}"))
                .or_insert_with(|| value.to_owned());
        }
        let shown = &self.inner.body[..self.inner.body.len().min(MAX_ERROR_BODY_BYTES)];
        let details = json!({ "status": self.inner.status, "headers": headers, "body": String::from_utf8_lossy(shown) });
        let message = format!("{} answered with status {}", self.target, self.inner.status);
        Err(Error::new("provider-http-error", message).with_details(&details))
    }

    /// An answer that is well-formed HTTP and still not what the function can use.
    pub(crate) fn unexpected(&self, problem: &dyn std::fmt::Display) -> Error {
        Error::new("unexpected-response", format!("{} gave an unexpected body: {problem}", self.target))
    }

    fn from_wire(answer: Result<wire::Response, wire::Failure>, target: String) -> Result<Self> {
        answer.map(|inner| Self { inner, target }).map_err(Error::from_failure)
    }
}
