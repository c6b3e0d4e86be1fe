//! Merges a change into the stored payload of a record.

use std::collections::HashMap;

use serde_json::value::RawValue;

use syncline_types::json::Members;

/// Merges two JSON texts. Objects are merged key by key, at every depth; any other value is replaced by the change.
/// Keys keep their order, new keys follow at the end, and numbers keep their spelling.
///
/// Both texts must be accepted records or parts of them.
pub fn merge(stored: &str, change: &str) -> serde_json::Result<String> {
    let mut merged = String::with_capacity(stored.len() + change.len());
    merge_into(stored, change, &mut merged)?;
    Ok(merged)
}

fn merge_into(stored: &str, change: &str, merged: &mut String) -> serde_json::Result<()> {
    let is_object = |text: &str| text.trim_ascii_start().starts_with('{');
    if !(is_object(stored) && is_object(change)) {
        merged.push_str(change.trim_ascii());
        return Ok(());
    }
    let Members(stored) = Members::of(stored)?;
    let Members(changed) = Members::of(change)?;
    let mut changes: HashMap<&str, &RawValue> =
        changed.iter().map(|(key, value)| (key.as_str(), *value)).collect();

    merged.push('{');
    for (key, value) in &stored {
        push_key(key, merged)?;
        match changes.remove(key.as_str()) {
            Some(change) => merge_into(value.get(), change.get(), merged)?,
            None => merged.push_str(value.get()),
        }
    }
    for (key, _) in &changed {
        // The map contains the last value of a repeated key, which is removed at its first occurrence.
        if let Some(value) = changes.remove(key.as_str()) {
            push_key(key, merged)?;
            merged.push_str(value.get());
        }
    }
    merged.push('}');
    Ok(())
}

fn push_key(key: &str, merged: &mut String) -> serde_json::Result<()> {
    if !merged.ends_with('{') {
        merged.push(',');
    }
    merged.push_str(&serde_json::to_string(key)?);
    merged.push(':');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_merge_key_by_key_and_other_values_are_replaced() {
        let stored = r#"{"id":"1","address":{"city":"Bonn","zip":"53111"},"tags":["a","b"],"total":1.50}"#;
        let change = r#"{"address":{"zip":null,"street":"Am Hof"},"tags":[],"big":12345678901234567890123}"#;
        assert_eq!(
            merge(stored, change).unwrap(),
            r#"{"id":"1","address":{"city":"Bonn","zip":null,"street":"Am Hof"},"tags":[],"total":1.50,"big":12345678901234567890123}"#
        );
    }

    #[test]
    fn values_of_different_types_are_replaced() {
        assert_eq!(merge(r#"{"a":{"b":1}}"#, r#"{"a":[1]}"#).unwrap(), r#"{"a":[1]}"#);
        assert_eq!(merge(r#"{"a":1}"#, r#"{ "a" : { "b" : 1 } }"#).unwrap(), r#"{"a":{ "b" : 1 }}"#);
        assert_eq!(merge(r#"{}"#, r#"{}"#).unwrap(), r#"{}"#);
    }

    #[test]
    fn keys_are_compared_without_their_escapes() {
        assert_eq!(merge(r#"{"A\n":1}"#, r#"{"\u0041\u000a":2,"b":1,"b":3}"#).unwrap(), r#"{"A\n":2,"b":3}"#);
    }
}
