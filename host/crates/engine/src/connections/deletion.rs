//! Deletes connections. The connection disappears at once; its records are removed in small batches.
//!
//! The connection's row is deleted first, together with its schedules and leases. Then its streams are closed. Closing
//! waits for a transaction that a run is committing; after it, the run cannot write anything. All hosts share the work
//! of removing the remaining records.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connections::Connections;
use crate::lookup::{LookupError, find_integration};
use crate::sweep::sweep;
use syncline_auth::{DEFAULT_ENVIRONMENT, EnvironmentError};
use syncline_store::audit_log::{self, NewEntry};
use syncline_store::connections::Validation;
use syncline_store::deleted_connections::{self, Deleted};
use syncline_store::events::Event;
use syncline_store::{Transaction, closed_connections, connections, integrations, runs};
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::actor::Actor;
use syncline_types::audit_log::{AuditAction, TargetKind};
use syncline_types::error_code::ErrorCode;
use syncline_types::ids::{ConnectionId, ConnectionPk, EnvironmentPk, IntegrationKey};

/// Connections that one transaction closes. Each takes a lock.
const CLOSE_AT_ONCE: usize = 200;
/// Records that one statement removes, and the pause after it, which leaves disk bandwidth for other work.
const BATCH: i64 = 1_000;
const PAUSE: Duration = Duration::from_millis(10);
/// How long a host works on one connection before it takes the next one, and the lease that keeps other hosts from it.
const MAX_TURN: Duration = Duration::from_secs(20);
const CLAIM_LEASE: Duration = Duration::from_secs(60);
/// Longest wait between two checks for deletions, because a notification can be lost.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// How long a deleted connection stays marked as closed. No function runs for longer than this.
const CLOSED_FOR: Duration = Duration::from_hours(1);

/// Why a connection, an integration or an environment was not deleted.
#[derive(Debug, thiserror::Error)]
pub enum DeletionError {
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error("the deletion failed; try again")]
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
        actor: &Actor,
    ) -> Result<(), DeletionError> {
        let route = self.cache.get(environment, integration, id).await?;
        let (this, actor) = (Arc::clone(self), actor.clone());
        let entry = NewEntry::of_connection(environment, AuditAction::ConnectionDeleted, integration, id);
        let deleted = self.running.spawn(async move {
            this.lifecycle.run_before_deletion(&route).await;
            let mut tx = this.store.begin().await?;
            if !connections::delete(&mut tx, route.pk, None).await? {
                return Ok(false);
            }
            audit_log::write(&mut tx, &actor, &entry).await?;
            this.finish_removal(tx, route.pk).await?;
            sqlx::Result::<bool>::Ok(true)
        });
        if completed(deleted.await)? {
            return Ok(());
        }
        Err(self.cache.explain_missing(environment, integration, id).await.into())
    }

    /// Deletes a new connection that a function has not accepted, while it waits for this validation. No client has
    /// seen it, so the audit log has no entry of it.
    pub(super) async fn remove_unvalidated_connection(
        &self,
        connection: ConnectionPk,
        validation: Validation,
    ) -> sqlx::Result<()> {
        let mut tx = self.store.begin().await?;
        if !connections::delete(&mut tx, connection, Some(validation)).await? {
            return Ok(());
        }
        self.finish_removal(tx, connection).await
    }

    /// Commits the deletion of a connection's row, and closes its streams.
    async fn finish_removal(&self, mut tx: Transaction, connection: ConnectionPk) -> sqlx::Result<()> {
        deleted_connections::note(&mut tx, &[connection]).await?;
        tx.commit().await?;
        failpoints::reach(Step::ConnectionDeleted);
        self.cache.forget(connection);
        self.close(&[connection]).await
    }

    /// Deletes an integration with its connections and functions, after the pre-deletion functions have run.
    pub(crate) async fn delete_integration(
        self: &Arc<Self>,
        environment: EnvironmentPk,
        key: &IntegrationKey,
        actor: &Actor,
    ) -> Result<(), DeletionError> {
        let mut conn = self.store.connect().await.map_err(LookupError::from)?;
        let integration = find_integration(&mut conn, environment, key).await?;
        drop(conn);
        let (this, deleted_key, actor) = (Arc::clone(self), key.clone(), actor.clone());
        let deleted = self.running.spawn(async move {
            this.lifecycle.run_before_deletions(environment, Some(integration.pk)).await;
            this.remove_integration(environment, &deleted_key, &actor).await
        });
        if completed(deleted.await)? {
            return Ok(());
        }
        Err(LookupError::UnknownIntegration(key.clone()).into())
    }

    /// Deletes an environment with everything in it, after the pre-deletion functions have run.
    pub async fn delete_environment(self: &Arc<Self>, id: Uuid, actor: &Actor) -> Result<(), DeletionError> {
        let environment = self.environments.get_by_id(id).await?;
        if environment.name.as_str() == DEFAULT_ENVIRONMENT {
            return Err(EnvironmentError::DefaultStays.into());
        }
        let (this, environment, actor) = (Arc::clone(self), environment.pk, actor.clone());
        let deleted = self.running.spawn(async move {
            this.lifecycle.run_before_deletions(environment, None).await;
            this.environments.delete(environment, &actor).await
        });
        completed(deleted.await)
    }

    async fn remove_integration(
        &self,
        environment: EnvironmentPk,
        key: &IntegrationKey,
        actor: &Actor,
    ) -> sqlx::Result<bool> {
        let mut tx = self.store.begin().await?;
        let Some(connections) = integrations::delete(&mut tx, environment, key).await? else {
            return Ok(false);
        };
        let action = AuditAction::IntegrationDeleted;
        let entry = NewEntry::new(environment, action, TargetKind::Integration, key.as_str())
            .with(json!({ "connections": connections.len() }));
        audit_log::write(&mut tx, actor, &entry).await?;
        tx.commit().await?;
        self.cache.forget_all();
        self.close(&connections).await?;
        self.events.publish(Event::Deployments);
        Ok(true)
    }

    /// Closes the streams of deleted connections and cancels their runs.
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

    /// Removes the remaining records of deleted connections, until `shutdown`.
    pub async fn clean_up(self: Arc<Self>, shutdown: CancellationToken) {
        let failure = "could not remove the records of deleted connections; retrying";
        sweep(&self.events, Event::Deletions, MAX_CHECK_INTERVAL, shutdown, failure, || self.clean_up_one())
            .await;
    }

    /// Removes records of one deleted connection for up to [`MAX_TURN`]. Returns `false` if there is none.
    async fn clean_up_one(&self) -> sqlx::Result<bool> {
        let mut conn = self.store.connect().await?;
        let Some(Deleted { connection, age }) = deleted_connections::claim(&mut conn, CLAIM_LEASE).await?
        else {
            return Ok(false);
        };
        drop(conn);
        // The host that deleted the connection may have died before it closed the streams.
        self.close(&[connection]).await?;
        let started_at = Instant::now();
        while self.remove_batch(connection).await? {
            if started_at.elapsed() > MAX_TURN {
                deleted_connections::postpone(&mut *self.store.connect().await?, connection, Duration::ZERO)
                    .await?;
                return Ok(true);
            }
            tokio::time::sleep(PAUSE).await;
        }
        failpoints::reach(Step::ConnectionEmptied);
        let mut conn = self.store.connect().await?;
        match CLOSED_FOR.checked_sub(age) {
            Some(wait) => deleted_connections::postpone(&mut conn, connection, wait).await?,
            None => {
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

/// Flattens the result of a spawned deletion.
fn completed<T, E: Into<anyhow::Error>>(
    deleted: Result<Result<T, E>, tokio::task::JoinError>,
) -> Result<T, DeletionError> {
    let deleted = deleted.map_err(|error| DeletionError::Failed(error.into()))?;
    deleted.map_err(|error| DeletionError::Failed(error.into()))
}
