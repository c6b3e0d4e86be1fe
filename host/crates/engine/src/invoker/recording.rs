//! Records a run without a schedule: its row and its log are written when the run ends, even if it ends because the
//! client disconnected.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::connections::route::ConnectionRoute;
use crate::credentials::Credentials;
use crate::credentials::rejection::{FailedRun, explain};
use crate::functions::DeployedFunction;
use crate::invoker::Invoker;
use crate::invoker::live_runs::LiveRun;
use crate::invoker::run_writer::RunWriter;
use syncline_sandbox::{RunLog, Usage};
use syncline_store::runs::{self, FinishedRun, Outcome, RunError, RunStart, RunState};
use syncline_telemetry::clock::Clock;
use syncline_telemetry::metrics::metrics;
use syncline_types::error_code::ErrorCode;
use syncline_types::functions::FunctionKind;
use syncline_types::ids::{IntegrationKey, Variant};

/// Longer error messages are truncated, like the lines of a log.
const MAX_MESSAGE_BYTES: usize = 10_000;
/// Longer details are left out, because a run's row and its webhook should not contain a provider's complete response.
const MAX_DETAILS_BYTES: usize = 64 << 10;

/// The attempt of a job that a run is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JobAttempt {
    pub(crate) id: Uuid,
    /// 1 for the first.
    pub(crate) number: i32,
    /// When the job could start, if it waited in the queue.
    pub(crate) due_at: Option<DateTime<Utc>>,
}

/// The data for a run's row.
pub(crate) struct Recording {
    clock: Clock,
    writer: Arc<RunWriter>,
    credentials: Arc<Credentials>,
    integration: IntegrationKey,
    pub(crate) live: LiveRun,
    /// `None` once the run has ended.
    start: Option<RunStart>,
}

impl Recording {
    /// `job` is set if the run is an attempt of a job.
    pub(crate) fn begin(
        invoker: &Invoker,
        kind: FunctionKind,
        id: Uuid,
        job: Option<JobAttempt>,
        connection: &ConnectionRoute,
        function: &DeployedFunction,
    ) -> Self {
        let start = RunStart {
            id,
            job: job.map(|job| job.id),
            environment: connection.environment,
            integration: connection.integration,
            connection: connection.pk,
            kind,
            function: function.name.clone(),
            trigger: kind.direct_trigger(),
            attempt: job.map_or(1, |job| job.number),
            owner: invoker.host_id,
            due_at: job.and_then(|job| job.due_at),
            started_at: invoker.clock.now(),
        };
        let log = RunLog::new(function.limits.log_bytes);
        let live = Arc::clone(&invoker.live_runs).begin(id, Some(start.clone()), log);
        let integration = function.integration_key.clone();
        Self {
            clock: invoker.clock.clone(),
            writer: Arc::clone(&invoker.run_writer),
            credentials: Arc::clone(&invoker.credentials),
            integration,
            live,
            start: Some(start),
        }
    }

    /// Ends the run and returns it in the form in which it is written.
    pub(crate) async fn end(mut self, state: RunState, error: Option<RunError>, usage: Usage) -> FinishedRun {
        let log = self.live.finish().await;
        let start = self.start.take().expect("a run ends once");
        let error = error.map(|error| masked_error(error, &self.live.log));
        let outcome = Outcome {
            state,
            error,
            counts: None,
            usage: stored_usage(usage),
            figures: self.live.meter.figures(),
        };
        let run = FinishedRun { start, finished_at: self.clock.now(), outcome, log };
        count(&run, &self.integration);
        run
    }

    /// Ends the run of a function that returned a result or failed. Stores it with the connection if the provider
    /// rejected the credentials.
    pub(crate) async fn end_with(self, error: Option<RunError>, usage: Usage) -> FinishedRun {
        let (Some(error), Some(start)) = (error, &self.start) else {
            return self.end(RunState::Success, None, usage).await;
        };
        let (error, rejection) = explain(error, start.kind, self.live.meter.rejection());
        let credentials = Arc::clone(&self.credentials);
        let run = self.end(RunState::Error, Some(error), usage).await;
        if let Some(rejection) = rejection {
            let failed = FailedRun {
                id: run.start.id,
                environment: run.start.environment,
                connection: run.start.connection,
                kind: run.start.kind,
                function: &run.start.function,
                variant: &Variant::base(),
            };
            credentials.note_rejection(&failed, &rejection).await;
        }
        run
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let Some(start) = self.start.take() else { return };
        let error = RunError {
            code: ErrorCode::ScriptCancelled,
            message: "the client disconnected before the function ended".to_owned(),
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
        let run = FinishedRun { start, finished_at: self.clock.now(), outcome, log };
        count(&run, &self.integration);
        self.writer.write_if_there_is_room(run);
    }
}

fn count(run: &FinishedRun, integration: &IntegrationKey) {
    let elapsed = (run.finished_at - run.start.started_at).to_std().unwrap_or_default();
    let cpu = Duration::from_micros(run.outcome.usage.cpu_us.cast_unsigned());
    metrics().count_run(
        run.start.kind.as_str(),
        run.outcome.state.as_str(),
        integration.as_str(),
        elapsed,
        cpu,
    );
}

/// Prepares an error for storage: masks the secrets that the function has seen, and limits the length.
pub(crate) fn masked_error(error: RunError, log: &RunLog) -> RunError {
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
