//! The metadata of a connection: a JSON object that a backend and functions share.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::json::{self, Members};
use crate::sanitize::contains_nul;
use crate::units::Bytes;

/// The metadata of a connection. Numbers keep their spelling, and members their order.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct Metadata(Box<RawValue>);

/// Why a text is not metadata.
#[derive(Debug, thiserror::Error)]
pub enum InvalidMetadata {
    #[error("must be JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("must be an object")]
    NotAnObject,
    #[error("must not contain a NUL character")]
    Nul,
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// Metadata that is longer than a connection can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be at most {} of JSON text (got {bytes} bytes)", Bytes(Metadata::MAX_BYTES as u64))]
pub struct TooLong {
    pub bytes: usize,
}

impl Metadata {
    /// Longest text, in bytes.
    pub const MAX_BYTES: usize = 1 << 20;

    /// Checks a JSON text from outside. Of members with the same name, the last one counts.
    pub fn parse(text: &str) -> Result<Self, InvalidMetadata> {
        // The length comes first, because a client should not have to shorten values that are invalid anyway.
        if text.len() > Self::MAX_BYTES {
            return Err(TooLong { bytes: text.len() }.into());
        }
        match json::parse(text)? {
            value if !value.is_object() => return Err(InvalidMetadata::NotAnObject),
            value if contains_nul(&value) => return Err(InvalidMetadata::Nul),
            _ => {}
        }
        Ok(Self::from_members(Members::of(text)?, Members::default())?)
    }

    /// Metadata that the host has stored.
    pub fn from_stored(text: String) -> serde_json::Result<Self> {
        RawValue::from_string(text).map(Self)
    }

    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// The metadata as a value, in which numbers may lose digits.
    pub fn to_value(&self) -> Value {
        serde_json::from_str(self.as_str()).unwrap_or_default()
    }

    /// Replaces the members that `change` has, and keeps the others.
    pub fn merge(&self, change: &Self) -> Result<Self, InvalidMetadata> {
        let merged = Self::from_members(Members::of(self.as_str())?, Members::of(change.as_str())?)?;
        match merged.as_str().len() {
            bytes if bytes > Self::MAX_BYTES => Err(TooLong { bytes }.into()),
            _ => Ok(merged),
        }
    }

    fn from_members(members: Members<'_>, changes: Members<'_>) -> serde_json::Result<Self> {
        let all = || members.0.iter().chain(&changes.0);
        let mut last: HashMap<&str, &RawValue> = all().map(|(name, value)| (name.as_str(), *value)).collect();
        let mut text = String::from("{");
        for (name, _) in all() {
            // A name is removed at its first occurrence.
            let Some(value) = last.remove(name.as_str()) else { continue };
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(&serde_json::to_string(name)?);
            text.push(':');
            text.push_str(value.get());
        }
        text.push('}');
        RawValue::from_string(text).map(Self)
    }
}

impl Default for Metadata {
    fn default() -> Self {
        Self(RawValue::from_string("{}".to_owned()).expect("an empty object is JSON"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        Metadata::parse(text).unwrap().as_str().to_owned()
    }

    #[test]
    fn values_keep_their_spelling_and_members_their_order() {
        let text = r#"{"z":12345678901234567890123,"a":1.50,"n":{ "x" : 1E2 }}"#;
        assert_eq!(parsed(text), text);
        assert_eq!(parsed(r#" { "a" : 1 , "\u0062" : 2, "a" : 3 } "#), r#"{"a":3,"b":2}"#);
        assert_eq!(parsed("{}"), "{}");
    }

    #[test]
    fn invalid_metadata_is_refused() {
        let error = |text: &str| Metadata::parse(text).unwrap_err();
        assert!(matches!(error("[]"), InvalidMetadata::NotAnObject));
        assert!(matches!(error("{\"a\":\"\\u0000\"}"), InvalidMetadata::Nul));
        for text in ["{", "{\"a\":1e999}", r#"{"a":{"$serde_json::private::RawValue":"1"}}"#] {
            assert!(matches!(error(text), InvalidMetadata::Json(_)), "{text}");
        }
        let long = |bytes: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(bytes - 8));
        assert_eq!(parsed(&long(Metadata::MAX_BYTES)).len(), Metadata::MAX_BYTES);
        let error = error(&long(Metadata::MAX_BYTES + 1));
        assert_eq!(error.to_string(), "must be at most 1 MiB of JSON text (got 1048577 bytes)");
    }

    #[test]
    fn a_merge_replaces_top_level_members() {
        let stored = Metadata::parse(r#"{"a":{"x":1},"b":1.0}"#).unwrap();
        let merge = |change: &str| stored.merge(&Metadata::parse(change).unwrap());
        assert_eq!(merge(r#"{"a":{"y":2},"c":null}"#).unwrap().as_str(), r#"{"a":{"y":2},"b":1.0,"c":null}"#);
        let long = format!("{{\"c\":\"{}\"}}", "x".repeat(Metadata::MAX_BYTES - 8));
        assert!(matches!(merge(&long), Err(InvalidMetadata::TooLong(_))));
    }
}
