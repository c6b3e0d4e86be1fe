//! One dead letter.

use axum::extract::{Path, State};
use axum::response::Response;
use maud::html;
use uuid::Uuid;

use super::super::addresses::{connection_url, run_url};
use super::{buttons, problems};
use crate::Dashboard;
use crate::components::{facts, heading, table};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::session::Visit;
use crate::time::{ago, bytes, number};
use crate::tree::tree;
use syncline_engine::ListedLetter;

pub(super) async fn dead_letter(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, Uuid)>,
) -> Result<Response, PageError> {
    visit.require(Section::DeadLetters.scope())?;
    let ListedLetter { letter, integration, connection, payload } =
        app.dead_letters.get(visit.environment.pk, id).await?;
    let title = letter.external_id.as_deref().unwrap_or("Record without a valid id");
    let rows = html! {
        @for (path, problem) in problems(&letter.problems) {
            tr { td { code { (path) } } td { (problem) } }
        }
    };
    let content = html! {
        nav.breadcrumb aria-label="Breadcrumb" {
            a href=(visit.url(Section::DeadLetters.path())) { "Dead letters" } " / " (letter.id)
        }
        (heading(title, &buttons(&visit, letter.id)))
        (facts(&[
            ("Model", html! { (letter.model) ", variant " (letter.variant) }),
            ("Connection", html! { a href=(connection_url(&visit, &integration, &connection)) { (connection) } }),
            ("Integration", html! { (integration) }),
            ("Saved by", html! { (letter.function) ", " a href=(run_url(&visit, &letter.run_id)) { "last run" } }),
            ("First seen", ago(letter.first_seen_at)),
            ("Last seen", ago(letter.last_seen_at)),
            ("Times seen", html! { (number(letter.times)) }),
            ("Size", html! { (bytes(payload.len())) }),
        ]))
        h2 { "Problems" }
        (table("Problems", &["Path", "Problem"], &rows))
        p.muted {
            "Deploy a version of the model that accepts the record, and replay the dead letter. Or correct the record at \
             the provider; the next sync then saves it and removes the dead letter."
        }
        h2 { "Payload" }
        section.card { (tree(&payload)) }
    };
    Ok(page(&app, &visit, Section::DeadLetters, title, &content))
}
