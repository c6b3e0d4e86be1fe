//! Functions that run at a turn in a connection's life: to validate it, after it was made, before it is deleted.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use super::actions::Invocation;
use super::connections::ConnectError;
use super::failure::{ActionError, FunctionError};
use super::functions::DeployedFunction;
use super::recording::Recording;
use super::{ConnectionRoute, Engine};
use crate::auth::Environment;
use crate::config::LifecycleEvent;
use crate::ids::Variant;
use crate::runtime::{RunInfo, Urgency};
use crate::store::connections::{self, Connection};
use crate::store::function_jobs::{self, NewJob};

/// How long a deletion waits for the functions before it, all of them together.
const DELETION_WAITS: Duration = Duration::from_secs(30);
/// No validation lasts for longer, so the host of one that began before is gone.
const VALIDATION_LASTS: Duration = Duration::from_secs(30 * 60);

impl Engine {
    /// Queues what runs after a connection was made or connected anew, in the transaction that does so.
    pub(super) async fn queue_after_creation(
        &self,
        conn: &mut PgConnection,
        connection: &Connection,
    ) -> sqlx::Result<()> {
        let event = LifecycleEvent::ConnectionCreated;
        for function in self.functions.lifecycle_of(connection.integration, event) {
            let job = NewJob {
                id: Uuid::now_v7(),
                environment: connection.environment,
                integration: connection.integration,
                connection: connection.pk,
                integration_key: &connection.integration_key,
                connection_id: &connection.connection_id,
                kind: "lifecycle",
                function: &function.name,
                is_ordered: false,
                max_retries: 0,
                sealed_input: None,
                key: None,
                webhook: None,
            };
            function_jobs::enqueue(conn, &job).await?;
        }
        Ok(())
    }

    pub(super) fn can_validate(&self, connection: &Connection) -> bool {
        let event = LifecycleEvent::ConnectionValidating;
        !self.functions.lifecycle_of(connection.integration, event).is_empty()
    }

    /// Lets the functions of the integration judge a connection that is stored; the first that fails refuses it.
    pub(super) async fn validate(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: &Connection,
    ) -> Result<(), ConnectError> {
        let route = Arc::new(ConnectionRoute::from(connection));
        let event = LifecycleEvent::ConnectionValidating;
        for function in self.functions.lifecycle_of(connection.integration, event) {
            match self.run_lifecycle(environment, &route, &function).await {
                Ok(()) => {}
                Err(FunctionError::Host(error)) => return Err(ConnectError::Validation(error)),
                Err(refusal) => return Err(ConnectError::Refused(refusal.to_string())),
            }
        }
        Ok(())
    }

    /// Runs what comes before a deletion. Neither a failure nor one that takes too long keeps a connection.
    pub(super) async fn run_before_deletion(self: &Arc<Self>, connection: &Arc<ConnectionRoute>) {
        let event = LifecycleEvent::ConnectionDeleting;
        let functions = self.functions.lifecycle_of(connection.integration, event);
        if functions.is_empty() {
            return;
        }
        let environment = match self.environments.get(connection.environment).await {
            Ok(environment) => environment,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "a connection is deleted without its functions having run");
                return;
            }
        };
        let all = async {
            for function in functions {
                // It is in the run's row.
                let _failure = self.run_lifecycle(&environment, connection, &function).await;
            }
        };
        if tokio::time::timeout(DELETION_WAITS, all).await.is_err() {
            tracing::warn!(
                connection.id = connection.pk.0,
                "a connection is deleted before its functions have ended: they took longer than {DELETION_WAITS:?}"
            );
        }
    }

    async fn run_lifecycle(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: &Arc<ConnectionRoute>,
        function: &Arc<DeployedFunction>,
    ) -> Result<(), FunctionError> {
        let id = Uuid::now_v7();
        let recording = Recording::begin(self, "lifecycle", id, None, 1, connection, function);
        let invocation = Invocation {
            kind: "lifecycle",
            run: RunInfo { id: id.to_string(), variant: Variant::BASE.to_owned(), attempt: 1 },
            environment,
            connection,
            function,
            urgency: Urgency::WaitedFor,
            input: function.event_input(),
            signals: Arc::default(),
            live: &recording.live,
        };
        let (result, usage) = self.invoke(invocation).await;
        let result = result.map_err(ActionError::Function);
        let error = result.as_ref().err().map(ActionError::to_run_error);
        self.run_writer.write(recording.end_with(error, usage).await).await;
        match result {
            Ok(_) => Ok(()),
            Err(ActionError::Function(error)) => {
                let name = &function.name;
                tracing::warn!(run.id = %id, connection.id = connection.pk.0, "lifecycle `{name}` failed");
                Err(error)
            }
            Err(error) => Err(FunctionError::Host(error.into())),
        }
    }
}

/// Removes new connections whose validation was never ended.
pub(super) async fn remove_unvalidated(engine: &Engine) -> sqlx::Result<()> {
    let mut conn = engine.store.connect().await?;
    let left = connections::list_unvalidated(&mut conn, VALIDATION_LASTS).await?;
    drop(conn);
    for (connection, validation) in left {
        engine.remove_connection(connection, Some(validation)).await?;
    }
    Ok(())
}
