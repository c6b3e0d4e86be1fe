//! The pages about one environment: one file per page of the navigation.

mod keys;
mod overview;
mod variables;

use axum::Router;

use super::Dashboard;

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new().merge(overview::routes()).merge(keys::routes()).merge(variables::routes())
}

/// The route of a page of an environment.
macro_rules! environment_route {
    ($path:literal) => {
        concat!("/dashboard/environments/{environment}/", $path)
    };
}

pub(crate) use environment_route;
