//! Fields with which pages choose integrations and connections.

use maud::{Markup, html};

use crate::Dashboard;
use crate::error::PageError;
use crate::form::Fields;
use crate::session::Visit;
use syncline_engine::{ConnectionFilter, ConnectionPage, NamedScope};
use syncline_types::ids::IntegrationKey;

/// Connections that a field suggests.
const SUGGESTIONS: i64 = 50;

/// The integration and the connection that the filters of a list name.
pub(crate) fn scope(query: &Fields) -> Result<NamedScope, PageError> {
    let integration = query.parse_optional("integration", "Integration")?;
    let connection = query.parse_optional("connection", "Connection")?;
    match (integration, connection) {
        (None, None) => Ok(NamedScope::Environment),
        (Some(integration), None) => Ok(NamedScope::Integration(integration)),
        (Some(integration), Some(connection)) => Ok(NamedScope::Connection { integration, connection }),
        (None, Some(_)) => {
            let problem = "choose one, because connection ids are unique only within an integration";
            Err(PageError::invalid("Integration", problem))
        }
    }
}

/// A field for the id of a connection of an integration. It suggests the newest connections.
pub(crate) async fn connection_field(
    app: &Dashboard,
    visit: &Visit,
    integration: &IntegrationKey,
    value: &str,
) -> Result<Markup, PageError> {
    let filter =
        ConnectionFilter { integrations: Some(vec![integration.to_string()]), ..ConnectionFilter::default() };
    let page = ConnectionPage { limit: SUGGESTIONS, offset: 0 };
    let newest = app.connections.list(visit.environment.pk, &filter, page).await?;
    Ok(html! {
        label.field {
            span.label { "Connection" }
            input type="text" name="connection" value=(value) required list="connections" autocomplete="off";
            datalist id="connections" {
                @for described in &newest { option value=(described.connection.connection_id) {} }
            }
        }
    })
}
