//! The row and the log of a run without a schedule: begun with the function, written when it is over, also when it
//! ends because whoever waited for it went away.

use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use uuid::Uuid;

use crate::connections::route::ConnectionRoute;
use crate::functions::DeployedFunction;
use crate::invoker::Invoker;
use crate::invoker::live_runs::LiveRun;
use crate::invoker::run_writer::RunWriter;
use syncline_sandbox::{RunLog, Usage};
use syncline_store::runs::{self, FinishedRun, Outcome, RunError, RunStart, RunState};
use syncline_telemetry::metrics::metrics;
use syncline_types::error_code::ErrorCode;
use syncline_types::functions::FunctionKind;
use syncline_types::ids::IntegrationKey;

/// Longer messages of errors are cut when they are kept, as the lines of a log are.
const MAX_MESSAGE_BYTES: usize = 10_000;
/// Longer details are left out: a run's row, and the webhook that tells of it, are no place for a provider's whole answer.
const MAX_DETAILS_BYTES: usize = 64 << 10;

/// What becomes a run's row.
pub(crate) struct Recording {
    writer: Arc<RunWriter>,
    integration: IntegrationKey,
    pub(crate) live: LiveRun,
    /// None once it has ended.
    start: Option<RunStart>,
}

impl Recording {
    /// `job` and `attempt` are of the job that the run is an attempt of.
    pub(crate) fn begin(
        invoker: &Invoker,
        kind: FunctionKind,
        id: Uuid,
        job: Option<Uuid>,
        attempt: i32,
        connection: &ConnectionRoute,
        function: &DeployedFunction,
    ) -> Self {
        let start = RunStart {
            id,
            job,
            environment: connection.environment,
            integration: connection.integration,
            connection: connection.pk,
            kind,
            function: function.name.clone(),
            trigger: kind.direct_trigger(),
            attempt,
            owner: invoker.host_id,
            started_at: Utc::now(),
        };
        let log = RunLog::new(function.limits.log_bytes);
        let live = Arc::clone(&invoker.live_runs).begin(id, Some(start.clone()), log);
        let integration = function.integration_key.clone();
        Self { writer: Arc::clone(&invoker.run_writer), integration, live, start: Some(start) }
    }

    /// The run as it is to be written.
    pub(crate) async fn end(mut self, state: RunState, error: Option<RunError>, usage: Usage) -> FinishedRun {
        let log = self.live.finish().await;
        let start = self.start.take().expect("a run ends once");
        let error = error.map(|error| kept(error, &self.live.log));
        let outcome = Outcome {
            state,
            error,
            counts: None,
            usage: stored_usage(usage),
            figures: self.live.meter.figures(),
        };
        let run = FinishedRun { start, finished_at: Utc::now(), outcome, log };
        count(&run, &self.integration);
        run
    }

    /// The end of a function that gave a result or failed.
    pub(crate) async fn end_with(self, error: Option<RunError>, usage: Usage) -> FinishedRun {
        let state = if error.is_none() { RunState::Success } else { RunState::Error };
        self.end(state, error, usage).await
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let Some(start) = self.start.take() else { return };
        let error = RunError {
            code: ErrorCode::ScriptCancelled,
            message: "the caller went away before the function had ended".to_owned(),
            details: None,
        };
        let outcome = Outcome {
            state: RunState::Cancelled,
            error: Some(error),
            counts: None,
            usage: runs::Usage::default(),
            figures: self.live.meter.figures(),
        };
        let log = self.live.take_lines();
        let run = FinishedRun { start, finished_at: Utc::now(), outcome, log };
        count(&run, &self.integration);
        self.writer.write_if_there_is_room(run);
    }
}

fn count(run: &FinishedRun, integration: &IntegrationKey) {
    let took = (run.finished_at - run.start.started_at).to_std().unwrap_or_default();
    let cpu = Duration::from_micros(run.outcome.usage.cpu_us.cast_unsigned());
    metrics().count_run(run.start.kind.as_str(), run.outcome.state.as_str(), integration.as_str(), took, cpu);
}

/// The error as it is kept: without the secrets that the function was shown, and no longer than can be listed by
/// hundreds.
pub(crate) fn kept(error: RunError, log: &RunLog) -> RunError {
    let mut message = log.masked(&error.message);
    message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
    let details = error.details.map(|details| log.masked_json(details));
    let details = details.filter(|details| details.to_string().len() <= MAX_DETAILS_BYTES);
    RunError { code: error.code, message, details }
}

pub(crate) fn stored_usage(usage: Usage) -> runs::Usage {
    runs::Usage {
        cpu_us: usage.cpu.as_micros() as i64,
        peak_memory_bytes: usage.peak_memory_bytes as i64,
        requests: usage.requests.cast_signed(),
    }
}
