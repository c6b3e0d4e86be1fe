//! Schedules: when the syncs of connections and variants are due, and which host runs them.
//!
//! A host claims due schedules and owns them under a lease. Every claim increases the fencing token. All writes about
//! a run check owner and token, so a host that has lost its lease cannot change anything.
//!
//! Waiting schedules are indexed by integration (`schedules_waiting`), so that hosts can claim fairly between
//! integrations. A due schedule whose connection has reached its concurrency limit is parked until one of those runs
//! ends.

mod claims;
mod leases;
mod list;
mod planning;
mod requests;
mod status;
mod variants;

use sqlx::PgConnection;

pub use self::claims::{
    Claim, ClaimRequest, DueReason, WaitingIntegration, claim_due, list_waiting, wake_idle,
};
pub use self::leases::{NextRun, RunEnd, note_reset_done, release, renew_leases, take_back_lost};
pub use self::list::{ListedSchedule, ListedState, ScheduleFilter, SchedulePosition, list};
pub use self::planning::{
    create_missing, create_missing_of_connection, frequency_override, hold_planning, now, remove_sync,
    replan, set_frequency,
};
pub use self::requests::{ScheduleScope, Target, TriggerOptions, pause, start, trigger};
pub use self::status::{
    LatestRun, ScheduleStatus, SyncRunError, list_status, list_status_after, list_variants,
};
pub use self::variants::{
    NewVariant, Retired, create_variant, delete_retired, find_variant, next_fence, retire_variant,
    take_over_retired,
};

/// Notifies all hosts to check for due work at once.
pub async fn notify_due(conn: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("SELECT pg_notify('syncline', 'due')").fetch_one(conn).await?;
    Ok(())
}

/// Notifies all hosts to check at once which of their runs were cancelled.
pub async fn notify_cancel(conn: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("SELECT pg_notify('syncline', 'cancel')").fetch_one(conn).await?;
    Ok(())
}
