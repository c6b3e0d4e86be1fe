//! The few values of an incoming body that the host needs before it stores the webhook.
//!
//! Anyone can send a body to an integration whose webhooks have no signature, and parsed JSON can take thirty times the
//! memory of its text. So the host checks the whole body, but keeps only these values.

use std::fmt;

use http::HeaderMap;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{by_content_type, events_of, parse_json, read_form};
use syncline_providers::webhook::{Locator, Pointer, View, Webhook};
use syncline_store::inbound_webhooks::Format;
use syncline_types::json::check_names;

/// The format of a body, with the values from which its id and its type are read.
#[derive(Debug)]
pub struct Outline {
    pub format: Format,
    json: Value,
}

impl Outline {
    /// Reads an incoming body according to its content type. The error says why it is not JSON.
    pub fn parse(headers: &HeaderMap, body: &[u8], webhook: &Webhook) -> Result<Self, String> {
        by_content_type(headers, body, |format| Self::read(format, body, webhook))
    }

    fn read(format: Format, body: &[u8], webhook: &Webhook) -> Result<Self, String> {
        let of_json = |json: &[u8]| {
            let places = places(webhook);
            let parse = |text: &str| outline(text, places.iter().map(Vec::as_slice).collect());
            Ok(Self { format, json: parse_json(json, parse)?.0 })
        };
        match format {
            Format::Json => of_json(body),
            Format::Form => {
                let form = read_form(body);
                let member = webhook.form_member.as_ref().and_then(|name| form.get(name)?.as_str());
                match member {
                    Some(member) => of_json(member.as_bytes()),
                    None => Ok(Self { format, json: Value::Object(form) }),
                }
            }
            // Text has no places.
            Format::Text => Ok(Self { format, json: Value::Null }),
        }
    }

    /// The id of the delivery.
    pub fn id(&self, headers: &HeaderMap, query: &str, webhook: &Webhook) -> Option<String> {
        View { headers, query, json: &self.json }.first(&webhook.id)
    }

    /// The type of the first event.
    pub fn event_type(&self, headers: &HeaderMap, query: &str, webhook: &Webhook) -> Option<String> {
        let event = events_of(&self.json, webhook).into_iter().next();
        View { headers, query, json: event.unwrap_or(&Value::Null) }.first(&webhook.event_type)
    }
}

/// The paths of the id, of the list of events, and of the type in the first event.
fn places(webhook: &Webhook) -> Vec<Vec<String>> {
    let in_json = |locators: &[Locator]| -> Vec<Vec<String>> {
        let pointers = locators.iter().filter_map(|locator| match locator {
            Locator::Json(pointer) => Some(pointer),
            Locator::Header(_) | Locator::Query(_) => None,
        });
        pointers.map(|pointer| pointer.steps().to_vec()).collect()
    };
    let types = in_json(&webhook.event_type);
    let list = webhook.each.as_ref().map(Pointer::steps);
    let of_first_event = list.into_iter().flat_map(|list| {
        let event: Vec<String> = list.iter().cloned().chain(["0".to_owned()]).collect();
        let below = types.iter().map(|place| [&event[..], &place[..]].concat()).collect::<Vec<_>>();
        below.into_iter().chain([event.clone()])
    });
    in_json(&webhook.id).into_iter().chain(of_first_event).chain(types.clone()).collect()
}

/// Checks a JSON text completely, and returns its values at these places. Everything else is left out.
fn outline(text: &str, places: Vec<&[String]>) -> serde_json::Result<Value> {
    check_names(text.as_bytes()).map_err(serde::de::Error::custom)?;
    let mut json = serde_json::Deserializer::from_str(text);
    let value = Kept(places).deserialize(&mut json)?;
    json.end()?;
    Ok(value)
}

/// Reads a value and keeps only the values at these places below it. Without places, the result is `null`.
struct Kept<'p>(Vec<&'p [String]>);

impl<'p> Kept<'p> {
    /// The places below a member or an item.
    fn below(&self, is_step: impl Fn(&str) -> bool) -> Self {
        let below = self.0.iter().filter_map(|place| {
            let (step, rest) = place.split_first()?;
            is_step(step).then_some(rest)
        });
        Self(below.collect())
    }

    /// Keeps a text or a number, if it is at the end of a place.
    fn plain(&self, value: impl FnOnce() -> Value) -> Value {
        if self.0.iter().any(|place| place.is_empty()) { value() } else { Value::Null }
    }
}

impl<'de> DeserializeSeed<'de> for Kept<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<Value, D::Error> {
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Kept<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            let below = self.below(|step| step == name);
            let is_kept = !below.0.is_empty();
            let value = members.next_value_seed(below)?;
            if is_kept {
                kept.insert(name, value);
            }
        }
        Ok(if self.0.is_empty() { Value::Null } else { Value::Object(kept) })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let wanted = self.0.iter().filter_map(|place| place.first());
        let all = wanted.clone().any(|step| step == "*");
        let longest = wanted.filter_map(|step| step.parse::<usize>().ok()).max();
        let mut kept = Vec::new();
        for index in 0.. {
            let below =
                self.below(|step| step == "*" || step.parse::<usize>().is_ok_and(|step| step == index));
            let Some(item) = items.next_element_seed(below)? else { break };
            if all || longest.is_some_and(|longest| index <= longest) {
                kept.push(item);
            }
        }
        Ok(if self.0.is_empty() { Value::Null } else { Value::Array(kept) })
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(self.plain(|| value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(self.plain(|| value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(self.plain(|| value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(self.plain(|| Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(self.plain(|| value.into()))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    fn outline_of(webhook: &Webhook, body: &Value) -> Outline {
        let headers =
            HeaderMap::from_iter([(http::header::CONTENT_TYPE, "application/json".parse().unwrap())]);
        Outline::parse(&headers, body.to_string().as_bytes(), webhook).unwrap()
    }

    #[test]
    fn only_the_id_and_the_type_of_a_long_body_are_kept() {
        let plain = webhook("id = \"json:/meta/id\"\ntype = \"json:/type\"");
        let numbers = vec![7; 100_000];
        let body = json!({ "meta": { "id": 12, "more": numbers }, "type": "order", "data": [{ "type": "x" }, numbers] });
        let outline = outline_of(&plain, &body);
        assert_eq!(outline.json, json!({ "meta": { "id": 12 }, "type": "order" }));
        assert_eq!(outline.id(&HeaderMap::new(), "", &plain).as_deref(), Some("12"));
        assert_eq!(outline.event_type(&HeaderMap::new(), "", &plain).as_deref(), Some("order"));
        let composite = outline_of(&plain, &json!({ "type": numbers, "meta": [numbers] }));
        assert_eq!(composite.json, json!({ "type": [], "meta": [] }));
    }

    #[test]
    fn the_type_of_the_first_event_is_kept() {
        let several = webhook("each = \"/events\"\ntype = \"json:/kind\"");
        let of = |body: Value| {
            let outline = outline_of(&several, &body);
            let event_type = outline.event_type(&HeaderMap::new(), "", &several);
            (outline.json, event_type)
        };
        let events =
            json!({ "events": [{ "kind": "first", "data": 1 }, { "kind": "second" }], "kind": "outer" });
        let kept = json!({ "events": [{ "kind": "first" }], "kind": "outer" });
        assert_eq!(of(events), (kept, Some("first".to_owned())));
        assert_eq!(of(json!({ "kind": "single" })).1.as_deref(), Some("single"));
        assert_eq!(of(json!({ "events": [], "kind": "outer" })).1, None);
    }

    #[test]
    fn an_outline_is_refused_like_the_whole_body() {
        let plain = webhook("");
        for broken in ["{", "{\"a\":01}", "{}{}", "[1,]", &"[".repeat(200_000)] {
            assert!(outline(broken, places(&plain).iter().map(Vec::as_slice).collect()).is_err(), "{broken}");
        }
        for odd in ["[1e400]".to_owned(), format!("{}{}", "[".repeat(200), "]".repeat(200))] {
            let headers =
                HeaderMap::from_iter([(http::header::CONTENT_TYPE, "application/json".parse().unwrap())]);
            assert_eq!(Outline::parse(&headers, odd.as_bytes(), &plain).unwrap().format, Format::Text);
        }
    }
}
