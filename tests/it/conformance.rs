//! The specification of the REST API, statement by statement.
//!
//! Each test is one section of the specification. It checks every statement of its section, also after one that
//! differs, and prints a table of the results. `make conformance` shows the tables of all sections.

mod authentication;
mod catalogue;
mod conventions;
mod integrations;
mod support;
