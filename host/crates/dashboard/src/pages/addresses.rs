//! The addresses of pages, and what they name.

use std::fmt::Display;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use uuid::Uuid;

use crate::Dashboard;
use crate::error::PageError;
use crate::query::address;
use crate::session::{Visit, segment};
use syncline_engine::{ListedSync, RunsError};
use syncline_types::ids::{ConnectionId, FunctionName, IntegrationKey, Variant};

/// The route of a page of an environment.
macro_rules! environment_route {
    ($path:literal) => {
        concat!("/dashboard/environments/{environment}/", $path)
    };
}

pub(crate) use environment_route;

/// The address of the page of an integration.
pub(crate) fn integration_url(visit: &Visit, key: &IntegrationKey) -> String {
    visit.url(&format!("integrations/{}", segment(key.as_str())))
}

/// The address of the page of a connection.
pub(crate) fn connection_url(visit: &Visit, integration: &IntegrationKey, id: &ConnectionId) -> String {
    visit.url(&format!("connections/{}/{}", segment(integration.as_str()), segment(id.as_str())))
}

/// The address of the list of connections, for example of those with errors.
pub(crate) fn connections_url(
    visit: &Visit,
    integration: Option<&IntegrationKey>,
    errors: Option<&str>,
) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(integration.map(|key| ("integration", key.as_str())));
    query.extend_pairs(errors.map(|errors| ("errors", errors)));
    format!("{}?{}", visit.url("connections"), query.finish())
}

/// Parses the names of a connection from the path.
pub(crate) fn parse_names(key: &str, id: &str) -> Result<(IntegrationKey, ConnectionId), PageError> {
    let (Ok(integration), Ok(connection)) = (key.parse(), id.parse()) else {
        return Err(PageError::NotFound(format!(
            "integration `{key}` has no connection `{id}`; it may have been deleted"
        )));
    };
    Ok((integration, connection))
}

/// The address of the page about a connection's records.
pub(crate) fn records_address(
    visit: &Visit,
    integration: &IntegrationKey,
    connection: &ConnectionId,
) -> String {
    let fields = [("integration", integration.as_str()), ("connection", connection.as_str())];
    address(&visit.url("records/connection"), fields)
}

/// The address of a run's page.
pub(crate) fn run_url(visit: &Visit, id: impl Display) -> String {
    visit.url(&format!("runs/{id}"))
}

/// Parses the id of a run from the path.
pub(crate) fn parse_run_id(text: &str) -> Result<Uuid, RunsError> {
    text.parse().map_err(|_| RunsError::Unknown(text.chars().take(60).collect()))
}

/// One sync of a connection and variant, as the address of its page names it.
pub(crate) struct SyncAddress {
    pub(crate) integration: IntegrationKey,
    pub(crate) connection: ConnectionId,
    pub(crate) sync: FunctionName,
    pub(crate) variant: Variant,
}

impl FromRequestParts<Dashboard> for SyncAddress {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &Dashboard) -> Result<Self, PageError> {
        type Names = (String, String, String, String, String);
        let unknown = || PageError::NotFound("the address of this page names no sync".to_owned());
        let Path((_, integration, connection, sync, variant)) =
            Path::<Names>::from_request_parts(parts, app).await.map_err(|_| unknown())?;
        Ok(Self {
            integration: integration.parse().map_err(|_| unknown())?,
            connection: connection.parse().map_err(|_| unknown())?,
            sync: sync.parse().map_err(|_| unknown())?,
            variant: variant.parse().map_err(|_| unknown())?,
        })
    }
}

impl SyncAddress {
    pub(crate) fn of(listed: &ListedSync) -> Self {
        Self {
            integration: listed.integration.clone(),
            connection: listed.status.connection.clone(),
            sync: listed.status.sync.clone(),
            variant: listed.status.variant.clone(),
        }
    }

    /// The address of the sync's page.
    pub(crate) fn url(&self, visit: &Visit) -> String {
        let Self { integration, connection, sync, variant } = self;
        let names = [integration.as_str(), connection.as_str(), sync.as_str(), variant.as_str()];
        visit.url(&format!("syncs/{}", names.map(segment).join("/")))
    }

    /// The name of the sync, with the variant unless it is the default.
    pub(crate) fn title(&self) -> String {
        if self.variant.is_base() {
            self.sync.to_string()
        } else {
            format!("{} · {}", self.sync, self.variant)
        }
    }
}
