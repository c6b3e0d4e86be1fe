//! Runs actions: on demand, for one connection, while somebody waits.

use std::sync::Arc;
use std::time::Instant;

use tracing::Instrument;
use uuid::Uuid;

use crate::functions::DeployedFunction;
use crate::invoker::capabilities::{FunctionCapabilities, RunSignals};
use crate::invoker::error::{ActionError, FunctionError};
use crate::invoker::live_runs::LiveRun;
use crate::invoker::recording::Recording;
use crate::records::commit::RecordWriter;
use crate::{ConnectionRoute, Engine};
use syncline_auth::Environment;
use syncline_config::FunctionKind;
use syncline_model::{Invalid, Malformed, Problem, Shape};
use syncline_sandbox::{Call, RunInfo, RunLog, Urgency, Usage};
use syncline_store::dead_letters::Author;
use syncline_types::ids::{FunctionName, Variant};

/// One invocation of a function that has no schedule.
pub(crate) struct Invocation<'a> {
    pub(crate) kind: &'static str,
    pub(crate) run: RunInfo,
    pub(crate) environment: &'a Arc<Environment>,
    pub(crate) connection: &'a Arc<ConnectionRoute>,
    pub(crate) function: &'a Arc<DeployedFunction>,
    pub(crate) urgency: Urgency,
    pub(crate) input: Option<String>,
    pub(crate) signals: Arc<RunSignals>,
    pub(crate) live: &'a LiveRun,
}

impl Engine {
    /// Runs an action and gives what it returns, as JSON text. Dropping the future ends the function.
    pub async fn run_action(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: &Arc<ConnectionRoute>,
        name: &FunctionName,
        input: Option<String>,
    ) -> Result<Option<String>, ActionError> {
        let function = self.find_action(connection, name, input.as_deref()).await?;
        let id = Uuid::now_v7();
        let recording = Recording::begin(self, "action", id, None, 1, connection, &function);
        let invocation = Invocation {
            kind: "action",
            run: RunInfo { id: id.to_string(), variant: Variant::BASE.to_owned(), attempt: 1 },
            environment,
            connection,
            function: &function,
            urgency: Urgency::WaitedFor,
            input,
            signals: Arc::default(),
            live: &recording.live,
        };
        let (result, usage) = self.invoke_action(invocation).await;
        let error = result.as_ref().err().map(ActionError::to_run_error);
        self.run_writer.write(recording.end_with(error, usage).await).await;
        result
    }

    /// The action of that name, if the input is one that it takes.
    pub(crate) async fn find_action(
        &self,
        connection: &ConnectionRoute,
        name: &FunctionName,
        input: Option<&str>,
    ) -> Result<Arc<DeployedFunction>, ActionError> {
        let (environment, integration) = (connection.environment, connection.integration);
        let found = self.functions.find_deployed(environment, integration, FunctionKind::Action, name).await;
        let found = found.map_err(|error| ActionError::Function(FunctionError::Host(error)))?;
        let function = found.ok_or_else(|| ActionError::Unknown {
            action: name.clone(),
            integration: connection.integration_key.clone(),
        })?;
        if let Some(shape) = function.input() {
            check(shape, input).map_err(ActionError::Input)?;
        }
        Ok(function)
    }

    pub(crate) async fn invoke_action(
        self: &Arc<Self>,
        invocation: Invocation<'_>,
    ) -> (Result<Option<String>, ActionError>, Usage) {
        let function = Arc::clone(invocation.function);
        let (result, usage) = self.invoke(invocation).await;
        let result = match result {
            Err(error) => Err(ActionError::Function(error)),
            Ok(output) => match function.output() {
                Some(shape) => check(shape, output.as_deref()).map(|()| output).map_err(ActionError::Output),
                None => checked_json(output),
            },
        };
        (result, usage)
    }

    pub(crate) async fn invoke(
        self: &Arc<Self>,
        invocation: Invocation<'_>,
    ) -> (Result<Option<String>, FunctionError>, Usage) {
        let Invocation { kind, run, environment, connection, function, urgency, input, signals, live } =
            invocation;
        let variables = match self.process_variables(environment, function, &live.log).await {
            Ok(variables) => variables,
            Err(error) => return (Err(FunctionError::Host(error)), Usage::default()),
        };
        let author = Author {
            environment: connection.environment,
            integration: connection.integration,
            function: function.name.to_string(),
            run_id: run.id.clone(),
        };
        let capabilities = FunctionCapabilities {
            engine: Arc::clone(self),
            environment: Arc::clone(environment),
            connection: Arc::clone(connection),
            function: Arc::clone(function),
            run,
            log: live.log.clone(),
            meter: Arc::clone(&live.meter),
            signals,
            writer: RecordWriter::new(
                self,
                author,
                connection.pk,
                Arc::clone(&function.models),
                &function.limits,
                live.log.clone(),
            ),
            checkpoint: None,
            row: None,
            route: None,
            ends_at: Instant::now() + function.limits.wall,
        };
        let call = Call {
            kind,
            name: function.name.as_str(),
            urgency,
            input: input.as_ref(),
            variables: &variables,
        };
        let span = tracing::debug_span!(
            "run",
            otel.name = %format_args!("{kind} {}", function.name),
            run.id = %live.id,
            run.kind = kind,
            run.function = %function.name,
        );
        let finished = self
            .runtime
            .invoke(&function.component, call, Box::new(capabilities), &function.limits, &live.log)
            .instrument(span)
            .await;
        let result = finished.result.map_err(|error| FunctionError::new(error, &live.log));
        (result, finished.usage)
    }

    /// What the guest's process environment holds: only what the integration's `env` lists. The log has none of it.
    pub(crate) async fn process_variables(
        &self,
        environment: &Environment,
        function: &DeployedFunction,
        log: &RunLog,
    ) -> anyhow::Result<Vec<(String, String)>> {
        if function.env.is_none() {
            return Ok(Vec::new());
        }
        let granted = function.granted_variables(self.variables.list(environment).await?);
        granted.iter().for_each(|(_, value)| log.hide(value));
        Ok(granted)
    }
}

/// Checks a value against a model; nothing at all counts as `null`.
fn check(shape: &Shape, json: Option<&str>) -> Result<(), Vec<Problem>> {
    shape.check(json.unwrap_or("null")).map_err(|invalid| match invalid {
        Invalid::Malformed(malformed) => vec![malformed_problem(malformed.to_string())],
        Invalid::Problems(problems) => problems,
    })
}

/// Without an output model anything goes, as long as it is JSON.
fn checked_json(output: Option<String>) -> Result<Option<String>, ActionError> {
    if let Some(text) = &output
        && let Err(error) = serde_json::from_str::<&serde_json::value::RawValue>(text)
    {
        return Err(ActionError::Output(vec![malformed_problem(format!("it is not JSON: {error}"))]));
    }
    Ok(output)
}

/// An input that cannot be read.
pub(crate) fn malformed_input(problem: &Malformed) -> ActionError {
    ActionError::Input(vec![malformed_problem(problem.to_string())])
}

fn malformed_problem(problem: String) -> Problem {
    Problem { path: String::new(), problem }
}
