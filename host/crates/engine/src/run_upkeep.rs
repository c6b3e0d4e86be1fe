//! Maintains the run history: closes runs of lost hosts, and deletes old runs and expired recordings.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use syncline_store::{Store, environments, hosts, recordings, runs};

const INTERVAL: Duration = Duration::from_secs(10);
const DELETE_INTERVAL: Duration = Duration::from_secs(10 * 60);
/// Number of runs that one statement deletes. Their logs may be long.
const BATCH: i64 = 200;
const BATCH_PAUSE: Duration = Duration::from_millis(50);

/// Closes runs of lost hosts and deletes old ones.
pub struct RunUpkeep {
    store: Store,
    /// How long a run stays open without a heartbeat of its host.
    lease: Duration,
    /// How long finished runs are stored, with their logs.
    kept_for: Duration,
}

impl RunUpkeep {
    pub fn new(store: Store, lease: Duration, kept_for: Duration) -> Arc<Self> {
        Arc::new(Self { store, lease, kept_for })
    }

    /// Maintains the run history until `shutdown`.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut deleted_at: Option<Instant> = None;
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            let turn = async {
                let mut conn = self.store.connect().await?;
                let lost = runs::close_lost(&mut conn, hosts::ALIVE_WITHIN.max(self.lease)).await?;
                let orphans = runs::close_orphans(&mut conn).await?;
                drop(conn);
                if orphans > 0 {
                    tracing::warn!(orphans, "closed {orphans} runs of deleted syncs");
                }
                if lost > 0 {
                    tracing::warn!(lost, "closed {lost} runs of lost hosts");
                }
                if deleted_at.is_none_or(|at| at.elapsed() >= DELETE_INTERVAL) {
                    deleted_at = Some(Instant::now());
                    while recordings::delete_expired(&mut *self.store.connect().await?, BATCH).await? > 0 {}
                    self.delete_old().await?;
                }
                Ok::<_, sqlx::Error>(())
            };
            if let Some(Err(error)) = shutdown.run_until_cancelled(turn).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not maintain the run history; retrying"
                );
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
                tokio::time::sleep(BATCH_PAUSE).await;
            }
        }
        Ok(())
    }
}
