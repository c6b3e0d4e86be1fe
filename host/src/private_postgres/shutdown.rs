//! How a Postgres is shut down.

use std::time::Duration;

use rustix::process::Signal;

/// How long a shutdown may take before the next, harsher signal.
pub const SHUTDOWN_STEPS: [(Signal, Duration); 2] =
    [(Signal::INT, Duration::from_mins(1)), (Signal::QUIT, Duration::from_secs(20))];
