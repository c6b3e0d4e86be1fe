//! A form for the input of an action, generated from the schema of its input model.

use maud::{Markup, html};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::PageError;
use crate::form::Fields;

/// Deeper values are typed as JSON. A model can contain itself.
const MAX_DEPTH: usize = 4;

/// A field for one member of the input.
pub(super) struct InputField {
    name: String,
    /// The path of the member, such as `address.city`.
    path: String,
    /// Name of the form's control.
    control: String,
    description: Option<String>,
    is_required: bool,
    kind: Kind,
}

enum Kind {
    Text,
    Date,
    Datetime,
    Integer,
    Number,
    Boolean,
    Choice(Vec<String>),
    Object(Vec<InputField>),
    /// A list, or a value of unknown shape.
    Json {
        example: &'static str,
    },
}

/// Returns the fields for an object with this schema, or `None` if the schema does not name its members.
pub(super) fn input_fields(schema: &Map<String, Value>) -> Option<Vec<InputField>> {
    members(schema, schema, &Place { path: String::new(), control: "input".to_owned(), depth: 0 })
}

/// Where an object is in the input.
struct Place {
    path: String,
    control: String,
    depth: usize,
}

fn members(object: &Map<String, Value>, root: &Map<String, Value>, place: &Place) -> Option<Vec<InputField>> {
    let properties = object.get("properties")?.as_object()?;
    let required: Vec<&str> = object
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let field = |(name, schema): (&String, &Value)| {
        let schema = resolve(schema, root);
        let below = Place {
            path: if place.path.is_empty() { name.clone() } else { format!("{}.{name}", place.path) },
            // The separator cannot be part of a name, so two members never share a control.
            control: format!("{}/{}", place.control, name.replace('~', "~0").replace('/', "~1")),
            depth: place.depth + 1,
        };
        InputField {
            name: name.clone(),
            kind: kind(schema, root, &below),
            path: below.path,
            control: below.control,
            description: schema.get("description").and_then(Value::as_str).map(str::to_owned),
            is_required: required.contains(&name.as_str()),
        }
    };
    let mut fields: Vec<InputField> = properties.iter().map(field).collect();
    fields.sort_by_key(|field| !field.is_required);
    Some(fields)
}

/// Follows references to models, and takes the type out of "this type or null".
fn resolve<'s>(schema: &'s Value, root: &'s Map<String, Value>) -> &'s Value {
    if let Some(model) = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix("#/$defs/")) {
        let found = root.get("$defs").and_then(|definitions| definitions.get(model));
        // A schema of the author has its own root, to which its references are relative.
        return found.filter(|schema| schema.get("$id").is_none()).unwrap_or(&Value::Null);
    }
    match schema["anyOf"].as_array().map(Vec::as_slice) {
        Some([schema, null]) if null["type"] == "null" => resolve(schema, root),
        _ => schema,
    }
}

fn kind(schema: &Value, root: &Map<String, Value>, place: &Place) -> Kind {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let choices = schema["enum"].as_array().and_then(|values| values.iter().map(text).collect());
    if let Some(choices) = choices {
        return Kind::Choice(choices);
    }
    match (schema["type"].as_str(), schema["format"].as_str()) {
        (Some("string"), Some("date")) => Kind::Date,
        (Some("string"), Some("date-time")) => Kind::Datetime,
        (Some("string"), _) => Kind::Text,
        (Some("integer"), _) => Kind::Integer,
        (Some("number"), _) => Kind::Number,
        (Some("boolean"), _) => Kind::Boolean,
        (Some("array"), _) => Kind::Json { example: "[]" },
        (Some("object"), _) if place.depth < MAX_DEPTH => {
            let fields = schema.as_object().and_then(|object| members(object, root, place));
            fields.map_or(Kind::Json { example: "{}" }, Kind::Object)
        }
        (Some("object"), _) => Kind::Json { example: "{}" },
        _ => Kind::Json { example: "null" },
    }
}

impl InputField {
    pub(super) fn render(&self) -> Markup {
        self.render_in(true)
    }

    /// Renders the field. In an optional object, the browser must not insist on the object's required fields.
    fn render_in(&self, is_certain: bool) -> Markup {
        let is_required = self.is_required && is_certain;
        let hint_id = self.description.as_ref().map(|_| format!("{}-hint", self.control));
        let hint = html! {
            @if let (Some(id), Some(text)) = (&hint_id, &self.description) { span.hint id=(id) { (text) } }
        };
        let label =
            html! { span.label { (self.name) @if !self.is_required { " " span.optional { "optional" } } } };
        let input = |kind: &str, mode: Option<&str>, placeholder: Option<&str>| {
            html! {
                label.field {
                    (label)
                    input type=(kind) name=(self.control) inputmode=[mode] placeholder=[placeholder]
                        required[is_required] autocomplete="off" aria-describedby=[hint_id.as_deref()];
                    (hint)
                }
            }
        };
        match &self.kind {
            Kind::Text => input("text", None, None),
            Kind::Date => input("date", None, None),
            Kind::Datetime => input("text", None, Some("2026-03-01T09:00:00Z")),
            Kind::Integer => input("text", Some("numeric"), None),
            Kind::Number => input("text", Some("decimal"), None),
            Kind::Boolean if self.is_required => html! {
                label.checkbox {
                    input type="checkbox" name=(self.control) value="true" aria-describedby=[hint_id.as_deref()];
                    span { (self.name) }
                }
                (hint)
            },
            Kind::Boolean => self.select(&["true", "false"], is_required, &label, &hint),
            Kind::Choice(choices) => {
                let choices: Vec<&str> = choices.iter().map(String::as_str).collect();
                self.select(&choices, is_required, &label, &hint)
            }
            Kind::Object(fields) => html! {
                fieldset {
                    legend { (self.name) @if !self.is_required { " " span.optional { "optional" } } }
                    (hint)
                    @for field in fields { (field.render_in(is_required)) }
                }
            },
            Kind::Json { example } => html! {
                label.field {
                    (label)
                    textarea name=(self.control) rows="3" spellcheck="false" placeholder=(example)
                        required[is_required] aria-describedby=[hint_id.as_deref()] {}
                    (hint)
                }
            },
        }
    }

    fn select(&self, choices: &[&str], is_required: bool, label: &Markup, hint: &Markup) -> Markup {
        html! {
            label.field {
                (label)
                select name=(self.control) required[is_required] {
                    option value="" { "not set" }
                    @for choice in choices { option value=(choice) { (choice) } }
                }
                (hint)
            }
        }
    }

    /// Whether anything was typed or chosen in this field.
    fn is_filled(&self, form: &Fields) -> bool {
        match &self.kind {
            Kind::Object(fields) => fields.iter().any(|field| field.is_filled(form)),
            _ => !form.raw(&self.control).is_empty(),
        }
    }

    /// The value as JSON text, or `None` if an optional field is empty.
    fn read(&self, form: &Fields) -> Result<Option<String>, PageError> {
        let refuse = |problem: &str| PageError::invalid(&self.path, problem);
        if !self.is_filled(form) {
            return match self.kind {
                Kind::Boolean if self.is_required => Ok(Some("false".to_owned())),
                Kind::Object(ref fields) if self.is_required => read_fields(fields, form).map(Some),
                _ if self.is_required => Err(refuse("is required")),
                _ => Ok(None),
            };
        }
        let text = form.text(&self.control);
        Ok(Some(match &self.kind {
            Kind::Object(fields) => read_fields(fields, form)?,
            // Browsers send CR LF for a line break.
            Kind::Text => Value::String(form.raw(&self.control).replace("\r\n", "\n")).to_string(),
            Kind::Date | Kind::Datetime | Kind::Choice(_) => Value::String(text.to_owned()).to_string(),
            Kind::Boolean if matches!(text, "true" | "false") => text.to_owned(),
            Kind::Boolean => return Err(refuse("must be true or false")),
            Kind::Integer | Kind::Number if is_number(text) => text.to_owned(),
            Kind::Integer => return Err(refuse("must be a whole number, such as 42")),
            Kind::Number => return Err(refuse("must be a number, such as 4.2")),
            Kind::Json { .. } => read_json(text).map_err(|problem| refuse(&problem))?,
        }))
    }
}

/// The object that was typed into a form with these fields, as JSON text. Numbers stay as they were typed.
pub(super) fn read_fields(fields: &[InputField], form: &Fields) -> Result<String, PageError> {
    let mut members = Vec::new();
    for field in fields {
        if let Some(value) = field.read(form)? {
            members.push(format!("{}:{value}", Value::String(field.name.clone())));
        }
    }
    Ok(format!("{{{}}}", members.join(",")))
}

/// Checks that a text is JSON.
pub(super) fn read_json(text: &str) -> Result<String, String> {
    match serde_json::from_str::<&RawValue>(text) {
        Ok(value) => Ok(value.get().to_owned()),
        Err(problem) => Err(format!("is not JSON: {problem}")),
    }
}

fn is_number(text: &str) -> bool {
    let starts_like_one = text.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    starts_like_one && serde_json::from_str::<&RawValue>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(schema: Value) -> Vec<InputField> {
        let Value::Object(schema) = schema else { panic!("not an object") };
        input_fields(&schema).unwrap()
    }

    fn read(fields: &[InputField], form: &str) -> Result<String, String> {
        read_fields(fields, &Fields::parse_encoded(form.as_bytes())).map_err(|error| error.to_string())
    }

    #[test]
    fn values_become_json_of_their_types() {
        let fields = fields(json!({
            "required": ["name", "count", "active", "kind", "tags"],
            "properties": {
                "name": {"type": "string"},
                "count": {"type": "integer"},
                "price": {"anyOf": [{"type": "number"}, {"type": "null"}]},
                "active": {"type": "boolean"},
                "vip": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
                "kind": {"enum": ["a", "b"]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
        }));
        let typed = "input/name=Ada&input/count=12345678901234567890123&input/active=true&input/kind=a&input/tags=%5B1%5D";
        assert_eq!(
            read(&fields, typed).unwrap(),
            r#"{"active":true,"count":12345678901234567890123,"kind":"a","name":"Ada","tags":[1]}"#
        );
        let more = format!("{typed}&input/price=4.20&input/vip=false");
        assert!(read(&fields, &more).unwrap().ends_with(r#""price":4.20,"vip":false}"#));
        let text = typed.replace("input/count=12345678901234567890123", "input/count=many");
        assert_eq!(read(&fields, &text).unwrap_err(), "count: must be a whole number, such as 42");
        let no_tags = typed.replace("%5B1%5D", "%5B");
        assert!(read(&fields, &no_tags).unwrap_err().starts_with("tags: is not JSON: "));
        assert_eq!(read(&fields, "input/count=1").unwrap_err(), "kind: is required");
    }

    #[test]
    fn an_optional_object_is_left_out_unless_something_is_typed_in_it() {
        let address = json!({
            "type": "object",
            "required": ["city", "is_main"],
            "properties": {"city": {"type": "string"}, "is_main": {"type": "boolean"}, "zip": {"type": "string"}},
        });
        let fields = fields(json!({
            "required": [],
            "properties": {"address": {"anyOf": [{"$ref": "#/$defs/Address"}, {"type": "null"}]}},
            "$defs": {"Address": address},
        }));
        assert_eq!(read(&fields, "").unwrap(), "{}");
        let city = read(&fields, "input/address/city=Ulm").unwrap();
        assert_eq!(city, r#"{"address":{"city":"Ulm","is_main":false}}"#);
        assert_eq!(read(&fields, "input/address/zip=1").unwrap_err(), "address.city: is required");
        let html = fields[0].render().into_string();
        assert!(html.contains("<fieldset>") && !html.contains(" required"), "{html}");
    }

    #[test]
    fn a_model_that_contains_itself_becomes_json_at_some_depth() {
        let fields = fields(json!({
            "required": ["root"],
            "properties": {"root": {"$ref": "#/$defs/Node"}},
            "$defs": {"Node": {"type": "object", "required": ["next"], "properties": {"next": {"$ref": "#/$defs/Node"}}}},
        }));
        let html = fields[0].render().into_string();
        assert_eq!(html.matches("<fieldset>").count(), MAX_DEPTH - 1, "{html}");
        assert_eq!(html.matches("<textarea").count(), 1, "{html}");
    }

    #[test]
    fn shapes_that_are_not_known_are_typed_as_json() {
        let schema = json!({"type": "object", "$ref": "#/$defs/Free", "$defs": {"Free": {"$id": "urn:x"}}});
        let Value::Object(schema) = schema else { unreachable!() };
        assert!(input_fields(&schema).is_none());
        let own_root = fields(json!({
            "required": ["free"],
            "properties": {"free": {"$ref": "#/$defs/Free"}},
            "$defs": {"Free": {"$id": "urn:x", "type": "object", "properties": {"a": {"$ref": "#/a"}}}},
        }));
        assert_eq!(read(&own_root, "input/free=%7B%22a%22%3A1%7D").unwrap(), r#"{"free":{"a":1}}"#);
    }

    #[test]
    fn names_are_escaped_and_never_share_a_control() {
        let fields = fields(json!({
            "required": [],
            "properties": {
                "<script>": {"type": "string"},
                "a/b": {"type": "string"},
                "a": {"type": "object", "required": [], "properties": {"b": {"type": "string"}}},
            },
        }));
        let html: String = fields.iter().map(|field| field.render().into_string()).collect();
        assert!(!html.contains("<script>"), "{html}");
        assert_eq!(read(&fields, "input/a~1b=1&input/a/b=2").unwrap(), r#"{"a":{"b":"2"},"a/b":"1"}"#);
    }
}
