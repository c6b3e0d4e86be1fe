//! Syncs: their schedules, the claims and leases of their runs, and what clients ask of them.

pub(crate) mod approvals;
pub(crate) mod commands;
pub(crate) mod fair_queue;
pub(crate) mod run;
pub(crate) mod schedule;
pub(crate) mod scheduler;
pub(crate) mod variants;
