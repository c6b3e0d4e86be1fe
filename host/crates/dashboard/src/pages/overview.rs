//! The first page of an environment.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use maud::html;

use super::environment_route;
use crate::Dashboard;
use crate::components::heading;
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::session::Visit;

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new().route(environment_route!("overview"), get(overview))
}

async fn overview(State(app): State<Dashboard>, visit: Visit) -> Result<Response, PageError> {
    visit.require(Section::Overview.scope())?;
    let content = html! { (heading("Overview", &html! {})) };
    Ok(page(&app, &visit, Section::Overview, "Overview", &content))
}
