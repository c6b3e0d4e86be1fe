//! What has to be done about runs now and then: those of hosts that are gone are closed, and old ones go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use syncline_store::{Store, environments, hosts, runs};

const EVERY: Duration = Duration::from_secs(10);
const DELETE_EVERY: Duration = Duration::from_secs(10 * 60);
/// Runs of one statement, whose logs may be long.
const BATCH: i64 = 200;
const BETWEEN_BATCHES: Duration = Duration::from_millis(50);

/// Closes runs of lost hosts and deletes old ones.
pub struct RunUpkeep {
    store: Store,
    /// How long a run is held without a sign of life from its host.
    lease: Duration,
    /// How long runs that are over are kept, with their logs.
    kept_for: Duration,
}

impl RunUpkeep {
    pub fn new(store: Store, lease: Duration, kept_for: Duration) -> Arc<Self> {
        Arc::new(Self { store, lease, kept_for })
    }

    /// Works until `shutdown`.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut deleted_at: Option<Instant> = None;
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            let turn = async {
                let mut conn = self.store.connect().await?;
                let lost = runs::close_lost(&mut conn, hosts::ALIVE_WITHIN.max(self.lease)).await?;
                let orphans = runs::close_orphans(&mut conn).await?;
                drop(conn);
                if orphans > 0 {
                    tracing::warn!(orphans, "closed {orphans} runs of syncs that are gone");
                }
                if lost > 0 {
                    tracing::warn!(lost, "closed {lost} runs of hosts that are gone");
                }
                if deleted_at.is_none_or(|at| at.elapsed() >= DELETE_EVERY) {
                    deleted_at = Some(Instant::now());
                    self.delete_old().await?;
                }
                Ok::<_, sqlx::Error>(())
            };
            if let Some(Err(error)) = shutdown.run_until_cancelled(turn).await {
                tracing::warn!(error = &error as &dyn std::error::Error, "runs could not be tidied up");
            }
        }
    }

    async fn delete_old(&self) -> sqlx::Result<()> {
        let environments = environments::list(&mut *self.store.connect().await?).await?;
        for environment in environments {
            let mut behind = None;
            loop {
                let mut conn = self.store.connect().await?;
                let kept_for = self.kept_for;
                behind = runs::delete_old(&mut conn, environment.pk, kept_for, behind, BATCH).await?;
                if behind.is_none() {
                    break;
                }
                drop(conn);
                tokio::time::sleep(BETWEEN_BATCHES).await;
            }
        }
        Ok(())
    }
}
