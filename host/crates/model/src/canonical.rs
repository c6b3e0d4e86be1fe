//! The canonical form of JSON, in which equal values have equal bytes, and its hash.
//!
//! Keys are sorted by their bytes, the last of repeated keys is used, there are no spaces, and strings have as few
//! escapes as possible. Numbers stay as they are written: `1.0` and `1` differ, and so do two integers that an f64
//! could not distinguish.

use std::fmt;

use super::json::Malformed;
use super::shape::Shape;
use super::walk::Walk;

/// 16 bytes of BLAKE3 over the canonical form. A record with the same hash as the stored one is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChangeHash(pub [u8; 16]);

/// Returns the hash of a JSON text, as [`super::records::split`] computes it.
pub fn canonical_hash(text: &str) -> Result<ChangeHash, Malformed> {
    let shape = Shape::any();
    let mut walk = Walk::new(text, &shape);
    let piece = walk.document()?;
    Ok(ChangeHash::of(walk.assembly.bytes(piece)))
}

/// Returns a JSON text in canonical form.
pub fn canonical_text(text: &str) -> Result<String, Malformed> {
    let shape = Shape::any();
    let mut walk = Walk::new(text, &shape);
    let piece = walk.document()?;
    Ok(String::from_utf8_lossy(walk.assembly.bytes(piece)).into_owned())
}

impl ChangeHash {
    pub(super) fn of(canonical: &[u8]) -> Self {
        let mut short = [0; 16];
        short.copy_from_slice(&blake3::hash(canonical).as_bytes()[..16]);
        Self(short)
    }
}

impl fmt::Debug for ChangeHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::de::IgnoredAny;
    use serde_json::Value;

    use super::canonical_text as canonical;
    use super::*;

    #[test]
    fn spellings_of_one_value_have_the_same_form() {
        let form = r#"{"":[1.0,1e3,-0],"A":"é\n\u001f/","b":{"x":null,"y":[]}}"#;
        for text in [
            form,
            r#" { "b" : { "y" : [ ] , "x" : null } , "" : [ 1.0 , 1e3,-0 ], "A":"é\n\u001f/" } "#,
            r#"{"\u0062":{"x":1,"y":[],"x":null},"\u0041":"\u00E9\u000a\u001F\/","":[1.0,1e3,-0]}"#,
        ] {
            assert_eq!(canonical(text).as_deref(), Ok(form));
        }
    }

    #[test]
    fn numbers_differ_if_they_are_written_differently() {
        let hash = |text| canonical_hash(text).unwrap();
        assert_ne!(hash("1.0"), hash("1"));
        assert_ne!(hash("9007199254740993"), hash("9007199254740992"));
    }

    #[test]
    fn the_hash_of_a_value_never_changes() {
        let hash = canonical_hash(r#"{"a":1}"#).unwrap();
        assert_eq!(format!("{hash:?}"), "d59b6562d7c9b121bc9760873d787890", "stored hashes depend on it");
    }

    #[test]
    fn the_maximum_depth_is_the_one_of_serde_json() {
        for depth in [126, 127, 128, 100_000] {
            let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            assert_eq!(canonical(&text).is_ok(), serde_json::from_str::<Value>(&text).is_ok(), "{depth}");
        }
    }

    #[test]
    fn invalid_json_is_reported_with_its_place() {
        let refusal = |text| canonical(text).unwrap_err().to_string();
        assert_eq!(refusal(""), "not JSON: expected a value at byte 0");
        assert_eq!(refusal(r#"{"a":1"#), "not JSON: expected `,` or `}` at byte 6");
        assert_eq!(refusal(r#"{"a":1,}"#), "not JSON: expected a key in double quotes at byte 7");
        assert_eq!(refusal(r#"["a"#), "not JSON: expected the string's closing quote at byte 3");
        assert_eq!(
            refusal("[\"a\nb\"]"),
            "not JSON: expected an escape instead of a raw control character at byte 3"
        );
        assert_eq!(refusal("01"), "not JSON: expected the end of the text at byte 1");
        assert_eq!(refusal("[NaN]"), "not JSON: expected a value at byte 1");
    }

    /// A JSON value whose numbers are literals.
    #[derive(Debug, Clone)]
    enum Tree {
        Plain(String),
        String(String),
        Array(Vec<Tree>),
        Object(Vec<(String, Tree)>),
    }

    fn any_tree() -> impl Strategy<Value = Tree> {
        let word = || prop_oneof!["[a-c]{0,2}", "[\\x00-\\x7fé🎉\"\\\\/]{0,12}"];
        let leaf = prop_oneof![
            "null|true|false|-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?"
                .prop_map(Tree::Plain),
            word().prop_map(Tree::String),
        ];
        leaf.prop_recursive(4, 40, 6, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Tree::Array),
                proptest::collection::vec((word(), inner), 0..6).prop_map(Tree::Object),
            ]
        })
    }

    impl Tree {
        /// Writes the value with spaces and escapes that the style chooses.
        fn write(&self, style: &mut impl FnMut() -> u8, out: &mut String) {
            let space =
                |style: &mut dyn FnMut() -> u8| ["", "", "", " ", "\n\t", "\r "][style() as usize % 6];
            let (open, close, members): (_, _, Vec<(Option<&String>, &Tree)>) = match self {
                Self::Plain(text) => return out.push_str(text),
                Self::String(text) => return write_string(text, style, out),
                Self::Array(elements) => ('[', ']', elements.iter().map(|element| (None, element)).collect()),
                Self::Object(members) => {
                    ('{', '}', members.iter().map(|(key, value)| (Some(key), value)).collect())
                }
            };
            out.push(open);
            out.push_str(space(style));
            for (index, (key, value)) in members.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                    out.push_str(space(style));
                }
                if let Some(key) = key {
                    write_string(key, style, out);
                    out.push_str(space(style));
                    out.push(':');
                    out.push_str(space(style));
                }
                value.write(style, out);
                out.push_str(space(style));
            }
            out.push(close);
        }

        fn canonical(&self) -> String {
            match self {
                Self::Plain(text) => text.clone(),
                Self::String(text) => serde_json::to_string(text).unwrap(),
                Self::Array(elements) => {
                    format!("[{}]", elements.iter().map(Self::canonical).collect::<Vec<_>>().join(","))
                }
                Self::Object(members) => {
                    let last_of_each: std::collections::BTreeMap<String, String> = members
                        .iter()
                        .map(|(key, value)| (serde_json::to_string(key).unwrap(), value.canonical()))
                        .map(|(key, value)| (key[1..key.len() - 1].to_owned(), value))
                        .collect();
                    let members = last_of_each.iter().map(|(key, value)| format!("\"{key}\":{value}"));
                    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
                }
            }
        }
    }

    fn write_string(text: &str, style: &mut impl FnMut() -> u8, out: &mut String) {
        out.push('"');
        for char in text.chars() {
            let must_escape = char < ' ' || char == '"' || char == '\\';
            match style() % 4 {
                0 => char
                    .encode_utf16(&mut [0; 2])
                    .iter()
                    .for_each(|unit| out.push_str(&format!("\\u{unit:04X}"))),
                1 if char == '/' => out.push_str("\\/"),
                _ if must_escape => {
                    let quoted = serde_json::to_string(&char).unwrap();
                    out.push_str(&quoted[1..quoted.len() - 1]);
                }
                _ => out.push(char),
            }
        }
        out.push('"');
    }

    fn written(tree: &Tree, style: &[u8]) -> String {
        let mut style = style.iter().cycle().copied();
        let mut text = String::new();
        tree.write(&mut || style.next().unwrap(), &mut text);
        text
    }

    proptest! {
        #[test]
        fn every_spelling_has_the_canonical_form(tree in any_tree(), style in proptest::collection::vec(any::<u8>(), 1..40)) {
            prop_assert_eq!(canonical(&written(&tree, &style)), Ok(tree.canonical()));
        }

        #[test]
        fn damaged_text_is_accepted_exactly_if_serde_json_does(
            tree in any_tree(),
            style in proptest::collection::vec(any::<u8>(), 1..40),
            damage in proptest::collection::vec((any::<proptest::sample::Index>(), "[ -~\n\\x00é]?", any::<bool>()), 0..4),
        ) {
            let mut text = written(&tree, &style);
            for (place, replacement, insert) in damage {
                let places: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
                if places.is_empty() {
                    break;
                }
                let at = places[place.index(places.len())];
                let end = if insert { at } else { at + text[at..].chars().next().unwrap().len_utf8() };
                text.replace_range(at..end, &replacement);
            }
            let form = canonical(&text);
            prop_assert_eq!(form.is_ok(), serde_json::from_str::<IgnoredAny>(&text).is_ok(), "{}", text);
            // Halves of surrogate pairs and numbers beyond an f64 are valid JSON, but serde_json has no values for
            // them.
            if let (Ok(form), Ok(value)) = (form, serde_json::from_str::<Value>(&text)) {
                prop_assert_eq!(serde_json::from_str::<Value>(&form).unwrap(), value);
                prop_assert_eq!(canonical(&form).unwrap(), form);
            }
        }
    }
}
