//! The binary `syncline`: its commands, the Postgres that it brings along, and the building of guests. The crates
//! under `host/crates` do the work; ARCHITECTURE.md draws them.

pub mod cli;
pub mod guest_build;
mod host;
pub mod private_postgres;
