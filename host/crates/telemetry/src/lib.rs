//! How the host is observed and tested from outside: metrics, failpoints at which tests stop it, and the supervisor of its
//! tasks.

pub mod failpoints;
pub mod metrics;
pub mod supervisor;
