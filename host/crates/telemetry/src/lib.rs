//! Observability and test support: metrics, failpoints that stop the host in tests, the supervisor of background
//! tasks, and a clock that tests can advance.

pub mod clock;
pub mod failpoints;
pub mod metrics;
pub mod supervisor;
