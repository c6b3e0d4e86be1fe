//! Models as defined in `syncline.toml`, and the syntax of field types.
//!
//! | Syntax | Accepts |
//! |---|---|
//! | `string`, `boolean` | a JSON value of that type |
//! | `number` | any number |
//! | `integer` | a number without a fraction, of any size |
//! | `date` | a string such as `2026-03-01` |
//! | `datetime` | a string such as `2026-03-01T09:00:00Z`, with `Z` or an offset |
//! | `json` | any value, including `null` |
//! | `enum(open, closed)` | one of these strings; strings with a comma, a parenthesis or an outer space are quoted with `'…'` |
//! | `Customer` | an object of that model |
//! | `T[]` | a list of `T` |
//! | `T?` | `T` or `null`; a field of this type can also be absent |

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use syncline_types::ids::ModelName;

/// The models of a configuration file, by name.
pub type Models = BTreeMap<ModelName, Model>;

/// The definition of the objects of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Model {
    Object(ObjectType),
    /// `schema = "file.json"`: the author's own JSON Schema.
    Schema {
        file: String,
        schema: serde_json::Value,
    },
}

/// Declared fields in the order of the file. Undeclared fields are accepted unless the model is strict.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectType {
    pub fields: Vec<Field>,
    #[serde(default)]
    pub strict: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    pub name: String,
    #[serde(rename = "type")]
    pub ty: Type,
}

/// Maximum nesting of lists, objects and `?`. In JSON, a level takes up to five of the 128 levels that JSON parsers
/// accept, and stored types must be readable.
pub const MAX_TYPE_DEPTH: usize = 20;

/// The values that are allowed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    Model(ModelName),
    /// `null` is allowed, and a field of this type may be absent.
    Optional(Box<Type>),
}

/// The reason why a text is not a type, and how to correct it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TypeError {
    #[error("`{given}` is not a type{}", did_you_mean(suggestion.as_ref()))]
    Unknown { given: String, suggestion: Option<String> },
    #[error("`enum` needs its values in parentheses, such as `enum(open, closed)`")]
    EnumWithoutValues,
    #[error("the enum value `{value}` is listed twice")]
    EnumValueTwice { value: String },
    #[error("`{text}` is not a type; only `[]` and `?` can follow a type")]
    Rest { text: String },
    #[error("`??` means the same as `?`; use one")]
    OptionalTwice,
    #[error(
        "the type has more than {MAX_TYPE_DEPTH} nested lists, objects and `?`; move the inner part to a separate model"
    )]
    TooDeep,
}

impl ObjectType {
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }
}

impl Type {
    pub fn array(self) -> Self {
        Self::Array(Box::new(self))
    }

    pub fn optional(self) -> Self {
        match self {
            Self::Optional(_) => self,
            other => Self::Optional(Box::new(other)),
        }
    }

    /// Returns the nesting depth of lists, objects and `?`.
    pub fn depth(&self) -> usize {
        match self {
            Self::Array(inner) | Self::Optional(inner) => 1 + inner.depth(),
            Self::Object(object) => {
                1 + object.fields.iter().map(|field| field.ty.depth()).max().unwrap_or_default()
            }
            _ => 0,
        }
    }

    /// Returns the models that this type uses, with repetitions.
    pub fn models(&self) -> Vec<&ModelName> {
        match self {
            Self::Model(name) => vec![name],
            Self::Array(inner) | Self::Optional(inner) => inner.models(),
            Self::Object(object) => object.fields.iter().flat_map(|field| field.ty.models()).collect(),
            _ => Vec::new(),
        }
    }
}

/// Writes the type in the syntax of the file. An inline object is written as `object`.
impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enum(values) => {
                f.write_str("enum(")?;
                for (index, value) in values.iter().enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    if is_bare_value(value) {
                        write!(f, "{separator}{value}")?;
                    } else {
                        write!(f, "{separator}'{}'", value.replace('\'', "''"))?;
                    }
                }
                f.write_str(")")
            }
            Self::Array(inner) => write!(f, "{inner}[]"),
            Self::Optional(inner) => write!(f, "{inner}?"),
            Self::Object(_) => f.write_str("object"),
            Self::Model(name) => write!(f, "{name}"),
            _ => f.write_str(PLAIN.iter().find(|(_, ty)| ty == self).map_or("", |(word, _)| word)),
        }
    }
}

impl FromStr for Type {
    type Err = TypeError;

    fn from_str(text: &str) -> Result<Self, TypeError> {
        let text = text.trim();
        let word_end = text.find(|c: char| !(c.is_alphanumeric() || "_-".contains(c))).unwrap_or(text.len());
        let (word, rest) = text.split_at(word_end);
        let (mut ty, mut rest) = match word {
            "enum" => enum_values(rest)?,
            _ => (named(word, text)?, rest),
        };
        let mut depth = 0;
        loop {
            rest = rest.trim_start();
            // A text can contain more levels than the stack allows.
            if depth > MAX_TYPE_DEPTH {
                return Err(TypeError::TooDeep);
            }
            depth += 1;
            if let Some(after) = rest.strip_prefix("[]") {
                (ty, rest) = (ty.array(), after);
            } else if let Some(after) = rest.strip_prefix('?') {
                if matches!(ty, Self::Optional(_)) {
                    return Err(TypeError::OptionalTwice);
                }
                (ty, rest) = (ty.optional(), after);
            } else if rest.is_empty() {
                return Ok(ty);
            } else {
                return Err(TypeError::Rest { text: text.to_owned() });
            }
        }
    }
}

const PLAIN: [(&str, Type); 7] = [
    ("string", Type::String),
    ("integer", Type::Integer),
    ("number", Type::Number),
    ("boolean", Type::Boolean),
    ("date", Type::Date),
    ("datetime", Type::Datetime),
    ("json", Type::Json),
];

/// Names of our types in other languages.
const FOREIGN: [(&str, &str); 15] = [
    ("str", "string"),
    ("text", "string"),
    ("uuid", "string"),
    ("int", "integer"),
    ("long", "integer"),
    ("bigint", "integer"),
    ("float", "number"),
    ("double", "number"),
    ("decimal", "number"),
    ("bool", "boolean"),
    ("timestamp", "datetime"),
    ("time", "datetime"),
    ("any", "json"),
    ("object", "json"),
    ("unknown", "json"),
];

fn named(word: &str, text: &str) -> Result<Type, TypeError> {
    if let Some((_, ty)) = PLAIN.iter().find(|(plain, _)| *plain == word) {
        return Ok(ty.clone());
    }
    if let Ok(model) = word.parse() {
        return Ok(Type::Model(model));
    }
    let lower = word.to_ascii_lowercase();
    let foreign = FOREIGN.iter().find(|(foreign, _)| *foreign == lower).map(|(_, ours)| *ours);
    let similar = || {
        let words = PLAIN.iter().map(|(word, _)| *word).chain(["enum"]);
        words.map(|word| (strsim::jaro_winkler(word, &lower), word)).max_by(|a, b| a.0.total_cmp(&b.0))
    };
    let suggestion = foreign.or_else(|| similar().filter(|(score, _)| *score > 0.8).map(|(_, word)| word));
    let given = if word.is_empty() { text } else { word };
    Err(TypeError::Unknown { given: given.to_owned(), suggestion: suggestion.map(str::to_owned) })
}

/// Parses `(a, b, 'c, d')` and returns the text after it.
fn enum_values(text: &str) -> Result<(Type, &str), TypeError> {
    let mut rest = text.trim_start().strip_prefix('(').ok_or(TypeError::EnumWithoutValues)?;
    let (mut values, mut known) = (Vec::new(), HashSet::new());
    loop {
        let (value, after) = enum_value(rest.trim_start()).ok_or(TypeError::EnumWithoutValues)?;
        if !known.insert(value.clone()) {
            return Err(TypeError::EnumValueTwice { value });
        }
        values.push(value);
        let after = after.trim_start();
        match after.strip_prefix(',') {
            Some(next) => rest = next,
            None => {
                let after = after.strip_prefix(')').ok_or(TypeError::EnumWithoutValues)?;
                return Ok((Type::Enum(values), after));
            }
        }
    }
}

fn enum_value(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('\'') else {
        let end = text.find([',', ')'])?;
        let value = text[..end].trim_end();
        return (!value.is_empty()).then(|| (value.to_owned(), &text[end..]));
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

fn is_bare_value(value: &str) -> bool {
    !value.is_empty() && value.trim() == value && !value.starts_with('\'') && !value.contains([',', ')'])
}

fn did_you_mean(suggestion: Option<&String>) -> String {
    match suggestion {
        Some(word) => format!("; did you mean `{word}`?"),
        None => "; a type is string, integer, number, boolean, date, datetime, json, enum(…) or the name of \
                 a model, with `[]` for a list and `?` if it can be absent"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refusal(text: &str) -> String {
        text.parse::<Type>().unwrap_err().to_string()
    }

    #[test]
    fn suffixes_apply_from_left_to_right() {
        assert_eq!("string?".parse(), Ok(Type::String.optional()));
        assert_eq!("string?[]".parse(), Ok(Type::String.optional().array()));
        assert_eq!(
            " Order-Line [] ? ".parse(),
            Ok(Type::Model("Order-Line".parse().unwrap()).array().optional())
        );
    }

    #[test]
    fn enum_values_may_be_quoted() {
        let values = ["open", "past due", "a, b)", "it's"].map(str::to_owned).to_vec();
        assert_eq!("enum(open, past due ,'a, b)', 'it''s')?".parse(), Ok(Type::Enum(values).optional()));
    }

    #[test]
    fn mistakes_are_reported_with_a_correction() {
        assert_eq!(refusal("strng"), "`strng` is not a type; did you mean `string`?");
        assert_eq!(refusal("bool[]"), "`bool` is not a type; did you mean `boolean`?");
        assert_eq!(refusal("string??"), "`??` means the same as `?`; use one");
        assert_eq!(
            refusal("string | null"),
            "`string | null` is not a type; only `[]` and `?` can follow a type"
        );
        assert_eq!(refusal("enum"), "`enum` needs its values in parentheses, such as `enum(open, closed)`");
        assert_eq!(refusal("enum(a, a)"), "the enum value `a` is listed twice");
    }

    #[test]
    fn a_type_has_a_maximum_depth() {
        let text = |lists: usize| format!("string{}", "[]".repeat(lists));
        assert_eq!(text(MAX_TYPE_DEPTH).parse::<Type>().map(|ty| ty.depth()), Ok(MAX_TYPE_DEPTH));
        for lists in [MAX_TYPE_DEPTH + 1, 1_000_000] {
            assert_eq!(
                refusal(&text(lists)),
                "the type has more than 20 nested lists, objects and `?`; move the inner part to a separate model"
            );
        }
    }

    fn any_type() -> impl Strategy<Value = Type> {
        let leaf = prop_oneof![
            proptest::sample::select(PLAIN.map(|(_, ty)| ty).to_vec()),
            "[A-Z][a-zA-Z0-9_-]{1,5}".prop_map(|name| Type::Model(name.parse().unwrap())),
            proptest::collection::hash_set("[ -~é]{0,6}", 1..4)
                .prop_map(|values| Type::Enum(values.into_iter().collect())),
        ];
        leaf.prop_recursive(4, 8, 1, |inner| {
            prop_oneof![inner.clone().prop_map(Type::array), inner.prop_map(Type::optional)]
        })
    }

    proptest! {
        #[test]
        fn a_displayed_type_can_be_parsed_again(ty in any_type()) {
            prop_assert_eq!(ty.to_string().parse::<Type>(), Ok(ty));
        }

        #[test]
        fn arbitrary_texts_do_not_panic(text in "[a-zA-Z(),'?\\[\\] é]{0,12}") {
            drop(text.parse::<Type>());
        }
    }
}
