//! What every crate speaks of: names and row numbers, secrets, settings of an environment.

pub mod environment_settings;
pub mod error_code;
pub mod failure_code;
pub mod functions;
pub mod ids;
pub mod sanitize;
pub mod secret;
