//! One invocation of a function.

use std::sync::Arc;

use tracing::Instrument;

use crate::connections::route::ConnectionRoute;
use crate::functions::DeployedFunction;
use crate::invoker::Invoker;
use crate::invoker::capabilities::FunctionCapabilities;
use crate::invoker::connection_access::ConnectionAccess;
use crate::invoker::control::RunSignals;
use crate::invoker::live_runs::LiveRun;
use crate::records::commit::RecordWriter;
use syncline_auth::Environment;
use syncline_sandbox::{Call, Finished, Interrupt, PriorityClass, RunInfo, RunLog, Sources, Usage};
use syncline_store::dead_letters::Author;
use syncline_types::functions::FunctionKind;

/// One invocation of a function that has no schedule.
pub(crate) struct Invocation<'a> {
    pub(crate) kind: FunctionKind,
    pub(crate) run: RunInfo,
    pub(crate) environment: &'a Arc<Environment>,
    pub(crate) connection: &'a Arc<ConnectionRoute>,
    pub(crate) function: &'a Arc<DeployedFunction>,
    pub(crate) priority: PriorityClass,
    pub(crate) input: Option<String>,
    pub(crate) signals: Arc<RunSignals>,
    pub(crate) live: &'a LiveRun,
}

impl Invoker {
    pub(crate) async fn invoke(self: &Arc<Self>, invocation: Invocation<'_>) -> Finished {
        let Invocation { kind, run, environment, connection, function, priority, input, signals, live } =
            invocation;
        let variables = match self.process_variables(environment, function, &live.log).await {
            Ok(variables) => variables,
            Err(error) => {
                return Finished { result: Err(Interrupt::Host(error).into()), usage: Usage::default() };
            }
        };
        let author = Author {
            environment: connection.environment,
            integration: connection.integration,
            function: function.name.to_string(),
            run_id: run.id.clone(),
        };
        let route = Arc::clone(connection);
        let access = ConnectionAccess::new(self, environment, route, function, &live.log, &live.meter);
        let capabilities = FunctionCapabilities {
            access: Arc::new(access),
            run,
            signals,
            writer: RecordWriter::new(
                &self.records,
                author,
                connection.pk,
                Arc::clone(&function.models),
                &function.limits,
                live.log.clone(),
            ),
            checkpoint: None,
        };
        let call = Call {
            kind,
            name: function.name.as_str(),
            priority,
            input: input.as_ref(),
            variables: &variables,
            sources: Sources::System,
        };
        let span = tracing::debug_span!(
            "run",
            otel.name = %format_args!("{kind} {}", function.name),
            run.id = %live.id,
            run.kind = %kind,
            run.function = %function.name,
        );
        self.sandbox
            .invoke(&function.component, call, Box::new(capabilities), &function.limits, &live.log)
            .instrument(span)
            .await
    }

    /// The environment variables of the guest's process: those that the integration's `env` lists. Their values are
    /// masked in the log.
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
