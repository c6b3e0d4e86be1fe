//! The syncs of an environment.

mod changes;
mod detail;
mod list;
mod recording;
pub(super) mod state;

use axum::Router;

use crate::Dashboard;

pub(super) fn routes() -> Router<Dashboard> {
    Router::new()
        .merge(list::routes())
        .merge(detail::routes())
        .merge(changes::routes())
        .merge(recording::routes())
}
