//! The body of a webhook that is not verified yet. Values in it are found and removed without copying the rest,
//! because a stranger can send a long body.

use http::{HeaderMap, header};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use url::form_urlencoded;

use super::Pointer;

/// The JSON text that replaces a removed value.
const NOTHING: &str = "\"\"";

/// A body as it was received.
#[derive(Debug, Clone, Copy)]
pub enum RawBody<'b> {
    /// Text that may be JSON.
    Text(&'b str),
    Form {
        pairs: &'b [u8],
        /// The member of the form that contains the body as JSON, if there is one.
        member: Option<&'b str>,
    },
    /// Bytes that are not text.
    Bytes(&'b [u8]),
}

impl<'b> RawBody<'b> {
    /// The content type decides whether the body is a form, in which `member` can contain the JSON.
    pub fn new(headers: &HeaderMap, body: &'b [u8], member: Option<&'b str>) -> Self {
        if is_form(headers) {
            let is_present = |wanted: &&str| form_urlencoded::parse(body).any(|(name, _)| name == *wanted);
            return Self::Form { pairs: body, member: member.filter(is_present) };
        }
        match std::str::from_utf8(body) {
            // Some providers start their JSON with a byte order mark.
            Ok(text) => Self::Text(text.trim_start_matches('\u{feff}')),
            Err(_) => Self::Bytes(body),
        }
    }

    /// Returns the texts and numbers at a place. Returns nothing if the body is not JSON.
    pub fn texts(&self, place: &Pointer) -> Vec<String> {
        match *self {
            Self::Text(text) => json_texts(text, place),
            Self::Form { pairs, member: Some(member) } => {
                let members = form_urlencoded::parse(pairs).filter(|(name, _)| name == member);
                members.flat_map(|(_, json)| json_texts(&json, place)).collect()
            }
            Self::Form { pairs, member: None } => {
                let members = form_urlencoded::parse(pairs).filter(|(name, _)| is_member(place, name));
                members.map(|(_, value)| value.into_owned()).collect()
            }
            Self::Bytes(_) => Vec::new(),
        }
    }

    /// Returns the body with empty texts at a place, and otherwise unchanged.
    pub fn without(&self, place: &Pointer) -> Vec<u8> {
        match *self {
            Self::Text(text) => json_without(text, place).into_bytes(),
            Self::Form { pairs, member } => {
                let remaining = form_urlencoded::parse(pairs).map(|(name, value)| {
                    let value = match member {
                        Some(member) if name == member => json_without(&value, place).into(),
                        None if is_member(place, &name) => "".into(),
                        _ => value,
                    };
                    (name, value)
                });
                let mut form = form_urlencoded::Serializer::new(String::new());
                form.extend_pairs(remaining).finish().into_bytes()
            }
            Self::Bytes(bytes) => bytes.to_vec(),
        }
    }
}

/// Whether the content type is that of a form.
pub fn is_form(headers: &HeaderMap) -> bool {
    media_type(headers) == "application/x-www-form-urlencoded"
}

/// Returns the number of members of a form, without parsing them.
pub fn form_members(form: &[u8]) -> usize {
    form.split(|byte| *byte == b'&').filter(|member| !member.is_empty()).count()
}

/// Returns the content type without its parameters, in lower case.
pub fn media_type(headers: &HeaderMap) -> String {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let media_type = content_type.and_then(|text| text.split(';').next()).unwrap_or_default();
    media_type.trim().to_ascii_lowercase()
}

fn is_member(place: &Pointer, name: &str) -> bool {
    matches!(place.steps(), [step] if step == name)
}

fn json_texts(json: &str, place: &Pointer) -> Vec<String> {
    let plain = |raw: &str| match raw.as_bytes().first()? {
        b'"' => serde_json::from_str(raw).ok(),
        b'-' | b'0'..=b'9' => Some(raw.to_owned()),
        _ => None,
    };
    find(json, place).unwrap_or_default().into_iter().filter_map(plain).collect()
}

fn json_without(json: &str, place: &Pointer) -> String {
    let mut remaining = String::with_capacity(json.len());
    let mut end = 0;
    for raw in find(json, place).unwrap_or_default() {
        let start = raw.as_ptr().addr() - json.as_ptr().addr();
        remaining.push_str(&json[end..start]);
        remaining.push_str(NOTHING);
        end = start + raw.len();
    }
    remaining.push_str(&json[end..]);
    remaining
}

/// Returns the values at a place of a JSON text as they are written, or `None` if it is not JSON.
fn find<'t>(json: &'t str, place: &Pointer) -> Option<Vec<&'t str>> {
    let mut found = Vec::new();
    let mut json = serde_json::Deserializer::from_str(json);
    Finder { steps: place.steps(), found: &mut found }.deserialize(&mut json).ok()?;
    json.end().ok()?;
    Some(found)
}

/// Follows the remaining steps and collects the values at their end.
struct Finder<'f, 't> {
    steps: &'f [String],
    found: &'f mut Vec<&'t str>,
}

impl<'t> DeserializeSeed<'t> for Finder<'_, 't> {
    type Value = ();

    fn deserialize<D: Deserializer<'t>>(self, value: D) -> Result<(), D::Error> {
        if self.steps.is_empty() {
            let raw = <&RawValue as serde::Deserialize>::deserialize(value)?;
            self.found.push(raw.get());
            return Ok(());
        }
        value.deserialize_any(self)
    }
}

impl<'t> Visitor<'t> for Finder<'_, 't> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'t>>(self, mut members: A) -> Result<(), A::Error> {
        let Some((step, below)) = self.steps.split_first() else { return Ok(()) };
        while let Some(name) = members.next_key::<String>()? {
            if name == *step {
                members.next_value_seed(Finder { steps: below, found: &mut *self.found })?;
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'t>>(self, mut items: A) -> Result<(), A::Error> {
        let Some((step, below)) = self.steps.split_first() else { return Ok(()) };
        let wanted = step.parse::<usize>().ok();
        for index in 0.. {
            let is_present = if step == "*" || wanted == Some(index) {
                items.next_element_seed(Finder { steps: below, found: &mut *self.found })?.is_some()
            } else {
                items.next_element::<IgnoredAny>()?.is_some()
            };
            if !is_present {
                break;
            }
        }
        Ok(())
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = "\u{feff}{ \"list\": [ {\"s\": \"a\\u0062\", \"n\": 1.00}, 3, null, {\"s\": -7}, {\"s\": true} ], \"s\": \"x\", \"s\": \"y\" }";
    const FORM: &str = "application/x-www-form-urlencoded";

    fn headers(content_type: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_TYPE, content_type.parse().unwrap())])
    }

    fn texts(content_type: &str, member: Option<&str>, body: &str, place: &str) -> Vec<String> {
        RawBody::new(&headers(content_type), body.as_bytes(), member).texts(&place.parse().unwrap())
    }

    fn without(content_type: &str, member: Option<&str>, body: &str, place: &str) -> String {
        let body = RawBody::new(&headers(content_type), body.as_bytes(), member);
        String::from_utf8(body.without(&place.parse().unwrap())).unwrap()
    }

    #[test]
    fn values_are_found_at_a_place() {
        let json = |place| texts("application/json", None, JSON, place);
        assert_eq!(json("/list/*/s"), ["ab", "-7"]);
        assert_eq!(json("/list/0/n"), ["1.00"]);
        assert_eq!(json("/list/1"), ["3"]);
        assert_eq!(json("/s"), ["x", "y"], "all values of a repeated key");
        assert!(json("/list/9/s").is_empty() && json("/s/t").is_empty() && json("").is_empty());
        for broken in ["{\"s\":\"a\"", "{\"s\":\"a\"}}", "no"] {
            assert!(texts("application/json", None, broken, "/s").is_empty(), "{broken}");
        }
        assert_eq!(texts(FORM, None, "s=a+b&t=c", "/s"), ["a b"]);
        assert_eq!(texts(FORM, Some("p"), "p=%7B%22s%22%3A1%7D&s=2", "/s"), ["1"]);
        assert_eq!(texts(FORM, Some("p"), "s=2", "/s"), ["2"]);
    }

    #[test]
    fn a_place_is_emptied_and_the_rest_is_unchanged() {
        let json = |place| without("application/json", None, JSON, place);
        let written = JSON.trim_start_matches('\u{feff}');
        assert_eq!(
            json("/list/*/s"),
            written.replace("\"a\\u0062\"", "\"\"").replace("-7", "\"\"").replace("true", "\"\"")
        );
        assert_eq!(json("/s"), written.replace("\"x\"", "\"\"").replace("\"y\"", "\"\""));
        assert_eq!(json("/nowhere"), written);
        assert_eq!(without(FORM, None, "s=a+b&t=c", "/s"), "s=&t=c");
        assert_eq!(without(FORM, Some("p"), "p=%7B%22s%22%3A1%7D&s=2", "/s"), "p=%7B%22s%22%3A%22%22%7D&s=2");
    }
}
