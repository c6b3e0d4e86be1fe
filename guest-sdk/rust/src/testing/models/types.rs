//! The types of `syncline.toml`.

use serde_json::Value;

/// A type of a field, an input or an output.
#[derive(Debug, PartialEq)]
pub enum Type {
    String,
    Integer,
    Number,
    Boolean,
    Date,
    Datetime,
    Json,
    Enum(Vec<String>),
    Array(Box<Type>),
    Object(ObjectType),
    Model(String),
    Optional(Box<Type>),
}

/// The declared fields of an object.
#[derive(Debug, PartialEq)]
pub struct ObjectType {
    pub fields: Vec<(String, Type)>,
    /// Whether other fields are refused.
    pub is_strict: bool,
}

impl ObjectType {
    /// Reads a table of fields. A table of a model has options in addition to fields.
    pub fn read(table: &Value, is_model: bool) -> Result<Self, String> {
        let mut object = Self { fields: Vec::new(), is_strict: false };
        for (key, value) in table.as_object().ok_or("it is not a table")? {
            match (key.as_str(), value) {
                ("strict", Value::Bool(is_strict)) => object.is_strict = *is_strict,
                ("encrypt", Value::Bool(_)) | ("on_bad_record", _) if is_model => {}
                _ => {
                    let ty = Type::read(value)?;
                    object.fields.push(match key.strip_suffix('?') {
                        Some(name) => (name.to_owned(), ty.optional()),
                        None => (key.clone(), ty),
                    });
                }
            }
        }
        Ok(object)
    }
}

impl Type {
    /// Reads a text, a list with the type of its elements, or a table of fields.
    pub fn read(value: &Value) -> Result<Self, String> {
        match value {
            Value::String(text) => Self::parse(text),
            Value::Array(elements) => match &elements[..] {
                [element] => Ok(Self::Array(Box::new(Self::read(element)?))),
                _ => Err("a list type must have exactly one element".to_owned()),
            },
            Value::Object(_) => ObjectType::read(value, false).map(Self::Object),
            other => Err(format!("`{other}` is not a type")),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let refuse = || format!("`{text}` is not a type");
        let end = text.find(|c: char| !(c.is_alphanumeric() || "_-".contains(c))).unwrap_or(text.len());
        let (word, mut rest) = text.split_at(end);
        let mut ty = match word {
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            "date" => Self::Date,
            "datetime" => Self::Datetime,
            "json" => Self::Json,
            "enum" => {
                let (values, after) = enum_values(rest).ok_or_else(refuse)?;
                rest = after;
                Self::Enum(values)
            }
            model if model.starts_with(|c: char| c.is_ascii_uppercase()) => Self::Model(model.to_owned()),
            _ => return Err(refuse()),
        };
        loop {
            rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix("[]") {
                (ty, rest) = (Self::Array(Box::new(ty)), after);
            } else if let Some(after) = rest.strip_prefix('?') {
                (ty, rest) = (ty.optional(), after);
            } else if rest.is_empty() {
                return Ok(ty);
            } else {
                return Err(refuse());
            }
        }
    }

    fn optional(self) -> Self {
        match self {
            Self::Optional(_) => self,
            other => Self::Optional(Box::new(other)),
        }
    }
}

/// Parses `(a, b, 'c, d')` and returns the text after it.
fn enum_values(text: &str) -> Option<(Vec<String>, &str)> {
    let mut rest = text.trim_start().strip_prefix('(')?;
    let mut values = Vec::new();
    loop {
        let (value, after) = enum_value(rest.trim_start())?;
        values.push(value);
        let after = after.trim_start();
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None => return Some((values, after.strip_prefix(')')?)),
        }
    }
}

fn enum_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('\'') else {
        let end = text.find([',', ')'])?;
        return Some((text[..end].trim_end().to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut rest = quoted;
    loop {
        let end = rest.find('\'')?;
        value.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        // A doubled quote is an escaped quote.
        match rest.strip_prefix('\'') {
            Some(after) => {
                value.push('\'');
                rest = after;
            }
            None => return Some((value, rest)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_apply_from_left_to_right() {
        let optional = Type::String.optional();
        assert_eq!(Type::parse(" string ? [] "), Ok(Type::Array(Box::new(optional))));
        let tags = Type::Array(Box::new(Type::Model("Order-Line".to_owned())));
        assert_eq!(Type::parse("Order-Line[]?"), Ok(tags.optional()));
    }

    #[test]
    fn enum_values_may_be_quoted() {
        let values = ["open", "past due", "a, b)", "it's"].map(str::to_owned).to_vec();
        assert_eq!(Type::parse("enum(open, past due ,'a, b)', 'it''s')?"), Ok(Type::Enum(values).optional()));
    }

    #[test]
    fn a_text_that_is_not_a_type_is_refused() {
        for text in ["strng", "string | null", "enum", "enum(a", ""] {
            assert_eq!(Type::parse(text), Err(format!("`{text}` is not a type")));
        }
    }
}
