//! The binary `syncline`: its commands, its private Postgres, and the building of guests. The crates under
//! `host/crates` do the work; ARCHITECTURE.md describes them.

pub mod cli;
pub mod generate;
pub mod guest_build;
mod host;
pub mod private_postgres;
