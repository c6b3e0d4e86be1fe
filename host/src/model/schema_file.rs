//! Models that are JSON Schemas of the author's own (`schema = "file.json"`).

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;

use super::problem::{MAX_PROBLEMS, Problem};

pub(super) struct SchemaFile {
    validator: Validator,
}

impl SchemaFile {
    /// A schema comes from outside: references are never fetched, and patterns run in linear time. The error
    /// is a sentence.
    pub(super) fn compile(schema: &Value) -> Result<Self, String> {
        let options = jsonschema::options()
            .offline()
            .should_validate_formats(true)
            .with_pattern_options(PatternOptions::regex());
        let validator = options.build(schema).map_err(|error| error.to_string())?;
        Ok(Self { validator })
    }

    /// Checks a well-formed value.
    pub(super) fn check(&self, text: &str) -> Vec<Problem> {
        match parse(text) {
            Ok(value) => {
                self.validator.iter_errors(&value).map(|error| problem(&error)).take(MAX_PROBLEMS).collect()
            }
            Err(problem) => vec![problem],
        }
    }

    /// Checks a well-formed record. The metadata key is not part of it. The type of `id` is not judged here:
    /// the host has its own rule, and an id that was an integer comes back as a string.
    pub(super) fn check_record(&self, text: &str, metadata_key: &str) -> Vec<Problem> {
        let mut value = match parse(text) {
            Ok(value) => value,
            Err(problem) => return vec![problem],
        };
        if let Some(object) = value.as_object_mut() {
            object.remove(metadata_key);
        }
        let errors = self.validator.iter_errors(&value);
        let errors = errors.filter(|error| !(is_type(error) && error.instance_path().as_str() == "/id"));
        errors.map(|error| problem(&error)).take(MAX_PROBLEMS).collect()
    }
}

fn parse(text: &str) -> Result<Value, Problem> {
    serde_json::from_str(text)
        .map_err(|_| Problem::here("holds a number beyond ±1.8e308, which no schema can check"))
}

fn problem(error: &ValidationError<'_>) -> Problem {
    let problem = match error.kind() {
        ValidationErrorKind::Type { kind } => {
            format!("expected {}, got {}", type_names(kind), type_name(error.instance()))
        }
        _ => error.masked_with("the value").to_string(),
    };
    Problem { path: error.instance_path().to_string(), problem }
}

fn is_type(error: &ValidationError<'_>) -> bool {
    matches!(error.kind(), ValidationErrorKind::Type { .. })
}

fn type_names(kind: &TypeKind) -> String {
    match kind {
        TypeKind::Single(one) => one.to_string(),
        TypeKind::Multiple(several) => {
            several.iter().map(|one| one.to_string()).collect::<Vec<_>>().join(" or ")
        }
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
