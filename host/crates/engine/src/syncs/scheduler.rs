//! Claims and runs due syncs, renews the leases of running ones, and takes over the runs of lost hosts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::invoker::control::RunControl;
use crate::syncs::Syncs;
use crate::syncs::fair_queue::{self, Candidate, Served, Tenant};
use crate::syncs::run;
use crate::syncs::running::LeaseGuard;
use crate::takeover::{Takeover, TakeoverGrace};
use syncline_store::events::Event;
use syncline_store::schedules::{self, Claim, ClaimRequest, WaitingIntegration};
use syncline_store::stalled;
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::ids::IntegrationPk;

/// Maximum number of schedules that one statement claims.
const MAX_CLAIM: usize = 64;
/// Longest wait between two checks for due syncs, because a notification can be lost.
const MAX_CHECK_INTERVAL: Duration = Duration::from_secs(2);
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// How long an unresponsive host may block others with an open transaction: the duration of its lease, within these
/// bounds. A host that is only short of CPU time must not lose its work.
const MIN_STALL_TIMEOUT: Duration = Duration::from_secs(3);
const MAX_STALL_TIMEOUT: Duration = Duration::from_secs(10);

impl Syncs {
    /// Claims and runs due syncs until `shutdown`. Then waits for the grace period and hands back the remaining runs.
    pub async fn schedule(self: Arc<Self>, shutdown: CancellationToken) {
        let permits = Arc::new(Semaphore::new(self.settings.max_syncs));
        let mut events = self.events.subscribe();
        // Integrations of which fewer syncs could be claimed than requested. They are skipped until the next wait.
        let mut stuck = HashSet::new();
        let mut served = Served::default();
        while !shutdown.is_cancelled() {
            // Runs that were started before a restart of this task count as well.
            let free = self.settings.max_syncs.saturating_sub(self.running.lock().len());
            let free = permits.available_permits().min(free).min(MAX_CLAIM);
            let found = match self.claim(&mut stuck, &mut served, free).await {
                Ok(found) => found,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "could not claim due syncs; retrying"
                    );
                    tokio::time::sleep(AFTER_ERROR).await;
                    continue;
                }
            };
            let wait = match found {
                Found::Work(claims) => {
                    for claim in claims {
                        let permit = Arc::clone(&permits)
                            .acquire_owned()
                            .await
                            .expect("the semaphore is never closed");
                        let control = RunControl::default();
                        let lease = LeaseGuard::new(&self.running, &claim, control.clone());
                        let syncs = Arc::clone(&self);
                        self.runs.spawn(async move {
                            run::run(&syncs, claim, control).await;
                            drop(lease);
                            drop(permit);
                        });
                    }
                    continue;
                }
                Found::Nothing { check_again_in } => check_again_in,
            };
            stuck.clear();
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = events.wait_within(wait, Event::Due) => {}
                () = self.runs.ended() => {}
            }
        }
        self.finish().await;
    }
}

enum Found {
    /// There may be more due schedules.
    Work(Vec<Claim>),
    Nothing {
        check_again_in: Duration,
    },
}

impl Syncs {
    /// Claims as many due schedules as there are free permits. The cost depends on the number of integrations with
    /// waiting schedules, not on the number of schedules.
    async fn claim(
        &self,
        stuck: &mut HashSet<IntegrationPk>,
        served: &mut Served,
        free: usize,
    ) -> sqlx::Result<Found> {
        if free == 0 {
            return Ok(Found::Nothing { check_again_in: MAX_CHECK_INTERVAL });
        }
        let waiting = schedules::list_waiting(&mut *self.store.connect().await?).await?;
        let next = waiting.iter().map(|waiting| waiting.due_in).filter(|due_in| !due_in.is_zero()).min();
        let nothing =
            Found::Nothing { check_again_in: next.unwrap_or(MAX_CHECK_INTERVAL).min(MAX_CHECK_INTERVAL) };
        served.retain(&waiting.iter().map(|waiting| waiting.integration).collect());
        let wanted = self.pick(&waiting, stuck, served, free);
        if wanted.is_empty() {
            return Ok(nothing);
        }
        let mut tx = self.store.begin().await?;
        let claimed = schedules::claim_due(&mut tx, self.host_id, self.settings.lease, &wanted).await?;
        failpoints::reach(Step::SyncClaiming);
        tx.commit().await?;
        served.note(claimed.claims.iter().map(|claim| claim.integration));
        if !claimed.claims.is_empty() {
            failpoints::reach(Step::SyncClaimed);
        }
        if claimed.parked > 0 {
            // The runs that these schedules wait for may have ended before they were marked as waiting.
            schedules::wake_idle(&mut *self.store.connect().await?).await?;
        } else {
            let claimed_of = |wanted: &ClaimRequest| {
                claimed.claims.iter().filter(|claim| claim.integration == wanted.integration).count()
            };
            stuck.extend(
                wanted
                    .iter()
                    .filter(|wanted| claimed_of(wanted) < wanted.quota)
                    .map(|wanted| wanted.integration),
            );
        }
        Ok(Found::Work(claimed.claims))
    }

    /// Decides how many schedules of each integration to claim.
    fn pick(
        &self,
        waiting: &[WaitingIntegration],
        stuck: &HashSet<IntegrationPk>,
        served: &Served,
        free: usize,
    ) -> Vec<ClaimRequest> {
        let settings = &self.settings;
        let limits = self.functions.concurrency();
        let limit_of = |integration| limits.get(&integration).copied().unwrap_or_default();
        let most = |integration| limit_of(integration).runs.or(settings.max_syncs_per_integration);
        let due = waiting
            .iter()
            .filter(|waiting| waiting.due_in.is_zero() && !stuck.contains(&waiting.integration));
        let candidates: Vec<Candidate> = due
            .map(|WaitingIntegration { environment, integration, .. }| Candidate {
                tenant: Tenant { environment: *environment, integration: *integration },
                most: most(*integration).map_or(usize::MAX, |most| most as usize),
                served: served.last(*integration),
            })
            .collect();
        let shares = fair_queue::share(&candidates, &self.running.by_tenant(), free, &mut rand::rng());
        let wanted = shares.into_iter().map(|(integration, quota)| ClaimRequest {
            integration,
            quota,
            most: most(integration),
            most_of_connection: limit_of(integration)
                .runs_per_connection
                .unwrap_or(settings.max_syncs_per_connection),
        });
        wanted.collect()
    }

    /// Renews the leases of running syncs and takes over the runs of lost hosts, until `shutdown`.
    pub async fn keep_leases(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(self.settings.lease / 3);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut events = self.events.subscribe();
        let mut takeover_grace = TakeoverGrace::begin(self.settings.lease, self.clock.clone());
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                _ = ticks.tick() => {}
                () = events.wait_for(Event::Cancel) => {}
            }
            if let Err(error) = self.maintain_leases(&mut takeover_grace).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not renew the leases of syncs; retrying"
                );
            }
        }
    }

    /// Renews leases, passes on cancellations, stops runs whose lease is lost, and takes over the runs of lost hosts.
    async fn maintain_leases(&self, takeover_grace: &mut TakeoverGrace) -> sqlx::Result<()> {
        let mut leases: Vec<_> =
            self.running.lock().iter().map(|(run_id, run)| (run.schedule, *run_id)).collect();
        // Statements that lock several rows by number do so in ascending order, which prevents deadlocks.
        leases.sort_unstable();
        let mut conn = self.store.connect().await?;
        let renewed = schedules::renew_leases(&mut conn, self.host_id, self.settings.lease, &leases).await?;
        let renewed: HashMap<Uuid, bool> =
            renewed.iter().map(|renewed| (renewed.run_id, renewed.cancel_wanted)).collect();
        for (_, run_id) in &leases {
            let Some(run) = self.running.lock().get(run_id).cloned() else { continue };
            match renewed.get(run_id) {
                None => run.control.lost.cancel(),
                Some(true) => self.cancel(&run.control),
                Some(false) => {}
            }
        }
        let lost = match takeover_grace.note() {
            Takeover::Yes => schedules::take_back_lost(&mut conn).await?,
            Takeover::NotYet => 0,
        };
        if lost > 0 {
            tracing::warn!(lost, "took over {lost} runs of lost hosts");
        }
        let unparked = schedules::wake_idle(&mut conn).await?;
        if lost + unparked > 0 {
            self.events.publish(Event::Due);
        }
        Ok(())
    }

    /// Ends transactions of unresponsive hosts that block others. Separate from the renewal of leases, which must
    /// continue while the records database is not available.
    pub async fn end_stalled(self: Arc<Self>, shutdown: CancellationToken) {
        let stall_timeout = self.settings.lease.clamp(MIN_STALL_TIMEOUT, MAX_STALL_TIMEOUT);
        let mut ticks = tokio::time::interval(self.settings.lease / 3);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            let turn = async {
                let mut stalled =
                    stalled::end_stalled(&mut *self.store.connect().await?, stall_timeout).await?;
                if self.store.is_divided() {
                    let mut records = self.store.connect_records().await?;
                    stalled += if self.store.is_on_citus() {
                        stalled::end_stalled_on_citus(&mut records, stall_timeout).await?
                    } else {
                        stalled::end_stalled(&mut records, stall_timeout).await?
                    };
                }
                Ok::<_, sqlx::Error>(stalled)
            };
            match turn.await {
                Ok(0) => {}
                Ok(stalled) => tracing::warn!(
                    stalled,
                    "ended {stalled} transactions of unresponsive hosts that blocked other hosts"
                ),
                Err(error) => tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not look for blocking transactions of unresponsive hosts; retrying"
                ),
            }
        }
    }

    async fn finish(&self) {
        let controls: Vec<RunControl> = self.running.lock().values().map(|run| run.control.clone()).collect();
        if !controls.is_empty() {
            tracing::info!(runs = controls.len(), "waiting for {} runs to finish", controls.len());
        }
        for control in &controls {
            control.signals.cancel();
        }
        if tokio::time::timeout(self.settings.grace, self.runs.all_ended()).await.is_ok() {
            return;
        }
        for control in &controls {
            control.release.cancel();
        }
        self.runs.all_ended().await;
    }

    /// Asks the function to end, and stops it after the grace period.
    fn cancel(&self, control: &RunControl) {
        if !control.signals.cancel() {
            return;
        }
        let grace = self.settings.grace;
        let release = control.release.clone();
        self.ending.spawn(async move {
            tokio::time::sleep(grace).await;
            release.cancel();
        });
    }
}
