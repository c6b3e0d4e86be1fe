//! The runs of an environment, newest first.

mod approval;
mod detail;
mod log;
mod recording;
mod usage;

use std::fmt::Write;
use std::str::FromStr;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use chrono::DateTime;
use maud::{Markup, html};
use uuid::Uuid;

pub(crate) use self::approval::{held_deletions, is_held};
use super::connections::connection_url;
use super::environment_route;
use crate::Dashboard;
use crate::components::{
    Tone, badge, cut_to_page, empty, filter_field, filters, heading, integration_filter, pager, select,
    snippet, table,
};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::query::Query;
use crate::session::Visit;
use crate::time::{ago, milliseconds, number};
use syncline_engine::{LoggedRun, NamedScope, RunFilter, RunPlace};
use syncline_types::functions::{FunctionKind, RunState};

const PAGE: usize = 50;
/// The bytes of an error message that a list shows.
const MESSAGE_BYTES: usize = 200;
const FILTERS: [&str; 8] =
    ["state", "kind", "integration", "connection", "function", "variant", "started_after", "started_before"];

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("runs"), get(runs))
        .merge(detail::routes())
        .merge(approval::routes())
        .merge(recording::routes())
}

/// The address of a run's page.
pub(crate) fn run_url(visit: &Visit, id: Uuid) -> String {
    visit.url(&format!("runs/{id}"))
}

async fn runs(State(app): State<Dashboard>, visit: Visit, query: Query) -> Result<Response, PageError> {
    visit.require(Section::Runs.scope())?;
    let environment = visit.environment.pk;
    let state: Option<RunState> = choice(&query, "state", "State")?;
    let filter = RunFilter {
        scope: scope(&query)?,
        states: state.map_or_else(|| RunState::ALL.to_vec(), |state| vec![state]),
        kind: choice(&query, "kind", "Kind")?,
        function: query.parse_optional("function", "Function")?,
        variant: query.parse_optional("variant", "Variant")?,
        trigger: None,
        started_after: query.time("started_after", "Started after")?,
        started_before: query.time("started_before", "Started before")?,
        behind: query.optional("after").map(parse_position).transpose()?,
    };
    let mut runs = app.runs.list(environment, filter, PAGE as i64 + 1).await?;
    let list = visit.url(Section::Runs.path());
    let next = cut_to_page(&mut runs, PAGE).map(|last| query.address(&list, "after", Some(&position(last))));
    let integrations = app.integrations.list(environment).await?;
    let content = html! {
        (heading("Runs", &html! {}))
        (filter_form(&query, &integration_filter(&integrations, query.text("integration"))))
        @if !runs.is_empty() {
            (runs_table(&visit, &runs, true))
        } @else if FILTERS.iter().any(|name| query.optional(name).is_some()) {
            (empty("No run matches these filters", &html! {
                p { a href=(list) { "Show all runs" } ". Old runs are deleted after the retention period." }
            }))
        } @else {
            (empty("There is no run yet", &html! {
                p { "A run is one execution of a function. Deploy a function and connect an account:" }
                (snippet("syncline deploy"))
            }))
        }
        (pager(query.first_page(&list, "after").as_deref(), next.as_deref()))
    };
    Ok(page(&app, &visit, Section::Runs, "Runs", &content))
}

fn filter_form(query: &Query, integrations: &Markup) -> Markup {
    let states = options(RunState::ALL.iter().map(|state| state.as_str()));
    let kinds = options(FunctionKind::ALL.iter().map(|kind| kind.as_str()));
    let field = |name, label, kind| filter_field(name, label, kind, query.text(name));
    filters(&html! {
        (select("state", "State", &states, query.text("state")))
        (select("kind", "Kind", &kinds, query.text("kind")))
        (integrations)
        (field("connection", "Connection id", "text"))
        (field("function", "Function", "text"))
        (field("started_after", "Started after (UTC)", "datetime-local"))
        (field("started_before", "Started before (UTC)", "datetime-local"))
        @if let Some(variant) = query.optional("variant") {
            (filter_field("variant", "Variant", "text", variant))
        }
    })
}

fn options<'t>(values: impl Iterator<Item = &'t str>) -> Vec<(&'t str, &'t str)> {
    [("", "All")].into_iter().chain(values.map(|value| (value, value))).collect()
}

/// Parses a parameter with a fixed set of values.
fn choice<T: FromStr>(query: &Query, name: &str, label: &str) -> Result<Option<T>, PageError> {
    let Some(text) = query.optional(name) else { return Ok(None) };
    let unknown = |_| PageError::invalid(label, format!("`{text}` is unknown; choose a value of the list"));
    text.parse().map(Some).map_err(unknown)
}

fn scope(query: &Query) -> Result<NamedScope, PageError> {
    Ok(
        match (
            query.parse_optional("integration", "Integration")?,
            query.parse_optional("connection", "Connection id")?,
        ) {
            (None, None) => NamedScope::Environment,
            (Some(integration), None) => NamedScope::Integration(integration),
            (Some(integration), Some(connection)) => NamedScope::Connection { integration, connection },
            (None, Some(_)) => {
                return Err(PageError::invalid("Connection id", "choose its integration as well"));
            }
        },
    )
}

/// A table of runs. `names` adds the columns that are the same for all runs of one sync.
pub(crate) fn runs_table(visit: &Visit, runs: &[LoggedRun], names: bool) -> Markup {
    let columns: &[&str] = if names {
        &["Started", "State", "Function", "Connection", "Trigger", "Changes", "Duration"]
    } else {
        &["Started", "State", "Trigger", "Changes", "Duration"]
    };
    let rows = html! {
        @for run in runs {
            tr {
                td { a href=(run_url(visit, run.id)) { (ago(run.started_at)) } }
                td {
                    (state_badge(run))
                    @if let Some(message) = &run.error_message {
                        div.muted { span.clip { (&message[..message.floor_char_boundary(MESSAGE_BYTES)]) } }
                    }
                }
                @if names {
                    td { (run.function) div.muted { (run.kind.as_str()) @if run.variant != "base" { " · " (run.variant) } } }
                    td { (connection(visit, run)) }
                }
                td { (run.trigger.as_str()) @if run.attempt > 1 { " " span.muted { "(attempt " (run.attempt) ")" } } }
                td { (changes_text(run)) }
                td { (duration_text(run)) }
            }
        }
    };
    table("Runs", columns, &rows)
}

/// The connection of a run with its integration, if they still exist.
fn connection(visit: &Visit, run: &LoggedRun) -> Markup {
    html! {
        @match (&run.integration, &run.connection) {
            (Some(integration), Some(connection)) => {
                div { a href=(connection_url(visit, integration, connection)) { (connection) } }
                div.muted { (integration) }
            }
            (Some(integration), None) => { div.muted { "deleted" } div.muted { (integration) } }
            (None, _) => span.muted { "deleted" },
        }
    }
}

pub(crate) fn state_tone(run: &LoggedRun) -> Tone {
    match run.state {
        RunState::Running => Tone::Busy,
        RunState::Success => Tone::Good,
        RunState::Error if is_held(run) => Tone::Warning,
        RunState::Error => Tone::Bad,
        RunState::Lost => Tone::Warning,
        RunState::Cancelled => Tone::Neutral,
    }
}

pub(crate) fn state_text(run: &LoggedRun) -> &'static str {
    match run.state {
        RunState::Running => "running",
        RunState::Success => "succeeded",
        RunState::Error if is_held(run) => "deletions held",
        RunState::Error => "failed",
        RunState::Lost => "lost",
        RunState::Cancelled => "cancelled",
    }
}

pub(crate) fn state_badge(run: &LoggedRun) -> Markup {
    badge(state_tone(run), state_text(run))
}

/// The sums of the changes to records of all models.
pub(crate) fn changes_text(run: &LoggedRun) -> String {
    let models = run.counts.as_ref().and_then(serde_json::Value::as_object);
    let sum = |change: &str| -> i64 {
        models
            .into_iter()
            .flat_map(|models| models.values())
            .filter_map(|counts| counts.get(change)?.as_i64())
            .sum()
    };
    let mut text = String::new();
    for (change, words) in
        [("added", "added"), ("updated", "updated"), ("deleted", "deleted"), ("set_aside", "set aside")]
    {
        let count = sum(change);
        if count > 0 {
            let separator = if text.is_empty() { "" } else { ", " };
            let _ = write!(text, "{separator}{} {words}", number(count));
        }
    }
    match (text.is_empty(), run.kind) {
        (false, _) => text,
        (true, FunctionKind::Sync) => "no changes".to_owned(),
        (true, _) => "–".to_owned(),
    }
}

fn duration_text(run: &LoggedRun) -> String {
    match run.finished_at {
        Some(finished_at) => {
            let duration = (finished_at - run.started_at).num_milliseconds();
            milliseconds(duration.max(0).unsigned_abs())
        }
        None => "in progress".to_owned(),
    }
}

/// A position in the list, for the address of the next page.
fn position(run: &LoggedRun) -> String {
    format!("{}-{}", run.started_at.timestamp_micros(), run.id.simple())
}

fn parse_position(text: &str) -> Result<RunPlace, PageError> {
    let (started_at, id) = text.split_once('-').unwrap_or_default();
    let started_at = started_at.parse().ok().and_then(DateTime::from_timestamp_micros);
    match (started_at, id.parse()) {
        (Some(started_at), Ok(id)) => Ok(RunPlace { started_at, id }),
        _ => Err(PageError::invalid("Page", "this address is malformed; go back to the first page")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_the_list_are_parsed_back() {
        let id = Uuid::from_u128(7);
        let place = parse_position(&format!("1700000000000001-{}", id.simple())).expect("it is valid");
        assert_eq!((place.started_at.timestamp_micros(), place.id), (1_700_000_000_000_001, id));
        for malformed in ["", "-", "1", "x-1", "1-x"] {
            assert!(parse_position(malformed).is_err(), "{malformed}");
        }
    }
}
