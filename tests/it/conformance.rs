//! The specification of the REST API, statement by statement.
//!
//! Each test is one section of the specification. It checks every statement of its section, also after one that
//! differs, and prints a table of the results. `make conformance` shows the tables of all sections.

mod actions;
mod async_actions;
mod authentication;
mod catalogue;
mod connect_sessions;
mod connecting;
mod connections;
mod conventions;
mod credentials;
mod environments;
mod frequencies;
mod imports;
mod inbound_webhooks;
mod integrations;
mod metadata;
mod outbound_webhooks;
mod proxy;
mod pruning;
mod record_pages;
mod records;
mod retention;
mod support;
mod sync_commands;
mod sync_status;
mod variants;
