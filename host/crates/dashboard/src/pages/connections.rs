//! The connections of an environment: accounts that end users have connected.

mod activity;
mod changes;
mod detail;
mod list;
pub(super) mod position;
mod state;
pub(super) mod test_account;

use axum::Router;

use crate::Dashboard;

pub(super) fn routes() -> Router<Dashboard> {
    Router::new()
        .merge(list::routes())
        .merge(detail::routes())
        .merge(changes::routes())
        .merge(activity::routes())
        .merge(test_account::routes())
}
