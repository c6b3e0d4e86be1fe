//! Schedules: when a sync of a connection and variant is due, and who runs it.
//!
//! A host claims what is due and holds it under a lease. Every claim raises the fence; what a host writes about
//! a run carries owner and fence, so one that lost its lease changes nothing any more.
//!
//! What waits is kept by integration (`schedules_waiting`), so that hosts can give each its turn. A schedule that is
//! due while its connection has enough runs on is parked and out of the way until one of them ends.

mod claims;
mod leases;
mod planning;
mod requests;
mod status;
mod variants;

use sqlx::PgConnection;

pub use self::claims::{
    Claim, ClaimRequest, DueReason, WaitingIntegration, claim_due, list_waiting, wake_idle,
};
pub use self::leases::{NextRun, RunEnd, note_reset_done, release, renew_leases, take_back_lost};
pub use self::planning::{
    create_missing, create_missing_of_connection, frequency_override, hold_planning, now, remove_sync,
    replan, set_frequency,
};
pub use self::requests::{ScheduleScope, Target, TriggerOptions, pause, start, trigger};
pub use self::status::{LatestRun, ScheduleStatus, list_status, list_variants};
pub use self::variants::{
    NewVariant, Retired, create_variant, delete_retired, find_variant, next_fence, retire_variant,
    take_over_retired,
};

/// Lets every host look for due work at once instead of at its next turn.
pub async fn notify_due(conn: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("SELECT pg_notify('syncline', 'due')").fetch_one(conn).await?;
    Ok(())
}

/// Lets every host look at once which of its runs are to end.
pub async fn notify_cancel(conn: &mut PgConnection) -> sqlx::Result<()> {
    sqlx::query!("SELECT pg_notify('syncline', 'cancel')").fetch_one(conn).await?;
    Ok(())
}
