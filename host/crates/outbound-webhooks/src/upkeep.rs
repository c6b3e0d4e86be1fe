//! What has to be done to the log now and then: old deliveries go, and what can no longer be sent ends.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Sender;
use syncline_store::outbound_webhooks::sending;

const EVERY: Duration = Duration::from_secs(60);
/// Rows of one statement, so that none holds locks for long.
const BATCH: i64 = 500;
const BETWEEN_BATCHES: Duration = Duration::from_millis(50);

impl Sender {
    /// Looks after the log of deliveries until `shutdown`.
    pub async fn maintain_delivery_log(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            let turn = async {
                cancel_gone(&self).await?;
                give_up_expired(&self).await?;
                delete_old(&self).await
            };
            if let Some(Err(error)) = shutdown.run_until_cancelled(turn).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the log of webhooks could not be tidied up"
                );
            }
        }
    }
}

/// Ends what still waits for URLs that answered that they are gone.
pub(super) async fn cancel_gone(sender: &Sender) -> sqlx::Result<()> {
    while sending::cancel_gone(&mut *sender.store.connect().await?, BATCH).await? > 0 {
        tokio::time::sleep(BETWEEN_BATCHES).await;
    }
    Ok(())
}

async fn give_up_expired(sender: &Sender) -> sqlx::Result<()> {
    loop {
        let expired = sending::give_up_expired(&mut *sender.store.connect().await?, BATCH).await?;
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

async fn delete_old(sender: &Sender) -> sqlx::Result<()> {
    let retention = sender.settings.retention;
    while sending::delete_old(&mut *sender.store.connect().await?, retention, BATCH).await? > 0 {
        tokio::time::sleep(BETWEEN_BATCHES).await;
    }
    Ok(())
}
