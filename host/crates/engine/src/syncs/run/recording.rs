//! Records a run of a sync, so that its author can replay it.
//!
//! The run itself is a normal one. Beside it, its changes are applied in memory to the records that existed before, in
//! the same way as in a dry run, because this is the result that a replay is compared with.

mod capabilities;
mod stored_records;

use std::sync::Arc;

use tokio::sync::Mutex;

use self::capabilities::RecordingCapabilities;
use self::stored_records::StoredRecords;
use crate::dry_runs::report::Report;
use crate::dry_runs::state::DryRunState;
use crate::dry_runs::{ProjectFunction, RunData};
use crate::functions::DeployedFunction;
use crate::invoker::capabilities::FunctionCapabilities;
use crate::records::commit::checks::ChangeChecks;
use crate::syncs::Syncs;
use crate::syncs::run::ended::Ended;
use syncline_auth::Environment;
use syncline_crypto::AssociatedData;
use syncline_recording::{Recorder, RunFailure};
use syncline_sandbox::{Capabilities, Interrupt, LogLevel, RunLog, Sources};
use syncline_store::recordings::{NewRecording, RecordingOrder};
use syncline_store::schedules::Claim;
use syncline_types::functions::{FunctionKind, RecordedRuns};

/// Longest recording, in bytes.
const MAX_BYTES: usize = 16 << 20;

/// A run that is being recorded.
pub(super) struct RunRecording {
    recorder: Recorder,
    function: ProjectFunction,
    data: RunData,
    log: RunLog,
    observed: Arc<Mutex<Observed>>,
}

/// What the run has done so far.
struct Observed {
    state: DryRunState,
    checks: ChangeChecks,
    /// The credentials that the function has read, as JSON text.
    credentials: Option<String>,
}

/// The recording of a run that has ended.
pub(super) enum Recorded {
    Text(String),
    TooLong,
}

impl RunRecording {
    /// Begins to record a run, before its function starts.
    pub(super) async fn begin(
        syncs: &Syncs,
        function: &Arc<DeployedFunction>,
        capabilities: &mut FunctionCapabilities,
    ) -> Result<Self, Interrupt> {
        let data = RunData {
            run: capabilities.run(),
            input: None,
            connection: capabilities.connection().await?,
            metadata: capabilities.metadata().await?,
            credentials: None,
            variables: capabilities.variables().await?,
            checkpoint: capabilities.checkpoint.clone(),
        };
        let recorder = Recorder::start(MAX_BYTES);
        let (access, records) = (&capabilities.access, &syncs.invoker.records);
        let kept = StoredRecords::new(records, &access.connection, recorder.clone());
        let observed = Observed {
            state: DryRunState::new(&data, Arc::new(kept)),
            checks: capabilities.writer.copy_checks(),
            credentials: None,
        };
        let function = ProjectFunction {
            kind: FunctionKind::Sync,
            function: Arc::clone(function),
            provider: access.connection.provider.clone(),
        };
        let log = access.log.clone();
        log.record();
        Ok(Self { recorder, function, data, log, observed: Arc::new(Mutex::new(observed)) })
    }

    /// Wraps the capabilities of the run.
    pub(super) fn capabilities(&self, inner: FunctionCapabilities) -> Box<dyn Capabilities> {
        let client = self.recorder.client(inner.provider(), &self.log);
        Box::new(RecordingCapabilities {
            inner,
            client,
            recorder: self.recorder.clone(),
            observed: Arc::clone(&self.observed),
        })
    }

    pub(super) fn sources(&self) -> Sources {
        self.recorder.sources()
    }

    /// Ends the recording. Call it before the run is completed, while the records that it did not find still exist.
    pub(super) async fn end(self, result: Result<Option<String>, RunFailure>) -> anyhow::Result<Recorded> {
        let lines = self.log.take_recorded().unwrap_or_default();
        let mut observed = self.observed.lock().await;
        let Observed { state, credentials, .. } = &mut *observed;
        if result.is_ok() && !self.recorder.is_too_long() {
            let completed = state.complete(&self.function.function, &self.data.run).await;
            if !self.recorder.is_too_long() {
                completed?;
            }
        }
        if self.recorder.is_too_long() {
            return Ok(Recorded::TooLong);
        }
        let data = Arc::new(RunData { credentials: credentials.take(), ..self.data });
        let report = Report::new(result, state, &data, self.log, lines);
        let integration = &self.function.function.integration_key;
        let text = report.recording(&self.function, integration, &self.recorder).render();
        Ok(if text.len() > MAX_BYTES { Recorded::TooLong } else { Recorded::Text(text) })
    }
}

/// Whether the order includes a run that ended like this.
fn includes(order: RecordingOrder, ended: &Ended) -> bool {
    match ended {
        Ended::Failed { .. } => true,
        Ended::Success { .. } => order.runs == RecordedRuns::EveryRun,
        Ended::Dropped | Ended::Unknown | Ended::HandedBack | Ended::Lost => false,
    }
}

/// Seals the recording of a run, if it was ordered, and says in the run's log what happened to it.
pub(super) fn seal(
    environment: &Environment,
    claim: &Claim,
    recorded: Recorded,
    ended: &Ended,
    log: &RunLog,
) -> Option<NewRecording> {
    let order = claim.recording.filter(|order| includes(*order, ended))?;
    match recorded {
        Recorded::TooLong => {
            let message = format!(
                "the run was not recorded, because its recording is longer than {} MB",
                MAX_BYTES >> 20
            );
            log.note(LogLevel::Warn, &message);
            None
        }
        Recorded::Text(text) => {
            let run = claim.run_id.to_string();
            let message = format!(
                "the run was recorded; write the recording to a file with `syncline runs export {run}` within {} days",
                order.days
            );
            log.note(LogLevel::Info, &message);
            let sealed = environment.data_key.seal(associated_data(&run), text.as_bytes());
            Some(NewRecording { sealed, order })
        }
    }
}

/// To what the sealed recording of a run is bound.
pub(crate) fn associated_data(run: &str) -> AssociatedData<'_> {
    AssociatedData { column: "recordings.sealed_recording", row: run }
}
