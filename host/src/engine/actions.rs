//! Runs actions: on demand, for one connection, while somebody waits.

use std::sync::Arc;

use chrono::Utc;
use uuid::Uuid;

use super::capabilities::{FunctionCapabilities, RunSignals};
use super::commit::RecordWriter;
use super::failure::{ActionError, FunctionError};
use super::functions::DeployedFunction;
use super::run_writer::log_lines;
use super::{ConnectionRoute, Engine};
use crate::auth::Environment;
use crate::ids::FunctionName;
use crate::model::{Invalid, Problem, Shape};
use crate::runtime::{Call, RunInfo, RunLog, Usage};
use crate::store::runs::{self, FinishedRun, Outcome, RunState};

impl Engine {
    /// Runs an action and gives what it returns, as JSON text.
    pub async fn run_action(
        self: &Arc<Self>,
        environment: &Arc<Environment>,
        connection: &Arc<ConnectionRoute>,
        name: &FunctionName,
        input: Option<String>,
    ) -> Result<Option<String>, ActionError> {
        let function = self.functions.find(connection.integration, "action", name).ok_or_else(|| {
            ActionError::Unknown { action: name.clone(), integration: connection.integration_key.clone() }
        })?;
        if let Some(shape) = function.input() {
            check(shape, input.as_deref()).map_err(ActionError::Input)?;
        }
        let started_at = Utc::now();
        let id = Uuid::now_v7();
        let log = RunLog::new(function.limits.log_bytes);
        let (result, usage) = self.invoke_action(id, environment, connection, &function, input, &log).await;
        let outcome = Outcome {
            state: if result.is_ok() { RunState::Success } else { RunState::Error },
            error: result.as_ref().err().map(ActionError::to_run_error),
            counts: None,
            usage: stored_usage(usage),
        };
        let run = FinishedRun {
            id,
            environment: environment.pk,
            connection: connection.pk,
            kind: "action",
            function: name.clone(),
            owner: self.host_id,
            started_at,
            finished_at: Utc::now(),
            outcome,
            log: log_lines(log.drain()),
        };
        self.run_writer.write(run).await;
        result
    }

    async fn invoke_action(
        self: &Arc<Self>,
        id: Uuid,
        environment: &Arc<Environment>,
        connection: &Arc<ConnectionRoute>,
        function: &Arc<DeployedFunction>,
        input: Option<String>,
        log: &RunLog,
    ) -> (Result<Option<String>, ActionError>, Usage) {
        let variables = match self.process_variables(environment, function).await {
            Ok(variables) => variables,
            Err(error) => return (Err(ActionError::Host(error)), Usage::default()),
        };
        let capabilities = FunctionCapabilities {
            engine: Arc::clone(self),
            environment: Arc::clone(environment),
            connection: Arc::clone(connection),
            function: Arc::clone(function),
            run: RunInfo { id: id.to_string(), variant: "base".to_owned(), attempt: 1 },
            log: log.clone(),
            signals: Arc::new(RunSignals::default()),
            writer: RecordWriter::new(
                self.store.clone(),
                connection.pk,
                Arc::clone(&function.models),
                Arc::clone(&self.settings.record_metadata_key),
                &function.limits,
                log.clone(),
            ),
            checkpoint: None,
            row: None,
            route: None,
        };
        let call = Call {
            kind: "action",
            name: function.name.as_str(),
            input: input.as_ref(),
            variables: &variables,
        };
        let finished = self
            .runtime
            .invoke(&function.component, call, Box::new(capabilities), &function.limits, log)
            .await;
        let result = match finished.result {
            Err(error) => Err(ActionError::Function(FunctionError::from(error))),
            Ok(output) => match function.output() {
                Some(shape) => check(shape, output.as_deref()).map(|()| output).map_err(ActionError::Output),
                None => checked_json(output),
            },
        };
        (result, finished.usage)
    }

    /// What the guest's process environment holds: only what the integration's `env` lists.
    pub(super) async fn process_variables(
        &self,
        environment: &Environment,
        function: &DeployedFunction,
    ) -> anyhow::Result<Vec<(String, String)>> {
        if function.env.is_none() {
            return Ok(Vec::new());
        }
        Ok(function.granted_variables(self.variables.list(environment).await?))
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

fn malformed_problem(problem: String) -> Problem {
    Problem { path: String::new(), problem }
}

pub(super) fn stored_usage(usage: Usage) -> runs::Usage {
    runs::Usage {
        cpu_us: usage.cpu.as_micros() as i64,
        peak_memory_bytes: usage.peak_memory_bytes as i64,
        requests: usage.requests.cast_signed(),
    }
}
