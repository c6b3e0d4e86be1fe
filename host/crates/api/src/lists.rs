//! Shared parts of list routes: query parameters, pages and cursors.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};

use super::connections::parse_name;
use super::error::ApiError;
use syncline_engine::NamedScope;
use syncline_types::ids::EnvironmentPk;

const CURSOR_CHECK_BYTES: usize = 4;

/// The cursors of one list: a position and a checksum that is valid only for this list in this environment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursors {
    pub(super) list: &'static str,
    pub(super) environment: EnvironmentPk,
}

impl Cursors {
    pub(super) fn encode(self, position: &[u8]) -> String {
        URL_SAFE_NO_PAD.encode([position, &self.check(position)].concat())
    }

    /// Decodes a cursor; `read` converts the bytes of the position.
    pub(super) fn decode<P, const N: usize>(
        self,
        text: &str,
        read: impl FnOnce([u8; N]) -> Option<P>,
    ) -> Result<P, ApiError> {
        let decode = || {
            let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
            let (position, check) = bytes.split_first_chunk()?;
            if check == self.check(position) { read(*position) } else { None }
        };
        decode().ok_or(ApiError::Cursor { problem: "was not returned by this list" })
    }

    /// The cursor of the row with this number.
    pub(super) fn encode_number(self, number: i64) -> String {
        self.encode(&number.to_be_bytes())
    }

    pub(super) fn decode_number(self, text: &str) -> Result<i64, ApiError> {
        self.decode(text, |bytes| Some(i64::from_be_bytes(bytes)))
    }

    fn check(self, position: &[u8]) -> [u8; CURSOR_CHECK_BYTES] {
        let text = [format!("{} {} ", self.list, self.environment).as_bytes(), position].concat();
        let mut check = [0; CURSOR_CHECK_BYTES];
        check.copy_from_slice(&blake3::hash(&text).as_bytes()[..CURSOR_CHECK_BYTES]);
        check
    }
}

/// Truncates rows to a page. The query reads one row more than a page has; if it was found, another page follows, and
/// this function returns the last item of the page.
pub(super) fn cut_to_page<T>(found: &mut Vec<T>, limit: i64) -> Option<&T> {
    let has_more = found.len() as i64 > limit;
    found.truncate(limit.unsigned_abs() as usize);
    found.last().filter(|_| has_more)
}

/// Parses a page size. Values above `most` are lowered to `most`.
pub(super) fn parse_limit(text: Option<&str>, default: i64, most: i64) -> Result<i64, ApiError> {
    let Some(text) = text else { return Ok(default) };
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse::<i64>() {
        Ok(number) if number >= 1 => Ok(number.min(most)),
        // Too large for the type.
        Err(_) if is_number => Ok(most),
        _ => {
            let code = if is_number { "too_small" } else { "invalid_type" };
            let message = format!("must be a whole number of 1 or more (got `{text}`)");
            Err(ApiError::query(code, &["limit"], message))
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

/// Parses the scope of a list: the whole environment, an integration, or one of its connections.
pub(super) fn parse_scope(key: Option<&str>, connection: Option<&str>) -> Result<NamedScope, ApiError> {
    let integration = key.map(|key| parse_name("provider_config_key", key, ApiError::query)).transpose()?;
    let connection = connection.map(|id| parse_name("connection_id", id, ApiError::query)).transpose()?;
    match (integration, connection) {
        (None, None) => Ok(NamedScope::Environment),
        (Some(integration), None) => Ok(NamedScope::Integration(integration)),
        (Some(integration), Some(connection)) => Ok(NamedScope::Connection { integration, connection }),
        (None, Some(_)) => {
            let message = "is required with `connection_id`, because connection ids are unique only within an integration";
            Err(ApiError::query("invalid_type", &["provider_config_key"], message))
        }
    }
}

/// The names of the values of an enum, for [`parse_word`].
pub(super) fn words<T: Copy + Into<&'static str>>(all: &[T]) -> impl Iterator<Item = (&'static str, T)> {
    all.iter().map(|value| ((*value).into(), *value))
}

/// Parses one of several names.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cursors(environment: i64) -> Cursors {
        Cursors { list: "runs", environment: EnvironmentPk(environment) }
    }

    proptest! {
        #[test]
        fn a_cursor_decodes_to_its_position(environment: i64, position: [u8; 24]) {
            let cursor = cursors(environment).encode(&position);
            prop_assert_eq!(cursors(environment).decode(&cursor, Some).ok(), Some(position));
        }

        #[test]
        fn a_cursor_of_another_list_or_environment_is_refused(number: i64) {
            let cursor = cursors(1).encode_number(number);
            let other = Cursors { list: "dead letters", ..cursors(1) };
            prop_assert_eq!(cursors(1).decode_number(&cursor).ok(), Some(number));
            prop_assert!(cursors(2).decode_number(&cursor).is_err());
            prop_assert!(other.decode_number(&cursor).is_err());
        }

        #[test]
        fn arbitrary_text_is_rejected_as_a_cursor(text in ".*") {
            prop_assert!(cursors(1).decode_number(&text).is_err());
        }
    }

    mod fuzz {
        use super::*;

        #[test]
        fn an_accepted_cursor_prints_itself() {
            syncline_fuzz::check_text("list-cursors", |text| {
                let cursors = cursors(1);
                let checked = URL_SAFE_NO_PAD.decode(text).map(|position| cursors.encode(&position));
                for text in [Some(text.to_owned()), checked.ok()].into_iter().flatten() {
                    if let Ok(number) = cursors.decode_number(&text) {
                        assert_eq!(cursors.encode_number(number), text);
                    }
                    if let Ok(position) = cursors.decode(&text, Some::<[u8; 24]>) {
                        assert_eq!(cursors.encode(&position), text);
                    }
                }
            });
        }

        #[test]
        fn an_accepted_limit_is_the_number_or_the_maximum() {
            syncline_fuzz::check_text("limits", |text| match parse_limit(Some(text), 100, 500) {
                Ok(limit) => {
                    let digits = text.trim_start_matches(['0', '+']);
                    assert!(limit == 500 || limit.to_string() == digits, "{text} is {limit}");
                }
                Err(error) => assert!(format!("{error}").len() <= text.len() + 200),
            });
        }
    }

    #[test]
    fn a_limit_is_a_whole_number_from_one_of_any_size() {
        for (text, limit) in [
            (None, 100),
            (Some("1"), 1),
            (Some("500"), 500),
            (Some("501"), 500),
            (Some("9223372036854775808"), 500),
            (Some("18446744073709551616"), 500),
            (Some("0001"), 1),
        ] {
            assert_eq!(parse_limit(text, 100, 500).ok(), Some(limit), "{text:?}");
        }
        for bad in ["0", "-1", "-99999999999999999999", "ten", "1.5", "1e3", ""] {
            assert!(parse_limit(Some(bad), 100, 500).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_extra_row_means_that_another_page_follows() {
        for (read, last) in [(2, None), (3, None), (4, Some(2))] {
            let mut found: Vec<i32> = (0..read).collect();
            assert_eq!(cut_to_page(&mut found, 3).copied(), last);
            assert!(found.len() <= 3);
        }
    }
}
