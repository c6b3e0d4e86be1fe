//! Masks the secrets of a run in its recording.

use serde_json::Value;
use serde_json::value::RawValue;
use syncline_sandbox::RunLog;
use syncline_types::json;

/// Masks the secrets that a run has seen, with the mask of its log.
pub struct Masking<'l>(pub &'l RunLog);

impl Masking<'_> {
    pub fn text(&self, text: &str) -> String {
        self.0.masked(text)
    }

    /// Masks a JSON text. Its numbers keep their spelling unless they are secret.
    pub fn json(&self, text: &str) -> Box<RawValue> {
        let masked = RawValue::from_string(self.text(text));
        masked.unwrap_or_else(|_| {
            let value = json::parse(text).unwrap_or_else(|_| Value::String(text.to_owned()));
            serde_json::value::to_raw_value(&self.0.masked_json(value))
                .expect("a value can be represented as JSON")
        })
    }
}
