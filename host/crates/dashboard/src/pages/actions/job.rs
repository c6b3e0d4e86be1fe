//! An action that runs in the background.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use maud::{Markup, html};
use uuid::Uuid;

use super::outcome;
use crate::Dashboard;
use crate::components::{Tone, badge, heading};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::live;
use crate::session::Visit;
use syncline_auth::Environment;
use syncline_engine::{ActionJob, ActionResult};

pub(super) async fn job(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, Uuid)>,
) -> Result<Response, PageError> {
    visit.require(Section::Actions.scope())?;
    let state = state(&app, &visit.environment, id).await?;
    let content = html! {
        nav.breadcrumb aria-label="Breadcrumb" {
            a href=(visit.url(Section::Actions.path())) { "Actions" } " / " (id)
        }
        (heading("Action in the background", &html! {}))
        p { "The result is kept for 24 hours by default. The runs of the action are listed with all other runs." }
        (live::part(&visit.url(&format!("action-jobs/{id}/progress")), &state))
        p { a.button href=(visit.url(Section::Runs.path())) { "Go to the runs" } }
    };
    Ok(page(&app, &visit, Section::Actions, "Action in the background", &content))
}

/// Streams the state of a job until it has finished.
pub(super) async fn progress(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, Uuid)>,
) -> Result<Response, PageError> {
    visit.require(Section::Actions.scope())?;
    let (services, environment) = (app.clone(), Arc::clone(&visit.environment));
    Ok(live::stream_part(&app, &visit.person, move || {
        let (app, environment) = (services.clone(), Arc::clone(&environment));
        async move { state(&app, &environment, id).await }
    }))
}

async fn state(app: &Dashboard, environment: &Environment, id: Uuid) -> Result<Markup, PageError> {
    let job = app.actions.find_job(environment, id).await.map_err(PageError::internal)?;
    let job = job.ok_or_else(|| {
        PageError::NotFound(format!(
            "there is no job `{id}` in this environment; its result may have expired"
        ))
    })?;
    Ok(match job {
        ActionJob::Unfinished(state) => html! { p { (badge(Tone::Busy, state.as_str())) } },
        ActionJob::Finished(ActionResult::Output(json)) => html! {
            p { (badge(Tone::Good, "success")) }
            (outcome::output(json.as_deref()))
        },
        ActionJob::Finished(ActionResult::Failure(failure)) => html! {
            p { (badge(Tone::Bad, "error")) }
            (outcome::failure(&failure))
        },
    })
}
