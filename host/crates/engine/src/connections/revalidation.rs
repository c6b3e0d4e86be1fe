//! Finishes validations that a lost host has started.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::connections::Connections;
use syncline_store::{connections, hosts};

const EVERY: Duration = Duration::from_secs(10);
/// Longest time that a validation takes. If one started earlier, its host is lost.
const MAX_VALIDATION: Duration = Duration::from_secs(30 * 60);
/// Connections that are validated again at the same time.
const AT_ONCE: i64 = 16;
/// How much longer than the grace period a shutdown waits, because running validations cannot be handed back.
const EXTRA_GRACE: Duration = Duration::from_secs(5);

impl Connections {
    /// Removes new connections whose validation never finished, and repeats validations of lost hosts. After
    /// `shutdown`, waits for the validations of this host.
    pub async fn maintain_validations(self: Arc<Self>, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
            let turn = async {
                self.remove_unvalidated().await?;
                self.revalidate_abandoned().await
            };
            if let Some(Err(error)) = shutdown.run_until_cancelled(turn).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "could not finish the validations of lost hosts; retrying");
            }
        }
        self.running.close();
        let max_wait = self.settings.grace + EXTRA_GRACE;
        if tokio::time::timeout(max_wait, self.running.wait()).await.is_err() {
            tracing::warn!("the shutdown interrupted validations of connections");
        }
    }

    /// Removes new connections whose validation never finished.
    async fn remove_unvalidated(&self) -> sqlx::Result<()> {
        let mut conn = self.store.connect().await?;
        let abandoned = connections::list_unvalidated(&mut conn, MAX_VALIDATION).await?;
        drop(conn);
        for (connection, validation) in abandoned {
            self.remove_unvalidated_connection(connection, validation).await?;
        }
        Ok(())
    }

    /// Repeats validations of reconnected connections whose host was lost before it stored a result.
    async fn revalidate_abandoned(self: &Arc<Self>) -> sqlx::Result<()> {
        let silent_for = hosts::ALIVE_WITHIN.max(self.settings.lease);
        let mut conn = self.store.connect().await?;
        let abandoned = connections::take_over_revalidations(
            &mut conn,
            self.host_id,
            silent_for,
            MAX_VALIDATION,
            AT_ONCE,
        )
        .await?;
        drop(conn);
        for (connection, revalidation) in abandoned {
            let again = Arc::clone(self);
            self.running.spawn(async move {
                if let Err(error) = again.revalidate(connection, revalidation).await {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(
                        error,
                        connection.id = connection.0,
                        "could not validate a connection; another attempt follows"
                    );
                }
            });
        }
        Ok(())
    }
}
