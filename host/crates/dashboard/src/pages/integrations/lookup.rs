//! Integrations by their keys, and their names.

use crate::Dashboard;
use crate::error::PageError;
use crate::session::Visit;
use syncline_engine::Integration;
use syncline_types::ids::IntegrationKey;

/// Returns the integration that the path names.
pub(super) async fn find(app: &Dashboard, visit: &Visit, key: &str) -> Result<Integration, PageError> {
    let unknown =
        || PageError::NotFound(format!("there is no integration `{key}`; it may have been deleted"));
    let key: IntegrationKey = key.parse().map_err(|_| unknown())?;
    Ok(app.integrations.get(visit.environment.pk, &key).await?)
}

/// The name that the Connect UI shows.
pub(super) fn name_of(app: &Dashboard, integration: &Integration) -> String {
    let provider = || app.catalogue.find(&integration.provider).map(|provider| provider.display_name.clone());
    integration.display_name.clone().or_else(provider).unwrap_or_else(|| integration.provider.to_string())
}
