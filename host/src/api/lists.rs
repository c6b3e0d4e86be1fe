//! What the queries of lists have in common.

use chrono::{DateTime, Utc};

use super::error::ApiError;

/// How many a page holds. More than `most` is served as `most`.
pub(super) fn parse_limit(text: Option<&str>, default: i64, most: i64) -> Result<i64, ApiError> {
    let Some(text) = text else { return Ok(default) };
    match text.parse::<i64>() {
        Ok(number) if number >= 1 => Ok(number.min(most)),
        _ => {
            let message = format!("is `{text}`; it must be a whole number of 1 or more");
            Err(ApiError::query("invalid_value", &["limit"], message))
        }
    }
}

pub(super) fn parse_time(
    name: &'static str,
    text: &str,
    refuse: fn(&'static str, &[&str], String) -> ApiError,
) -> Result<DateTime<Utc>, ApiError> {
    let parsed = DateTime::parse_from_rfc3339(text).map(|time| time.to_utc());
    parsed.map_err(|_| {
        refuse("invalid_format", &[name], "must be a time such as 2026-03-01T09:00:00Z".to_owned())
    })
}

/// One of several words.
pub(super) fn parse_word<T: Copy>(
    name: &'static str,
    text: &str,
    words: impl IntoIterator<Item = (&'static str, T)>,
) -> Result<T, ApiError> {
    let words: Vec<_> = words.into_iter().collect();
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let known: Vec<_> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
        ApiError::query("invalid_value", &[name], format!("must be one of {}", known.join(", ")))
    })
}
