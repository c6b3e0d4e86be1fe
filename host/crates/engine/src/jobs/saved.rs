//! Reports the records that webhook functions have saved to the backend, at the end of the attempt that saved them.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::functions::{DeployedFunction, Functions};
use crate::outbound_webhooks::{self, SavedByWebhook};
use crate::records::commit::Changes;
use syncline_types::ids::{ConnectionPk, EnvironmentPk, Variant};

/// Adds the models that lost attempts may have written since `since`. What they have saved is not known, and the next
/// attempt finds it unchanged.
pub(super) fn add_lost(changes: &mut Changes, function: &DeployedFunction, since: DateTime<Utc>) {
    for model in function.models.keys() {
        changes.streams.entry((model.clone(), Variant::base())).or_default();
    }
    changes.since = Some(since);
}

/// Writes the webhooks in the transaction that ends the attempt. Returns how many.
pub(super) async fn note(
    conn: &mut PgConnection,
    functions: &Functions,
    function: &DeployedFunction,
    environment: EnvironmentPk,
    connection: ConnectionPk,
    changes: &Changes,
) -> sqlx::Result<u64> {
    let saved = SavedByWebhook { environment, connection, changes };
    outbound_webhooks::note_saved(conn, &saved, |model| {
        let sync = functions.find_sync_saving(function.integration, model);
        sync.map_or_else(|| function.name.clone(), |sync| sync.name.clone())
    })
    .await
}
