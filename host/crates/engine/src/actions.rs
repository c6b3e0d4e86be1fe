//! Actions: functions that run on demand for one connection, while the caller waits or in the background.

pub(crate) mod idempotency_key;
pub(crate) mod keyed;
pub(crate) mod queued;
pub(crate) mod request;

use std::sync::Arc;

use uuid::Uuid;

use crate::connections::route::ConnectionRoute;
use crate::functions::{DeployedFunction, Functions};
use crate::invoker::Invoker;
use crate::invoker::action::check;
use crate::invoker::error::ActionError;
use crate::invoker::invocation::Invocation;
use crate::invoker::recording::Recording;
use crate::jobs::Jobs;
use crate::jobs::result::ActionFailure;
use syncline_auth::Environment;
use syncline_config::FunctionKind;
use syncline_sandbox::{PriorityClass, RunInfo};
use syncline_store::Store;
use syncline_types::ids::{FunctionName, Variant};

/// Runs actions for clients.
pub struct Actions {
    store: Store,
    functions: Arc<Functions>,
    invoker: Arc<Invoker>,
    jobs: Arc<Jobs>,
}

/// An action that was run.
#[derive(Debug)]
pub struct ActionRun {
    /// Id of the run. Its row is written shortly after the action has ended.
    pub id: Uuid,
    /// JSON text, or nothing.
    pub result: Result<Option<String>, ActionError>,
}

impl Actions {
    pub fn new(store: Store, functions: Arc<Functions>, invoker: Arc<Invoker>, jobs: Arc<Jobs>) -> Arc<Self> {
        Arc::new(Self { store, functions, invoker, jobs })
    }

    /// Runs an action and returns its result as JSON text. Dropping the future stops the function.
    pub async fn run(
        &self,
        environment: &Arc<Environment>,
        connection: &Arc<ConnectionRoute>,
        name: &FunctionName,
        input: Option<String>,
    ) -> Result<Option<String>, ActionError> {
        self.run_recorded(environment, connection, name, input).await?.result
    }

    /// Like [`Self::run`], with the id of the run. Fails if the function was not started, so that there is no run.
    pub async fn run_recorded(
        &self,
        environment: &Arc<Environment>,
        connection: &Arc<ConnectionRoute>,
        name: &FunctionName,
        input: Option<String>,
    ) -> Result<ActionRun, ActionError> {
        let function = self.find(connection, name, input.as_deref()).await?;
        let id = Uuid::now_v7();
        let recording =
            Recording::begin(&self.invoker, FunctionKind::Action, id, None, connection, &function);
        let invocation = Invocation {
            kind: FunctionKind::Action,
            run: RunInfo {
                id: id.to_string(),
                variant: Variant::BASE.to_owned(),
                attempt: 1,
                is_full: false,
            },
            environment,
            connection,
            function: &function,
            priority: PriorityClass::Interactive,
            input,
            signals: Arc::default(),
            live: &recording.live,
        };
        let (result, usage) = self.invoker.invoke_action(invocation).await;
        let error = result.as_ref().err().map(|error| error.to_run_error(FunctionKind::Action));
        self.invoker.run_writer.write(recording.end_with(error, usage).await).await;
        Ok(ActionRun { id, result })
    }

    /// Describes an error as clients see it.
    pub fn describe(&self, error: &ActionError) -> ActionFailure {
        ActionFailure::new(error, self.invoker.clock.now())
    }

    /// Finds the action with this name and checks the input against its input model.
    pub(crate) async fn find(
        &self,
        connection: &ConnectionRoute,
        name: &FunctionName,
        input: Option<&str>,
    ) -> Result<Arc<DeployedFunction>, ActionError> {
        let (environment, integration) = (connection.environment, connection.integration);
        let found = self.functions.find_deployed(environment, integration, FunctionKind::Action, name).await;
        let found = found.map_err(ActionError::host)?;
        let function = found.ok_or_else(|| ActionError::Unknown {
            action: name.clone(),
            integration: connection.integration_key.clone(),
        })?;
        if let Some(shape) = function.input() {
            check(shape, input).map_err(ActionError::Input)?;
        }
        Ok(function)
    }
}
