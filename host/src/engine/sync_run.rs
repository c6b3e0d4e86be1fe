//! One run of a sync, from the claim of its schedule to its release.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use rand::Rng;
use serde_json::{Value, json};
use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::capabilities::{FunctionCapabilities, RunSignals};
use super::commit::{ModelCounts, RecordWriter, RunCounts, without_carried};
use super::failure::FunctionError;
use super::functions::DeployedFunction;
use super::held_deletions::HELD;
use super::live_runs::LiveRun;
use super::recording::{masked, stored_usage};
use super::webhooks::{self, Checkpoints, SyncEnd};
use super::{ConnectionRoute, Engine};
use crate::config::Frequency;
use crate::failpoints::{self, Step};
use crate::ids::{ModelName, Variant};
use crate::metrics::metrics;
use crate::runtime::{Call, Limit, Limits, LogLevel, RunInfo, RunLog, Usage};
use crate::store::connection_errors::{self, Failing};
use crate::store::dead_letters::Author;
use crate::store::notices::Notice;
use crate::store::records::{self, Unseen};
use crate::store::runs::{self, LogLine, Outcome, RunError, RunState};
use crate::store::schedules::{self, Claim, DueReason, Next, RunEnd};
use crate::store::sync_states::{self, Attempt, Begun, CheckpointChange};
use crate::store::{closed_connections, connections, streams};

/// After so many failures in a row a sync waits for its next slot.
const MAX_RETRIES: i32 = 3;
const FIRST_RETRY: Duration = Duration::from_secs(10);
/// The same for a sync that gets nowhere.
const FIRST_STALL_DELAY: Duration = Duration::from_secs(60);
const MAX_STALL_DELAY: Duration = Duration::from_secs(24 * 3600);
/// A sync that this host does not know may be one that it has yet to hear of.
const UNKNOWN_FUNCTION_DELAY: Duration = Duration::from_secs(60);
const WRITE_OUTCOME_TRIES: u32 = 5;

/// How a run is told to stop.
#[derive(Debug, Clone, Default)]
pub(super) struct RunControl {
    /// The function is asked to come to its end.
    pub(super) signals: Arc<RunSignals>,
    /// The run is given back at once; its schedule is due again.
    pub(super) hand_back: CancellationToken,
    /// The run lost its lease: it may not touch anything any more.
    pub(super) lost: CancellationToken,
}

enum Ended {
    Success {
        counts: RunCounts,
        /// With what earlier attempts saved since the last success.
        unreported: RunCounts,
        checkpoints: Checkpoints,
    },
    Failed {
        error: RunError,
        again: Again,
        counts: Option<RunCounts>,
        checkpoints: Checkpoints,
    },
    /// Nothing is left to do, as after the deletion of the connection.
    Dropped,
    HandedBack,
    Lost,
}

/// When a sync that failed is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Again {
    AtNextSlot,
    /// In a few seconds, some times, since the cause may pass.
    Soon,
    /// Then, and not before, whenever the next slot is.
    After(Duration),
}

impl Again {
    fn of(error: &FunctionError) -> Self {
        match error {
            FunctionError::RateLimited { retry_after } => Self::After(*retry_after),
            error if error.is_retryable() => Self::Soon,
            _ => Self::AtNextSlot,
        }
    }
}

/// Runs what was claimed and releases the schedule, whatever happens.
pub(super) async fn run(engine: Arc<Engine>, claim: Claim, control: RunControl) {
    let started_at = Utc::now();
    let function = engine.functions.find_sync(claim.integration, &claim.sync);
    let limits = function.as_ref().map_or(&Limits::SYNC, |function| &function.limits);
    let live = Arc::clone(&engine.live_runs).begin(claim.run_id, None, RunLog::new(limits.log_bytes));
    let mut usage = Usage::default();
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
        None => Ended::Dropped,
        Some(function) => tokio::select! {
            ended = execute(&engine, &claim, function, &control, &live, &mut usage).instrument(span) => ended,
            () = control.hand_back.cancelled() => Ended::HandedBack,
            () = control.lost.cancelled() => Ended::Lost,
        },
    };
    let lines = live.finish().await;
    if matches!(ended, Ended::Lost) {
        append_log(&engine, &claim, &lines).await;
        tracing::warn!(run.id = %claim.run_id, "sync `{}` lost its lease; another attempt takes over", claim.sync);
        return;
    }
    let claim = with_current_frequency(&engine, claim).await;
    let next = function
        .as_ref()
        .map_or_else(no_next, |function| plan_next(&engine, &claim, function, &ended, started_at));
    report(&claim, &ended);
    let outcome = outcome_of(&ended, usage, &live);
    if let Some(function) = &function {
        let took = (Utc::now() - started_at).to_std().unwrap_or_default();
        metrics().count_run(
            "sync",
            outcome.state.as_str(),
            function.integration_key.as_str(),
            took,
            usage.cpu,
        );
    }
    let finished = Finished { outcome, ended, function, next, lines };
    write_outcome(&engine, &claim, &finished).await;
}

/// A run that has come to its end and is to be closed.
struct Finished {
    outcome: Outcome,
    ended: Ended,
    function: Option<Arc<DeployedFunction>>,
    next: Next,
    /// What is left to be written of its log.
    lines: Vec<LogLine>,
}

async fn execute(
    engine: &Arc<Engine>,
    claim: &Claim,
    function: &Arc<DeployedFunction>,
    control: &RunControl,
    live: &LiveRun,
    usage: &mut Usage,
) -> Ended {
    match try_execute(engine, claim, function, control, live, usage).await {
        Ok(ended) => ended,
        Err(error) => {
            tracing::error!(run.id = %claim.run_id, error = format!("{error:#}"), "the host failed during a run");
            live.log.note(LogLevel::Error, "something went wrong in the host; the sync will be tried again");
            let error = FunctionError::Host(error);
            let checkpoints = Checkpoints::default();
            Ended::Failed { again: Again::of(&error), error: error.to_run_error(), counts: None, checkpoints }
        }
    }
}

async fn try_execute(
    engine: &Arc<Engine>,
    claim: &Claim,
    function: &Arc<DeployedFunction>,
    control: &RunControl,
    live: &LiveRun,
    usage: &mut Usage,
) -> anyhow::Result<Ended> {
    let log = &live.log;
    let connection = connections::get(&mut *engine.store.connect().await?, claim.connection).await?;
    let Some(connection) = connection else { return Ok(Ended::Dropped) };
    let attempt = Attempt {
        connection: claim.connection,
        sync: claim.sync.clone(),
        variant: claim.variant.clone(),
        fence: claim.fence,
    };
    let begun = match begin(engine, claim, function, &attempt).await? {
        Ok(begun) => begun,
        Err(ended) => return Ok(ended),
    };
    let is_asked_for = matches!(claim.reason, DueReason::Trigger | DueReason::Start);
    if begun.idle_attempts >= engine.settings.max_idle_attempts && !is_asked_for {
        let start = Start::from(&begun)?;
        let message = interrupted(begun.idle_attempts);
        return no_progress(engine, claim, &attempt, &start, message, log).await;
    }
    let start = Start::from(&begun)?;
    if claim.resets {
        schedules::note_reset_done(&mut *engine.store.connect().await?, claim).await?;
    }
    let environment = engine.environments.get(claim.environment).await?;
    let variables = engine.process_variables(&environment, function).await?;
    let author = Author {
        environment: claim.environment,
        integration: claim.integration,
        function: claim.sync.to_string(),
        run_id: claim.run_id.to_string(),
    };
    let writer = RecordWriter::new(
        engine,
        author,
        claim.connection,
        Arc::clone(&function.models),
        &function.limits,
        log.clone(),
    );
    let capabilities = FunctionCapabilities {
        engine: Arc::clone(engine),
        environment,
        connection: Arc::new(ConnectionRoute::from(&connection)),
        function: Arc::clone(function),
        run: RunInfo {
            id: claim.run_id.to_string(),
            variant: claim.variant.to_string(),
            attempt: (claim.failures + 1).max(1).cast_unsigned(),
        },
        log: log.clone(),
        meter: Arc::clone(&live.meter),
        signals: Arc::clone(&control.signals),
        writer: writer.for_attempt(attempt.clone(), begun.restores_pruned, start.carried.clone()),
        checkpoint: begun.checkpoint,
        row: Some(connection),
        route: None,
        ends_at: Instant::now() + function.limits.wall,
    };
    let call = Call { kind: "sync", name: claim.sync.as_str(), input: None, variables: &variables };
    let invocation =
        engine.runtime.invoke(&function.component, call, Box::new(capabilities), &function.limits, log);
    let idle = function.limits.idle;
    let finished = tokio::select! {
        finished = invocation => finished,
        () = silence(&control.signals, idle) => {
            let message = format!("the sync has committed nothing for {idle:?} (limit `idle`), and was ended");
            return no_progress(engine, claim, &attempt, &start, message, log).await;
        }
    };
    *usage = finished.usage;
    match finished.result.map_err(FunctionError::from) {
        // Taken for a whole one, a run that was cut short would delete what it has not come to.
        Ok(_) if control.signals.was_noticed() => Ok(Ended::HandedBack),
        Ok(_) => complete(engine, function, &attempt, &start, log).await,
        Err(FunctionError::Superseded) => Ok(Ended::Lost),
        Err(FunctionError::Host(error)) => Err(error),
        Err(error) => {
            log.note(LogLevel::Error, &error.to_string());
            let was_cut_off = matches!(error, FunctionError::Limit(Limit::Wall(_) | Limit::Cpu(_)));
            let so_far = so_far(engine, &attempt, &start, if was_cut_off { None } else { Some(0) }).await?;
            let attempts = start.idle_attempts + 1;
            if so_far.is_idle && attempts >= engine.settings.max_idle_attempts {
                let message = format!("{}; the last time, {error}", interrupted(attempts));
                return no_progress(engine, claim, &attempt, &start, message, log).await;
            }
            Ok(Ended::Failed {
                again: Again::of(&error),
                error: masked(error.to_run_error(), log),
                counts: so_far.counts,
                checkpoints: start.until(so_far.checkpoint),
            })
        }
    }
}

/// Returns when the function has not committed anything for so long.
async fn silence(signals: &RunSignals, idle: Duration) {
    let (mut commits, mut since) = (signals.commits(), tokio::time::Instant::now());
    while let Some(until) = since.checked_add(idle) {
        tokio::time::sleep_until(until).await;
        if signals.commits() == commits {
            return;
        }
        // It did, at some time since: that is exact enough for what is measured in hours.
        (commits, since) = (signals.commits(), tokio::time::Instant::now());
    }
    std::future::pending::<()>().await;
}

fn interrupted(attempts: i32) -> String {
    format!(
        "{attempts} attempts in a row were interrupted before they had saved anything or moved the checkpoint"
    )
}

/// The sync gets nowhere. It is tried again, but with longer and longer waits: whatever interrupts it may be its own
/// doing.
async fn no_progress(
    engine: &Engine,
    claim: &Claim,
    attempt: &Attempt,
    start: &Start,
    message: String,
    log: &RunLog,
) -> anyhow::Result<Ended> {
    log.note(LogLevel::Error, &message);
    // After each wait it has one attempt to get somewhere.
    let so_far = so_far(engine, attempt, start, Some(engine.settings.max_idle_attempts - 1)).await?;
    let error = RunError { code: "no_progress".to_owned(), message, details: None };
    Ok(Ended::Failed {
        error,
        again: Again::After(stall_delay(claim.failures, rand::random())),
        counts: so_far.counts,
        checkpoints: start.until(so_far.checkpoint),
    })
}

/// Doubles with every two failures in a row, give or take a quarter.
fn stall_delay(failures: i32, chance: f64) -> Duration {
    let doubled = FIRST_STALL_DELAY * 2_u32.pow((failures.max(0) / 2).min(16).cast_unsigned());
    doubled.min(MAX_STALL_DELAY).mul_f64(0.75 + chance / 2.0)
}

/// Raises the fence, does a reset that was asked for, and begins to watch for deletions. Ends if a later attempt has
/// begun, or if the connection was deleted.
async fn begin(
    engine: &Engine,
    claim: &Claim,
    function: &DeployedFunction,
    attempt: &Attempt,
) -> anyhow::Result<Result<Begun, Ended>> {
    let mut tx = engine.store.begin_records().await?;
    if !closed_connections::hold_open(&mut tx, claim.connection).await? {
        return Ok(Err(Ended::Dropped));
    }
    let begun = sync_states::begin(&mut tx, attempt, claim.resets, claim.unreported_since).await?;
    let Some(mut begun) = begun else {
        return Ok(Err(Ended::Lost));
    };
    let models: Vec<_> = function.models.keys().map(ToString::to_string).collect();
    streams::assign(&mut tx, claim.connection, &models, &claim.variant, &claim.sync).await?;
    let watches_deletions = function.tracks_deletes();
    if claim.resets && begun.checkpoint.take().is_some() {
        sync_states::store(&mut tx, attempt, &CheckpointChange::Clear, &begun.counts).await?;
    }
    if watches_deletions || (claim.resets && claim.empties_cache) {
        let names: Vec<_> =
            function.models.keys().map(|model| (model.clone(), claim.variant.clone())).collect();
        for mut stream in streams::lock(&mut tx, claim.connection, &names, Some(&claim.sync)).await? {
            if claim.resets && claim.empties_cache {
                records::delete_all(&mut tx, &mut stream).await?;
            }
            // A run that continues from a checkpoint belongs to the generation that set it.
            if watches_deletions && begun.checkpoint.is_none() {
                records::begin_generation(&mut tx, &mut stream, claim.fence).await?;
            }
            streams::store_head(&mut tx, &stream).await?;
        }
    }
    failpoints::reach(Step::SyncBeginning);
    tx.commit().await?;
    failpoints::reach(Step::SyncBegun);
    Ok(Ok(begun))
}

/// The function has returned. A full sync now deletes what it has not seen, and begins from the start next time.
async fn complete(
    engine: &Engine,
    function: &DeployedFunction,
    attempt: &Attempt,
    start: &Start,
    log: &RunLog,
) -> anyhow::Result<Ended> {
    let mut tx = engine.store.begin_records().await?;
    let Some(counts) = sync_states::lock(&mut tx, attempt).await? else { return Ok(Ended::Lost) };
    let mut counts: RunCounts = serde_json::from_value(counts)?;
    for model in function.models.keys() {
        counts.entry(model.clone()).or_default();
    }
    sync_states::note_restored(&mut tx, attempt).await?;
    if !function.tracks_deletes() {
        let checkpoint =
            sync_states::checkpoint(&mut tx, attempt.connection, &attempt.sync, &attempt.variant).await?;
        tx.commit().await?;
        return Ok(start.success(counts, checkpoint));
    }
    let names: Vec<_> =
        function.models.keys().map(|model| (model.clone(), attempt.variant.clone())).collect();
    let mut has_deleted = false;
    let hold = function.deletion_hold(&engine.settings.deletion_hold);
    for mut stream in streams::lock(&mut tx, attempt.connection, &names, Some(&attempt.sync)).await? {
        match records::delete_unseen(&mut tx, &mut stream, |unseen, live| hold.lets_pass(unseen, live))
            .await?
        {
            Unseen::Deleted(deleted) => {
                has_deleted |= deleted > 0;
                counts
                    .entry(stream.model.clone())
                    .or_default()
                    .add(ModelCounts { deleted, ..ModelCounts::default() });
            }
            Unseen::Held { unseen, live } => {
                let message = format!(
                    "the sync did not see {unseen} of {live} records of `{}` again, which looks like a mistake; \
                     nothing was deleted: approve the run if they are really gone",
                    stream.model
                );
                log.note(LogLevel::Error, &message);
                let details = Some(json!({ "model": stream.model, "unseen": unseen, "live": live }));
                let error = RunError { code: HELD.to_owned(), message, details };
                tx.rollback().await?;
                let counts = hold_back(engine, attempt, start, &names).await?;
                let checkpoints = start.until(None);
                return Ok(Ended::Failed { error, again: Again::AtNextSlot, counts, checkpoints });
            }
        }
        records::end_generation(&mut tx, &mut stream).await?;
        streams::store_head(&mut tx, &stream).await?;
    }
    sync_states::store(&mut tx, attempt, &CheckpointChange::Clear, &json!(counts)).await?;
    failpoints::reach(Step::SyncCompleting);
    tx.commit().await?;
    failpoints::reach(Step::SyncCompleted);
    if has_deleted {
        engine.record_changes.note(attempt.connection);
    }
    Ok(start.success(counts, None))
}

/// What an attempt began from.
struct Start {
    /// What earlier attempts have counted since the last success.
    carried: RunCounts,
    checkpoint: Option<String>,
    idle_attempts: i32,
}

impl Start {
    fn from(begun: &Begun) -> serde_json::Result<Self> {
        Ok(Self {
            carried: serde_json::from_value(begun.counts.clone())?,
            checkpoint: begun.checkpoint.clone(),
            idle_attempts: begun.idle_attempts,
        })
    }

    fn until(&self, checkpoint: Option<String>) -> Checkpoints {
        Checkpoints { from: self.checkpoint.clone(), to: checkpoint }
    }

    fn success(&self, counts: RunCounts, checkpoint: Option<String>) -> Ended {
        Ended::Success {
            counts: without_carried(&counts, &self.carried),
            unreported: counts,
            checkpoints: self.until(checkpoint),
        }
    }

    fn own_counts(&self, counts: Option<Value>) -> anyhow::Result<Option<RunCounts>> {
        let Some(counts) = counts else { return Ok(None) };
        Ok(Some(without_carried(&serde_json::from_value(counts)?, &self.carried)))
    }
}

/// Keeps what the run has seen, for somebody to approve its deletions. The next run looks at everything again: if it
/// sees what this one did not, nothing was lost. Gives what was counted.
async fn hold_back(
    engine: &Engine,
    attempt: &Attempt,
    start: &Start,
    names: &[(ModelName, Variant)],
) -> anyhow::Result<Option<RunCounts>> {
    let mut tx = engine.store.begin_records().await?;
    let counts = sync_states::lock(&mut tx, attempt).await?;
    if let Some(counts) = &counts {
        for mut stream in streams::lock(&mut tx, attempt.connection, names, Some(&attempt.sync)).await? {
            records::hold_generation(&mut tx, &mut stream, attempt.fence).await?;
            streams::store_head(&mut tx, &stream).await?;
        }
        sync_states::store(&mut tx, attempt, &CheckpointChange::Clear, counts).await?;
    }
    tx.commit().await?;
    start.own_counts(counts)
}

/// What an attempt has come to.
struct SoFar {
    counts: Option<RunCounts>,
    checkpoint: Option<String>,
    /// It was cut off before it had changed anything.
    is_idle: bool,
}

/// What the attempt has come to. Unless it was cut off, it is not counted among those that were interrupted; so many
/// before it still are.
async fn so_far(
    engine: &Engine,
    attempt: &Attempt,
    start: &Start,
    settled: Option<i32>,
) -> anyhow::Result<SoFar> {
    let mut tx = engine.store.begin_records().await?;
    let counts = start.own_counts(sync_states::lock(&mut tx, attempt).await?)?;
    let checkpoint =
        sync_states::checkpoint(&mut tx, attempt.connection, &attempt.sync, &attempt.variant).await?;
    let is_idle = match settled {
        None => sync_states::is_idle(&mut tx, attempt).await?,
        Some(idle_attempts) => {
            sync_states::settle(&mut tx, attempt, idle_attempts).await?;
            false
        }
    };
    tx.commit().await?;
    Ok(SoFar { counts, checkpoint, is_idle })
}

/// Tells the operator. A run that a later attempt or the next start continues is not worth a line.
fn report(claim: &Claim, ended: &Ended) {
    let sync = &claim.sync;
    match ended {
        Ended::Success { counts, .. } => {
            let sum = |of: fn(&ModelCounts) -> u64| counts.values().map(of).sum::<u64>();
            let (added, updated, deleted) = (sum(|c| c.added), sum(|c| c.updated), sum(|c| c.deleted));
            tracing::info!(
                run.id = %claim.run_id,
                connection.id = claim.connection.0,
                "sync `{sync}`: {added} added, {updated} updated, {deleted} deleted",
            );
        }
        Ended::Failed { error, .. } => tracing::warn!(
            run.id = %claim.run_id,
            connection.id = claim.connection.0,
            error.code,
            "sync `{sync}` failed: {}",
            error.message,
        ),
        Ended::Dropped | Ended::HandedBack | Ended::Lost => {}
    }
}

fn outcome_of(ended: &Ended, usage: Usage, live: &LiveRun) -> Outcome {
    let (state, error, counts) = match ended {
        Ended::Success { counts, .. } => (RunState::Success, None, Some(json!(counts))),
        Ended::Failed { error, counts, .. } => {
            (RunState::Error, Some(error.clone()), counts.as_ref().map(|counts| json!(counts)))
        }
        Ended::Dropped => (RunState::Cancelled, Some(cancelled("the connection or the sync is gone")), None),
        Ended::HandedBack | Ended::Lost => (
            RunState::Cancelled,
            Some(cancelled("the run was stopped; the sync continues from its checkpoint")),
            None,
        ),
    };
    Outcome { state, error, counts, usage: stored_usage(usage), figures: live.meter.figures() }
}

fn cancelled(message: &str) -> RunError {
    RunError { code: "script_cancelled".to_owned(), message: message.to_owned(), details: None }
}

fn no_next() -> Next {
    let retry_at = Some(Utc::now() + UNKNOWN_FUNCTION_DELAY);
    Next { slot: None, retry_at, end: RunEnd::Dropped }
}

/// It may have been changed during the run.
async fn with_current_frequency(engine: &Engine, claim: Claim) -> Claim {
    let read =
        async { schedules::frequency_override(&mut *engine.store.connect().await?, claim.schedule).await };
    match read.await {
        Ok(frequency_override) => Claim { frequency_override, ..claim },
        // The database is away; the next run will see it.
        Err(_) => claim,
    }
}

fn plan_next(
    engine: &Engine,
    claim: &Claim,
    function: &DeployedFunction,
    ended: &Ended,
    started_at: DateTime<Utc>,
) -> Next {
    let now = Utc::now();
    // While the provider wants to be left alone, a run could only wait.
    let held = engine.rate_limits.held_for(claim.integration, claim.connection).unwrap_or_default();
    let again = match ended {
        Ended::Failed { again, .. } => *again,
        _ => Again::AtNextSlot,
    };
    let earliest = now + if let Again::After(wait) = again { wait.max(held) } else { held };
    let overridden = claim.frequency_override.as_deref().and_then(|text| text.parse::<Frequency>().ok());
    let frequency = overridden.as_ref().or(function.frequency());
    let slot = frequency.map(|frequency| next_slot(frequency, function.timezone(), started_at, now));
    let slot = slot.map(|slot| slot.max(earliest));
    let retry_at = match again {
        Again::AtNextSlot => None,
        Again::Soon if claim.failures >= MAX_RETRIES => None,
        Again::Soon => Some((now + retry_delay(claim.failures, rand::random())).max(earliest)),
        Again::After(_) => Some(earliest),
    };
    let retry_at = retry_at.filter(|at| slot.is_none_or(|slot| *at < slot));
    let end = match ended {
        Ended::Success { .. } => RunEnd::Succeeded,
        Ended::Failed { .. } => RunEnd::Failed,
        Ended::HandedBack => RunEnd::HandedBack,
        Ended::Dropped | Ended::Lost => RunEnd::Dropped,
    };
    Next { slot, retry_at, end }
}

/// The first slot after `now`, counted from the start of the run. Missed slots are skipped, never run in a burst.
fn next_slot(
    frequency: &Frequency,
    timezone: chrono_tz::Tz,
    started_at: DateTime<Utc>,
    now: DateTime<Utc>,
) -> DateTime<Utc> {
    let mut slot = frequency.next_after(started_at, timezone);
    if slot <= now {
        slot = frequency.next_after(now, timezone);
    }
    match frequency.interval() {
        // Connections that were made together should not run together for ever.
        Some(interval) => {
            slot + rand::rng().random_range(Duration::ZERO..=(interval / 20).min(Duration::from_secs(30)))
        }
        None => slot,
    }
}

/// Doubles with every failure, give or take a quarter.
fn retry_delay(failures: i32, chance: f64) -> Duration {
    let doubled = FIRST_RETRY * 2_u32.pow(failures.clamp(0, 10).cast_unsigned());
    doubled.mul_f64(0.75 + chance / 2.0)
}

/// Closes the run and releases the schedule. A database that is away for a moment is waited for; if it stays away,
/// the lease runs out and another attempt follows.
async fn write_outcome(engine: &Engine, claim: &Claim, finished: &Finished) {
    for number in 1..=WRITE_OUTCOME_TRIES {
        match try_write_outcome(engine, claim, finished).await {
            Ok(()) => return,
            Err(error) => {
                tracing::warn!(
                    run.id = %claim.run_id,
                    error = &error as &dyn std::error::Error,
                    "the end of sync `{}` was not written (try {number} of {WRITE_OUTCOME_TRIES})", claim.sync,
                );
                tokio::time::sleep(Duration::from_millis(200) * 2_u32.pow(number)).await;
            }
        }
    }
}

async fn try_write_outcome(engine: &Engine, claim: &Claim, finished: &Finished) -> sqlx::Result<()> {
    let mut tx = engine.store.begin().await?;
    let is_ours = runs::close(&mut tx, claim.run_id, engine.host_id, claim.fence, &finished.outcome).await?;
    let lines: Vec<_> = finished.lines.iter().map(|line| (claim.run_id, line)).collect();
    runs::append_logs(&mut tx, &lines).await?;
    schedules::release(&mut tx, claim, engine.host_id, &finished.next).await?;
    // A run that was closed before was told then, or is told by its successor.
    let written = if is_ours {
        note_error(&mut tx, claim, finished).await?;
        tell(&mut tx, claim, finished).await?
    } else {
        0
    };
    failpoints::reach(Step::SyncReleasing);
    tx.commit().await?;
    failpoints::reach(Step::SyncReleased);
    if written > 0 {
        engine.notices.tell(Notice::Webhooks);
    }
    Ok(())
}

/// Says on the connection that the sync fails, until it succeeds.
async fn note_error(conn: &mut PgConnection, claim: &Claim, finished: &Finished) -> sqlx::Result<()> {
    let failing = Failing::Sync { name: claim.sync.as_str(), variant: claim.variant.as_str() };
    match &finished.ended {
        Ended::Success { .. } => connection_errors::clear(conn, claim.connection, failing).await,
        Ended::Failed { error, .. } => {
            connection_errors::set(
                conn,
                claim.connection,
                failing,
                claim.run_id,
                &error.code,
                &error.message,
            )
            .await?;
            Ok(())
        }
        Ended::Dropped | Ended::HandedBack | Ended::Lost => Ok(()),
    }
}

/// Writes the webhooks of a run's end. One that another follows at once is not told.
async fn tell(conn: &mut PgConnection, claim: &Claim, finished: &Finished) -> sqlx::Result<u64> {
    match &finished.ended {
        Ended::Success { unreported, checkpoints, .. } => {
            webhooks::note_sync(conn, &claim.into(), &SyncEnd::Success { unreported }, checkpoints).await
        }
        Ended::Failed { error, checkpoints, .. } => {
            let models = finished.function.iter().flat_map(|function| function.models.keys()).collect();
            webhooks::note_sync(conn, &claim.into(), &SyncEnd::Failure { models, error }, checkpoints).await
        }
        Ended::Dropped | Ended::HandedBack | Ended::Lost => Ok(0),
    }
}

/// For a run whose end is for its successor to write.
async fn append_log(engine: &Engine, claim: &Claim, lines: &[LogLine]) {
    let lines: Vec<_> = lines.iter().map(|line| (claim.run_id, line)).collect();
    let written = async { runs::append_logs(&mut *engine.store.connect().await?, &lines).await };
    if let Err(error) = written.await {
        tracing::warn!(run.id = %claim.run_id, error = &error as &dyn std::error::Error, "log lines were lost");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_double_their_wait_and_differ_by_a_quarter_at_most() {
        for (failures, least, most) in [(0, 7_500, 12_500), (1, 15_000, 25_000), (2, 30_000, 50_000)] {
            assert_eq!(retry_delay(failures, 0.0), Duration::from_millis(least));
            assert_eq!(retry_delay(failures, 1.0), Duration::from_millis(most));
        }
    }

    #[test]
    fn what_gets_nowhere_waits_for_longer_and_longer_up_to_a_day() {
        let waits: Vec<u64> = (0..6).map(|failures| stall_delay(failures, 0.5).as_secs()).collect();
        assert_eq!(waits, [60, 60, 120, 120, 240, 240]);
        assert_eq!(stall_delay(1_000, 0.5), MAX_STALL_DELAY);
    }
}
