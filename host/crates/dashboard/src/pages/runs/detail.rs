//! One run: its outcome, what it used and changed, and its log.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::get;
use maud::{Markup, html};

use super::approval::held_deletions;
use super::log::{LogFilter, log};
use super::recording::recording;
use super::table::{connection, duration_text, is_held, state_badge};
use super::usage::usage;
use crate::Dashboard;
use crate::components::{breadcrumb, copyable, cut, facts, heading, table};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::live;
use crate::pages::addresses::{SyncAddress, environment_route, parse_run_id, run_url};
use crate::query::Query;
use crate::session::Visit;
use crate::time::{ago, exact, number};
use syncline_auth::Scope;
use syncline_engine::LoggedRun;
use syncline_types::functions::{FunctionKind, RunState};

/// The bytes of an error message that are shown.
const MESSAGE_BYTES: usize = 5_000;
/// The bytes of an error's details that are shown.
const DETAILS_BYTES: usize = 10_000;

pub(super) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("runs/{id}"), get(run))
        .route(environment_route!("runs/{id}/live"), get(live_run))
}

async fn run(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    query: Query,
) -> Result<Response, PageError> {
    visit.require(Scope::LogsRead)?;
    let run = app.runs.get(visit.environment.pk, parse_run_id(&id)?).await?;
    let filter = LogFilter::read(&query)?;
    let outcome = outcome(&app, &visit, &run).await?;
    let url = run_url(&visit, run.id);
    let lines = log(&app, &visit, &run, &filter, &url).await?;
    let is_running = run.state == RunState::Running;
    // Only the end of a log changes.
    let follows = is_running && filter.before.is_none();
    let content = html! {
        (breadcrumb("Runs", &visit.url(Section::Runs.path())))
        (heading(&format!("Run of {}", run.function), &html! {}))
        @if is_running {
            (live::part(&format!("{url}/live?part=outcome"), &outcome))
        } @else {
            (outcome)
        }
        h2 { "Log" }
        (filter.form())
        @if follows {
            (live::part(&filter.address(&format!("{url}/live"), &[("part", "log")]), &lines))
        } @else {
            (lines)
        }
    };
    Ok(page(&app, &visit, Section::Runs, &format!("Run of {}", run.function), &content))
}

/// Streams the outcome or the log of a run in progress.
async fn live_run(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, String)>,
    query: Query,
) -> Result<Response, PageError> {
    visit.require(Scope::LogsRead)?;
    let id = parse_run_id(&id)?;
    let filter = LogFilter::read(&query)?;
    let shows_log = query.text("part") == "log";
    let url = run_url(&visit, id);
    let person = visit.person.clone();
    let shared = Arc::new((app.clone(), visit, filter, url));
    Ok(live::stream_part(&app, &person, move || {
        let shared = Arc::clone(&shared);
        async move {
            let (app, visit, filter, url) = &*shared;
            let run = app.runs.get(visit.environment.pk, id).await?;
            if shows_log { log(app, visit, &run, filter, url).await } else { outcome(app, visit, &run).await }
        }
    }))
}

/// The state of a run, what it changed and used, and why it failed.
async fn outcome(app: &Dashboard, visit: &Visit, run: &LoggedRun) -> Result<Markup, PageError> {
    let usage = usage(app, visit, run).await?;
    let recording = recording(app, visit, run).await?;
    let is_sync = run.kind == FunctionKind::Sync;
    Ok(html! {
        @if is_held(run) { (held_deletions(visit, run, &html! {})) }
        @else if run.state != RunState::Success { (failure(run)) }
        (facts(&[
            ("State", html! {
                (state_badge(run))
                @if let Some(at) = run.approved_at { " " span.muted { "deletions approved " (ago(at)) } }
            }),
            ("Function", html! { (function(visit, run)) div.muted { (run.kind.as_str()) @if is_sync && run.variant != "base" { " · variant " (run.variant) } } }),
            ("Connection", connection(visit, run)),
            ("Started", html! { (ago(run.started_at)) div.muted { (exact(run.started_at)) " UTC" } }),
            ("Duration", html! { (duration_text(run)) }),
            ("Trigger", html! { (run.trigger.as_str()) @if run.attempt > 1 { ", attempt " (run.attempt) } }),
            ("Progress", html! {
                @match (run.progress_done, run.progress_total) {
                    (Some(done), Some(total)) => { (number(done)) " of " (number(total)) }
                    (Some(done), None) => (number(done)),
                    (None, _) => span.muted { "not reported" },
                }
            }),
            ("Recording", recording),
            ("Run id", copyable(&run.id.to_string())),
            ("Job", html! { @match run.job { Some(job) => (copyable(&job.to_string())), None => span.muted { "none" } } }),
        ]))
        (counts(run))
        (usage)
    })
}

/// The name of the function, which for a sync links to its page.
fn function(visit: &Visit, run: &LoggedRun) -> Markup {
    let address = match (&run.integration, &run.connection, run.function.parse(), run.variant.parse()) {
        (Some(integration), Some(connection), Ok(sync), Ok(variant)) if run.kind == FunctionKind::Sync => {
            let (integration, connection) = (integration.clone(), connection.clone());
            Some(SyncAddress { integration, connection, sync, variant })
        }
        _ => None,
    };
    html! {
        @match address {
            Some(address) => a href=(address.url(visit)) { (run.function) },
            None => (run.function),
        }
    }
}

fn failure(run: &LoggedRun) -> Markup {
    html! {
        @if let Some(code) = run.error_code {
            section.card {
                h2 { "Why it did not succeed" }
                @if let Some(message) = &run.error_message { p { (cut(message, MESSAGE_BYTES)) } }
                p { strong { "What to do: " } (code.remedy()) }
                p.muted { "Code: " code { (code.as_str()) } }
                @if let Some(details) = &run.error_details {
                    details {
                        summary { "Details" }
                        pre tabindex="0" { code { (cut(&format!("{details:#}"), DETAILS_BYTES)) } }
                    }
                }
            }
        }
    }
}

/// The changes to records of each model.
fn counts(run: &LoggedRun) -> Markup {
    let models =
        run.counts.as_ref().and_then(serde_json::Value::as_object).filter(|models| !models.is_empty());
    let Some(models) = models else { return html! {} };
    let rows = html! {
        @for (model, counts) in models {
            tr {
                td { (model) }
                @for change in ["added", "updated", "deleted", "set_aside"] {
                    td.number { (number(counts.get(change).and_then(serde_json::Value::as_i64).unwrap_or(0))) }
                }
            }
        }
    };
    html! {
        h2 { "Changes to records" }
        (table("Changes to records", &["Model", "Added", "Updated", "Deleted", "Set aside"], &rows))
    }
}
