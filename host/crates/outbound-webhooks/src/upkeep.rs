//! What has to be done to the log now and then: old deliveries go, and what can no longer be sent ends.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Context;
use syncline_store::webhooks::sending;

const EVERY: Duration = Duration::from_secs(60);
/// Rows of one statement, so that none holds locks for long.
const BATCH: i64 = 500;
const BETWEEN_BATCHES: Duration = Duration::from_millis(50);

pub(super) async fn run(context: Arc<Context>, shutdown: CancellationToken) {
    let mut turns = tokio::time::interval(EVERY);
    turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(turns.tick()).await.is_some() {
        let turn = async {
            cancel_gone(&context).await?;
            give_up_expired(&context).await?;
            delete_old(&context).await
        };
        if let Some(Err(error)) = shutdown.run_until_cancelled(turn).await {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the log of webhooks could not be tidied up"
            );
        }
    }
}

/// Ends what still waits for URLs that answered that they are gone.
pub(super) async fn cancel_gone(context: &Context) -> sqlx::Result<()> {
    while sending::cancel_gone(&mut *context.engine.store.connect().await?, BATCH).await? > 0 {
        tokio::time::sleep(BETWEEN_BATCHES).await;
    }
    Ok(())
}

async fn give_up_expired(context: &Context) -> sqlx::Result<()> {
    loop {
        let expired = sending::give_up_expired(&mut *context.engine.store.connect().await?, BATCH).await?;
        if expired == 0 {
            return Ok(());
        }
        tracing::warn!(
            webhooks = expired,
            "{expired} webhooks were given up: their receivers had no room in time"
        );
        tokio::time::sleep(BETWEEN_BATCHES).await;
    }
}

async fn delete_old(context: &Context) -> sqlx::Result<()> {
    let retention = context.settings.retention;
    while sending::delete_old(&mut *context.engine.store.connect().await?, retention, BATCH).await? > 0 {
        tokio::time::sleep(BETWEEN_BATCHES).await;
    }
    Ok(())
}
