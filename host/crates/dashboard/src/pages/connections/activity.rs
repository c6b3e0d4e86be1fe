//! The syncs and the latest runs of a connection. They follow changes.

use std::collections::BTreeSet;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::get;
use maud::{Markup, html};

use crate::Dashboard;
use crate::components::table;
use crate::error::PageError;
use crate::live;
use crate::pages::addresses::{environment_route, parse_names};
use crate::pages::{runs, syncs};
use crate::session::Visit;
use crate::time::{ago, milliseconds, number};
use syncline_auth::Scope;
use syncline_engine::{LoggedRun, NamedScope, RunFilter, SyncSelection, SyncStatus};
use syncline_types::functions::RunState;
use syncline_types::ids::{ConnectionId, IntegrationKey};

const MAX_RUNS: i64 = 10;
const MAX_SYNCS: usize = 50;

pub(super) fn routes() -> Router<Dashboard> {
    Router::new().route(environment_route!("connections/{integration}/{id}/activity"), get(follow))
}

async fn follow(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, key, id)): Path<(String, String, String)>,
) -> Result<Response, PageError> {
    visit.require(Scope::ConnectionsRead)?;
    let (key, id) = parse_names(&key, &id)?;
    let visit = std::sync::Arc::new(visit);
    let person = visit.person.clone();
    let state = (app.clone(), visit, key, id);
    let render = move || {
        let (app, visit, key, id) = state.clone();
        async move { render(&app, &visit, &key, &id).await }
    };
    Ok(live::stream_part(&app, &person, render))
}

/// Renders the syncs and the latest runs, as far as the person may see them.
pub(super) async fn render(
    app: &Dashboard,
    visit: &Visit,
    key: &IntegrationKey,
    id: &ConnectionId,
) -> Result<Markup, PageError> {
    let environment = visit.environment.pk;
    let syncs = if visit.allows(Scope::SyncsRead) {
        let selection =
            SyncSelection { integration: key.clone(), connection: Some(id.clone()), syncs: BTreeSet::new() };
        Some(app.syncs.status(environment, &selection).await?)
    } else {
        None
    };
    let runs = if visit.allows(Scope::LogsRead) {
        let filter = RunFilter {
            scope: NamedScope::Connection { integration: key.clone(), connection: id.clone() },
            states: RunState::ALL.to_vec(),
            kind: None,
            function: None,
            variant: None,
            trigger: None,
            started_after: None,
            started_before: None,
            behind: None,
        };
        Some(app.runs.list(environment, filter, MAX_RUNS).await?)
    } else {
        None
    };
    let of_connection = {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.append_pair("integration", key.as_str()).append_pair("connection", id.as_str());
        query.finish()
    };
    Ok(html! {
        @if let Some(syncs) = &syncs {
            h2 { "Syncs" }
            (sync_table(visit, &of_connection, syncs))
        }
        @if let Some(runs) = &runs {
            h2 { "Latest runs" }
            (run_table(visit, &of_connection, runs))
        }
    })
}

fn sync_table(visit: &Visit, of_connection: &str, syncs: &[SyncStatus]) -> Markup {
    let rows = html! {
        @for sync in syncs.iter().take(MAX_SYNCS) {
            tr {
                td {
                    code { (sync.sync) }
                    @if !sync.variant.is_base() { " " code { (sync.variant) } }
                }
                td { (syncs::state::state_badge(sync)) }
                td { (sync.frequency.as_deref().unwrap_or("not deployed")) }
                td {
                    @match sync.latest.as_ref().and_then(|run| run.finished_at) {
                        Some(at) => (ago(at)),
                        None => span.muted { "never" },
                    }
                }
                td { (syncs::state::next_run(sync, "not planned")) }
                td.number { (number(sync.record_counts.values().sum())) }
            }
        }
    };
    html! {
        @if syncs.is_empty() {
            p.muted { "No sync is deployed for this connection." }
        } @else {
            (table("Syncs", &["Sync", "State", "Frequency", "Last run", "Next run", "Records"], &rows))
            p { a href={ (visit.url("syncs")) "?" (of_connection) } { "Start, pause or trigger these syncs" } }
        }
    }
}

fn run_table(visit: &Visit, of_connection: &str, runs: &[LoggedRun]) -> Markup {
    let rows = html! {
        @for run in runs {
            tr {
                td { a href=(visit.url(&format!("runs/{}", run.id))) { (run.function) } }
                td { (run.kind) }
                td { (runs::table::state_badge(run)) }
                td { (ago(run.started_at)) }
                td.number {
                    @match run.finished_at {
                        Some(at) => (milliseconds((at - run.started_at).num_milliseconds().unsigned_abs())),
                        None => span.muted { "running" },
                    }
                }
                td { span.clip { (run.error_message.as_deref().unwrap_or_default()) } }
            }
        }
    };
    html! {
        @if runs.is_empty() {
            p.muted { "No function has run for this connection yet." }
        } @else {
            (table("Latest runs", &["Function", "Kind", "State", "Started", "Duration", "Error"], &rows))
            p { a href={ (visit.url("runs")) "?" (of_connection) } { "All runs of this connection" } }
        }
    }
}
