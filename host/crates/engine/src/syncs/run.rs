//! One run of a sync, from the claim of its schedule to its release.

mod attempt;
mod ended;
mod ending;
mod next;
pub(crate) mod recording;
mod retry;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::Instrument;

use self::attempt::{Beginning, Start, attempt_outcome, begin, complete};
use self::ended::Ended;
use self::ending::{Finished, append_log, outcome_of, report, write_outcome};
use self::recording::{Recorded, RunRecording};
use self::retry::RetryTime;
use crate::connections::route::ConnectionRoute;
use crate::credentials::rejection::{FailedRun, explain};
use crate::functions::DeployedFunction;
use crate::invoker::capabilities::FunctionCapabilities;
use crate::invoker::connection_access::ConnectionAccess;
use crate::invoker::control::{RunControl, RunSignals};
use crate::invoker::error::function_run_error;
use crate::invoker::live_runs::LiveRun;
use crate::invoker::recording::masked_error;
use crate::outbound_webhooks::Checkpoints;
use crate::records::commit::RecordWriter;
use crate::syncs::Syncs;
use syncline_config::FunctionKind;
use syncline_recording::RunFailure;
use syncline_sandbox::{
    Call, Capabilities, FunctionError, Interrupt, Limit, Limits, LogLevel, PriorityClass, RunInfo, RunLog,
    Sources, Usage,
};
use syncline_store::connections;
use syncline_store::dead_letters::Author;
use syncline_store::recordings::NewRecording;
use syncline_store::runs::RunError;
use syncline_store::schedules::{self, Claim, DueReason};
use syncline_store::sync_states::Attempt;
use syncline_telemetry::metrics::metrics;
use syncline_types::error_code::ErrorCode;
use syncline_types::units::TimeSpan;

/// What a run leaves behind, however it ends.
#[derive(Default)]
struct Traces {
    usage: Usage,
    recorded: Option<Recorded>,
}

/// Runs a claimed sync and releases its schedule, however the run ends.
pub(crate) async fn run(syncs: &Syncs, claim: Claim, control: RunControl) {
    let started_at = Instant::now();
    let function = find_function(syncs, &claim).await;
    let limits = function.as_ref().map_or(&Limits::SYNC, |function| &function.limits);
    let live = syncs.invoker.live_runs.begin(claim.run_id, None, RunLog::new(limits.log_bytes));
    let mut traces = Traces::default();
    let span = tracing::debug_span!(
        "run",
        otel.name = %format_args!("sync {}", claim.sync),
        run.id = %claim.run_id,
        run.kind = "sync",
        run.function = %claim.sync,
        run.variant = %claim.variant,
        run.trigger = claim.reason.as_str(),
    );
    let ended = match &function {
        None => Ended::Unknown,
        Some(function) => tokio::select! {
            ended = execute(syncs, &claim, function, &control, &live, &mut traces).instrument(span) => ended,
            () = control.release.cancelled() => Ended::HandedBack,
            () = control.lost.cancelled() => Ended::Lost,
        },
    };
    let Traces { usage, recorded } = traces;
    let recording = match recorded {
        Some(recorded) => seal_recording(syncs, &claim, recorded, &ended, &live.log).await,
        None => None,
    };
    let lines = live.finish().await;
    if matches!(ended, Ended::Lost) {
        append_log(syncs, &claim, &lines).await;
        tracing::warn!(run.id = %claim.run_id, "sync `{}` lost its lease; another attempt continues", claim.sync);
        return;
    }
    let next = next::plan(syncs, &claim, function.as_deref(), &ended, started_at).await;
    report(&claim, &ended);
    let outcome = outcome_of(&ended, usage, &live);
    if let Some(function) = &function {
        metrics().count_run(
            FunctionKind::Sync.as_str(),
            outcome.state.as_str(),
            function.integration_key.as_str(),
            started_at.elapsed(),
            usage.cpu,
        );
    }
    let finished = Finished { outcome, ended, function, next, lines, recording };
    write_outcome(syncs, &claim, &finished).await;
    if let Ended::Failed { rejection: Some(rejection), .. } = &finished.ended {
        let failed = FailedRun {
            id: claim.run_id,
            environment: claim.environment,
            connection: claim.connection,
            kind: FunctionKind::Sync,
            function: &claim.sync,
            variant: &claim.variant,
        };
        syncs.invoker.credentials.note_rejection(&failed, rejection).await;
    }
}

async fn find_function(syncs: &Syncs, claim: &Claim) -> Option<Arc<DeployedFunction>> {
    let functions = &syncs.functions;
    let found =
        functions.find_deployed(claim.environment, claim.integration, FunctionKind::Sync, &claim.sync).await;
    match found {
        Ok(function) => function,
        Err(error) => {
            tracing::warn!(
                run.id = %claim.run_id,
                error = format!("{error:#}"),
                "this host does not know sync `{}`, and could not read the deployments", claim.sync,
            );
            None
        }
    }
}

async fn execute(
    syncs: &Syncs,
    claim: &Claim,
    function: &Arc<DeployedFunction>,
    control: &RunControl,
    live: &LiveRun,
    traces: &mut Traces,
) -> Ended {
    match try_execute(syncs, claim, function, control, live, traces).await {
        Ok(ended) => ended,
        Err(error) => {
            tracing::error!(
                run.id = %claim.run_id,
                error = format!("{error:#}"),
                "an internal error interrupted a run",
            );
            live.log
                .note(LogLevel::Error, "an internal error occurred in the host; the sync will be retried");
            let error = FunctionError::from(Interrupt::Host(error));
            let checkpoints = Checkpoints::default();
            Ended::Failed {
                retry: RetryTime::of(&error),
                error: function_run_error(&error, FunctionKind::Sync),
                rejection: None,
                counts: None,
                checkpoints,
            }
        }
    }
}

async fn try_execute(
    syncs: &Syncs,
    claim: &Claim,
    function: &Arc<DeployedFunction>,
    control: &RunControl,
    live: &LiveRun,
    traces: &mut Traces,
) -> anyhow::Result<Ended> {
    let log = &live.log;
    let connection = connections::get(&mut *syncs.store.connect().await?, claim.connection).await?;
    let Some(connection) = connection else { return Ok(Ended::Dropped) };
    let attempt = Attempt {
        connection: claim.connection,
        sync: claim.sync.clone(),
        variant: claim.variant.clone(),
        fence: claim.fence,
    };
    let (begun, is_full) = match begin(syncs, claim, function, &attempt).await? {
        Beginning::Begun { begun, is_full } => (begun, is_full),
        Beginning::ConnectionDeleted => return Ok(Ended::Dropped),
        Beginning::Superseded => return Ok(Ended::Lost),
    };
    let is_requested = matches!(claim.reason, DueReason::Trigger | DueReason::Start);
    if begun.idle_attempts >= syncs.settings.max_idle_attempts && !is_requested {
        let start = Start::from(&begun, is_full)?;
        let message = interrupted_message(begun.idle_attempts);
        return no_progress(syncs, claim, &attempt, &start, message, log).await;
    }
    let start = Start::from(&begun, is_full)?;
    if claim.resets {
        schedules::note_reset_done(&mut *syncs.store.connect().await?, claim).await?;
    }
    let environment = syncs.environments.get(claim.environment).await?;
    let variables = syncs.invoker.process_variables(&environment, function, log).await?;
    let author = Author {
        environment: claim.environment,
        integration: claim.integration,
        function: claim.sync.to_string(),
        run_id: claim.run_id.to_string(),
    };
    let writer = RecordWriter::new(
        &syncs.invoker.records,
        author,
        claim.connection,
        Arc::clone(&function.models),
        &function.limits,
        log.clone(),
    );
    let route = Arc::new(ConnectionRoute::from(&connection));
    let access = ConnectionAccess::new(&syncs.invoker, &environment, route, function, log, &live.meter);
    let mut capabilities = FunctionCapabilities {
        access: Arc::new(access.with_row(connection)),
        run: RunInfo {
            id: claim.run_id.to_string(),
            variant: claim.variant.to_string(),
            attempt: (claim.failures + 1).max(1).cast_unsigned(),
            is_full,
        },
        signals: Arc::clone(&control.signals),
        writer: writer.for_attempt(
            attempt.clone(),
            begun.restores_pruned,
            start.carried.clone(),
            start.row_began_at,
        ),
        checkpoint: begun.checkpoint,
    };
    let recording = match claim.recording {
        Some(_) => Some(RunRecording::begin(syncs, function, &mut capabilities).await.map_err(host_error)?),
        None => None,
    };
    let (capabilities, sources) = match &recording {
        Some(recording) => (recording.capabilities(capabilities), recording.sources()),
        None => (Box::new(capabilities) as Box<dyn Capabilities>, Sources::System),
    };
    let call = Call {
        kind: FunctionKind::Sync,
        name: claim.sync.as_str(),
        priority: PriorityClass::Background,
        input: None,
        variables: &variables,
        sources,
    };
    let invocation =
        syncs.invoker.sandbox.invoke(&function.component, call, capabilities, &function.limits, log);
    let idle = function.limits.idle;
    let finished = tokio::select! {
        finished = invocation => finished,
        () = no_progress_within(&control.signals, idle) => {
            let message = format!(
                "the sync was stopped: it has committed nothing new for {} (limit `idle`); commit smaller batches, or \
                 raise `limits.idle` in syncline.toml",
                TimeSpan(idle)
            );
            return no_progress(syncs, claim, &attempt, &start, message, log).await;
        }
    };
    traces.usage = finished.usage;
    if let Some(recording) = recording {
        traces.recorded = end_recording(recording, &finished.result, claim).await;
    }
    match finished.result {
        // A cancelled run stopped early: completing it would delete the records that it did not reach.
        Ok(_) if control.signals.stop_acknowledged() => Ok(Ended::HandedBack),
        Ok(_) => complete(syncs, function, &attempt, &start, log).await,
        Err(FunctionError::Interrupted(Interrupt::Superseded)) => Ok(Ended::Lost),
        Err(FunctionError::Interrupted(Interrupt::Host(error))) => Err(error),
        Err(error) => {
            log.note(LogLevel::Error, &error.to_string());
            let was_cut_off =
                matches!(error, FunctionError::Interrupted(Interrupt::Limit(Limit::Wall(_) | Limit::Cpu(_))));
            let attempt_outcome =
                attempt_outcome(syncs, &attempt, &start, if was_cut_off { None } else { Some(0) }).await?;
            let attempts = start.idle_attempts + 1;
            if attempt_outcome.is_idle && attempts >= syncs.settings.max_idle_attempts {
                let message = format!("{}; the last error was: {error}", interrupted_message(attempts));
                return no_progress(syncs, claim, &attempt, &start, message, log).await;
            }
            let error_of_run = function_run_error(&error, FunctionKind::Sync);
            let (error_of_run, rejection) = explain(error_of_run, FunctionKind::Sync, live.meter.rejection());
            Ok(Ended::Failed {
                retry: RetryTime::of(&error),
                error: masked_error(error_of_run, log),
                rejection,
                counts: attempt_outcome.counts,
                checkpoints: start.until(attempt_outcome.checkpoint),
            })
        }
    }
}

/// A run whose recording fails continues as usual.
async fn end_recording(
    recording: RunRecording,
    result: &Result<Option<String>, FunctionError>,
    claim: &Claim,
) -> Option<Recorded> {
    let result = match result {
        Ok(output) => Ok(output.clone()),
        Err(error) => {
            let RunError { code, message, .. } = function_run_error(error, FunctionKind::Sync);
            Err(RunFailure { code: code.as_str().to_owned(), message })
        }
    };
    match recording.end(result).await {
        Ok(recorded) => Some(recorded),
        Err(error) => {
            warn_unrecorded(claim, &error);
            None
        }
    }
}

async fn seal_recording(
    syncs: &Syncs,
    claim: &Claim,
    recorded: Recorded,
    ended: &Ended,
    log: &RunLog,
) -> Option<NewRecording> {
    match syncs.environments.get(claim.environment).await {
        Ok(environment) => recording::seal(&environment, claim, recorded, ended, log),
        Err(error) => {
            warn_unrecorded(claim, &error.into());
            None
        }
    }
}

fn warn_unrecorded(claim: &Claim, error: &anyhow::Error) {
    tracing::warn!(run.id = %claim.run_id, error = format!("{error:#}"), "could not record a run");
}

fn host_error(interrupt: Interrupt) -> anyhow::Error {
    match interrupt {
        Interrupt::Host(error) => error,
        interrupt => anyhow::Error::msg(interrupt.to_string()),
    }
}

/// Returns when the function has made no progress for `idle`.
async fn no_progress_within(signals: &RunSignals, idle: Duration) {
    let (mut progress, mut since) = (signals.progress(), tokio::time::Instant::now());
    while let Some(until) = since.checked_add(idle) {
        tokio::time::sleep_until(until).await;
        if signals.progress() == progress {
            return;
        }
        // Progress during the wait is noticed only at its end. That is exact enough for limits of hours.
        (progress, since) = (signals.progress(), tokio::time::Instant::now());
    }
    std::future::pending::<()>().await;
}

fn interrupted_message(attempts: i32) -> String {
    format!(
        "{attempts} consecutive attempts were interrupted before they moved the checkpoint or changed a record; commit \
         smaller batches"
    )
}

/// Ends a run that makes no progress. Retries have growing delays, because the sync may cause its own interruptions.
async fn no_progress(
    syncs: &Syncs,
    claim: &Claim,
    attempt: &Attempt,
    start: &Start,
    message: String,
    log: &RunLog,
) -> anyhow::Result<Ended> {
    log.note(LogLevel::Error, &message);
    // After each delay, the sync has one attempt to make progress.
    let attempt_outcome =
        attempt_outcome(syncs, attempt, start, Some(syncs.settings.max_idle_attempts - 1)).await?;
    let error = masked_error(RunError { code: ErrorCode::NoProgress, message, details: None }, log);
    Ok(Ended::Failed {
        error,
        rejection: None,
        retry: RetryTime::of_stall(claim.failures),
        counts: attempt_outcome.counts,
        checkpoints: start.until(attempt_outcome.checkpoint),
    })
}
