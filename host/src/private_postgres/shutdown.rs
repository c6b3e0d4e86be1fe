//! The steps of shutting down Postgres.

use std::time::Duration;

use rustix::process::Signal;

/// How long a shutdown may take before the next, harder signal.
pub const SHUTDOWN_STEPS: [(Signal, Duration); 2] =
    [(Signal::INT, Duration::from_mins(1)), (Signal::QUIT, Duration::from_secs(20))];
