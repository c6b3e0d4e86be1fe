//! Finds integrations and connections by the names that clients use.

use sqlx::PgConnection;

use syncline_store::integrations::{self, Integration};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionId, EnvironmentPk, IntegrationKey};

/// Why an integration or a connection was not found.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    #[error("there is no integration `{0}` in this environment; `GET /integrations` lists them")]
    UnknownIntegration(IntegrationKey),
    #[error(
        "integration `{integration}` has no connection `{connection}`; check both names, or list the connections with \
         `GET /connections`"
    )]
    UnknownConnection { integration: IntegrationKey, connection: ConnectionId },
    #[error("integrations and connections could not be read")]
    Store(#[from] sqlx::Error),
}

impl LookupError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::UnknownIntegration(_) => ErrorCode::UnknownIntegration,
            Self::UnknownConnection { .. } => ErrorCode::UnknownConnection,
            Self::Store(_) => ErrorCode::InternalServerError,
        }
    }
}

/// Limits a list to an environment, an integration or a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedScope {
    Environment,
    Integration(IntegrationKey),
    Connection { integration: IntegrationKey, connection: ConnectionId },
}

/// Returns the integration with this key.
pub(crate) async fn find_integration(
    conn: &mut PgConnection,
    environment: EnvironmentPk,
    key: &IntegrationKey,
) -> Result<Integration, LookupError> {
    let found = integrations::find(conn, environment, key).await?;
    found.ok_or_else(|| LookupError::UnknownIntegration(key.clone()))
}
