//! Maintains the log of deliveries: deletes old deliveries, and ends those that cannot be sent any more.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Sender;
use syncline_store::outbound_webhooks::sending;

const INTERVAL: Duration = Duration::from_secs(60);
/// Number of rows that one statement changes, so that it does not hold locks for long.
const BATCH: i64 = 500;
const BATCH_PAUSE: Duration = Duration::from_millis(50);

impl Sender {
    /// Maintains the log of deliveries until `shutdown`.
    pub async fn maintain_delivery_log(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(INTERVAL);
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
                    "could not maintain the log of webhook deliveries; retrying"
                );
            }
        }
    }
}

/// Ends pending deliveries to URLs that have answered 410 Gone.
pub(super) async fn cancel_gone(sender: &Sender) -> sqlx::Result<()> {
    while sending::cancel_gone(&mut *sender.store.connect().await?, BATCH).await? > 0 {
        tokio::time::sleep(BATCH_PAUSE).await;
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
            "gave up {expired} webhook deliveries: they could not be sent within their lifetime"
        );
        tokio::time::sleep(BATCH_PAUSE).await;
    }
}

async fn delete_old(sender: &Sender) -> sqlx::Result<()> {
    let retention = sender.settings.retention;
    while sending::delete_old(&mut *sender.store.connect().await?, retention, BATCH).await? > 0 {
        tokio::time::sleep(BATCH_PAUSE).await;
    }
    Ok(())
}
