//! Models that are defined by the author's own JSON Schemas (`schema = "file.json"`).

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;

use super::problem::{MAX_PROBLEMS, Problem};
use super::schema_cost::Costs;
use syncline_types::json::check_names;

/// Maximum number of subschemas that may evaluate one value.
const MAX_AT_ONCE: u64 = 10_000;
/// Maximum number of evaluations on one path through a value, for values of any size.
const MAX_ALONG: u64 = 10_000;
/// Maximum number of evaluations in total for values that exceed `MAX_ALONG`.
const MAX_IN_ALL: u64 = 1_000_000;

pub(super) struct SchemaFile {
    validator: Validator,
    costs: Costs,
}

/// Checks the cost of a new schema. A stored schema may exceed it, and its cost is checked for each value.
pub fn check_cost(schema: &Value) -> Result<(), String> {
    let at_once = Costs::of(schema)?.at_once;
    if at_once > MAX_AT_ONCE {
        return Err(format!(
            "its references, `allOf`, `anyOf` and similar keywords apply {} subschemas to one value, and the \
             maximum is {MAX_AT_ONCE}; let each schema refer to the next one only once",
            if at_once > 1_000_000_000 { "more than a billion".to_owned() } else { at_once.to_string() },
        ));
    }
    Ok(())
}

impl SchemaFile {
    /// Compiles a schema. It comes from outside, so references are never fetched, and patterns run in linear time.
    /// The error is a sentence.
    pub(super) fn compile(schema: &Value) -> Result<Self, String> {
        let costs = Costs::of(schema)?;
        let options = jsonschema::options()
            .offline()
            .should_validate_formats(true)
            .with_pattern_options(PatternOptions::regex());
        let validator = options.build(schema).map_err(|error| error.to_string())?;
        Ok(Self { validator, costs })
    }

    /// Checks a well-formed value.
    pub(super) fn check(&self, text: &str) -> Vec<Problem> {
        match parse(text) {
            Ok(value) => match self.refuse_expensive(&value) {
                Some(problem) => vec![problem],
                None => self
                    .validator
                    .iter_errors(&value)
                    .map(|error| problem(&error))
                    .take(MAX_PROBLEMS)
                    .collect(),
            },
            Err(problem) => vec![problem],
        }
    }

    /// Checks a well-formed record without its metadata key. The type of `id` is not checked here, because the host
    /// has its own rule: an integer id is stored as a string.
    pub(super) fn check_record(&self, text: &str, metadata_key: &str) -> Vec<Problem> {
        let mut value = match parse(text) {
            Ok(value) => value,
            Err(problem) => return vec![problem],
        };
        if let Some(object) = value.as_object_mut() {
            object.remove(metadata_key);
        }
        if let Some(problem) = self.refuse_expensive(&value) {
            return vec![problem];
        }
        let errors = self.validator.iter_errors(&value);
        let errors = errors.filter(|error| !(is_type(error) && error.instance_path().as_str() == "/id"));
        errors.map(|error| problem(&error)).take(MAX_PROBLEMS).collect()
    }

    /// Refuses values that are too expensive to check. With a schema that refers to itself several times, the time
    /// doubles, or more, with each level of a value.
    fn refuse_expensive(&self, value: &Value) -> Option<Problem> {
        if self.costs.most() <= MAX_ALONG {
            return None;
        }
        let (depth, values) = extent(value);
        let along = self.costs.along(depth);
        let is_expensive = along > MAX_ALONG && along.saturating_mul(values) > MAX_IN_ALL;
        is_expensive.then(|| {
            Problem::here(format!(
                "is {depth} levels deep, which takes too long to check with a schema that refers to itself several times"
            ))
        })
    }
}

/// Returns the number of levels below a value, and the number of values in it.
fn extent(value: &Value) -> (usize, u64) {
    let members: Vec<&Value> = match value {
        Value::Array(elements) => elements.iter().collect(),
        Value::Object(members) => members.values().collect(),
        _ => return (0, 1),
    };
    members
        .into_iter()
        .map(extent)
        .fold((1, 1), |(depth, values), (below, more)| (depth.max(1 + below), values + more))
}

fn parse(text: &str) -> Result<Value, Problem> {
    check_names(text.as_bytes()).map_err(|reserved| Problem::here(reserved.to_string()))?;
    serde_json::from_str(text)
        .map_err(|_| Problem::here("contains a number beyond ±1.8e308, which schemas cannot check"))
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
