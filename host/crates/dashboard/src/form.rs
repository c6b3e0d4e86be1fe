//! Submitted forms, and the responses to them.

use std::str::FromStr;
use std::time::Duration;

use axum::extract::{FromRequest, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use futures_util::StreamExt;
use maud::{Markup, html};
use subtle::ConstantTimeEq;

use super::Dashboard;
use super::error::PageError;
use super::session::{FormToken, Visitor, notice_cookie};
use syncline_engine::RequestMemory;
use syncline_types::error_code::ErrorCode;
use syncline_types::sanitize::sanitize_text;
use syncline_types::units::Bytes;

/// Longest form, in bytes. The input of an action may be long.
const MAX_FORM_BYTES: usize = 2 << 20;
/// Longest form of a client that has not signed in, in bytes.
const MAX_ANONYMOUS_FORM_BYTES: usize = 16 << 10;
/// Maximum number of fields of a form.
const MAX_FIELDS: usize = 10_000;
const READ_TIME: Duration = Duration::from_secs(10);
/// The field with the token of the session.
const TOKEN_FIELD: &str = "form_token";

/// The fields of a form. The form belongs to the session of the request.
///
/// A handler extracts the person first, because that stores the token which this extractor checks.
pub(crate) struct Form(Fields);

impl FromRequest<Dashboard> for Form {
    type Rejection = PageError;

    async fn from_request(request: Request, _: &Dashboard) -> Result<Self, PageError> {
        let expected = request.extensions().get::<FormToken>().cloned();
        let fields = Fields::read(request, MAX_FORM_BYTES).await?;
        let given = fields.text(TOKEN_FIELD);
        let is_valid =
            expected.is_some_and(|expected| bool::from(expected.0.as_bytes().ct_eq(given.as_bytes())));
        if is_valid { Ok(Self(fields)) } else { Err(PageError::CrossSite) }
    }
}

impl std::ops::Deref for Form {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        &self.0
    }
}

/// Reads a body, and counts it as a part of the host's memory for request bodies.
async fn read_body(request: Request, max_bytes: usize) -> Result<Vec<u8>, PageError> {
    let memory = request.extensions().get::<RequestMemory>().cloned();
    if let Some(memory) = &memory {
        memory.begin(None);
    }
    let mut parts = request.into_body().into_data_stream();
    let mut body = Vec::new();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|_| PageError::invalid("Form", "it was cut off; submit it again"))?;
        if body.len() + part.len() > max_bytes {
            let message = format!("the form is longer than {}", Bytes(max_bytes as u64));
            return Err(PageError::Service { code: ErrorCode::PayloadTooLarge, message });
        }
        if memory.as_ref().is_some_and(|memory| !memory.grow(part.len())) {
            let message = "this host is reading too many large requests; submit the form again".to_owned();
            return Err(PageError::Service { code: ErrorCode::TooManyBodies, message });
        }
        body.extend_from_slice(&part);
    }
    Ok(body)
}

/// The fields of a form without a token, because there is no session yet.
pub(crate) struct Fields(Vec<(String, String)>);

impl FromRequest<Dashboard> for Fields {
    type Rejection = PageError;

    async fn from_request(request: Request, _: &Dashboard) -> Result<Self, PageError> {
        Self::read(request, MAX_ANONYMOUS_FORM_BYTES).await
    }
}

impl Fields {
    async fn read(request: Request, max_bytes: usize) -> Result<Self, PageError> {
        let bytes = tokio::time::timeout(READ_TIME, read_body(request, max_bytes))
            .await
            .map_err(|_| PageError::invalid("Form", "it did not arrive within 10 s; submit it again"))??;
        if url::form_urlencoded::parse(&bytes).nth(MAX_FIELDS).is_some() {
            let problem = format!("it has more than {MAX_FIELDS} fields");
            return Err(PageError::invalid("Form", problem));
        }
        Ok(Self::parse_encoded(&bytes))
    }

    /// The fields of a form that a browser has encoded, in a body or in the query of an address.
    pub(crate) fn parse_encoded(encoded: &[u8]) -> Self {
        Self(url::form_urlencoded::parse(encoded).into_owned().collect())
    }

    /// The same fields without the characters that Postgres cannot store.
    pub(crate) fn sanitized(self) -> Self {
        Self(self.0.into_iter().map(|(name, value)| (name, sanitize_text(&value))).collect())
    }

    /// The names and values in the order of the form.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The text of a field without surrounding white space; empty if it is absent.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.raw(name).trim()
    }

    /// The text of a field as it was typed; empty if it is absent.
    pub(crate) fn raw(&self, name: &str) -> &str {
        self.0.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value)
    }

    /// The text of a field, or `None` if it is empty.
    pub(crate) fn optional(&self, name: &str) -> Option<&str> {
        Some(self.text(name)).filter(|text| !text.is_empty())
    }

    /// All values of a field that can be chosen several times.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
    }

    /// Whether a checkbox is checked.
    pub(crate) fn is_checked(&self, name: &str) -> bool {
        self.0.iter().any(|(key, _)| key == name)
    }

    /// Parses a field. `label` is its label on the page.
    pub(crate) fn parse<T: FromStr<Err: ToString>>(&self, name: &str, label: &str) -> Result<T, PageError> {
        self.text(name).parse().map_err(|problem: T::Err| PageError::invalid(label, problem))
    }

    /// Parses a field that can be empty.
    pub(crate) fn parse_optional<T: FromStr<Err: ToString>>(
        &self,
        name: &str,
        label: &str,
    ) -> Result<Option<T>, PageError> {
        self.optional(name).map(|_| self.parse(name, label)).transpose()
    }
}

/// The hidden field that every form of a signed-in person contains.
pub(crate) fn token_field(visitor: &Visitor) -> Markup {
    html! { input type="hidden" name=(TOKEN_FIELD) value=(visitor.person.form_token()); }
}

/// The response to a form that was accepted: goes to a page, which shows `notice`.
pub(crate) fn done(app: &Dashboard, visitor: &Visitor, page: &str, notice: &str) -> Response {
    let cookie = [(header::SET_COOKIE, notice_cookie(app, notice))];
    (cookie, go(visitor.from_script, page)).into_response()
}

/// Goes to a page. The script follows the header, because it cannot see where a redirect leads.
pub(crate) fn go(from_script: bool, page: &str) -> Response {
    if !from_script {
        return Redirect::to(page).into_response();
    }
    let location = HeaderValue::from_str(page).unwrap_or(HeaderValue::from_static("/dashboard"));
    (StatusCode::NO_CONTENT, [("x-dashboard-location", location)]).into_response()
}
