//! Form bodies, with the brackets that most providers use for nested fields.

use form_urlencoded::Serializer;
use serde::Serialize;
use serde_json::Value;

/// Serializes a struct or a map as `name=value` pairs. Nested fields are written as `address[city]=Berlin`, list
/// items as `items[0]=a`, and absent fields are omitted.
pub fn write(body: &impl Serialize) -> Result<Vec<u8>, String> {
    let Value::Object(fields) = serde_json::to_value(body).map_err(|error| error.to_string())? else {
        return Err("a form body must be a struct or a map".to_owned());
    };
    let mut form = Serializer::new(String::new());
    for (name, value) in &fields {
        append(&mut form, name, value);
    }
    Ok(form.finish().into_bytes())
}

fn append(form: &mut Serializer<'_, String>, name: &str, value: &Value) {
    match value {
        Value::Null => {}
        Value::String(text) => {
            form.append_pair(name, text);
        }
        Value::Bool(_) | Value::Number(_) => {
            form.append_pair(name, &value.to_string());
        }
        Value::Array(values) => {
            values
                .iter()
                .enumerate()
                .for_each(|(index, value)| append(form, &format!("{name}[{index}]"), value));
        }
        Value::Object(fields) => {
            fields.iter().for_each(|(field, value)| append(form, &format!("{name}[{field}]"), value));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nested_fields_use_brackets_and_absent_fields_are_omitted() {
        let body =
            json!({ "a": "b +&c", "n": -1.5, "yes": true, "no": null, "o": { "l": [1, { "x": "é" }] } });
        let form = String::from_utf8(write(&body).unwrap()).unwrap();
        assert_eq!(form, "a=b+%2B%26c&n=-1.5&o%5Bl%5D%5B0%5D=1&o%5Bl%5D%5B1%5D%5Bx%5D=%C3%A9&yes=true");
    }

    #[test]
    fn a_form_body_must_be_a_struct_or_a_map() {
        assert!(write(&[1, 2]).is_err());
    }
}
