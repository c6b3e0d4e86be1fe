//! The end-to-end tests: a real host, a real Postgres, real third-party servers; a file per subject.
//!
//! `make test` runs them all, `scripts/test-postgres cargo nextest run -E 'test(prune::)'` some of them.

mod async_actions;
mod bad_records;
mod chaos;
mod connect_sessions;
mod connect_ui;
mod connections;
mod crashes;
mod dead_letters;
mod deletions;
mod deployments;
mod environments;
mod failpoints;
mod fairness;
mod idempotency;
mod integrations;
mod key_rotation;
mod lifecycle;
mod limits;
mod lost_answers;
mod metrics;
mod node_client;
mod oauth;
mod openapi;
mod private_postgres;
mod providers;
mod proxy;
mod prune;
mod received_webhooks;
mod record_changes;
mod records;
mod redirects;
mod refresh;
mod requests;
mod retention;
mod runs;
mod schedules;
mod secrets;
mod stripe;
mod support;
mod two_databases;
mod typed_connections;
mod variants;
mod webhooks;
mod wit;
