//! The query of a page's address: the filters of a list, and where the page of the list begins.

use std::convert::Infallible;
use std::ops::Deref;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use url::form_urlencoded;

use super::Dashboard;
use super::error::PageError;
use super::form::Fields;

/// How far a list reaches back: the value of the field, and what the page calls it.
pub(crate) const AGES: [(&str, &str); 5] = [
    ("", "any time"),
    ("1h", "the last hour"),
    ("24h", "the last 24 hours"),
    ("7d", "the last 7 days"),
    ("30d", "the last 30 days"),
];

/// The query of the page's address. A field that was submitted empty counts as absent.
pub(crate) struct Query(Fields);

impl FromRequestParts<Dashboard> for Query {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Dashboard) -> Result<Self, Infallible> {
        Ok(Self::parse(parts.uri.query().unwrap_or_default()))
    }
}

impl Deref for Query {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        &self.0
    }
}

impl Query {
    fn parse(text: &str) -> Self {
        // Filters are compared with values in the database, which cannot contain a NUL character.
        Self(Fields::parse_encoded(text.as_bytes()).sanitized())
    }

    /// The address of `path` with the same query, except for the field `name`. Without a value, the field is left out.
    pub(crate) fn address(&self, path: &str, name: &str, value: Option<&str>) -> String {
        let others = self.0.pairs().filter(|(key, value)| *key != name && !value.is_empty());
        address(path, others.chain(value.map(|value| (name, value))))
    }

    /// The address of the first page, if this is another page. `name` is the field with the position in the list.
    pub(crate) fn first_page(&self, path: &str, name: &str) -> Option<String> {
        self.0.optional(name).map(|_| self.address(path, name, None))
    }
}

/// The address of `path` with these fields as its query.
pub(crate) fn address<'f>(path: &str, fields: impl IntoIterator<Item = (&'f str, &'f str)>) -> String {
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

impl Fields {
    /// The time of a field that is a date and a time in UTC, or a time such as `2026-03-01T09:00:00Z`.
    pub(crate) fn time(&self, name: &str, label: &str) -> Result<Option<DateTime<Utc>>, PageError> {
        self.optional(name).map(|text| parse_time(text, label)).transpose()
    }

    /// The earliest time that a field with one of [`AGES`] allows.
    pub(crate) fn since(&self, name: &str, label: &str) -> Result<Option<DateTime<Utc>>, PageError> {
        let age = match self.text(name) {
            "" => return Ok(None),
            "1h" => TimeDelta::hours(1),
            "24h" => TimeDelta::hours(24),
            "7d" => TimeDelta::days(7),
            "30d" => TimeDelta::days(30),
            _ => return Err(PageError::invalid(label, "choose one of the listed times")),
        };
        Ok(Some(Utc::now() - age))
    }
}

fn parse_time(text: &str, label: &str) -> Result<DateTime<Utc>, PageError> {
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Ok(time.to_utc());
    }
    // Browsers leave out the seconds if they are 0.
    let parsed = NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M:%S")
        .or_else(|_| NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M"));
    parsed.map(|time| time.and_utc()).map_err(|_| {
        PageError::invalid(label, format!("must be a time such as 2026-03-01T09:00 (got `{text}`)"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_keeps_the_filters_and_changes_the_position() {
        let query = Query::parse("state=failed&type=&id=a%26b&after=7");
        assert_eq!(query.address("/list", "after", Some("9")), "/list?state=failed&id=a%26b&after=9");
        assert_eq!(query.first_page("/list", "after").as_deref(), Some("/list?state=failed&id=a%26b"));
        assert_eq!(Query::parse("state=").first_page("/list", "after"), None);
        assert_eq!(Query::parse("after=7").address("/list", "after", None), "/list");
    }

    #[test]
    fn a_time_is_utc_unless_it_has_an_offset() {
        let nine = parse_time("2026-03-01T09:00", "After").unwrap();
        for same in ["2026-03-01T09:00:00", "2026-03-01T09:00:00Z", "2026-03-01T10:00:00+01:00"] {
            assert_eq!(parse_time(same, "After").unwrap(), nine, "{same}");
        }
        assert!(parse_time("yesterday", "After").is_err());
    }
}
