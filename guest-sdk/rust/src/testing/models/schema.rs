//! Models that are JSON Schemas (`schema = "file.json"`), with the same library and messages as the real host.

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;

use super::check::{Problem, type_name};

pub struct Schema(Validator);

impl Schema {
    /// The error is a sentence.
    pub fn compile(schema: &Value) -> Result<Self, String> {
        let options = jsonschema::options()
            .offline()
            .should_validate_formats(true)
            .with_pattern_options(PatternOptions::regex());
        options.build(schema).map(Self).map_err(|error| error.to_string())
    }

    pub fn problems(&self, value: &Value) -> Vec<Problem> {
        self.0.iter_errors(value).map(|error| problem(&error)).collect()
    }

    /// The type of `id` is not checked here, because the host stores every id as text.
    pub fn record_problems(&self, record: &Value) -> Vec<Problem> {
        let errors = self.0.iter_errors(record);
        let errors = errors.filter(|error| !(is_type(error) && error.instance_path().as_str() == "/id"));
        errors.map(|error| problem(&error)).collect()
    }
}

fn is_type(error: &ValidationError<'_>) -> bool {
    matches!(error.kind(), ValidationErrorKind::Type { .. })
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

fn type_names(kind: &TypeKind) -> String {
    match kind {
        TypeKind::Single(one) => one.to_string(),
        TypeKind::Multiple(several) => {
            several.iter().map(|one| one.to_string()).collect::<Vec<_>>().join(" or ")
        }
    }
}
