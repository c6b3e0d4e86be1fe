//! JSON pointers (RFC 6901) into a text, without building a tree.

use std::collections::HashMap;

use serde_json::value::RawValue;

/// Returns the value at `pointer`, or none if there is no value.
pub fn find<'a>(json: &'a str, pointer: &str) -> Result<Option<&'a RawValue>, String> {
    let mut found: &RawValue = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let mut segments = pointer.split('/');
    if segments.next() != Some("") {
        return Err(format!(
            "`{pointer}` is not a JSON pointer; a pointer is empty or starts with a slash, as in `/data`"
        ));
    }
    for segment in segments {
        match child(found, &segment.replace("~1", "/").replace("~0", "~")) {
            Some(child) => found = child,
            None => return Ok(None),
        }
    }
    Ok(Some(found))
}

/// Like [`find`], for a string or a number. `null` and the empty string count as none.
pub fn find_text(json: &str, pointer: &str) -> Result<Option<String>, String> {
    let Some(found) = find(json, pointer)? else { return Ok(None) };
    match found.get().as_bytes().first() {
        Some(b'"') => {
            let text: String = serde_json::from_str(found.get()).map_err(|error| error.to_string())?;
            Ok((!text.is_empty()).then_some(text))
        }
        Some(b'-' | b'0'..=b'9') => Ok(Some(found.get().to_owned())),
        Some(b'n') => Ok(None),
        _ => Err(format!("the value at `{pointer}` is neither a string nor a number")),
    }
}

fn child<'a>(parent: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    match parent.get().as_bytes().first()? {
        b'{' => serde_json::from_str::<HashMap<String, &RawValue>>(parent.get()).ok()?.remove(name),
        b'[' => {
            let elements: Vec<&RawValue> = serde_json::from_str(parent.get()).ok()?;
            elements.get(name.parse::<usize>().ok()?).copied()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_value_of_a_pointer() {
        let json = r#"{"a":{"b/c":[1,"two"],"~":3},"e":"","n":null,"i":-7}"#;
        let raw = |pointer| find(json, pointer).unwrap().map(RawValue::get);
        assert_eq!(raw(""), Some(json));
        assert_eq!(raw("/a/b~1c/1"), Some("\"two\""));
        assert_eq!(raw("/a/~0"), Some("3"));
        assert_eq!(raw("/a/missing/deeper"), None);
        assert!(find(json, "a").unwrap_err().contains("`/data`"));
    }

    #[test]
    fn only_texts_and_numbers_are_cursors() {
        let json = r#"{"t":"a\nb","e":"","n":null,"i":-7,"o":{}}"#;
        assert_eq!(find_text(json, "/t").unwrap().as_deref(), Some("a\nb"));
        assert_eq!(find_text(json, "/i").unwrap().as_deref(), Some("-7"));
        for none in ["/e", "/n", "/missing"] {
            assert_eq!(find_text(json, none).unwrap(), None, "{none}");
        }
        assert!(find_text(json, "/o").is_err());
    }
}
