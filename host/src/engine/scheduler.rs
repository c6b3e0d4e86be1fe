//! Claims what is due and runs it, keeps the leases of what runs, and takes back what lost hosts held.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Engine;
use super::sync_run::{self, RunControl};
use crate::store::notices::Notice;
use crate::store::schedules::{self, Claim};
use crate::store::stalled;

/// How many schedules are claimed by one statement.
const MAX_CLAIM: usize = 64;
/// However quiet it is, the scheduler looks again after this long: a notification may have been lost.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// A run that was asked to end, and does not, is ended after this long.
const CANCEL_GRACE: Duration = Duration::from_secs(10);
/// For how long a silent host may keep others waiting for its transaction: as long as its lease, within these bounds. One
/// that is only short of processor time is not to lose its work for it.
const LEAST_PATIENCE: Duration = Duration::from_secs(3);
const MOST_PATIENCE: Duration = Duration::from_secs(10);

/// What runs on this host.
#[derive(Default)]
struct Running(Mutex<HashMap<Uuid, RunControl>>);

impl Running {
    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, RunControl>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run that this host keeps the lease of, until this is dropped: also when the run panics, so that its lease runs
/// out and another attempt follows.
struct Held {
    running: Arc<Running>,
    run_id: Uuid,
}

impl Held {
    fn new(running: &Arc<Running>, run_id: Uuid, control: RunControl) -> Self {
        running.lock().insert(run_id, control);
        Self { running: Arc::clone(running), run_id }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.running.lock().remove(&self.run_id);
    }
}

/// Works until `shutdown`, then lets runs finish for a while and gives back the rest.
pub(super) async fn run(engine: Arc<Engine>, shutdown: CancellationToken) {
    let running = Arc::new(Running::default());
    let slots = Arc::new(Semaphore::new(engine.settings.max_syncs));
    let mut runs = JoinSet::new();
    let leases = tokio::spawn(keep_leases(Arc::clone(&engine), Arc::clone(&running)));
    let mut notices = engine.notices.subscribe();
    while !shutdown.is_cancelled() {
        let wanted = slots.available_permits().min(MAX_CLAIM);
        let claims = match claim(&engine, wanted).await {
            Ok(claims) => claims,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "due syncs could not be claimed");
                tokio::time::sleep(AFTER_ERROR).await;
                continue;
            }
        };
        let claimed = claims.len();
        for claim in claims {
            let permit = Arc::clone(&slots).acquire_owned().await.expect("the semaphore is never closed");
            let control = RunControl::default();
            let held = Held::new(&running, claim.run_id, control.clone());
            let engine = Arc::clone(&engine);
            runs.spawn(async move {
                sync_run::run(engine, claim, control).await;
                drop(held);
                drop(permit);
            });
        }
        if wanted > 0 && claimed == wanted {
            continue;
        }
        let wait = if slots.available_permits() == 0 { LOOK_EVERY } else { time_to_next(&engine).await };
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = tokio::time::sleep(wait) => {}
            () = noticed(Notice::Due, &mut notices) => {}
            Some(ended) = runs.join_next() => report_panic(ended),
        }
    }
    finish(&running, &mut runs, engine.settings.grace).await;
    leases.abort();
}

async fn claim(engine: &Engine, wanted: usize) -> sqlx::Result<Vec<Claim>> {
    if wanted == 0 {
        return Ok(Vec::new());
    }
    let mut conn = engine.store.connect().await?;
    schedules::claim_due(&mut conn, engine.host_id, engine.settings.lease, wanted as i64).await
}

async fn time_to_next(engine: &Engine) -> Duration {
    let next = async { schedules::time_to_next(&mut *engine.store.connect().await?).await };
    match next.await {
        Ok(Some(time)) => time.min(LOOK_EVERY),
        Ok(None) => LOOK_EVERY,
        Err(_) => AFTER_ERROR,
    }
}

/// Waits for a notice of this kind, or for one that may have been missed.
pub(super) async fn noticed(wanted: Notice, notices: &mut tokio::sync::broadcast::Receiver<Notice>) {
    loop {
        match notices.recv().await {
            Ok(notice) if notice == wanted || notice == Notice::Missed => return,
            Err(RecvError::Lagged(_)) => return,
            Ok(_) => {}
            Err(RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// Renews leases, passes on cancellations, and ends runs whose lease is lost. What lost hosts held is taken back, and
/// what they left locked is unlocked.
async fn keep_leases(engine: Arc<Engine>, running: Arc<Running>) {
    let lease = engine.settings.lease;
    let mut turns = tokio::time::interval(lease / 3);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut notices = engine.notices.subscribe();
    loop {
        tokio::select! {
            _ = turns.tick() => {}
            () = noticed(Notice::Cancel, &mut notices) => {}
        }
        let held: Vec<Uuid> = running.lock().keys().copied().collect();
        let turn = async {
            let mut conn = engine.store.connect().await?;
            let renewed = schedules::renew_leases(&mut conn, engine.host_id, lease, &held).await?;
            let lost = schedules::take_back_lost(&mut conn).await?;
            drop(conn);
            let patience = lease.clamp(LEAST_PATIENCE, MOST_PATIENCE);
            let stalled = stalled::end_stalled(&mut *engine.store.connect_records().await?, patience).await?;
            Ok::<_, sqlx::Error>((renewed, lost, stalled))
        };
        match turn.await {
            Ok((renewed, lost, stalled)) => {
                if stalled > 0 {
                    tracing::warn!(
                        stalled,
                        "ended {stalled} transactions that silent hosts kept others waiting for"
                    );
                }
                if lost > 0 {
                    tracing::warn!(lost, "took back {lost} runs of hosts that are gone");
                    engine.notices.tell(Notice::Due);
                }
                for run_id in held.iter().filter(|id| !renewed.iter().any(|renewed| renewed.run_id == **id)) {
                    if let Some(control) = running.lock().get(run_id) {
                        control.lost.cancel();
                    }
                }
                for renewed in renewed.iter().filter(|renewed| renewed.cancel_wanted) {
                    if let Some(control) = running.lock().get(&renewed.run_id) {
                        cancel(control);
                    }
                }
            }
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "leases could not be renewed");
            }
        }
    }
}

/// Asks the function to end, and ends it if it does not.
fn cancel(control: &RunControl) {
    if !control.signals.cancel() {
        return;
    }
    let hand_back = control.hand_back.clone();
    tokio::spawn(async move {
        tokio::time::sleep(CANCEL_GRACE).await;
        hand_back.cancel();
    });
}

async fn finish(running: &Running, runs: &mut JoinSet<()>, grace: Duration) {
    let controls: Vec<RunControl> = running.lock().values().cloned().collect();
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

pub(super) fn report_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(error = &error as &dyn std::error::Error, "a run panicked; its lease will run out");
    }
}
