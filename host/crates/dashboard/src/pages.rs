//! The pages about one environment: one file per page of the navigation.

mod actions;
mod addresses;
mod choices;
mod connections;
mod dead_letters;
mod deployments;
mod inbound_webhooks;
mod integrations;
mod keys;
mod outbound_webhooks;
mod overview;
mod records;
mod runs;
mod settings;
mod syncs;
mod variables;

use axum::Router;

use super::Dashboard;

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new()
        .merge(overview::routes())
        .merge(integrations::routes())
        .merge(connections::routes())
        .merge(syncs::routes())
        .merge(runs::routes())
        .merge(deployments::routes())
        .merge(records::routes())
        .merge(dead_letters::routes())
        .merge(actions::routes())
        .merge(inbound_webhooks::routes())
        .merge(outbound_webhooks::routes())
        .merge(keys::routes())
        .merge(variables::routes())
        .merge(settings::routes())
}
