//! The character NUL, which JSON and Rust can hold in a text and Postgres cannot.

use serde_json::Value;

/// Whether any text or key of a JSON value has a NUL in it.
pub fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_nul),
        Value::Object(members) => members.iter().any(|(key, value)| key.contains('\0') || has_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// The text with each NUL replaced by the sign for what cannot be shown.
pub fn without_nul(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

/// Likewise for every text and key of a JSON value.
pub fn json_without_nul(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(without_nul(&text)),
        Value::Array(items) => items.into_iter().map(json_without_nul).collect(),
        Value::Object(members) => members
            .into_iter()
            .map(|(key, value)| (without_nul(&key), json_without_nul(value)))
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
        assert!(has_nul(&value));
        let clean = json_without_nul(value);
        assert_eq!(clean, json!({ "a\u{fffd}": ["b", { "c": "d\u{fffd}e" }], "f": 1 }));
        assert!(!has_nul(&clean));
    }
}
