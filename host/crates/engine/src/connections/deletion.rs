//! Deletes connections: at once for whoever asks for them, in small batches for what was kept of them.
//!
//! The connection's row goes first, and with it its schedules and leases. Then its streams are closed: a run that is on
//! is waited for while it commits, and can write nothing afterwards. The records are nobody's by then; every host
//! takes its turn at removing them.

use std::sync::Arc;
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connections::Connections;
use crate::lookup::{LookupError, find_integration};
use crate::sweep::sweep;
use syncline_auth::{DEFAULT_ENVIRONMENT, EnvironmentError};
use syncline_store::connections::Validation;
use syncline_store::deleted_connections::{self, Deleted};
use syncline_store::events::Event;
use syncline_store::{closed_connections, connections, integrations, runs};
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionId, ConnectionPk, EnvironmentPk, IntegrationKey};

/// How many connections are closed by one transaction: each takes a lock.
const CLOSE_AT_ONCE: usize = 200;
/// Records that are removed by one statement, and the pause after it, which leaves the disk to others.
const BATCH: i64 = 1_000;
const PAUSE: Duration = Duration::from_millis(10);
/// How long a host works on one connection, and how long others leave it alone for.
const TURN: Duration = Duration::from_secs(20);
const HOLD: Duration = Duration::from_secs(60);
/// However quiet it is, deletions are looked for after this long: a notification may have been lost.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// No function that was on when its connection was deleted is on for longer.
const REMEMBERED_FOR: TimeDelta = TimeDelta::hours(1);

/// Why something was not deleted.
#[derive(Debug, thiserror::Error)]
pub enum DeletionError {
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error("the deletion failed; it may be repeated")]
    Failed(#[source] anyhow::Error),
}

impl DeletionError {
    /// The stable code.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Lookup(error) => error.code(),
            Self::Environment(error) => error.code(),
            Self::Failed(_) => ErrorCode::InternalServerError,
        }
    }
}

impl Connections {
    /// Deletes a connection, after its pre-deletion functions have run. The deletion completes even if the caller goes
    /// away.
    pub async fn delete(
        self: &Arc<Self>,
        environment: EnvironmentPk,
        integration: &IntegrationKey,
        id: &ConnectionId,
    ) -> Result<(), DeletionError> {
        let route = self.cache.get(environment, integration, id).await?;
        let this = Arc::clone(self);
        let deleted = self.running.spawn(async move {
            this.lifecycle.run_before_deletion(&route).await;
            this.remove_connection(route.pk, None).await
        });
        if completed(deleted.await)? {
            return Ok(());
        }
        Err(self.cache.explain_missing(environment, integration, id).await.into())
    }

    /// Deletes a connection at once; with `validation`, only while that is the one that it waits for.
    pub(crate) async fn remove_connection(
        &self,
        connection: ConnectionPk,
        validation: Option<Validation>,
    ) -> sqlx::Result<bool> {
        let mut tx = self.store.begin().await?;
        if !connections::delete(&mut tx, connection, validation).await? {
            return Ok(false);
        }
        deleted_connections::note(&mut tx, &[connection]).await?;
        tx.commit().await?;
        failpoints::reach(Step::ConnectionDeleted);
        self.cache.forget(connection);
        self.close(&[connection]).await?;
        Ok(true)
    }

    /// Deletes an integration with its connections and functions, in the same way.
    pub(crate) async fn delete_integration(
        self: &Arc<Self>,
        environment: EnvironmentPk,
        key: &IntegrationKey,
    ) -> Result<(), DeletionError> {
        let mut conn = self.store.connect().await.map_err(LookupError::from)?;
        let integration = find_integration(&mut conn, environment, key).await?;
        drop(conn);
        let (this, deleted_key) = (Arc::clone(self), key.clone());
        let deleted = self.running.spawn(async move {
            this.lifecycle.run_before_deletions(environment, Some(integration.pk)).await;
            this.remove_integration(environment, &deleted_key).await
        });
        if completed(deleted.await)? {
            return Ok(());
        }
        Err(LookupError::UnknownIntegration(key.clone()).into())
    }

    /// Deletes an environment with everything in it, in the same way.
    pub async fn delete_environment(self: &Arc<Self>, id: Uuid) -> Result<(), DeletionError> {
        let environment = self.environments.get_by_id(id).await?;
        if environment.name.as_str() == DEFAULT_ENVIRONMENT {
            return Err(EnvironmentError::DefaultStays.into());
        }
        let (this, environment) = (Arc::clone(self), environment.pk);
        let deleted = self.running.spawn(async move {
            this.lifecycle.run_before_deletions(environment, None).await;
            this.environments.delete(environment).await
        });
        completed(deleted.await)
    }

    async fn remove_integration(
        &self,
        environment: EnvironmentPk,
        key: &IntegrationKey,
    ) -> sqlx::Result<bool> {
        let mut tx = self.store.begin().await?;
        let Some(connections) = integrations::delete(&mut tx, environment, key).await? else {
            return Ok(false);
        };
        tx.commit().await?;
        self.cache.forget_all();
        self.close(&connections).await?;
        self.events.publish(Event::Deployments);
        Ok(true)
    }

    /// Ends what is on for connections that are gone.
    async fn close(&self, connections: &[ConnectionPk]) -> sqlx::Result<()> {
        for part in connections.chunks(CLOSE_AT_ONCE) {
            let mut tx = self.store.begin_records().await?;
            closed_connections::close(&mut tx, part).await?;
            tx.commit().await?;
        }
        failpoints::reach(Step::ConnectionClosed);
        runs::cancel_orphans(&mut *self.store.connect().await?, connections).await?;
        self.events.publish(Event::Cancel);
        self.events.publish(Event::Deletions);
        Ok(())
    }

    /// Removes what deleted connections have left, until `shutdown`.
    pub async fn clean_up(self: Arc<Self>, shutdown: CancellationToken) {
        let failure = "what deleted connections have left was not removed; it will be tried again";
        sweep(&self.events, Event::Deletions, LOOK_EVERY, shutdown, failure, || self.clean_up_one()).await;
    }

    /// Works on one deleted connection for a while. `false`: there is none.
    async fn clean_up_one(&self) -> sqlx::Result<bool> {
        let mut conn = self.store.connect().await?;
        let Some(Deleted { connection, deleted_at }) = deleted_connections::claim(&mut conn, HOLD).await?
        else {
            return Ok(false);
        };
        drop(conn);
        // The host that deleted it may have died before it came to this.
        self.close(&[connection]).await?;
        let began = Instant::now();
        while self.remove_batch(connection).await? {
            if began.elapsed() > TURN {
                deleted_connections::postpone(&mut *self.store.connect().await?, connection, Duration::ZERO)
                    .await?;
                return Ok(true);
            }
            tokio::time::sleep(PAUSE).await;
        }
        failpoints::reach(Step::ConnectionEmptied);
        let remembered_until = deleted_at + REMEMBERED_FOR;
        let mut conn = self.store.connect().await?;
        match (remembered_until - Utc::now()).to_std() {
            Ok(wait) => deleted_connections::postpone(&mut conn, connection, wait).await?,
            Err(_over) => {
                closed_connections::forget(&mut *self.store.connect_records().await?, connection).await?;
                deleted_connections::forget(&mut conn, connection).await?;
            }
        }
        Ok(true)
    }

    async fn remove_batch(&self, connection: ConnectionPk) -> sqlx::Result<bool> {
        closed_connections::remove_batch(&mut *self.store.connect_records().await?, connection, BATCH).await
    }
}

/// The result of a task that deletes something.
fn completed<T, E: Into<anyhow::Error>>(
    deleted: Result<Result<T, E>, tokio::task::JoinError>,
) -> Result<T, DeletionError> {
    let deleted = deleted.map_err(|error| DeletionError::Failed(error.into()))?;
    deleted.map_err(|error| DeletionError::Failed(error.into()))
}
