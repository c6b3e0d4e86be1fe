//! How records of a model are stored, as far as its author can choose.

use serde::{Deserialize, Serialize};

/// The settings in a model's table, next to its fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Keeping {
    pub on_bad_record: OnBadRecord,
    /// Whether payloads are encrypted.
    pub encrypt: bool,
}

/// What happens to a batch with a record that does not match its model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadRecord {
    /// Nothing of the batch is saved.
    #[default]
    Fail,
    /// The record is set aside with the reason, and the others are saved.
    SetAside,
}
