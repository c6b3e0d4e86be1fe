//! How the host is observed and tested from outside: metrics, failpoints at which tests stop it, the supervisor of its
//! tasks, and a clock that tests can advance.

pub mod clock;
pub mod failpoints;
pub mod metrics;
pub mod supervisor;
