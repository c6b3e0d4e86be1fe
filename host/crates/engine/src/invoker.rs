//! Invokes functions: what they may do, what is recorded of their runs, and why they fail.

pub(crate) mod capabilities;
pub(crate) mod error;
pub(crate) mod live_runs;
pub(crate) mod recording;
pub(crate) mod run_writer;
