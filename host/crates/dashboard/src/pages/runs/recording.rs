//! The recording of a run.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use maud::{Markup, html};

use crate::Dashboard;
use crate::error::PageError;
use crate::pages::addresses::{environment_route, parse_run_id, run_url};
use crate::session::Visit;
use crate::time::exact;
use syncline_auth::Scope;
use syncline_engine::LoggedRun;

pub(super) fn routes() -> Router<Dashboard> {
    Router::new().route(environment_route!("runs/{id}/recording"), get(download))
}

/// A link to the recording, if the run has one.
pub(super) async fn recording(app: &Dashboard, visit: &Visit, run: &LoggedRun) -> Result<Markup, PageError> {
    let expires_at = app.runs.recording_expires_at(run.id).await?;
    Ok(html! {
        @match expires_at {
            None => span.muted { "none" },
            Some(at) => {
                @if visit.allows(Scope::RecordsRead) {
                    a href=(format!("{}/recording", run_url(visit, run.id))) download { "Download" }
                }
                div.muted { "until " (exact(at)) " UTC" }
            }
        }
    })
}

async fn download(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
) -> Result<Response, PageError> {
    visit.require(Scope::RecordsRead)?;
    let id = parse_run_id(&id)?;
    let text = app.runs.recording(&visit.environment, id, &visit.actor()).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{id}.json\"")),
    ];
    Ok((headers, text).into_response())
}
