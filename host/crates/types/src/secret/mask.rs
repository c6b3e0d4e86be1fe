//! Masks secrets in text that is stored, logged or shown.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::Secret;

/// Shorter values are not masked: a user name such as `ada` would be masked in half of all words.
const MIN_SECRET_BYTES: usize = 6;
/// What replaces a secret.
const MASKED: &str = "***";

/// A set of secrets to find in text, both as they are and as escaped in JSON, URLs and HTML.
#[derive(Debug, Clone, Default)]
pub struct Mask {
    /// Longest first, so that a secret that contains another secret is masked as a whole.
    secrets: Vec<Secret<String>>,
}

impl Mask {
    /// Creates a mask for these secrets.
    pub fn of<'s>(secrets: impl IntoIterator<Item = &'s str>) -> Self {
        let mut mask = Self::default();
        secrets.into_iter().for_each(|secret| mask.add(secret));
        mask
    }

    /// Adds a secret, unless it is shorter than 6 bytes.
    pub fn add(&mut self, secret: &str) {
        if secret.len() < MIN_SECRET_BYTES || self.secrets.iter().any(|known| known.expose() == secret) {
            return;
        }
        let at = self.secrets.partition_point(|known| known.expose().len() >= secret.len());
        self.secrets.insert(at, secret.into());
    }

    /// Returns the text with every secret replaced by `***`.
    pub fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut masked = Cow::Borrowed(text);
        for secret in &self.secrets {
            if let Some(without) = replace(&masked, secret.expose()) {
                masked = Cow::Owned(without);
            }
        }
        masked
    }

    /// Masks all strings, member names and numbers of a JSON document.
    pub fn json(&self, value: Value) -> Value {
        if self.secrets.is_empty() {
            return value;
        }
        match value {
            Value::String(text) => Value::String(self.text(&text).into_owned()),
            Value::Number(number) => match self.text(&number.to_string()) {
                Cow::Borrowed(_) => Value::Number(number),
                Cow::Owned(masked) => Value::String(masked),
            },
            Value::Array(values) => values.into_iter().map(|value| self.json(value)).collect(),
            Value::Object(members) => members
                .into_iter()
                .map(|(name, value)| (self.text(&name).into_owned(), self.json(value)))
                .collect::<Map<_, _>>()
                .into(),
            other => other,
        }
    }
}

/// Returns the text with the secret replaced, or `None` if the text does not contain it.
fn replace(text: &str, secret: &str) -> Option<String> {
    let first = *secret.as_bytes().first()?;
    let may_begin = |byte: &u8| *byte == first || matches!(byte, b'\\' | b'%' | b'&' | b'+');
    let (mut masked, mut copied, mut at) = (String::new(), 0, 0);
    while let Some(skipped) = text.as_bytes()[at..].iter().position(may_begin) {
        at += skipped;
        match length_in(&text[at..], secret) {
            Some(length) => {
                masked.push_str(&text[copied..at]);
                masked.push_str(MASKED);
                at += length;
                copied = at;
            }
            // Skips a run of backslashes as a whole. Trying each of them would take quadratic time. One byte is enough
            // otherwise: the byte that `may_begin` finds next is never within a character.
            None => at += count_backslashes(&text[at..]).max(1),
        }
    }
    (copied > 0).then(|| masked + &text[copied..])
}

/// Returns the number of bytes that the secret occupies at the beginning of the text, or `None` if it is not there.
///
/// The text may have been truncated within the secret. Then half of the secret is enough.
fn length_in(text: &str, secret: &str) -> Option<usize> {
    if text.starts_with(secret) {
        return Some(secret.len());
    }
    let enough_bytes = (secret.len() / 2).max(MIN_SECRET_BYTES);
    let (mut rest, mut wanted) = (text, secret);
    while let Some(next) = wanted.chars().next() {
        if rest.is_empty() {
            return (secret.len() - wanted.len() >= enough_bytes).then_some(text.len());
        }
        let backslashes = count_backslashes(wanted);
        let doubled_backslashes = count_backslashes(rest);
        if backslashes > 0 && doubled_backslashes >= backslashes {
            // JSON doubles each backslash, and doubles them again when that JSON is embedded in a JSON string.
            (rest, wanted) = (&rest[doubled_backslashes..], &wanted[backslashes..]);
        } else {
            rest = &rest[length_of_char(rest, next)?..];
            wanted = &wanted[next.len_utf8()..];
        }
    }
    Some(text.len() - rest.len())
}

fn count_backslashes(text: &str) -> usize {
    text.len() - text.trim_start_matches('\\').len()
}

/// Returns the number of bytes that a character occupies at the beginning of the text: unescaped, or escaped in JSON
/// (including JSON within a JSON string), in a URL or in HTML.
fn length_of_char(text: &str, wanted: char) -> Option<usize> {
    let escaped = match text.as_bytes().first()? {
        b'\\' => length_in_json(text, wanted),
        b'%' => length_in_url(text, wanted),
        b'&' => length_in_html(text, wanted),
        b'+' if wanted == ' ' => Some(1),
        _ => None,
    };
    escaped.or_else(|| text.starts_with(wanted).then(|| wanted.len_utf8()))
}

fn length_in_json(text: &str, wanted: char) -> Option<usize> {
    let backslashes = count_backslashes(text);
    let escape = &text[backslashes..];
    let short = match wanted {
        '"' | '/' => wanted,
        '\n' => 'n',
        '\r' => 'r',
        '\t' => 't',
        _ => 'u',
    };
    let after = escape.strip_prefix(short)?;
    if short != 'u' {
        return Some(backslashes + 1);
    }
    let code = u32::from_str_radix(after.get(..4)?, 16).ok()?;
    (code == u32::from(wanted)).then_some(backslashes + 5)
}

fn length_in_url(text: &str, wanted: char) -> Option<usize> {
    let mut rest = text;
    for byte in wanted.encode_utf8(&mut [0; 4]).bytes() {
        let digits = rest.strip_prefix('%')?.get(..2)?;
        if u8::from_str_radix(digits, 16).ok()? != byte {
            return None;
        }
        rest = &rest[3..];
    }
    Some(text.len() - rest.len())
}

fn length_in_html(text: &str, wanted: char) -> Option<usize> {
    const LONGEST_ENTITY: usize = 10;
    let end = text.bytes().take(LONGEST_ENTITY).position(|byte| byte == b';')?;
    let entity = &text[1..end];
    let decoded = match entity {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        _ => {
            let number = entity.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => number.parse(),
            };
            char::from_u32(code.ok()?)?
        }
    };
    (decoded == wanted).then_some(end + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_secret_is_masked_at_every_position() {
        let mask = Mask::of(["tok_0123456789", "0123456789"]);
        assert_eq!(mask.text("tok_0123456789, tok_0123456789tok_0123456789"), "***, ******");
        assert_eq!(mask.text("x0123456789x"), "x***x");
        assert!(matches!(mask.text("no secret here"), Cow::Borrowed(_)));
        assert_eq!(
            mask.json(
                json!({ "a tok_0123456789": ["tok_0123456789", 123_456_789, 1_230_123_456_789_u64, true] })
            ),
            json!({ "a ***": ["***", 123_456_789, "123***", true] })
        );
    }

    #[test]
    fn short_values_are_not_masked() {
        let mask = Mask::of(["ada", "12345", ""]);
        assert_eq!(mask.text("ada has 12345"), "ada has 12345");
        assert_eq!(Mask::of(["123456"]).text("ada has 123456"), "ada has ***");
    }

    #[test]
    fn a_secret_is_masked_in_every_supported_escaping() {
        const SECRET: &str = "p\"w\\d/+ =<&é";
        let mask = Mask::of([SECRET]);
        let json = json!(SECRET).to_string();
        let nested = json!({ "body": json }).to_string();
        for spelled in [
            SECRET,
            &json,
            &nested,
            r#""p\"w\\d\/\u002b\u0020\u003D\u003c\u0026\u00e9""#,
            "a=p%22w%5Cd%2F%2B%20%3D%3C%26%C3%A9&b",
            "a=p%22w%5cd%2f%2b+%3d%3c%26%c3%a9&b",
            "<p>p&quot;w\\d/+ =&lt;&amp;é</p>",
            "<p>p&#34;w&#x5C;d&#47;&#x2b;&#32;&#61;&#x3C;&#38;&#233;</p>",
        ] {
            let masked = mask.text(spelled);
            assert!(masked.contains("***") && !masked.contains('w'), "{spelled}: {masked}");
        }
        assert_eq!(mask.text(r#"{"a":"p\"w\\d/+ =<&é","b":1}"#), r#"{"a":"***","b":1}"#);
    }

    #[test]
    fn a_secret_of_several_lines_is_masked_in_json() {
        const KEY: &str = "-----BEGIN KEY-----\r\n\tMIIB\n-----END KEY-----";
        let mask = Mask::of([KEY]);
        let json = json!({ "key": KEY, "id": 1 }).to_string();
        let nested = json!({ "body": json }).to_string();
        assert_eq!(mask.text(&json), r#"{"id":1,"key":"***"}"#);
        assert_eq!(mask.text(&nested), r#"{"body":"{\"id\":1,\"key\":\"***\"}"}"#);
    }

    #[test]
    fn a_secret_with_the_delimiters_of_html_is_masked() {
        let mask = Mask::of(["a<b>c'd\"e&f"]);
        for escaped in ["a&lt;b&gt;c&apos;d&quot;e&amp;f", "a&lt;b&gt;c&#39;d&quot;e&amp;f"] {
            assert_eq!(mask.text(&format!("<p>{escaped}</p>")), "<p>***</p>");
        }
    }

    #[test]
    fn similar_text_is_not_masked() {
        let mask = Mask::of(["tok_0123456789"]);
        for similar in [
            "tok+0123456789",
            "tok%5E0123456789",
            "tok&#94;0123456789",
            "tok\\u005e0123456789",
            "tok_012345678",
        ] {
            let text = format!("{similar}, a similar text");
            assert_eq!(mask.text(&text), text);
        }
    }

    #[test]
    fn many_backslashes_are_scanned_in_linear_time() {
        let row = "\\".repeat(1 << 20);
        let mask = Mask::of(["tok_0123456789", "\"abcdef"]);
        assert!(matches!(mask.text(&row), Cow::Borrowed(_)));
        assert_eq!(mask.text(&(row + "\"abcdef")), "***");
    }

    #[test]
    fn a_secret_truncated_at_the_end_is_masked_from_half_its_length() {
        let mask = Mask::of(["tok_0123456789"]);
        assert_eq!(mask.text("Bearer tok_0123"), "Bearer ***");
        assert_eq!(mask.text("a key begins with tok_"), "a key begins with tok_");
        assert_eq!(mask.text("tok_0123 is another"), "tok_0123 is another");
        assert_eq!(mask.text("tok_01"), "tok_01");
        assert_eq!(mask.text("tok_012"), "***");
    }

    proptest! {
        #[test]
        fn no_input_causes_a_panic(secret in "[\\\\%&+é#x;u0-9a]{6,12}", text in "[\\\\%&+é#x;u0-9a]{0,60}") {
            let masked = Mask::of([secret.as_str()]).text(&text).into_owned();
            prop_assert!(!masked.contains(&secret));
        }

        #[test]
        fn a_secret_in_a_json_string_is_masked(secret in "\\PC{6,20}", before in "[a-z ]{0,10}") {
            let quoted = json!(format!("{before}{secret}")).to_string();
            let masked = Mask::of([secret.as_str()]).text(&quoted).into_owned();
            prop_assert!(masked.contains(MASKED), "{}", masked);
        }
    }
}
