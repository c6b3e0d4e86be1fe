//! One attempt at a job: runs the function and stores its result.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use rand::Rng;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::connections::route::ConnectionRoute;
use crate::functions::DeployedFunction;
use crate::inbound_webhooks::dispatch;
use crate::invoker::control::RunControl;
use crate::invoker::error::ActionError;
use crate::invoker::invocation::Invocation;
use crate::invoker::recording::{JobAttempt, Recording};
use crate::jobs::Jobs;
use crate::jobs::result::ActionResult;
use crate::jobs::saved;
use crate::outbound_webhooks::{self, AsyncActionEvent};
use crate::records::commit::Changes;
use syncline_auth::Environment;
use syncline_sandbox::{LogLevel, PriorityClass, RunInfo, RunLog, Usage};
use syncline_store::connections;
use syncline_store::events::Event;
use syncline_store::function_jobs::{self, JobLease, JobState, Written};
use syncline_store::inbound_webhooks;
use syncline_store::runs::{self, FinishedRun, Outcome, RunError, RunState};
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::error_code::ErrorCode;
use syncline_types::functions::FunctionKind;
use syncline_types::ids::Variant;

const FIRST_RETRY: Duration = Duration::from_secs(1);
const WRITE_TRIES: u32 = 5;

/// An attempt at a job that is ready to run.
pub(crate) struct Attempt {
    pub(crate) hold: JobLease,
    pub(crate) job: Uuid,
    pub(crate) kind: FunctionKind,
    /// The webhook that a webhook function handles.
    pub(crate) webhook: Option<Uuid>,
    /// When the job was created, if earlier attempts were lost. None of them began before this time.
    pub(crate) lost_since: Option<DateTime<Utc>>,
    /// When a queued job could start.
    pub(crate) due_at: Option<DateTime<Utc>>,
    pub(crate) is_async: bool,
    /// The number of this attempt, starting at 1.
    pub(crate) number: i32,
    pub(crate) failures: i32,
    pub(crate) max_retries: i32,
    pub(crate) environment: Arc<Environment>,
    pub(crate) connection: Arc<ConnectionRoute>,
    pub(crate) function: Arc<DeployedFunction>,
    pub(crate) input: Option<String>,
}

/// How an attempt ended.
pub(crate) enum Ended {
    Done(Result<Option<String>, ActionError>),
    /// The host is shutting down: another host may run the job.
    HandedBack,
    /// Another host has taken over the job.
    Lost,
}

impl Attempt {
    /// Runs the function and stores its result, unless another host has taken over the job.
    pub(crate) async fn run(mut self, jobs: &Jobs, control: &RunControl) -> Ended {
        let recording = Recording::begin(
            &jobs.invoker,
            self.kind,
            Uuid::now_v7(),
            Some(JobAttempt { id: self.job, number: self.number, due_at: self.due_at }),
            &self.connection,
            &self.function,
        );
        let input = self.input.take();
        let (ended, usage) = tokio::select! {
            (result, usage) = self.invoke(jobs, input, control, &recording) => {
                let result = self.unless_deleted(jobs, result).await;
                // A run that stopped early because it was cancelled must be repeated, although it returned a value.
                let is_cut_short = result.is_ok() && control.signals.stop_acknowledged();
                (if is_cut_short { Ended::HandedBack } else { Ended::Done(result) }, usage)
            }
            () = control.release.cancelled() => (Ended::HandedBack, Usage::default()),
            () = control.lost.cancelled() => (Ended::Lost, Usage::default()),
        };
        match &ended {
            Ended::Done(result) => {
                failpoints::reach(Step::JobReturned);
                if let Err(error) = result {
                    self.report(error, &recording.live.log);
                }
                let error = result.as_ref().err().map(|error| error.to_run_error(self.kind));
                let changes = recording.live.meter.changes();
                let run = recording.end_with(error, usage).await;
                if !self.write(jobs, result, &run, &changes).await {
                    let outcome = Outcome { state: RunState::Lost, error: Some(lost_lease()), ..run.outcome };
                    jobs.invoker.run_writer.write(FinishedRun { outcome, ..run }).await;
                    return Ended::Lost;
                }
            }
            Ended::HandedBack => self.release(jobs, recording).await,
            Ended::Lost => {
                let run = recording.end(RunState::Lost, Some(lost_lease()), usage).await;
                jobs.invoker.run_writer.write(run).await;
            }
        }
        if matches!(ended, Ended::Lost) {
            tracing::warn!(
                job.id = %self.job,
                "{} `{}` lost its lease; another attempt follows",
                self.kind,
                self.function.name,
            );
        }
        ended
    }

    async fn invoke(
        &self,
        jobs: &Jobs,
        input: Option<String>,
        control: &RunControl,
        recording: &Recording,
    ) -> (Result<Option<String>, ActionError>, Usage) {
        let invocation = Invocation {
            kind: self.kind,
            run: RunInfo {
                id: self.job.to_string(),
                variant: Variant::BASE.to_owned(),
                attempt: self.number.max(1).cast_unsigned(),
                is_full: false,
            },
            environment: &self.environment,
            connection: &self.connection,
            function: &self.function,
            priority: if self.is_async { PriorityClass::Background } else { PriorityClass::Interactive },
            input,
            signals: Arc::clone(&control.signals),
            live: &recording.live,
        };
        jobs.invoker.invoke_action(invocation).await
    }

    /// Replaces the result of an asynchronous action whose connection was deleted while it ran.
    async fn unless_deleted(
        &self,
        jobs: &Jobs,
        result: Result<Option<String>, ActionError>,
    ) -> Result<Option<String>, ActionError> {
        if !self.is_async || self.kind != FunctionKind::Action {
            return result;
        }
        let exists =
            async { connections::exists(&mut *jobs.store.connect().await?, self.connection.pk).await };
        match exists.await {
            Ok(false) => Err(ActionError::superseded()),
            // If the database is unavailable, storing the result reports it.
            Ok(true) | Err(_) => result,
        }
    }

    fn report(&self, error: &ActionError, log: &RunLog) {
        let (kind, name) = (self.kind, &self.function.name);
        if let Some(cause) = error.host_failure() {
            tracing::error!(
                job.id = %self.job,
                error = format!("{cause:#}"),
                "an internal error interrupted {kind} `{name}`",
            );
        } else if self.is_async {
            tracing::warn!(
                job.id = %self.job,
                connection.id = self.connection.pk.0,
                error.code = %error.code(),
                // The message of a function may contain the caller's data. The log of the run has it.
                "{kind} `{name}` failed",
            );
        }
        log.note(LogLevel::Error, &error.to_string());
    }

    /// Ends the job or queues it again, with the run and the webhook in one transaction. Returns `false` if this host
    /// no longer has the lease. Retries briefly if the database is unavailable; after that, the lease expires.
    async fn write(
        &self,
        jobs: &Jobs,
        result: &Result<Option<String>, ActionError>,
        run: &FinishedRun,
        changes: &Changes,
    ) -> bool {
        for number in 1..=WRITE_TRIES {
            match self.try_write(jobs, result, run, changes.clone()).await {
                Ok(is_ours) => return is_ours,
                Err(error) => {
                    tracing::warn!(
                        job.id = %self.job,
                        error = &error as &dyn std::error::Error,
                        "could not write the end of {} `{}` (try {number} of {WRITE_TRIES})",
                        self.kind,
                        self.function.name,
                    );
                    tokio::time::sleep(Duration::from_millis(200) * 2_u32.pow(number)).await;
                }
            }
        }
        // The waiting caller can still get the result: no other host has run the job.
        true
    }

    async fn try_write(
        &self,
        jobs: &Jobs,
        result: &Result<Option<String>, ActionError>,
        run: &FinishedRun,
        mut changes: Changes,
    ) -> sqlx::Result<bool> {
        let mut tx = jobs.store.begin().await?;
        // Providers do not resend an acknowledged webhook, so its function is retried after any error.
        let may_succeed = |error: &ActionError| match self.webhook {
            Some(_) => !error.is_superseded(),
            None => error.is_retryable(),
        };
        let retries = self.failures < self.max_retries && result.as_ref().is_err_and(may_succeed);
        let written = if retries {
            // Waits at least until the provider accepts requests again.
            let provider_wait = result.as_ref().err().and_then(ActionError::retry_after);
            let wait = retry_delay(self.failures).max(provider_wait.unwrap_or_default());
            function_jobs::retry_after(&mut tx, self.hold, jobs.host_id, self.failures, wait).await?
        } else if !self.is_async && result.as_ref().is_err_and(|error| error.host_failure().is_some()) {
            // If it were stored, every repeated request with this key would get this temporary error.
            function_jobs::release(&mut tx, self.hold, jobs.host_id).await?
        } else {
            let state = if result.is_ok() { JobState::Success } else { JobState::Error };
            let sealed = ActionResult::new(result, jobs.clock.now()).seal(&self.environment, self.job);
            let kept_for = jobs.settings.results_kept_for;
            function_jobs::finish(&mut tx, self.hold, jobs.host_id, state, &sealed, kept_for).await?
        };
        if written != Written::Now {
            return Ok(written == Written::Before);
        }
        runs::write_finished(&mut tx, std::slice::from_ref(run)).await?;
        if !retries && self.is_async && self.kind == FunctionKind::Action {
            let event = AsyncActionEvent {
                environment: self.environment.pk,
                connection: self.connection.pk,
                connection_id: &self.connection.connection_id,
                integration: &self.connection.integration_key,
                job: self.job,
            };
            outbound_webhooks::note_async_action(&mut tx, &event).await?;
        }
        let mut webhook_end = None;
        if !retries && let Some(webhook) = self.webhook {
            let has_failed = result.as_ref().is_err_and(|error| !error.is_superseded());
            webhook_end = inbound_webhooks::note_job_end(&mut tx, webhook, has_failed).await?;
        }
        if let Some(since) = self.lost_since.filter(|_| !retries) {
            saved::add_lost(&mut changes, &self.function, since);
        }
        let webhooks = self.note_saved(&mut tx, jobs, &changes).await?;
        failpoints::reach(Step::JobEnding);
        tx.commit().await?;
        if let Some(state) = webhook_end {
            dispatch::count_ended(state);
        }
        failpoints::reach(Step::JobEnded);
        if webhooks > 0 {
            jobs.events.publish(Event::Webhooks);
        }
        Ok(true)
    }

    /// Queues webhooks about the records that a webhook function has saved. Callers of actions know what their actions
    /// save.
    async fn note_saved(&self, conn: &mut PgConnection, jobs: &Jobs, changes: &Changes) -> sqlx::Result<u64> {
        if self.webhook.is_none() {
            return Ok(0);
        }
        let (environment, connection) = (self.environment.pk, self.connection.pk);
        saved::note(conn, &jobs.functions, &self.function, environment, connection, changes).await
    }

    async fn release(&self, jobs: &Jobs, recording: Recording) {
        let error = RunError {
            code: ErrorCode::ScriptCancelled,
            message: "the host shut down before the function ended".to_owned(),
            details: None,
        };
        let changes = recording.live.meter.changes();
        let run = recording.end(RunState::Cancelled, Some(error), Usage::default()).await;
        jobs.invoker.run_writer.write(run).await;
        let handed_back = async {
            let mut tx = jobs.store.begin().await?;
            if function_jobs::release(&mut tx, self.hold, jobs.host_id).await? == Written::Now {
                self.note_saved(&mut tx, jobs, &changes).await?;
            }
            tx.commit().await
        };
        if let Err(error) = handed_back.await {
            tracing::warn!(
                job.id = %self.job,
                error = &error as &dyn std::error::Error,
                "could not hand back a job; another attempt follows when its lease expires"
            );
        }
    }
}

fn lost_lease() -> RunError {
    RunError {
        code: ErrorCode::HostLost,
        message: "the host lost its lease, and another one has taken over".to_owned(),
        details: None,
    }
}

fn retry_delay(failures: i32) -> Duration {
    let doubled = FIRST_RETRY * 2_u32.pow(failures.clamp(0, 5).cast_unsigned());
    doubled.mul_f64(rand::rng().random_range(0.75..1.25))
}
