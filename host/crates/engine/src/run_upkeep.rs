//! What has to be done about runs now and then: those of hosts that are gone are closed, approvals and judgements of
//! connections that were cut short are finished, and old ones go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::{Engine, lifecycle};
use syncline_store::{environments, hosts, runs};

const EVERY: Duration = Duration::from_secs(10);
const DELETE_EVERY: Duration = Duration::from_secs(10 * 60);
/// Runs of one statement, whose logs may be long.
const BATCH: i64 = 200;
const BETWEEN_BATCHES: Duration = Duration::from_millis(50);

pub(crate) async fn run(engine: Arc<Engine>, shutdown: CancellationToken) {
    let mut turns = tokio::time::interval(EVERY);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut deleted_at: Option<Instant> = None;
    while shutdown.run_until_cancelled(turns.tick()).await.is_some() {
        let turn = async {
            let mut conn = engine.store.connect().await?;
            let lost = runs::close_lost(&mut conn, hosts::ALIVE_WITHIN.max(engine.settings.lease)).await?;
            let orphans = runs::close_orphans(&mut conn).await?;
            drop(conn);
            if orphans > 0 {
                tracing::warn!(orphans, "closed {orphans} runs of syncs that are gone");
            }
            if lost > 0 {
                tracing::warn!(lost, "closed {lost} runs of hosts that are gone");
            }
            engine.finish_approvals().await?;
            lifecycle::judge_left_behind(&engine).await?;
            if deleted_at.is_none_or(|at| at.elapsed() >= DELETE_EVERY) {
                deleted_at = Some(Instant::now());
                delete_old(&engine).await?;
            }
            Ok::<_, sqlx::Error>(())
        };
        if let Some(Err(error)) = shutdown.run_until_cancelled(turn).await {
            tracing::warn!(error = &error as &dyn std::error::Error, "runs could not be tidied up");
        }
    }
}

async fn delete_old(engine: &Engine) -> sqlx::Result<()> {
    let environments = environments::list(&mut *engine.store.connect().await?).await?;
    for environment in environments {
        let mut behind = None;
        loop {
            let mut conn = engine.store.connect().await?;
            let kept_for = engine.settings.runs_kept_for;
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
