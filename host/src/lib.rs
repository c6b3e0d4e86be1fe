//! Syncline: a self-hosted runtime for product integrations.
//!
//! Data flows one way: `cli` and `api` ask the `engine`, which runs functions in the `runtime` and keeps
//! everything in the `store`. ARCHITECTURE.md draws it.

pub mod api;
pub mod auth;
pub mod cli;
pub mod config;
pub mod connect;
pub mod crypto;
pub mod egress;
pub mod engine;
pub mod environment_settings;
pub mod failpoints;
pub mod guest_build;
pub mod ids;
pub mod metrics;
pub mod model;
pub mod nul;
pub mod private_postgres;
pub mod providers;
pub mod runtime;
pub mod secret;
pub mod store;
pub mod webhooks;
