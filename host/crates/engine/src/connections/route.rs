//! The part of a connection that never changes.

use syncline_store::connections::Connection;
use syncline_types::ids::{
    ConnectionId, ConnectionPk, EnvironmentPk, IntegrationKey, IntegrationPk, ProviderSlug,
};

/// The part of a connection that never changes while it exists.
#[derive(Debug)]
pub struct ConnectionRoute {
    pub pk: ConnectionPk,
    pub environment: EnvironmentPk,
    pub integration: IntegrationPk,
    pub integration_key: IntegrationKey,
    pub provider: ProviderSlug,
    pub connection_id: ConnectionId,
}

impl From<&Connection> for ConnectionRoute {
    fn from(connection: &Connection) -> Self {
        Self {
            pk: connection.pk,
            environment: connection.environment,
            integration: connection.integration,
            integration_key: connection.integration_key.clone(),
            provider: connection.provider.clone(),
            connection_id: connection.connection_id.clone(),
        }
    }
}
