//! What a webhook function is called with.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A call of the provider. The host has checked its signature where the provider has one.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Webhook<B = serde_json::Value> {
    /// By name, in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body, read as a `B`.
    pub body: B,
}
