//! The integrations of an environment: providers that are set up in it.

mod catalogue;
mod credentials;
mod detail;
mod editing;
pub(super) mod first_steps;
mod list;
mod lookup;

use axum::Router;

use crate::Dashboard;

pub(super) fn routes() -> Router<Dashboard> {
    Router::new()
        .merge(list::routes())
        .merge(catalogue::routes())
        .merge(detail::routes())
        .merge(editing::routes())
        .merge(credentials::routes())
}
