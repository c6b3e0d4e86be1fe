//! One change of a deployment.

use serde::Serialize;
use utoipa::ToSchema;

/// How a deployment changes one function, integration, model or setting.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct PlannedChange {
    /// `add`, `update` or `remove`.
    pub change: &'static str,
    /// `environment`, `integration`, `sync`, `action`, `webhook`, `lifecycle` or `model`.
    pub kind: String,
    /// `None` for a setting of the environment and for a model.
    pub integration: Option<String>,
    /// The name of the function, model or environment setting. `None` for an integration.
    pub name: Option<String>,
}
