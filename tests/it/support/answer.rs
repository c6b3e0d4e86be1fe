//! A response of the host, with everything that the message of a failing test should show.

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::Value;

#[derive(Debug, Clone)]
pub struct Answer {
    /// Method and URL of the request, for messages.
    pub request: String,
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    /// Returns the response if it has this status, and panics otherwise.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{} answered: {}", self.request, self.text());
        self
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("{} did not answer with JSON ({error}): {}", self.request, self.text())
        })
    }

    /// Status and stable code of an error.
    #[track_caller]
    pub fn refusal(&self) -> (u16, String) {
        (self.status.as_u16(), self.error_text("code"))
    }

    /// The message of an error.
    #[track_caller]
    pub fn message(&self) -> String {
        self.error_text("message")
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    #[track_caller]
    fn error_text(&self, field: &str) -> String {
        let body = self.json();
        match body["error"][field].as_str() {
            Some(text) => text.to_owned(),
            None => panic!("{} ({}) has no `error.{field}`: {body}", self.request, self.status),
        }
    }
}
