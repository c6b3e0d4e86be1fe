//! The runs of an environment.

pub(super) mod approval;
mod detail;
mod list;
mod log;
mod recording;
pub(super) mod table;
mod usage;

use axum::Router;

use crate::Dashboard;

pub(super) fn routes() -> Router<Dashboard> {
    Router::new()
        .merge(list::routes())
        .merge(detail::routes())
        .merge(approval::routes())
        .merge(recording::routes())
}
