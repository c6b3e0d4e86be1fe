//! How records of a model are kept, as far as its author can choose.

use serde::{Deserialize, Serialize};

/// What stands in a model's table beside its fields.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Keeping {
    pub on_bad_record: OnBadRecord,
    /// Whether payloads are sealed.
    pub encrypt: bool,
}

/// What becomes of a batch with a record that does not fit its model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnBadRecord {
    /// Nothing of it is saved.
    #[default]
    Fail,
    /// The record is set aside with the reason, the rest is saved.
    SetAside,
}
