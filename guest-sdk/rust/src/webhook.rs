//! The input of webhook functions.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A webhook of the provider. The host has verified its signature if the provider signs webhooks.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Webhook<B = serde_json::Value> {
    /// By name, in lower case.
    pub headers: BTreeMap<String, String>,
    /// The body, deserialized as a `B`.
    pub body: B,
}
