//! Parses JSON that clients, providers and functions send.
//!
//! serde_json marks raw values and numbers by objects with a reserved member name, and interprets such an object even in
//! text from outside: `{"$serde_json::private::RawValue": "[1]"}` would become the list `[1]`. So text from outside must
//! not have these names.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

const RESERVED_NAMES: [&str; 2] = ["$serde_json::private::RawValue", "$serde_json::private::Number"];

/// A member name that JSON from outside must not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a member has the reserved name `{0}`; use another name")]
pub struct ReservedName(&'static str);

/// Fails if an object in the text, at any depth, has a reserved member name. Text that is not JSON passes.
pub fn check_names(text: &[u8]) -> Result<(), ReservedName> {
    let Ok(text) = str::from_utf8(text) else { return Ok(()) };
    // A name can be written with escapes. Other text needs no closer look.
    if !text.contains("$serde_json") && !text.contains("\\u00") {
        return Ok(());
    }
    let mut found = None;
    let _may_be_malformed = Names(&mut found).deserialize(&mut serde_json::Deserializer::from_str(text));
    found.map_or(Ok(()), |name| Err(ReservedName(name)))
}

/// Parses a JSON text from outside. A reserved member name is an error.
pub fn parse(text: &str) -> serde_json::Result<Value> {
    check_names(text.as_bytes()).map_err(serde_json::Error::custom)?;
    serde_json::from_str(text)
}

/// Like [`parse`], for bytes.
pub fn parse_bytes(bytes: &[u8]) -> serde_json::Result<Value> {
    check_names(bytes).map_err(serde_json::Error::custom)?;
    serde_json::from_slice(bytes)
}

/// Returns a valid JSON text with a line for each member and item, indented by two spaces. Strings and numbers stay as
/// they are written.
pub fn indented(text: &str) -> String {
    let mut indented = String::with_capacity(text.len() * 2);
    let (mut depth, mut is_in_string, mut is_escaped) = (0_usize, false, false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if is_in_string {
            is_in_string = is_escaped || c != '"';
            is_escaped = !is_escaped && c == '\\';
            indented.push(c);
            continue;
        }
        match c {
            ' ' | '\n' | '\r' | '\t' => {}
            '{' | '[' => {
                while chars.next_if(char::is_ascii_whitespace).is_some() {}
                indented.push(c);
                if let Some(close) = chars.next_if(|next| matches!(next, '}' | ']')) {
                    indented.push(close);
                } else {
                    depth += 1;
                    break_line(&mut indented, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                break_line(&mut indented, depth);
                indented.push(c);
            }
            ',' => {
                indented.push(c);
                break_line(&mut indented, depth);
            }
            ':' => indented.push_str(": "),
            _ => {
                is_in_string = c == '"';
                indented.push(c);
            }
        }
    }
    indented
}

fn break_line(text: &mut String, depth: usize) {
    text.push('\n');
    text.extend(std::iter::repeat_n("  ", depth));
}

/// Looks for a reserved name in a value and in everything that it contains.
struct Names<'f>(&'f mut Option<&'static str>);

impl<'de> DeserializeSeed<'de> for Names<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Names<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Names(&mut *self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while members.next_key_seed(Name(&mut *self.0))?.is_some() {
            members.next_value_seed(Names(&mut *self.0))?;
        }
        Ok(())
    }
}

/// Compares one name, without its escapes.
struct Name<'f>(&'f mut Option<&'static str>);

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a member name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<(), E> {
        let Some(reserved) = RESERVED_NAMES.into_iter().find(|reserved| *reserved == name) else {
            return Ok(());
        };
        *self.0 = Some(reserved);
        Err(E::custom(ReservedName(reserved)))
    }
}

/// The members of an object, in their order and with unparsed values. A name can occur several times.
#[derive(Default)]
pub struct Members<'t>(pub Vec<(String, &'t RawValue)>);

impl<'t> Members<'t> {
    pub fn of(text: &'t str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Members::default();
        while let Some(member) = map.next_entry()? {
            members.0.push(member);
        }
        Ok(members)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reserved_names_are_refused_at_any_depth_and_in_any_spelling() {
        for text in [
            r#"{"$serde_json::private::RawValue":"[1]"}"#,
            r#"{"a":[0,{"b":{"$serde_json::private::Number":"1"}}]}"#,
            r#"[{"a":1,"$serde_json::private::RawValue":"[1]"}]"#,
            r#"{"\u0024serde_json::private::RawValue":"[1]"}"#,
            r#"{"\u0024\u0073erde_json::private::RawValue":"[1]"}"#,
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("has the reserved name `$serde_json::private::"), "{text}: {error}");
            assert!(parse_bytes(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn other_text_is_parsed_as_usual() {
        for (text, value) in [
            (r#"{"a":"$serde_json::private::RawValue"}"#, json!({ "a": "$serde_json::private::RawValue" })),
            (r#"["\u0024serde_json",-1,1.5,null,true]"#, json!(["$serde_json", -1, 1.5, null, true])),
        ] {
            assert_eq!(parse(text).unwrap(), value);
            assert_eq!(parse_bytes(text.as_bytes()).unwrap(), value);
        }
        assert!(check_names(b"{\"$serde_json").is_ok(), "malformed text is reported by the parser");
        assert!(parse("{\"$serde_json").is_err());
        assert!(parse_bytes(b"\xff").is_err());
    }

    #[test]
    fn indenting_changes_only_spaces() {
        let text = r#" {"a" : [1.50, {"b":{ }}, [] ],"c\"{": "x, \\", "big":12345678901234567890123}"#;
        let expected = "{\n  \"a\": [\n    1.50,\n    {\n      \"b\": {}\n    },\n    []\n  ],\n  \
                        \"c\\\"{\": \"x, \\\\\",\n  \"big\": 12345678901234567890123\n}";
        assert_eq!(indented(text), expected);
        assert_eq!(
            (indented("{}"), indented("[ ]"), indented("\"a b\"")),
            ("{}".into(), "[]".into(), "\"a b\"".into())
        );
    }
}
