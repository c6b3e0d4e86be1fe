//! The list of runs, newest first.

use std::str::FromStr;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use chrono::DateTime;
use maud::{Markup, html};

use super::table::runs_table;
use crate::Dashboard;
use crate::components::{
    cut_to_page, empty, filter_field, filters, heading, integration_filter, pager, select, snippet,
};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::pages::addresses::environment_route;
use crate::query::Query;
use crate::session::Visit;
use syncline_engine::{LoggedRun, NamedScope, RunFilter, RunPlace};
use syncline_types::functions::{FunctionKind, RunState};

const PAGE: usize = 50;
const FILTERS: [&str; 8] =
    ["state", "kind", "integration", "connection", "function", "variant", "started_after", "started_before"];

pub(super) fn routes() -> Router<Dashboard> {
    Router::new().route(environment_route!("runs"), get(runs))
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
    use uuid::Uuid;

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
