//! Checks values against types, with the messages of the real host.

use std::fmt;

use serde_json::Value;

use super::types::{ObjectType, Type};
use super::{Model, Models};

/// What is wrong at one place of a value.
#[derive(Debug, PartialEq)]
pub struct Problem {
    /// A JSON pointer such as `/address/zip`; empty for the whole value.
    pub path: String,
    /// A description such as `expected string, got integer`.
    pub problem: String,
}

impl Problem {
    fn here(problem: String) -> Self {
        Self { path: String::new(), problem }
    }

    /// Prepends a key or an index to the path.
    fn below(mut self, key: &str) -> Self {
        let step = key.replace('~', "~0").replace('/', "~1");
        self.path.insert_str(0, &format!("/{step}"));
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "at {}: ", self.path)?;
        }
        f.write_str(&self.problem)
    }
}

impl Models {
    pub(super) fn problems(&self, expected: &Type, value: &Value) -> Vec<Problem> {
        let (inner, is_nullable) = match expected {
            Type::Optional(inner) => (&**inner, true),
            other => (other, false),
        };
        let is_accepted = match (inner, value) {
            (_, Value::Null) if is_nullable => true,
            (Type::Json, _)
            | (Type::String, Value::String(_))
            | (Type::Number, Value::Number(_))
            | (Type::Boolean, Value::Bool(_)) => true,
            (Type::Integer, Value::Number(_)) => is_integer(value),
            (Type::Date, Value::String(text)) => is_date(text),
            (Type::Datetime, Value::String(text)) => is_datetime(text),
            (Type::Enum(values), Value::String(text)) => values.contains(text),
            (Type::Array(item), Value::Array(elements)) => {
                let problems = elements.iter().enumerate().flat_map(|(index, element)| {
                    let problems = self.problems(item, element).into_iter();
                    problems.map(move |problem| problem.below(&index.to_string()))
                });
                return problems.collect();
            }
            (Type::Object(object), Value::Object(_)) => return self.object_problems(object, value),
            (Type::Model(name), _) => match self.models.get(name) {
                Some(Model::Object(object)) if value.is_object() => {
                    return self.object_problems(object, value);
                }
                Some(Model::Object(_)) => false,
                Some(Model::Schema(schema)) => return schema.problems(value),
                None => return vec![Problem::here(format!("its model `{name}` is not in syncline.toml"))],
            },
            _ => false,
        };
        if is_accepted {
            return Vec::new();
        }
        let given = match (inner, value) {
            (Type::Date | Type::Datetime | Type::Enum(_), Value::String(_)) => "another string",
            _ => type_name(value),
        };
        vec![Problem::here(format!("expected {}, got {given}", describe(expected)))]
    }

    pub(super) fn object_problems(&self, object: &ObjectType, value: &Value) -> Vec<Problem> {
        let Value::Object(members) = value else {
            return vec![Problem::here(format!("expected object, got {}", type_name(value)))];
        };
        let mut problems = Vec::new();
        for (name, ty) in &object.fields {
            match (members.get(name), ty) {
                (Some(member), _) => {
                    let found = self.problems(ty, member).into_iter();
                    problems.extend(found.map(|problem| problem.below(name)));
                }
                (None, Type::Optional(_)) => {}
                (None, _) => {
                    let problem = format!("is missing, expected {}", describe(ty));
                    problems.push(Problem::here(problem).below(name));
                }
            }
        }
        if object.is_strict {
            let is_declared = |key: &str| object.fields.iter().any(|(name, _)| name == key);
            for key in members.keys().filter(|key| !is_declared(key)) {
                let problem = "is not declared, and the model is strict".to_owned();
                problems.push(Problem::here(problem).below(key));
            }
        }
        problems
    }
}

/// Whether the host accepts an `id` of a record. It stores ids as text, so a record that was read and is saved again can
/// have a string instead of an integer.
pub(super) fn is_accepted_id(declared: &Type, id: &Value) -> bool {
    match (declared, id) {
        (Type::String, Value::Number(number)) => !number.is_f64(),
        (Type::Integer, Value::String(text)) => {
            let digits = text.strip_prefix('-').unwrap_or(text);
            let is_padded = digits.len() > 1 && digits.starts_with('0');
            !digits.is_empty() && !is_padded && digits.bytes().all(|byte| byte.is_ascii_digit())
        }
        _ => false,
    }
}

fn describe(ty: &Type) -> String {
    match ty {
        Type::Json => "any value".to_owned(),
        Type::String => "string".to_owned(),
        Type::Integer => "integer".to_owned(),
        Type::Number => "number".to_owned(),
        Type::Boolean => "boolean".to_owned(),
        Type::Date => "date such as 2026-03-01".to_owned(),
        Type::Datetime => "datetime such as 2026-03-01T09:00:00Z".to_owned(),
        Type::Enum(values) => format!("enum({})", values.join(", ")),
        Type::Array(_) => "array".to_owned(),
        Type::Object(_) | Type::Model(_) => "object".to_owned(),
        Type::Optional(inner) => format!("{} or null", describe(inner)),
    }
}

pub(super) fn type_name(value: &Value) -> &'static str {
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

/// Whether a number has no fraction: `5`, `5.0` and `5e3`, but not `5.5`.
fn is_integer(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
}

/// Whether a text is a day of the Gregorian calendar, such as `2026-03-01`.
fn is_date(text: &str) -> bool {
    let [year, month, day] = text.split('-').collect::<Vec<_>>()[..] else { return false };
    let (Some(year), Some(month), Some(day)) = (digits(year, 4), digits(month, 2), digits(day, 2)) else {
        return false;
    };
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let last_day = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => return false,
    };
    (1..=last_day).contains(&day)
}

/// Whether a text is a time such as `2026-03-01T09:00:00.25Z`, or with an offset such as `+01:00` (RFC 3339).
fn is_datetime(text: &str) -> bool {
    let Some((date, time)) = text.split_once(['T', 't']) else { return false };
    let Some(zone) = time.find(['Z', 'z', '+', '-']) else { return false };
    let (time, zone) = time.split_at(zone);
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let is_fraction = !fraction.is_empty() && fraction.bytes().all(|byte| byte.is_ascii_digit());
    // 60 is a leap second.
    let is_time = parts(time, &[23, 59, 60]);
    let is_zone = matches!(zone, "Z" | "z") || zone.starts_with(['+', '-']) && parts(&zone[1..], &[23, 59]);
    is_date(date) && is_time && is_fraction && is_zone
}

/// Whether a text consists of numbers of two digits with `:` between them, up to these maxima.
fn parts(text: &str, maxima: &[u32]) -> bool {
    let parts: Vec<_> = text.split(':').collect();
    let is_at_most = |(part, max): (&&str, &u32)| digits(part, 2).is_some_and(|number| number <= *max);
    parts.len() == maxima.len() && parts.iter().zip(maxima).all(is_at_most)
}

fn digits(text: &str, count: usize) -> Option<u32> {
    let is_number = text.len() == count && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_times_are_those_of_rfc_3339() {
        for date in ["2026-03-01", "2024-02-29", "2000-02-29"] {
            assert!(is_date(date), "{date}");
        }
        for text in ["2026-02-29", "1900-02-29", "2026-13-01", "2026-04-31", "2026-3-1", "2026-03-01Z", ""] {
            assert!(!is_date(text), "{text}");
        }
        for time in ["2026-03-01T09:00:00Z", "2026-03-01t09:00:60.25+01:00", "2026-03-01T23:59:59-00:30"] {
            assert!(is_datetime(time), "{time}");
        }
        let others = [
            "2026-03-01",
            "2026-03-01T09:00Z",
            "2026-03-01T09:00:00",
            "2026-03-01T24:00:00Z",
            "2026-03-01T09:00:00.Z",
            "2026-03-01T09:00:00+1:00",
            "2026-03-01 09:00:00Z",
        ];
        for text in others {
            assert!(!is_datetime(text), "{text}");
        }
    }
}
