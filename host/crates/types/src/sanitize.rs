//! Replaces the character NUL, which JSON and Rust strings can contain and Postgres text cannot.

use serde_json::Value;

/// Whether any string or key of a JSON value contains NUL.
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

/// Returns the text with each NUL replaced by U+FFFD, the replacement character.
pub fn sanitize_text(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Applies [`sanitize_text`] to every string and key of a JSON value.
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
    fn nul_is_replaced_in_nested_values_and_keys() {
        let value = json!({ "a\0": ["b", { "c": "d\0e" }], "f": 1 });
        assert!(contains_nul(&value));
        let clean = sanitize_json(value);
        assert_eq!(clean, json!({ "a\u{fffd}": ["b", { "c": "d\u{fffd}e" }], "f": 1 }));
        assert!(!contains_nul(&clean));
    }
}
