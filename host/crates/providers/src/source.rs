//! Where the facts of an entry come from.

use chrono::NaiveDate;
use serde::Deserialize;

/// Where the facts of an entry were read, and when.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    pub address: String,
    pub checked_at: NaiveDate,
    #[serde(default)]
    pub evidence: Evidence,
}

/// What an entry was checked against on that date.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// The provider's own documentation.
    Documentation,
    /// Others' working integrations and articles.
    Secondary,
    /// Nothing but general knowledge: try it before relying on it.
    #[default]
    None,
}
