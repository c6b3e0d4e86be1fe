//! The list of syncs: one row for each connection and variant.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use maud::{Markup, html};

use super::state::{finished_at, next_run, state_badge};
use crate::Dashboard;
use crate::components::{
    cut_to_page, empty, filter_field, filters, heading, integration_filter, pager, select, snippet, table,
};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::pages::addresses::{SyncAddress, connection_url, environment_route};
use crate::query::Query;
use crate::session::Visit;
use crate::time::{ago, number};
use syncline_engine::{ListedState, ListedSync, SyncFilter, SyncPosition};
use syncline_types::ids::{IntegrationPk, SchedulePk};

const PAGE: usize = 50;
const FILTERS: [&str; 4] = ["integration", "connection", "sync", "state"];
const STATES: [(&str, &str); 5] = [
    ("", "All"),
    ("running", "Running"),
    ("paused", "Paused"),
    ("failing", "Failing"),
    ("held", "Deletions held"),
];

pub(super) fn routes() -> Router<Dashboard> {
    Router::new().route(environment_route!("syncs"), get(syncs))
}

async fn syncs(State(app): State<Dashboard>, visit: Visit, query: Query) -> Result<Response, PageError> {
    visit.require(Section::Syncs.scope())?;
    let environment = visit.environment.pk;
    let state = query.text("state");
    let filter = SyncFilter {
        integration: query.parse_optional("integration", "Integration")?,
        connection: query.parse_optional("connection", "Connection")?,
        sync: query.parse_optional("sync", "Sync")?,
        state: ListedState::ALL.into_iter().find(|known| known.as_str() == state),
        behind: query.optional("after").map(parse_position).transpose()?,
    };
    let mut syncs = app.syncs.list(environment, &filter, PAGE as i64 + 1).await?;
    let list = visit.url(Section::Syncs.path());
    let next = cut_to_page(&mut syncs, PAGE).map(|last| {
        let position = format!("{}-{}", last.position.integration, last.position.schedule);
        query.address(&list, "after", Some(&position))
    });
    let integrations = app.integrations.list(environment).await?;
    let content = html! {
        (heading("Syncs", &html! {}))
        (filters(&html! {
            (integration_filter(&integrations, query.text("integration")))
            (filter_field("connection", "Connection id", "text", query.text("connection")))
            (filter_field("sync", "Sync", "text", query.text("sync")))
            (select("state", "State", &STATES, state))
        }))
        @if !syncs.is_empty() {
            (table(
                "Syncs",
                &["Sync", "Connection", "State", "Runs", "Records", "Last run", "Next run"],
                &html! { @for listed in &syncs { (row(&visit, listed)) } },
            ))
        } @else if FILTERS.iter().any(|name| query.optional(name).is_some()) {
            (empty("No sync matches these filters", &html! {
                p { a href=(list) { "Show all syncs" } "." }
            }))
        } @else {
            (empty("There is no sync yet", &html! {
                p { "A sync runs for every connection of its integration. Deploy a function first:" }
                (snippet("syncline deploy"))
                p { "Then " a href=(visit.url(Section::Connections.path())) { "connect an account" } "." }
            }))
        }
        (pager(query.first_page(&list, "after").as_deref(), next.as_deref()))
    };
    Ok(page(&app, &visit, Section::Syncs, "Syncs", &content))
}

fn row(visit: &Visit, listed: &ListedSync) -> Markup {
    let ListedSync { integration, status, .. } = listed;
    let address = SyncAddress::of(listed);
    html! {
        tr {
            td { a href=(address.url(visit)) { (address.title()) } }
            td {
                div { a href=(connection_url(visit, integration, &status.connection)) { (status.connection) } }
                div.muted { (integration) }
            }
            td { (state_badge(status)) }
            td { (status.frequency.as_deref().unwrap_or("never")) @if status.has_own_frequency { " " span.muted { "(changed)" } } }
            td.number { (number(status.record_counts.values().sum())) }
            td { @match finished_at(status) { Some(at) => (ago(at)), None => span.muted { "never" } } }
            td { (next_run(status, "none")) }
        }
    }
}

fn parse_position(text: &str) -> Result<SyncPosition, PageError> {
    let (integration, schedule) = text.split_once('-').unwrap_or_default();
    match (integration.parse(), schedule.parse()) {
        (Ok(integration), Ok(schedule)) => {
            Ok(SyncPosition { integration: IntegrationPk(integration), schedule: SchedulePk(schedule) })
        }
        _ => Err(PageError::invalid("Page", "this address is malformed; go back to the first page")),
    }
}
