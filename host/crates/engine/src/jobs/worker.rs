//! Claims queued jobs and runs them, renews their leases, takes over the jobs of lost hosts, and deletes expired
//! results.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::connections::route::ConnectionRoute;
use crate::inbound_webhooks::dispatch;
use crate::invoker::control::RunControl;
use crate::invoker::error::ActionError;
use crate::jobs::Jobs;
use crate::jobs::attempt::Attempt;
use crate::jobs::result::ActionResult;
use crate::jobs::saved;
use crate::outbound_webhooks::{self, AsyncActionEvent};
use crate::records::commit::Changes;
use crate::takeover::{Takeover, TakeoverGrace};
use syncline_config::FunctionKind;
use syncline_crypto::AssociatedData;
use syncline_store::connections;
use syncline_store::events::Event;
use syncline_store::function_jobs::{self, JobClaim, JobState, Written};
use syncline_store::inbound_webhooks;
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::ids::ConnectionPk;

/// The maximum number of jobs that one statement claims.
const MAX_CLAIM: usize = 64;
/// How many connections one claim examines. Some of them may have queued jobs that cannot start yet.
const MAX_EXAMINED: usize = 256;
/// The interval between claims without an event, because a retry may be due or an event was lost.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(1);
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// A job fails after this many of its hosts were lost.
const MAX_LOSSES: i32 = 5;
/// How long cancelled jobs may take to end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
const SWEEP_EVERY: Duration = Duration::from_secs(60);
const SWEEP_BATCH: i64 = 500;

/// Whether a claimed job can run.
enum Prepared {
    Ready(Attempt),
    /// The job can never run and ends with this error.
    Refused(ActionError),
}

impl Jobs {
    /// Claims and runs jobs until `shutdown`, then gives running jobs time to finish and hands the others back.
    pub async fn work(self: Arc<Self>, shutdown: CancellationToken) {
        let permits = Arc::new(Semaphore::new(self.settings.max_jobs));
        let mut events = self.events.subscribe();
        let mut round = RoundRobin::begin();
        while !shutdown.is_cancelled() {
            // Jobs that were started before a restart of this task count as well.
            let free = self.settings.max_jobs.saturating_sub(self.leased.count_queued());
            let wanted = permits.available_permits().min(free).min(MAX_CLAIM);
            let claims = match self.claim(&mut round, wanted).await {
                Ok(claims) => claims,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "could not claim queued jobs");
                    tokio::time::sleep(AFTER_ERROR).await;
                    continue;
                }
            };
            if !claims.is_empty() {
                failpoints::reach(Step::JobClaimed);
            }
            for claim in claims {
                let permit =
                    Arc::clone(&permits).acquire_owned().await.expect("the semaphore is never closed");
                let control = RunControl::default();
                let lease = self.leased.hold(claim.hold, Some(claim.connection), control.clone());
                let jobs = Arc::clone(&self);
                self.attempts.spawn(async move {
                    jobs.run_claimed(claim, &control).await;
                    drop(lease);
                    drop(permit);
                });
            }
            if wanted > 0 && !round.has_ended_without_claims {
                continue;
            }
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = events.wait_within(MAX_CHECK_INTERVAL, Event::Jobs) => {}
                () = self.attempts.ended() => {}
            }
        }
        self.finish().await;
    }
}

/// One pass over the connections with queued jobs, so that all of them are served. Each claim continues after the last
/// connection of the previous claim, and starts again after the last connection.
struct RoundRobin {
    at: ConnectionPk,
    has_claimed: bool,
    /// The pass ended without a claimed job.
    has_ended_without_claims: bool,
}

impl RoundRobin {
    fn begin() -> Self {
        Self { at: ConnectionPk(0), has_claimed: false, has_ended_without_claims: false }
    }

    /// Advances the pass after a claim of `wanted` jobs. `waiting` contains the examined connections, and `claims` the
    /// connections of the claimed jobs.
    fn advance(&mut self, waiting: &[ConnectionPk], claims: &[ConnectionPk], wanted: usize) {
        self.has_claimed |= !claims.is_empty();
        let reached = if claims.len() < wanted {
            waiting.last().filter(|_| waiting.len() >= MAX_EXAMINED)
        } else {
            claims.iter().max()
        };
        match reached {
            Some(connection) => {
                self.at = *connection;
                self.has_ended_without_claims = false;
            }
            None => *self = Self { has_ended_without_claims: !self.has_claimed, ..Self::begin() },
        }
    }
}

impl Jobs {
    /// Claims jobs. A connection gets at most half of the permits, so that others can run however many jobs it queues.
    async fn claim(&self, round: &mut RoundRobin, wanted: usize) -> sqlx::Result<Vec<JobClaim>> {
        if wanted == 0 {
            return Ok(Vec::new());
        }
        let mut conn = self.store.connect().await?;
        let waiting = function_jobs::list_waiting(&mut conn, round.at, MAX_EXAMINED as i32).await?;
        let busy = self.leased.connections_with(self.settings.max_jobs.div_ceil(2));
        let open: Vec<i64> = waiting.iter().map(|pk| pk.0).filter(|pk| !busy.contains(pk)).collect();
        let claims = if open.is_empty() {
            Vec::new()
        } else {
            let (owner, lease) = (self.host_id, self.settings.lease);
            function_jobs::claim(&mut conn, owner, lease, &open, wanted as i64).await?
        };
        let claimed: Vec<ConnectionPk> = claims.iter().map(|claim| claim.connection).collect();
        round.advance(&waiting, &claimed, wanted);
        Ok(claims)
    }

    async fn run_claimed(&self, claim: JobClaim, control: &RunControl) {
        match self.prepare(&claim).await {
            Ok(Prepared::Ready(attempt)) => {
                attempt.run(self, control).await;
            }
            Ok(Prepared::Refused(failure)) => {
                if let Err(error) = self.refuse(&claim, failure).await {
                    let error = format!("{error:#}");
                    tracing::warn!(job.id = %claim.id, error, "could not end a job; its lease will expire");
                }
            }
            Err(error) => {
                let error = format!("{error:#}");
                tracing::error!(job.id = %claim.id, error, "could not start a job; its lease will expire");
            }
        }
    }

    /// Loads everything that the job needs to run.
    async fn prepare(&self, claim: &JobClaim) -> anyhow::Result<Prepared> {
        if claim.losses >= MAX_LOSSES {
            return Ok(Prepared::Refused(ActionError::HostsLost(claim.losses)));
        }
        let function = self
            .functions
            .find_deployed(claim.environment, claim.integration, claim.kind, &claim.function)
            .await?;
        let mut conn = self.store.connect().await?;
        let Some(connection) = connections::get(&mut conn, claim.connection).await? else {
            return Ok(Prepared::Refused(ActionError::ConnectionGone {
                integration: claim.integration_key.clone(),
                connection: claim.connection_id.clone(),
            }));
        };
        let Some(function) = function else {
            let (action, integration) = (claim.function.clone(), claim.integration_key.clone());
            return Ok(Prepared::Refused(ActionError::Unknown { action, integration }));
        };
        let environment = self.environments.get(claim.environment).await?;
        let input = match (&claim.webhook, function_jobs::load_input(&mut conn, claim.hold.pk).await?) {
            (Some(webhook), _) => {
                let input =
                    dispatch::function_input(&self.catalogue, &mut conn, &connection.provider, webhook)
                        .await?;
                let Some(input) = input else {
                    let error =
                        anyhow::anyhow!("the webhook was removed, or its provider is not in the catalogue");
                    return Ok(Prepared::Refused(ActionError::host(error)));
                };
                Some(input)
            }
            (None, Some(sealed)) => {
                let associated_data =
                    AssociatedData { column: "function_jobs.sealed_input", row: &claim.id.to_string() };
                Some(String::from_utf8(environment.data_key.open(associated_data, &sealed)?.to_vec())?)
            }
            (None, None) => function.event_input(),
        };
        Ok(Prepared::Ready(Attempt {
            hold: claim.hold,
            job: claim.id,
            kind: claim.kind,
            webhook: claim.webhook.as_ref().map(|webhook| webhook.id),
            lost_since: (claim.losses > 0).then_some(claim.created_at),
            due_at: Some(claim.due_at),
            is_async: true,
            number: claim.failures + claim.losses + 1,
            failures: claim.failures,
            max_retries: claim.max_retries,
            environment,
            connection: Arc::new(ConnectionRoute::from(&connection)),
            function,
            input,
        }))
    }

    /// Ends a job that cannot run.
    async fn refuse(&self, claim: &JobClaim, failure: ActionError) -> anyhow::Result<()> {
        tracing::warn!(job.id = %claim.id, "{} `{}` was not started: {failure}", claim.kind, claim.function);
        let environment = self.environments.get(claim.environment).await?;
        let is_gone = matches!(failure, ActionError::ConnectionGone { .. });
        let mut lost = Changes::default();
        let function = self.functions.find(claim.integration, FunctionKind::Webhook, &claim.function);
        let function = function.filter(|_| claim.webhook.is_some() && claim.losses > 0);
        if let Some(function) = &function {
            saved::add_lost(&mut lost, function, claim.created_at);
        }
        let sealed = ActionResult::new(&Err(failure), self.clock.now()).seal(&environment, claim.id);
        let mut tx = self.store.begin().await?;
        let (owner, kept_for) = (self.host_id, self.settings.results_kept_for);
        let written =
            function_jobs::finish(&mut tx, claim.hold, owner, JobState::Error, &sealed, kept_for).await?;
        let is_ours = written == Written::Now;
        if is_ours && claim.kind == FunctionKind::Action {
            let event = AsyncActionEvent {
                environment: claim.environment,
                connection: claim.connection,
                connection_id: &claim.connection_id,
                integration: &claim.integration_key,
                job: claim.id,
            };
            outbound_webhooks::note_async_action(&mut tx, &event).await?;
        }
        let (mut webhook_end, mut webhooks) = (None, 0);
        if let Some(webhook) = claim.webhook.as_ref().filter(|_| is_ours) {
            webhook_end = inbound_webhooks::note_job_end(&mut tx, webhook.id, !is_gone).await?;
            if let Some(function) = &function {
                webhooks = saved::note(
                    &mut tx,
                    &self.functions,
                    function,
                    claim.environment,
                    claim.connection,
                    &lost,
                )
                .await?;
            }
        }
        tx.commit().await?;
        if webhooks > 0 {
            self.events.publish(Event::Webhooks);
        }
        if let Some(state) = webhook_end {
            dispatch::count_ended(state);
        }
        Ok(())
    }

    /// Renews the leases of running jobs and takes over the jobs of lost hosts, until `shutdown`.
    pub async fn keep_leases(self: Arc<Self>, shutdown: CancellationToken) {
        let lease = self.settings.lease;
        let mut ticks = tokio::time::interval(lease / 3);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut takeover_grace = TakeoverGrace::begin(lease, self.clock.clone());
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            let leases = self.leased.leases();
            let turn = async {
                let mut conn = self.store.connect().await?;
                let pks: Vec<i64> = leases.iter().map(|hold| hold.pk).collect();
                let renewed = match pks.as_slice() {
                    [] => Vec::new(),
                    pks => function_jobs::renew_leases(&mut conn, self.host_id, lease, pks).await?,
                };
                let lost = match takeover_grace.note() {
                    Takeover::Yes => function_jobs::take_back_lost(&mut conn).await?,
                    Takeover::NotYet => 0,
                };
                Ok::<_, sqlx::Error>((renewed, lost))
            };
            match turn.await {
                Ok((renewed, lost)) => {
                    if lost > 0 {
                        tracing::warn!(lost, "took over {lost} jobs of lost hosts");
                        self.events.publish(Event::Jobs);
                    }
                    leases
                        .iter()
                        .filter(|hold| !renewed.contains(hold))
                        .for_each(|hold| self.leased.lose(*hold));
                }
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "could not renew the leases of jobs; retrying"
                    );
                }
            }
        }
    }

    async fn finish(&self) {
        let waiting = self.leased.leases().len();
        if waiting > 0 {
            tracing::info!(jobs = waiting, "waiting for {waiting} jobs to finish");
        }
        self.leased.ask_to_end();
        self.leased.waited_for.close();
        let all_done = async {
            self.attempts.all_ended().await;
            self.leased.waited_for.wait().await;
        };
        if tokio::time::timeout(self.settings.grace, all_done).await.is_ok() {
            return;
        }
        self.leased.controls().iter().for_each(|control| control.release.cancel());
        self.attempts.all_ended().await;
        if tokio::time::timeout(CANCEL_TIMEOUT, self.leased.waited_for.wait()).await.is_err() {
            tracing::warn!("the shutdown interrupted actions that did not end in time");
        }
    }

    /// Deletes expired results in batches.
    pub async fn sweep(self: Arc<Self>, shutdown: CancellationToken) {
        let every = SWEEP_EVERY.min(self.settings.results_kept_for);
        while shutdown.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
            loop {
                let swept = async {
                    function_jobs::delete_expired(&mut *self.store.connect().await?, SWEEP_BATCH).await
                };
                match shutdown.run_until_cancelled(swept).await {
                    Some(Ok(deleted)) if deleted.cast_signed() >= SWEEP_BATCH => {}
                    None | Some(Ok(_)) => break,
                    Some(Err(error)) => {
                        tracing::warn!(
                            error = &error as &dyn std::error::Error,
                            "could not delete expired results of jobs; retrying"
                        );
                        break;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pks(numbers: std::ops::Range<usize>) -> Vec<ConnectionPk> {
        numbers.map(|number| ConnectionPk(number as i64)).collect()
    }

    #[test]
    fn a_pass_reaches_every_connection_and_pauses_only_if_it_claimed_nothing() {
        let mut round = RoundRobin::begin();
        // The first connections have no job that can start.
        round.advance(&pks(1..MAX_EXAMINED + 1), &[], 10);
        assert_eq!((round.at, round.has_ended_without_claims), (ConnectionPk(MAX_EXAMINED as i64), false));
        round.advance(&pks(300..310), &[ConnectionPk(309)], 10);
        assert_eq!((round.at, round.has_ended_without_claims), (ConnectionPk(0), false));
        round.advance(&pks(1..MAX_EXAMINED + 1), &[], 10);
        round.advance(&pks(300..309), &[], 10);
        assert_eq!((round.at, round.has_ended_without_claims), (ConnectionPk(0), true));
    }

    #[test]
    fn the_connection_after_the_last_served_is_next() {
        let mut round = RoundRobin::begin();
        round.advance(&pks(1..6), &pks(1..3), 2);
        assert_eq!((round.at, round.has_ended_without_claims), (ConnectionPk(2), false));
        round.advance(&pks(3..6), &pks(3..5), 2);
        assert_eq!(round.at, ConnectionPk(4));
    }
}
