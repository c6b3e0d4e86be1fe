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

/// Maximum number of body bytes in the details of a `provider-http-error`.
const MAX_ERROR_BODY_BYTES: usize = 10_000;

/// A request that is being built. `url` is a path such as `/v1/customers`, which is resolved against the provider's
/// base URL, or an absolute URL on one of the provider's hosts or of the integration's `allow_hosts`.
#[derive(Debug, Clone)]
#[must_use = "a request does nothing until it is sent"]
pub struct Request {
    inner: wire::Request,
    /// The error of a body that could not be serialized. It is returned when the request is sent, so that a request
    /// is built in one chain of calls.
    error: Option<Error>,
}

/// Builds a `GET` request.
pub fn get(url: impl Into<String>) -> Request {
    Request::new("GET", url)
}

/// Builds a `POST` request.
pub fn post(url: impl Into<String>) -> Request {
    Request::new("POST", url)
}

/// Builds a `PUT` request.
pub fn put(url: impl Into<String>) -> Request {
    Request::new("PUT", url)
}

/// Builds a `PATCH` request.
pub fn patch(url: impl Into<String>) -> Request {
    Request::new("PATCH", url)
}

/// Builds a `DELETE` request.
pub fn delete(url: impl Into<String>) -> Request {
    Request::new("DELETE", url)
}

/// Sends several requests concurrently and returns the responses in the same order. The host limits how many
/// requests are in flight at a time.
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
                None => Err(Error::new("network-error", "the host returned fewer responses than requests")),
            },
        })
        .collect()
}

impl Request {
    /// Builds a request with any method.
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

    /// Appends a parameter to the URL's query. The host percent-encodes it.
    pub fn query(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.inner.query.push((name.into(), value.to_string()));
        self
    }

    /// Adds a header. A `Content-Type` replaces the one that [`json`](Self::json) or [`form`](Self::form) sets.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let name = name.into();
        if is_content_type(&name) {
            self.inner.headers.retain(|(present, _)| !is_content_type(present));
        }
        self.inner.headers.push((name, value.into()));
        self
    }

    /// Sets a body of bytes.
    pub fn body(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.inner.body = Some(bytes.into());
        self
    }

    /// Sets a JSON body.
    pub fn json(self, body: &impl Serialize) -> Self {
        let written = serde_json::to_vec(body).map_err(|error| error.to_string());
        self.written_body(written, "application/json", "JSON")
    }

    /// Sets a form body. Nested fields are written as `address[city]=Berlin`, and absent fields are omitted.
    pub fn form(self, body: &impl Serialize) -> Self {
        self.written_body(form::write(body), "application/x-www-form-urlencoded", "a form")
    }

    /// Sets the number of retries after a network error, a 429 or a 5xx status. By default the host retries methods
    /// that are safe to repeat.
    pub fn retries(mut self, retries: u8) -> Self {
        self.inner.retries = Some(retries);
        self
    }

    /// Sets the timeout of one attempt.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.inner.timeout_ms = Some(timeout.as_millis().try_into().unwrap_or(u32::MAX));
        self
    }

    /// Sends the request and waits for the complete response. A response with an error status is not an error.
    pub fn send(self) -> Result<Response> {
        let target = self.target();
        match self.error {
            Some(error) => Err(error),
            None => Response::from_wire(host::provider::send(&self.inner), target),
        }
    }

    /// Calls [`send`](Self::send) and [`error_for_status`](Response::error_for_status).
    pub fn send_ok(self) -> Result<Response> {
        self.send()?.error_for_status()
    }

    pub(crate) fn target(&self) -> String {
        format!("{} {}", self.inner.method, self.inner.url)
    }

    /// Sets a parameter and replaces one of the same name.
    pub(crate) fn set_query(&mut self, name: &str, value: String) {
        self.inner.query.retain(|(present, _)| present != name);
        self.inner.query.push((name.to_owned(), value));
    }

    /// Returns the same request to another URL, which has its own query.
    pub(crate) fn redirect(&mut self, url: String) {
        self.inner.url = url;
        self.inner.query.clear();
    }

    fn written_body(mut self, written: Result<Vec<u8>, String>, content_type: &str, form: &str) -> Self {
        match written {
            Ok(bytes) if self.inner.headers.iter().any(|(name, _)| is_content_type(name)) => self.body(bytes),
            Ok(bytes) => self.header("content-type", content_type).body(bytes),
            Err(problem) => {
                let message =
                    format!("could not serialize the body of {} as {form}: {problem}", self.target());
                self.error = Some(Error::new("invalid-request", message));
                self
            }
        }
    }
}

fn is_content_type(name: &str) -> bool {
    name.eq_ignore_ascii_case("content-type")
}

/// Deserializes JSON. The error names the place of a wrong value, such as `items[37]`.
pub(crate) fn parse<T: DeserializeOwned>(json: &str) -> Result<T, String> {
    serde_json::from_str(json).map_err(|error| {
        let mut again = serde_json::Deserializer::from_str(json);
        match serde_path_to_error::deserialize::<_, T>(&mut again) {
            Err(placed) if placed.path().iter().next().is_some() => {
                format!("at `{}`: {error}", placed.path())
            }
            _ => error.to_string(),
        }
    })
}

/// The provider's response.
#[derive(Debug, Clone)]
pub struct Response {
    inner: wire::Response,
    /// Method and URL of the request, for messages.
    target: String,
}

impl Response {
    /// Returns the HTTP status.
    pub fn status(&self) -> u16 {
        self.inner.status
    }

    /// Returns the first header of this name, in upper or lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().find(|(present, _)| present.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    /// Returns all headers, with names in lower case.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.inner.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the decompressed body.
    pub fn bytes(&self) -> &[u8] {
        &self.inner.body
    }

    /// Returns the body as text.
    pub fn text(&self) -> Result<&str> {
        std::str::from_utf8(&self.inner.body).map_err(|error| self.unexpected(&error))
    }

    /// Deserializes the body from JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        parse(self.text()?).map_err(|problem| self.unexpected(&problem))
    }

    /// Turns a response with a status of 400 or above into the error `provider-http-error`, for which the caller of
    /// an action receives status 424. The details contain the status, the headers, and the first 10,000 bytes of
    /// the body. To use more of the body, check [`status`](Self::status) first and create your own error.
    pub fn error_for_status(self) -> Result<Self> {
        if self.inner.status < 400 {
            return Ok(self);
        }
        let mut headers = BTreeMap::<&str, String>::new();
        // A session cookie is a secret, and details are stored and shown.
        for (name, value) in self.headers().filter(|(name, _)| *name != "set-cookie") {
            headers
                .entry(name)
                .and_modify(|values| *values = format!("{values}, {value}"))
                .or_insert_with(|| value.to_owned());
        }
        let shown = &self.inner.body[..self.inner.body.len().min(MAX_ERROR_BODY_BYTES)];
        let details = json!({ "status": self.inner.status, "headers": headers, "body": String::from_utf8_lossy(shown) });
        let message = format!("{} returned status {}", self.target, self.inner.status);
        Err(Error::new("provider-http-error", message).with_details(&details))
    }

    /// Creates the error for a well-formed response that the function cannot use.
    pub(crate) fn unexpected(&self, problem: &dyn std::fmt::Display) -> Error {
        Error::new("unexpected-response", format!("{} returned an unexpected body: {problem}", self.target))
    }

    fn from_wire(answer: Result<wire::Response, wire::Failure>, target: String) -> Result<Self> {
        answer.map(|inner| Self { inner, target }).map_err(Error::from_failure)
    }
}
