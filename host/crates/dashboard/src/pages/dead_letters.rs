//! The dead letters: records that were set aside because they do not match their model.

mod detail;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use maud::{Markup, html};
use serde_json::Value;
use uuid::Uuid;

use super::addresses::environment_route;
use super::choices::scope;
use crate::Dashboard;
use crate::components::{
    Look, action_button, empty, filter_field, filters, heading, integration_filter, pager, snippet, table,
};
use crate::error::PageError;
use crate::form::{Form, done};
use crate::layout::{Section, page};
use crate::query::Query;
use crate::session::Visit;
use crate::time::{ago, number};
use syncline_auth::Scope;
use syncline_engine::{DeadLetterFilter, ListedLetter, Replayed};

const LETTERS_PER_PAGE: i64 = 50;

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("dead-letters"), get(dead_letters))
        .route(environment_route!("dead-letters/{id}"), get(detail::dead_letter))
        .route(environment_route!("dead-letters/{id}/replay"), post(replay))
        .route(environment_route!("dead-letters/{id}/discard"), post(discard))
}

async fn dead_letters(
    State(app): State<Dashboard>,
    visit: Visit,
    query: Query,
) -> Result<Response, PageError> {
    visit.require(Section::DeadLetters.scope())?;
    let list = visit.url(Section::DeadLetters.path());
    let filter = DeadLetterFilter {
        scope: scope(&query)?,
        model: query.parse_optional("model", "Model")?,
        after: query.parse_optional("after", "Page")?.unwrap_or_default(),
    };
    let integrations = app.integrations.list(visit.environment.pk).await?;
    let found = app.dead_letters.list(visit.environment.pk, filter, LETTERS_PER_PAGE).await?;
    let next = found.last.map(|last| query.address(&list, "after", Some(&last.to_string())));
    let rows = html! { @for listed in &found.letters { (row(&visit, listed)) } };
    let content = html! {
        (heading("Dead letters", &html! {}))
        p {
            "A record that does not match its model is set aside here with the problems that were found. A later save \
             of the record removes its dead letter."
        }
        (filters(&html! {
            (integration_filter(&integrations, query.text("integration")))
            (filter_field("connection", "Connection", "text", query.text("connection")))
            (filter_field("model", "Model", "text", query.text("model")))
        }))
        @if found.letters.is_empty() {
            (empty("There is no dead letter", &html! {
                p { "All records match their models, or the filters exclude the dead letters. To set records aside \
                     instead of failing the run, configure the model in " code { "syncline.toml" } ":" }
                (snippet("[models.Buyer]\non_bad_record = \"set_aside\""))
            }))
        } @else {
            (table("Dead letters", &["Record", "Model", "Connection", "Problem", "Times", "Last seen", ""], &rows))
        }
        (pager(query.first_page(&list, "after").as_deref(), next.as_deref()))
    };
    Ok(page(&app, &visit, Section::DeadLetters, "Dead letters", &content))
}

fn row(visit: &Visit, listed: &ListedLetter) -> Markup {
    let letter = &listed.letter;
    let problems = problems(&letter.problems);
    html! {
        tr {
            td {
                a href=(visit.url(&format!("dead-letters/{}", letter.id))) {
                    @match &letter.external_id { Some(id) => code { (id) }, None => "without a valid id" }
                }
            }
            td { (letter.model) @if !letter.variant.is_base() { div.muted { "variant " (letter.variant) } } }
            td { (listed.connection) div.muted { (listed.integration) } }
            td {
                @if let Some((path, problem)) = problems.first() { span.clip { code { (path) } " " (problem) } }
                @if problems.len() > 1 { div.muted { "and " (problems.len() - 1) " more" } }
            }
            td.number { (number(letter.times)) }
            td { (ago(letter.last_seen_at)) }
            td.right { (buttons(visit, letter.id)) }
        }
    }
}

/// The buttons that end a dead letter, for people who may write records.
fn buttons(visit: &Visit, id: Uuid) -> Markup {
    html! {
        @if visit.allows(Scope::RecordsWrite) {
            (action_button(visit, &visit.url(&format!("dead-letters/{id}/replay")), "Replay", Look::Secondary, None))
            (action_button(
                visit,
                &visit.url(&format!("dead-letters/{id}/discard")),
                "Discard",
                Look::Danger,
                Some("Discard this dead letter? Its record is not saved. This cannot be undone."),
            ))
        }
    }
}

/// The problems of a record: the path in it, and what is wrong there.
fn problems(stored: &Value) -> Vec<(&str, &str)> {
    stored
        .as_array()
        .into_iter()
        .flatten()
        .map(|problem| {
            let path = problem["path"].as_str().unwrap_or_default();
            let path = if path.is_empty() { "the record" } else { path };
            (path, problem["problem"].as_str().unwrap_or_default())
        })
        .collect()
}

async fn replay(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, Uuid)>,
    _: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::RecordsWrite)?;
    let notice = match app.dead_letters.replay(visit.environment.pk, id, &visit.actor()).await? {
        Replayed::Added => "The record was added.",
        Replayed::Updated => "The record was updated.",
        Replayed::Unchanged => "The record was already saved like this. The dead letter was removed.",
    };
    Ok(done(&app, &visit, &visit.url(Section::DeadLetters.path()), notice))
}

async fn discard(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, Uuid)>,
    _: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::RecordsWrite)?;
    app.dead_letters.discard(visit.environment.pk, id, &visit.actor()).await?;
    Ok(done(&app, &visit, &visit.url(Section::DeadLetters.path()), "The dead letter was discarded."))
}
