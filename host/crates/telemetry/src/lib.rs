//! How the host is observed and tested from outside: metrics, and failpoints at which tests stop it.

pub mod failpoints;
pub mod metrics;
