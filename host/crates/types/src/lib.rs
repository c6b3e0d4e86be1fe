//! What every crate speaks of: names and row numbers, secrets, settings of an environment.

pub mod environment_settings;
pub mod ids;
pub mod nul;
pub mod secret;
