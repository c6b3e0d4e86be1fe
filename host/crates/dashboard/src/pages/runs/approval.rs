//! Deletions that a full sync has held because there were suspiciously many, and their approval.

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::post;
use maud::{Markup, html};

use super::table::changes_text;
use crate::Dashboard;
use crate::components::{Look, action_button};
use crate::error::PageError;
use crate::form::{Form, done};
use crate::pages::addresses::{environment_route, parse_run_id, run_url};
use crate::session::Visit;
use crate::time::number;
use syncline_auth::Scope;
use syncline_engine::LoggedRun;

pub(super) fn routes() -> Router<Dashboard> {
    Router::new().route(environment_route!("runs/{id}/approve"), post(approve))
}

async fn approve(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    _: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::SyncsExecute)?;
    let id = parse_run_id(&id)?;
    app.syncs.approve_run(visit.environment.pk, id, &visit.actor()).await?;
    let run = app.runs.get(visit.environment.pk, id).await?;
    let notice = format!("The deletions were approved: {}.", changes_text(&run));
    Ok(done(&app, &visit, &run_url(&visit, id), &notice))
}

/// A warning about deletions that wait for an approval, with the button that approves them. `run` contains its details.
/// `link` follows the button.
pub(crate) fn held_deletions(visit: &Visit, run: &LoggedRun, link: &Markup) -> Markup {
    let details = run.error_details.as_ref();
    let count = |name: &str| details.and_then(|details| details.get(name)?.as_i64());
    let model = details.and_then(|details| details.get("model")?.as_str()).unwrap_or("the model");
    let share = match (count("unseen"), count("live")) {
        (Some(unseen), Some(live)) => format!("{} of {} records of {model}", number(unseen), number(live)),
        _ => format!("many records of {model}"),
    };
    html! {
        section.card {
            h2 { "Deletions wait for approval" }
            p {
                "The run did not find " (share) ". That may be an error of the provider or of the function, so the host \
                 deleted nothing. If the records no longer exist at the provider, approve the deletions."
            }
            div.actions {
                @if visit.allows(Scope::SyncsExecute) {
                    (action_button(
                        visit,
                        &format!("{}/approve", run_url(visit, run.id)),
                        "Approve the deletions",
                        Look::Danger,
                        Some(&format!("Delete {share}? Records that were saved again since the run are kept.")),
                    ))
                }
                (link)
            }
        }
    }
}
