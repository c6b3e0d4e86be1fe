//! What a deployment changes.

use serde::Serialize;
use utoipa::ToSchema;

/// What becomes of one function, integration or model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct PlannedChange {
    /// `add`, `update` or `remove`.
    pub change: &'static str,
    /// `environment`, `integration`, `sync`, `action`, `webhook`, `lifecycle` or `model`.
    pub kind: String,
    /// None for the environment, and for a model.
    pub integration: Option<String>,
    /// The name of the function or model, or of the environment's setting; none for an integration.
    pub name: Option<String>,
}
