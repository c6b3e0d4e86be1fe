//! The character NUL, which JSON and Rust can hold in a text and Postgres cannot.

use serde_json::Value;

/// Whether any text or key of a JSON value has a NUL in it.
pub fn contains_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(contains_nul),
        Value::Object(members) => {
            members.iter().any(|(key, value)| key.contains('\0') || contains_nul(value))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The text with each NUL replaced by the sign for what cannot be shown.
pub fn sanitize_text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Likewise for every text and key of a JSON value.
pub fn sanitize_json(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(sanitize_text(&text)),
        Value::Array(items) => items.into_iter().map(sanitize_json).collect(),
        Value::Object(members) => members
            .into_iter()
            .map(|(key, value)| (sanitize_text(&key), sanitize_json(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_)) => plain,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_nul_is_found_and_replaced_wherever_it_is() {
        let value = json!({ "a\0": ["b", { "c": "d\0e" }], "f": 1 });
        assert!(contains_nul(&value));
        let clean = sanitize_json(value);
        assert_eq!(clean, json!({ "a\u{fffd}": ["b", { "c": "d\u{fffd}e" }], "f": 1 }));
        assert!(!contains_nul(&clean));
    }
}
