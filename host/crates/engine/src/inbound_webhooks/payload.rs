//! Parses the bodies of provider webhooks and finds the events in them.

mod outline;

pub use self::outline::Outline;

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use syncline_model::{canonical_text, with_whole_characters};
use syncline_providers::webhook::{Pointer, Webhook, is_form, media_type};
use syncline_store::inbound_webhooks::Format;
use syncline_types::json;

/// A parsed body.
#[derive(Debug)]
pub struct Payload {
    pub json: Value,
    /// The same value as JSON text. Numbers are written as in the original.
    pub text: String,
}

impl Payload {
    /// Parses a stored body.
    pub fn read(format: Format, body: &[u8], webhook: &Webhook) -> Result<Self, String> {
        let (json, text) = match format {
            Format::Json => return Self::of_json(body),
            Format::Form => {
                let form = read_form(body);
                let member = webhook.form_member.as_ref().and_then(|name| form.get(name)?.as_str());
                if let Some(member) = member {
                    return Self::of_json(member.as_bytes());
                }
                let json = Value::Object(form);
                let text = json.to_string();
                (json, text)
            }
            Format::Text if body.is_empty() => (Value::Null, "null".to_owned()),
            Format::Text => {
                let json = Value::String(String::from_utf8_lossy(body).into_owned());
                let text = json.to_string();
                (json, text)
            }
        };
        Ok(Self { json, text })
    }

    fn of_json(body: &[u8]) -> Result<Self, String> {
        let (json, text) = parse_json(body, json::parse)?;
        Ok(Self { json, text: text.into_owned() })
    }

    /// The events in the payload: the items of the list that the catalogue names, or the payload itself.
    pub fn events<'p>(&'p self, webhook: &Webhook) -> Vec<&'p Value> {
        events_of(&self.json, webhook)
    }

    /// Returns the payload with only these events, in canonical form.
    pub fn only(&self, webhook: &Webhook, items: Option<&[i32]>) -> String {
        let restricted = match (items, &webhook.each) {
            (Some(items), Some(list)) => select(&self.text, list, items),
            _ => None,
        };
        let text = restricted.as_deref().unwrap_or(&self.text);
        // The text was parsed before, so it is well-formed.
        canonical_text(text).unwrap_or_else(|_| text.to_owned())
    }
}

/// Parses JSON with `parse`. Also returns the text that was parsed.
fn parse_json(
    body: &[u8],
    parse: impl Fn(&str) -> serde_json::Result<Value>,
) -> Result<(Value, Cow<'_, str>), String> {
    let text = std::str::from_utf8(body).map_err(|_| "it is not UTF-8".to_owned())?;
    // Some bodies begin with a byte order mark, which UTF-8 does not need.
    let text = text.trim_start_matches('\u{feff}');
    match parse(text) {
        Ok(json) => Ok((json, text.into())),
        Err(problem) if is_json_text(text.as_bytes()) => {
            let text = with_whole_characters(text);
            let json = parse(&text).map_err(|_| problem.to_string())?;
            Ok((json, text.into()))
        }
        Err(problem) => Err(problem.to_string()),
    }
}

/// Reads a body in the format that its content type means.
fn by_content_type<T>(
    headers: &HeaderMap,
    body: &[u8],
    read: impl Fn(Format) -> Result<T, String>,
) -> Result<T, String> {
    if is_form(headers) {
        return read(Format::Form);
    }
    let media_type = media_type(headers);
    let is_json = media_type == "application/json" || media_type.ends_with("+json");
    match read(Format::Json) {
        Ok(payload) => Ok(payload),
        // Some providers send an empty body with a JSON content type. JSON that `Value` cannot represent, such as the
        // number 1e400, is stored and passed on as text, because the provider cannot send it in another form.
        Err(problem) if is_json && !body.is_empty() && !is_json_text(body) => Err(problem),
        Err(_) => read(Format::Text),
    }
}

fn events_of<'v>(json: &'v Value, webhook: &Webhook) -> Vec<&'v Value> {
    match webhook.each.as_ref().and_then(|list| list.values(json).into_iter().next()) {
        Some(Value::Array(items)) => items.iter().collect(),
        _ => vec![json],
    }
}

/// Returns whether the body is JSON, even if `Value` cannot represent its numbers, characters or depth.
fn is_json_text(body: &[u8]) -> bool {
    serde_json::from_slice::<&RawValue>(body).is_ok()
}

fn read_form(body: &[u8]) -> Map<String, Value> {
    let mut form = Map::new();
    for (name, value) in url::form_urlencoded::parse(body) {
        let value = Value::String(value.into_owned());
        match form.get_mut(&*name) {
            None => {
                form.insert(name.into_owned(), value);
            }
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = Value::Array(vec![first.take(), value]),
        }
    }
    form
}

/// Returns the text with only these items of the list, or `None` if there is no such list.
fn select(text: &str, list: &Pointer, items: &[i32]) -> Option<String> {
    select_below(text, list.steps(), items)
}

fn select_below(text: &str, steps: &[String], items: &[i32]) -> Option<String> {
    let Some((step, below)) = steps.split_first() else {
        let all: Vec<&RawValue> = serde_json::from_str(text).ok()?;
        let selected =
            items.iter().filter_map(|index| all.get(usize::try_from(*index).ok()?)).map(|item| item.get());
        return Some(format!("[{}]", selected.collect::<Vec<_>>().join(",")));
    };
    let mut members: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text).ok()?;
    let changed = select_below(members.get(step)?.get(), below, items)?;
    members.insert(step.clone(), RawValue::from_string(changed).ok()?);
    serde_json::to_string(&members).ok()
}

/// Returns the headers that were stored with a webhook.
pub fn stored_headers(stored: &Value) -> HeaderMap {
    let texts = stored.as_object().into_iter().flatten();
    let header = |(name, value): (&String, &Value)| {
        Some((name.parse::<HeaderName>().ok()?, HeaderValue::from_str(value.as_str()?).ok()?))
    };
    texts.filter_map(header).collect()
}

#[cfg(test)]
mod tests {
    use http::header;
    use syncline_providers::webhook::View;

    use super::*;

    fn webhook(more: &str) -> Webhook {
        let text = format!(
            r#"
            {more}
            verification = {{ kind = "none" }}
            source = {{ address = "https://example.com", checked_at = "2026-01-01" }}
            "#
        );
        toml::from_str(&text).unwrap()
    }

    fn headers(content_type: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::CONTENT_TYPE, content_type.parse().unwrap())])
    }

    fn parse(headers: &HeaderMap, body: &[u8], webhook: &Webhook) -> Result<(Format, Payload), String> {
        by_content_type(headers, body, |format| Ok((format, Payload::read(format, body, webhook)?)))
    }

    #[test]
    fn the_content_type_decides_how_a_body_is_parsed() {
        let plain = webhook("");
        let read = |content_type: &str, body: &str| {
            let (format, payload) = parse(&headers(content_type), body.as_bytes(), &plain)?;
            Ok::<_, String>((format, payload.text))
        };
        assert_eq!(read("application/json; charset=utf-8", "{}"), Ok((Format::Json, "{}".to_owned())));
        assert_eq!(read("text/plain", r#"{"a":1}"#), Ok((Format::Json, r#"{"a":1}"#.to_owned())));
        assert_eq!(read("text/xml", "<a/>"), Ok((Format::Text, r#""<a/>""#.to_owned())));
        assert_eq!(read("application/json", ""), Ok((Format::Text, "null".to_owned())));
        let form = Ok((Format::Form, r#"{"a":["1","2"],"b":"x y"}"#.to_owned()));
        assert_eq!(read("application/x-www-form-urlencoded", "a=1&b=x+y&a=2"), form);
        for broken in ["{", "{\"a\":01}", "{}{}", "\u{0}"] {
            assert!(read("application/vnd.api+json", broken).is_err(), "{broken}");
        }
        let deep = "[".repeat(200_000);
        assert!(read("application/json", &deep).is_err());
    }

    #[test]
    fn json_that_a_value_cannot_represent_is_stored_as_text() {
        let read = |body: &str| {
            let (format, payload) =
                parse(&headers("application/json"), body.as_bytes(), &webhook("")).unwrap();
            let again = Payload::read(format, body.as_bytes(), &webhook("")).unwrap();
            assert_eq!((&payload.json, &payload.text), (&again.json, &again.text));
            (format, payload.json)
        };
        let halves =
            r#"{"a":"hey \ud83d","b":"\udc00\ud83d\ude00\\ud83d \u00e9\n","c":"\ud83d\ud83d\ude00"}"#;
        let whole = serde_json::json!({
            "a": "hey \u{fffd}", "b": "\u{fffd}😀\\ud83d é\n", "c": "\u{fffd}😀",
        });
        assert_eq!(read(halves), (Format::Json, whole));
        for odd in ["[1e400]".to_owned(), format!("{}{}", "[".repeat(200), "]".repeat(200))] {
            assert_eq!(read(&odd), (Format::Text, Value::String(odd.clone())));
        }
    }

    mod fuzz {
        use super::*;

        fn id_of(json: &Value, headers: &HeaderMap, webhook: &Webhook) -> Option<String> {
            View { headers, query: "", json }.first(&webhook.id)
        }

        fn type_of(event: &Value, headers: &HeaderMap, webhook: &Webhook) -> Option<String> {
            View { headers, query: "", json: event }.first(&webhook.event_type)
        }

        /// The first line of the input is the content type, and the rest is the body.
        #[test]
        fn a_stored_payload_is_json_and_is_read_again_as_the_same() {
            let places = "id = \"json:/id\"\ntype = [\"json:/type\", \"json:/a/0\"]";
            let webhook = webhook(&format!("form_member = \"payload\"\neach = \"/events\"\n{places}"));
            syncline_fuzz::check("webhook-payloads", |input| {
                let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
                let body = input.get(end + 1..).unwrap_or_default();
                let Ok(content_type) = HeaderValue::from_bytes(&input[..end]) else { return };
                let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, content_type)]);
                let outline = Outline::parse(&headers, body, &webhook);
                let parsed = parse(&headers, body, &webhook);
                assert_eq!(outline.as_ref().err(), parsed.as_ref().err());
                let Ok((format, payload)) = parsed else { return };
                let outline = outline.unwrap();
                assert_eq!(outline.format, format);
                if format != Format::Text {
                    assert_eq!(outline.id(&headers, "", &webhook), id_of(&payload.json, &headers, &webhook));
                    let event = payload.events(&webhook).into_iter().next().unwrap_or(&Value::Null);
                    assert_eq!(
                        outline.event_type(&headers, "", &webhook),
                        type_of(event, &headers, &webhook)
                    );
                }
                assert_eq!(json::parse(&payload.text).unwrap(), payload.json);
                let again = Payload::read(format, body, &webhook).unwrap();
                assert_eq!((&again.json, &again.text), (&payload.json, &payload.text));
                // Each byte that is not UTF-8 becomes a character of three bytes, and a control character six bytes.
                assert!(payload.text.len() <= 6 * body.len() + 100);
                let all = payload.only(&webhook, None);
                assert_eq!(canonical_text(&all).as_ref(), Ok(&all));
                let count = payload.events(&webhook).len();
                let first = payload.only(&webhook, Some(&[0]));
                let first = json::parse(&first).unwrap();
                let events = first.get("events").and_then(Value::as_array);
                assert!(events.is_none_or(|events| events.len() == count.min(1)), "{first}");
            });
        }
    }

    #[test]
    fn a_form_member_may_contain_the_json() {
        let body = "payload=%7B%22type%22%3A%22view%22%7D";
        let with_member = webhook("form_member = \"payload\"");
        let (format, payload) =
            parse(&headers("application/x-www-form-urlencoded"), body.as_bytes(), &with_member).unwrap();
        assert_eq!(payload.text, r#"{"type":"view"}"#);
        assert_eq!(Payload::read(format, body.as_bytes(), &with_member).unwrap().text, payload.text);
    }

    #[test]
    fn selected_events_keep_their_numbers_as_written() {
        let text = r#"{"z":1.00,"a":{"list":[{"n":12345678901234567890123},{"n":1},{"n":2.50}]}}"#;
        let in_list = webhook("each = \"/a/list\"");
        let (_, payload) = parse(&headers("application/json"), text.as_bytes(), &in_list).unwrap();
        assert_eq!(payload.events(&in_list).len(), 3);
        let only = payload.only(&in_list, Some(&[0, 2]));
        assert_eq!(only, r#"{"a":{"list":[{"n":12345678901234567890123},{"n":2.50}]},"z":1.00}"#);
        let itself = webhook("each = \"\"");
        let (_, payload) = parse(&headers("application/json"), b"[1, 2]", &itself).unwrap();
        assert_eq!(payload.only(&itself, Some(&[1])), "[2]");
    }
}
