//! Claims what is due and runs it, keeps the leases of what runs, and takes back what lost hosts held.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::Engine;
use crate::syncs::fair_queue::{self, Room, Served, Tenant};
use crate::syncs::run::{self, RunControl};
use crate::takeover::{Attendance, MayTakeBack};
use syncline_store::notices::Notice;
use syncline_store::schedules::{self, Claim, Waiting, Wanted};
use syncline_store::stalled;
use syncline_telemetry::failpoints::{self, Step};
use syncline_types::ids::{IntegrationPk, SchedulePk};

/// How many schedules are claimed by one statement.
const MAX_CLAIM: usize = 64;
/// However quiet it is, the scheduler looks again after this long: a notification may have been lost.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// For how long a silent host may keep others waiting for its transaction: as long as its lease, within these bounds. One
/// that is only short of processor time is not to lose its work for it.
const LEAST_PATIENCE: Duration = Duration::from_secs(3);
const MOST_PATIENCE: Duration = Duration::from_secs(10);

/// What runs on this host.
#[derive(Default)]
struct Running(Mutex<HashMap<Uuid, Run>>);

/// A run, as far as its lease and its tenant's share are concerned.
#[derive(Clone)]
struct Run {
    schedule: SchedulePk,
    tenant: Tenant,
    control: RunControl,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Run>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn by_tenant(&self) -> HashMap<Tenant, usize> {
        let mut counts = HashMap::new();
        for run in self.lock().values() {
            *counts.entry(run.tenant).or_default() += 1;
        }
        counts
    }
}

/// A run that this host keeps the lease of, until this is dropped: also when the run panics, so that its lease runs
/// out and another attempt follows.
struct Held {
    running: Arc<Running>,
    run_id: Uuid,
}

impl Held {
    fn new(running: &Arc<Running>, claim: &Claim, control: RunControl) -> Self {
        let tenant = Tenant { environment: claim.environment, integration: claim.integration };
        let run = Run { schedule: claim.schedule, tenant, control };
        running.lock().insert(claim.run_id, run);
        Self { running: Arc::clone(running), run_id: claim.run_id }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.running.lock().remove(&self.run_id);
    }
}

/// Works until `shutdown`, then lets runs finish for a while and gives back the rest.
pub(crate) async fn run(engine: Arc<Engine>, shutdown: CancellationToken) {
    let running = Arc::new(Running::default());
    let slots = Arc::new(Semaphore::new(engine.settings.max_syncs));
    let mut runs = JoinSet::new();
    let leases = tokio::spawn(keep_leases(Arc::clone(&engine), Arc::clone(&running)));
    let unlocking = tokio::spawn(end_stalled(Arc::clone(&engine)));
    let mut notices = engine.notices.subscribe();
    // Integrations that gave nothing since the last wait, though they have something due.
    let mut stuck = HashSet::new();
    let mut served = Served::default();
    while !shutdown.is_cancelled() {
        let free = slots.available_permits().min(MAX_CLAIM);
        let found = match look(&engine, &running, &mut stuck, &mut served, free).await {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "due syncs could not be claimed");
                tokio::time::sleep(AFTER_ERROR).await;
                continue;
            }
        };
        let wait = match found {
            Found::Work(claims) => {
                for claim in claims {
                    let permit =
                        Arc::clone(&slots).acquire_owned().await.expect("the semaphore is never closed");
                    let control = RunControl::default();
                    let held = Held::new(&running, &claim, control.clone());
                    let engine = Arc::clone(&engine);
                    runs.spawn(async move {
                        run::run(engine, claim, control).await;
                        drop(held);
                        drop(permit);
                    });
                }
                continue;
            }
            Found::Nothing { look_again_in } => look_again_in,
        };
        stuck.clear();
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = notices.hear_within(wait, Notice::Due) => {}
            Some(ended) = runs.join_next() => report_panic(ended),
        }
    }
    finish(&running, &mut runs, engine.settings.grace).await;
    leases.abort();
    unlocking.abort();
}

enum Found {
    /// There may be more.
    Work(Vec<Claim>),
    Nothing {
        look_again_in: Duration,
    },
}

/// Claims as many due schedules as there are free places. What this costs depends on the number of integrations that
/// have something waiting, not on the number of schedules.
async fn look(
    engine: &Engine,
    running: &Running,
    stuck: &mut HashSet<IntegrationPk>,
    served: &mut Served,
    free: usize,
) -> sqlx::Result<Found> {
    if free == 0 {
        return Ok(Found::Nothing { look_again_in: LOOK_EVERY });
    }
    let waiting = schedules::list_waiting(&mut *engine.store.connect().await?).await?;
    let next = waiting.iter().map(|waiting| waiting.due_in).filter(|due_in| !due_in.is_zero()).min();
    let nothing = Found::Nothing { look_again_in: next.unwrap_or(LOOK_EVERY).min(LOOK_EVERY) };
    served.keep_only(&waiting.iter().map(|waiting| waiting.integration).collect());
    let wanted = pick(engine, running, &waiting, stuck, served, free);
    if wanted.is_empty() {
        return Ok(nothing);
    }
    let mut tx = engine.store.begin().await?;
    let claimed = schedules::claim_due(&mut tx, engine.host_id, engine.settings.lease, &wanted).await?;
    failpoints::reach(Step::SyncClaiming);
    tx.commit().await?;
    served.note(claimed.claims.iter().map(|claim| claim.integration));
    if !claimed.claims.is_empty() {
        failpoints::reach(Step::SyncClaimed);
    }
    if claimed.parked > 0 {
        // The runs that they wait for may have ended meanwhile, and found nobody waiting.
        schedules::unpark_idle(&mut *engine.store.connect().await?).await?;
    } else {
        let got = |wanted: &Wanted| {
            claimed.claims.iter().filter(|claim| claim.integration == wanted.integration).count()
        };
        stuck.extend(
            wanted.iter().filter(|wanted| got(wanted) < wanted.quota).map(|wanted| wanted.integration),
        );
    }
    Ok(Found::Work(claimed.claims))
}

/// What to take of which integration.
fn pick(
    engine: &Engine,
    running: &Running,
    waiting: &[Waiting],
    stuck: &HashSet<IntegrationPk>,
    served: &Served,
    free: usize,
) -> Vec<Wanted> {
    let settings = &engine.settings;
    let limits = engine.functions.concurrency();
    let limit_of = |integration| limits.get(&integration).copied().unwrap_or_default();
    let most = |integration| limit_of(integration).runs.or(settings.max_syncs_per_integration);
    let due =
        waiting.iter().filter(|waiting| waiting.due_in.is_zero() && !stuck.contains(&waiting.integration));
    let rooms: Vec<Room> = due
        .map(|Waiting { environment, integration, .. }| Room {
            tenant: Tenant { environment: *environment, integration: *integration },
            most: most(*integration).map_or(usize::MAX, |most| most as usize),
            served: served.last(*integration),
        })
        .collect();
    let shares = fair_queue::share(&rooms, &running.by_tenant(), free, &mut rand::rng());
    let wanted = shares.into_iter().map(|(integration, quota)| Wanted {
        integration,
        quota,
        most: most(integration),
        most_of_connection: limit_of(integration)
            .runs_per_connection
            .unwrap_or(settings.max_syncs_per_connection),
    });
    wanted.collect()
}

async fn keep_leases(engine: Arc<Engine>, running: Arc<Running>) {
    let mut turns = tokio::time::interval(engine.settings.lease / 3);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut notices = engine.notices.subscribe();
    let mut attendance = Attendance::begin(engine.settings.lease);
    loop {
        tokio::select! {
            _ = turns.tick() => {}
            () = notices.hear(Notice::Cancel) => {}
        }
        if let Err(error) = look_after_leases(&engine, &running, &mut attendance).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "leases could not be renewed");
        }
    }
}

/// Renews leases, passes on cancellations, and ends runs whose lease is lost. What lost hosts held is taken back.
async fn look_after_leases(
    engine: &Engine,
    running: &Running,
    attendance: &mut Attendance,
) -> sqlx::Result<()> {
    let mut held: Vec<_> = running.lock().iter().map(|(run_id, run)| (run.schedule, *run_id)).collect();
    // All who lock many of them by number do so in its order, and never wait for each other in a circle.
    held.sort_unstable();
    let mut conn = engine.store.connect().await?;
    let renewed = schedules::renew_leases(&mut conn, engine.host_id, engine.settings.lease, &held).await?;
    let renewed: HashMap<Uuid, bool> =
        renewed.iter().map(|renewed| (renewed.run_id, renewed.cancel_wanted)).collect();
    for (_, run_id) in &held {
        let Some(run) = running.lock().get(run_id).cloned() else { continue };
        match renewed.get(run_id) {
            None => run.control.lost.cancel(),
            Some(true) => cancel(&run.control, engine.settings.grace),
            Some(false) => {}
        }
    }
    let lost = match attendance.note() {
        MayTakeBack::Yes => schedules::take_back_lost(&mut conn).await?,
        MayTakeBack::NotYet => 0,
    };
    if lost > 0 {
        tracing::warn!(lost, "took back {lost} runs of hosts that are gone");
    }
    let unparked = schedules::unpark_idle(&mut conn).await?;
    if lost + unparked > 0 {
        engine.notices.tell(Notice::Due);
    }
    Ok(())
}

/// Unlocks what silent hosts keep others waiting for. Apart from the leases, which have to be renewed also while the
/// records' database is away.
async fn end_stalled(engine: Arc<Engine>) {
    let patience = engine.settings.lease.clamp(LEAST_PATIENCE, MOST_PATIENCE);
    let mut turns = tokio::time::interval(engine.settings.lease / 3);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        turns.tick().await;
        let turn = async {
            let mut stalled = stalled::end_stalled(&mut *engine.store.connect().await?, patience).await?;
            if engine.store.is_divided() {
                stalled +=
                    stalled::end_stalled(&mut *engine.store.connect_records().await?, patience).await?;
            }
            Ok::<_, sqlx::Error>(stalled)
        };
        match turn.await {
            Ok(0) => {}
            Ok(stalled) => tracing::warn!(
                stalled,
                "ended {stalled} transactions that silent hosts kept others waiting for"
            ),
            Err(error) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "transactions of silent hosts could not be looked for"
            ),
        }
    }
}

/// Asks the function to end, and ends it if it has not within `grace`.
fn cancel(control: &RunControl, grace: Duration) {
    if !control.signals.cancel() {
        return;
    }
    let hand_back = control.hand_back.clone();
    tokio::spawn(async move {
        tokio::time::sleep(grace).await;
        hand_back.cancel();
    });
}

async fn finish(running: &Running, runs: &mut JoinSet<()>, grace: Duration) {
    let controls: Vec<RunControl> = running.lock().values().map(|run| run.control.clone()).collect();
    if !controls.is_empty() {
        tracing::info!(runs = controls.len(), "waiting for {} runs to finish", controls.len());
    }
    for control in &controls {
        control.signals.cancel();
    }
    let all_done = async { while runs.join_next().await.is_some() {} };
    if tokio::time::timeout(grace, all_done).await.is_ok() {
        return;
    }
    for control in &controls {
        control.hand_back.cancel();
    }
    while let Some(ended) = runs.join_next().await {
        report_panic(ended);
    }
}

pub(crate) fn report_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(error = &error as &dyn std::error::Error, "a run panicked; its lease will run out");
    }
}
