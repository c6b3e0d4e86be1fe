//! Replaces `schema` when the feature `json-schemas` is off: JSON Schemas cannot be read.

use serde_json::Value;

use super::check::Problem;

/// Has no values.
pub enum Schema {}

impl Schema {
    pub fn compile(_schema: &Value) -> Result<Self, String> {
        Err("enable the feature `json-schemas` of `syncline-sdk` to validate records against it".to_owned())
    }

    pub fn problems(&self, _value: &Value) -> Vec<Problem> {
        match *self {}
    }

    pub fn record_problems(&self, _record: &Value) -> Vec<Problem> {
        match *self {}
    }
}
