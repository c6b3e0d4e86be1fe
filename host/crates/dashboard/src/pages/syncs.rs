//! The syncs of an environment: one row for each connection and variant.

mod changes;
mod detail;
mod recording;

use axum::Router;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::get;
use maud::{Markup, html};

use super::environment_route;
use crate::Dashboard;
use crate::components::{
    Tone, badge, cut_to_page, empty, filter_field, filters, heading, integration_filter, pager, select,
    snippet, table,
};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::pages::connections::connection_url;
use crate::query::Query;
use crate::session::{Visit, segment};
use crate::time::{ago, number};
use syncline_engine::{ListedState, ListedSync, SyncFilter, SyncPosition, SyncState, SyncStatus};
use syncline_types::ids::{ConnectionId, FunctionName, IntegrationKey, IntegrationPk, SchedulePk, Variant};

const PAGE: usize = 50;
const FILTERS: [&str; 4] = ["integration", "connection", "sync", "state"];
const STATES: [(&str, &str); 5] = [
    ("", "All"),
    ("running", "Running"),
    ("paused", "Paused"),
    ("failing", "Failing"),
    ("held", "Deletions held"),
];

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("syncs"), get(syncs))
        .merge(detail::routes())
        .merge(changes::routes())
        .merge(recording::routes())
}

/// One sync of a connection and variant, as the address of its page names it.
pub(crate) struct SyncAddress {
    pub(crate) integration: IntegrationKey,
    pub(crate) connection: ConnectionId,
    pub(crate) sync: FunctionName,
    pub(crate) variant: Variant,
}

impl FromRequestParts<Dashboard> for SyncAddress {
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, app: &Dashboard) -> Result<Self, PageError> {
        type Names = (String, String, String, String, String);
        let unknown = || PageError::NotFound("the address of this page names no sync".to_owned());
        let Path((_, integration, connection, sync, variant)) =
            Path::<Names>::from_request_parts(parts, app).await.map_err(|_| unknown())?;
        Ok(Self {
            integration: integration.parse().map_err(|_| unknown())?,
            connection: connection.parse().map_err(|_| unknown())?,
            sync: sync.parse().map_err(|_| unknown())?,
            variant: variant.parse().map_err(|_| unknown())?,
        })
    }
}

impl SyncAddress {
    fn of(listed: &ListedSync) -> Self {
        Self {
            integration: listed.integration.clone(),
            connection: listed.status.connection.clone(),
            sync: listed.status.sync.clone(),
            variant: listed.status.variant.clone(),
        }
    }

    /// The address of the sync's page.
    pub(crate) fn url(&self, visit: &Visit) -> String {
        let Self { integration, connection, sync, variant } = self;
        let names = [integration.as_str(), connection.as_str(), sync.as_str(), variant.as_str()];
        visit.url(&format!("syncs/{}", names.map(segment).join("/")))
    }

    /// The name of the sync, with the variant unless it is the default.
    pub(crate) fn title(&self) -> String {
        if self.variant.is_base() {
            self.sync.to_string()
        } else {
            format!("{} · {}", self.sync, self.variant)
        }
    }
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

fn finished_at(status: &SyncStatus) -> Option<chrono::DateTime<chrono::Utc>> {
    status.latest.as_ref().and_then(|run| run.finished_at)
}

/// When the sync runs next: at its retry or at its regular time. `otherwise` says that no run is planned.
pub(crate) fn next_run(status: &SyncStatus, otherwise: &str) -> Markup {
    html! {
        @match (status.retry_at, status.next_run_at) {
            (Some(at), _) => { (ago(at)) " " span.muted { "(retry)" } }
            (None, Some(at)) => (ago(at)),
            (None, None) => span.muted { (otherwise) },
        }
    }
}

/// The state of a sync.
pub(crate) fn state_badge(status: &SyncStatus) -> Markup {
    match status.state {
        SyncState::Running => badge(Tone::Busy, "running"),
        SyncState::Paused => badge(Tone::Neutral, "paused"),
        SyncState::Stopped => badge(Tone::Warning, "not deployed"),
        SyncState::Error => badge(Tone::Bad, "failed"),
        SyncState::Success if status.latest.is_none() => badge(Tone::Neutral, "not run yet"),
        SyncState::Success => badge(Tone::Good, "succeeded"),
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
