//! Looks after connections whose validation was left behind by a host that is gone.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::connections::Connections;
use syncline_store::{connections, hosts};

const EVERY: Duration = Duration::from_secs(10);
/// No validation lasts for longer, so the host of one that began before is gone.
const VALIDATION_LASTS: Duration = Duration::from_secs(30 * 60);
/// How many that were left behind are validated again at a time.
const AT_ONCE: i64 = 16;
/// How much longer than the grace period a shutdown waits: a validation cannot be handed back.
const HAND_BACK_WITHIN: Duration = Duration::from_secs(5);

impl Connections {
    /// Removes new connections whose validation was never ended, and validates again what other hosts have left behind.
    /// After `shutdown` it waits for what this host has begun.
    pub async fn maintain_validations(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            let turn = async {
                self.remove_unvalidated().await?;
                self.revalidate_left_behind().await
            };
            if let Some(Err(error)) = shutdown.run_until_cancelled(turn).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "connections that were not validated could not be looked after");
            }
        }
        self.running.close();
        let patience = self.settings.grace + HAND_BACK_WITHIN;
        if tokio::time::timeout(patience, self.running.wait()).await.is_err() {
            tracing::warn!("some connections were not validated to the end");
        }
    }

    /// Removes new connections whose validation was never ended.
    async fn remove_unvalidated(&self) -> sqlx::Result<()> {
        let mut conn = self.store.connect().await?;
        let left = connections::list_unvalidated(&mut conn, VALIDATION_LASTS).await?;
        drop(conn);
        for (connection, validation) in left {
            self.remove_connection(connection, Some(validation)).await?;
        }
        Ok(())
    }

    /// Validates connections again that were connected anew on a host that is gone before it knew whether they are good.
    async fn revalidate_left_behind(self: &Arc<Self>) -> sqlx::Result<()> {
        let silent_for = hosts::ALIVE_WITHIN.max(self.settings.lease);
        let mut conn = self.store.connect().await?;
        let left = connections::take_over_revalidations(
            &mut conn,
            self.host_id,
            silent_for,
            VALIDATION_LASTS,
            AT_ONCE,
        )
        .await?;
        drop(conn);
        for (connection, revalidation) in left {
            let again = Arc::clone(self);
            self.running.spawn(async move {
                if let Err(error) = again.revalidate(connection, revalidation).await {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        error,
                        connection.id = connection.0,
                        "a connection could not be validated"
                    );
                }
            });
        }
        Ok(())
    }
}
