//! Reads connections for clients.

use std::collections::HashMap;
use std::sync::Arc;

use crate::connections::Connections;
use crate::credentials::{Freshness, RefreshError};
use crate::lookup::LookupError;
use syncline_auth::{Environment, StoredCredentials};
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::connection_errors;
pub use syncline_store::connection_errors::ConnectionError;
use syncline_store::connections;
pub use syncline_store::connections::{
    Connection, ConnectionCounts, ConnectionFilter, ConnectionPosition, ErrorFilter as ConnectionErrorFilter,
    Page as ConnectionPage,
};
use syncline_types::actor::Actor;
use syncline_types::audit_log::AuditAction;
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionId, ConnectionPk, EnvironmentPk, IntegrationKey, IntegrationPk};

/// A connection with its active errors.
#[derive(Debug)]
pub struct DescribedConnection {
    pub connection: Connection,
    pub errors: Vec<ConnectionError>,
}

/// A part of a page of connections.
#[derive(Debug)]
pub struct ConnectionsPart {
    pub connections: Vec<DescribedConnection>,
    /// The position of the last connection, if the rest of the page is missing.
    pub behind: Option<ConnectionPosition>,
}

/// How the credentials of a connection are fetched.
#[derive(Debug, Clone, Copy)]
pub struct CredentialOptions {
    pub freshness: Freshness,
    /// Whether to add a new token of the app itself. Applies if the connection is an installation of an app.
    pub with_app_token: bool,
}

/// A connection, with its live credentials if the client requested them.
#[derive(Debug)]
pub struct FetchedConnection {
    pub described: DescribedConnection,
    pub credentials: Option<StoredCredentials>,
}

/// Why a connection was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The credentials could not be refreshed. The response shows the connection without them.
    #[error("{error}")]
    Unusable { error: RefreshError, connection: Box<DescribedConnection> },
    #[error("the credentials could not be read")]
    Credentials(#[source] RefreshError),
    #[error("the connection could not be read")]
    Store(#[from] sqlx::Error),
}

impl FetchError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Lookup(error) => error.code(),
            Self::Unusable { .. } => ErrorCode::InvalidCredentials,
            Self::Credentials(_) | Self::Store(_) => ErrorCode::InternalServerError,
        }
    }
}

impl Connections {
    /// Returns a page of an environment's connections, newest first.
    pub async fn list(
        &self,
        environment: EnvironmentPk,
        filter: &ConnectionFilter,
        page: ConnectionPage,
    ) -> Result<Vec<DescribedConnection>, LookupError> {
        Ok(self.list_up_to(environment, filter, page, usize::MAX).await?.connections)
    }

    /// Returns a page like [`list`](Self::list), or the first part of it if it is long.
    pub async fn list_part(
        &self,
        environment: EnvironmentPk,
        filter: &ConnectionFilter,
        page: ConnectionPage,
    ) -> Result<ConnectionsPart, LookupError> {
        self.list_up_to(environment, filter, page, self.settings.max_page_bytes).await
    }

    async fn list_up_to(
        &self,
        environment: EnvironmentPk,
        filter: &ConnectionFilter,
        page: ConnectionPage,
        max_bytes: usize,
    ) -> Result<ConnectionsPart, LookupError> {
        let mut conn = self.store.connect().await?;
        let part = connections::list(&mut conn, environment, filter, page, max_bytes).await?;
        part.release(conn);
        let last = part.rows.last().filter(|_| part.is_cut);
        let behind = last.map(|last| ConnectionPosition { created_at: last.created_at, pk: last.pk });
        Ok(ConnectionsPart { connections: self.describe_all(part.rows).await?, behind })
    }

    async fn describe_all(&self, found: Vec<Connection>) -> sqlx::Result<Vec<DescribedConnection>> {
        let mut conn = self.store.connect().await?;
        let pks: Vec<ConnectionPk> = found.iter().map(|connection| connection.pk).collect();
        let mut errors = HashMap::<_, Vec<_>>::new();
        for error in connection_errors::list(&mut conn, &pks).await? {
            errors.entry(error.connection).or_default().push(error);
        }
        let described = found.into_iter().map(|connection| {
            let errors = errors.remove(&connection.pk).unwrap_or_default();
            DescribedConnection { connection, errors }
        });
        Ok(described.collect())
    }

    /// Counts the connections of these integrations. Integrations without connections are omitted.
    pub async fn count_by_integration(
        &self,
        integrations: &[IntegrationPk],
    ) -> Result<HashMap<IntegrationPk, ConnectionCounts>, LookupError> {
        Ok(connections::count_by_integration(&mut *self.store.connect().await?, integrations).await?)
    }

    /// Returns one connection without its credentials. Unlike [`Self::fetch`], does not record the time of the request.
    pub async fn get(
        &self,
        environment: EnvironmentPk,
        integration: &IntegrationKey,
        id: &ConnectionId,
    ) -> Result<DescribedConnection, LookupError> {
        let found =
            connections::find(&mut *self.store.connect().await?, environment, integration, id).await?;
        match found {
            Some(connection) => Ok(self.describe(connection).await?),
            None => Err(self.cache.explain_missing(environment, integration, id).await),
        }
    }

    /// Returns one connection and records the time of the request. With `credentials`, refreshes them if necessary, and
    /// records in the audit log that the client has read them.
    pub async fn fetch(
        &self,
        environment: &Arc<Environment>,
        integration: &IntegrationKey,
        id: &ConnectionId,
        credentials: Option<CredentialOptions>,
        actor: &Actor,
    ) -> Result<FetchedConnection, FetchError> {
        let route = self.cache.get(environment.pk, integration, id).await?;
        let unknown =
            || LookupError::UnknownConnection { integration: integration.clone(), connection: id.clone() };
        let found = connections::fetch(&mut *self.store.connect().await?, route.pk).await?;
        let connection = found.ok_or_else(unknown)?;
        let Some(options) = credentials else {
            return Ok(FetchedConnection { described: self.describe(connection).await?, credentials: None });
        };
        let mut live = self.credentials.live_of(environment, connection, options.freshness).await;
        if options.with_app_token
            && let Ok(credentials) = live
        {
            live = self.credentials.with_app_token(environment, credentials).await;
        }
        match live {
            Ok(live) => {
                self.record_read(&live.connection, actor).await?;
                Ok(FetchedConnection {
                    described: self.describe(live.connection).await?,
                    credentials: Some(live.credentials),
                })
            }
            Err(RefreshError::Gone) => Err(unknown().into()),
            Err(error) if error.is_internal() => Err(FetchError::Credentials(error)),
            Err(error) => {
                let found = connections::get(&mut *self.store.connect().await?, route.pk).await?;
                let connection = Box::new(self.describe(found.ok_or_else(unknown)?).await?);
                Err(FetchError::Unusable { error, connection })
            }
        }
    }

    /// Records in the audit log that a client reads the credentials of a connection.
    pub(super) async fn record_read(&self, connection: &Connection, actor: &Actor) -> sqlx::Result<()> {
        let (integration, id) = (&connection.integration_key, &connection.connection_id);
        let action = AuditAction::CredentialsRead;
        let entry = NewEntry::of_connection(connection.environment, action, integration, id);
        audit_log::write(&mut *self.store.connect().await?, actor, &entry).await
    }

    pub(super) async fn describe(&self, connection: Connection) -> sqlx::Result<DescribedConnection> {
        let mut conn = self.store.connect().await?;
        let errors = connection_errors::list(&mut conn, &[connection.pk]).await?;
        Ok(DescribedConnection { connection, errors })
    }
}
