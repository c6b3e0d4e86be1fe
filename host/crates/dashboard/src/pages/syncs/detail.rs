//! One sync of a connection: its state, its latest runs, and the commands for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use maud::{Markup, html};

use super::recording::recording;
use super::state::{finished_at, next_run, state_badge};
use crate::Dashboard;
use crate::components::{
    Look, TextField, action_button, breadcrumb, cut, facts, form, heading, submit, table,
};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::live;
use crate::pages::addresses::{SyncAddress, connection_url, environment_route, run_url};
use crate::pages::runs::approval::held_deletions;
use crate::pages::runs::table::{changes_text, is_held, runs_table, state_text, state_tone};
use crate::session::Visit;
use crate::time::{ago, number};
use syncline_auth::Scope;
use syncline_engine::{LoggedRun, SyncRunError, SyncSelection, SyncState, SyncStatus};
use syncline_types::error_code::ErrorCode;
use syncline_types::functions::RunState;

/// The runs in the timeline.
const TIMELINE: i64 = 60;
/// The runs in the table.
const LATEST: usize = 10;
/// The bytes of a checkpoint that are shown.
const CHECKPOINT_BYTES: usize = 20_000;

pub(super) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("syncs/{integration}/{connection}/{sync}/{variant}"), get(sync))
        .route(environment_route!("syncs/{integration}/{connection}/{sync}/{variant}/live"), get(live_state))
}

async fn sync(
    State(app): State<Dashboard>,
    visit: Visit,
    address: SyncAddress,
) -> Result<Response, PageError> {
    visit.require(Scope::SyncsRead)?;
    let all = variants(&app, &visit, &address).await?;
    let status = find_variant(&all, &address)?;
    let state = state(&app, &visit, &address, &all).await?;
    let recording = match visit.allows(Scope::SyncsUpdate) {
        true => recording(&app, &visit, &address).await?,
        false => html! {},
    };
    let content = html! {
        (breadcrumb("Syncs", &visit.url(Section::Syncs.path())))
        (heading(&address.title(), &commands(&visit, &address, status)))
        (live::part(&format!("{}/live", address.url(&visit)), &state))
        (checkpoint(status))
        @if visit.allows(Scope::SyncsUpdate) { (frequency(&visit, &address, status)) }
        (recording)
        @if visit.allows(Scope::VariantsCreate) { (new_variant(&visit, &address)) }
        @if visit.allows(Scope::SyncsExecute) { (resets(&visit, &address)) }
    };
    Ok(page(&app, &visit, Section::Syncs, &address.title(), &content))
}

async fn live_state(
    State(app): State<Dashboard>,
    visit: Visit,
    address: SyncAddress,
) -> Result<Response, PageError> {
    visit.require(Scope::SyncsRead)?;
    let person = visit.person.clone();
    let shared = Arc::new((app.clone(), visit, address));
    Ok(live::stream_part(&app, &person, move || {
        let shared = Arc::clone(&shared);
        async move {
            let (app, visit, address) = &*shared;
            let all = variants(app, visit, address).await?;
            state(app, visit, address, &all).await
        }
    }))
}

/// The status of all variants of the sync for this connection.
async fn variants(
    app: &Dashboard,
    visit: &Visit,
    address: &SyncAddress,
) -> Result<Vec<SyncStatus>, PageError> {
    let selection = SyncSelection {
        integration: address.integration.clone(),
        connection: Some(address.connection.clone()),
        syncs: BTreeSet::new(),
    };
    let mut all = app.syncs.status(visit.environment.pk, &selection).await?;
    all.retain(|status| status.sync == address.sync);
    Ok(all)
}

fn find_variant<'s>(all: &'s [SyncStatus], address: &SyncAddress) -> Result<&'s SyncStatus, PageError> {
    all.iter().find(|status| status.variant == address.variant).ok_or_else(|| {
        PageError::NotFound(format!(
            "connection `{}` has no sync `{}` with the variant `{}`; it may have been deleted",
            address.connection, address.sync, address.variant
        ))
    })
}

/// The part of the page that follows changes: state, held deletions, runs and variants.
async fn state(
    app: &Dashboard,
    visit: &Visit,
    address: &SyncAddress,
    all: &[SyncStatus],
) -> Result<Markup, PageError> {
    let status = find_variant(all, address)?;
    let SyncAddress { integration, connection, sync, variant } = address;
    let runs = app
        .runs
        .of_sync(visit.environment.pk, (integration, connection), (sync, variant), None, TIMELINE)
        .await?;
    // A later run of the sync replaces held deletions.
    let latest = runs.iter().find(|run| matches!(run.state, RunState::Success | RunState::Error));
    let held = match latest.filter(|run| is_held(run)) {
        Some(run) => Some(app.runs.get(visit.environment.pk, run.id).await?),
        None => None,
    };
    Ok(html! {
        @if let Some(run) = &held { (held_deletions(visit, run, &html! { a.button href=(run_url(visit, run.id)) { "Show the run" } })) }
        @if held.is_none() && let Some(error) = status.latest.as_ref().and_then(|run| run.error.as_ref()) {
            (latest_error(error))
        }
        (facts(&[
            ("State", state_badge(status)),
            ("Connection", html! { a href=(connection_url(visit, integration, connection)) { (connection) } }),
            ("Integration", html! { (integration) }),
            ("Frequency", html! {
                (status.frequency.as_deref().unwrap_or("never"))
                @if status.has_own_frequency { " " span.muted { "(changed for this connection)" } }
            }),
            ("Last run", html! { @match finished_at(status) { Some(at) => (ago(at)), None => "never" } }),
            ("Next run", next_run(status, "none")),
            ("Records", html! {
                @if status.record_counts.is_empty() { "none" }
                @for (model, count) in &status.record_counts { div { (model) ": " (number(*count)) } }
            }),
        ]))
        h2 { "Latest runs" }
        @if runs.is_empty() {
            p.muted { "The sync has not run yet, or its runs were deleted after the retention period." }
        } @else {
            (timeline(visit, &runs))
            (runs_table(visit, &runs[..runs.len().min(LATEST)], false))
            p { a href=(runs_of(visit, address)) { "All runs of this sync" } }
        }
        h2 { "Variants" }
        (variant_table(visit, address, all))
    })
}

/// The error of the latest run.
fn latest_error(error: &SyncRunError) -> Markup {
    html! {
        section.card {
            h2 { "The latest run failed" }
            p { (error.message) }
            @if let Ok(code) = error.code.parse::<ErrorCode>() { p.muted { (code.remedy()) } }
            p.muted { "Code: " code { (error.code) } }
        }
    }
}

/// One bar for each run, the latest at the right.
fn timeline(visit: &Visit, runs: &[LoggedRun]) -> Markup {
    let failed = runs.iter().filter(|run| matches!(run.state, RunState::Error | RunState::Lost)).count();
    html! {
        div.timeline role="group" aria-label={ "The latest runs, oldest first" } {
            @for run in runs.iter().rev() {
                @let text = format!(
                    "{}, {}, {}",
                    run.started_at.format("%Y-%m-%d %H:%M:%S UTC"),
                    state_text(run),
                    changes_text(run)
                );
                a class=(state_tone(run).class()) href=(run_url(visit, run.id)) title=(text) aria-label=(text) {}
            }
        }
        p.muted {
            @if runs.len() == 1 { "1 run" } @else { (runs.len()) " runs, oldest at the left" }
            ", of which " (failed) " failed."
        }
    }
}

fn runs_of(visit: &Visit, address: &SyncAddress) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair("integration", address.integration.as_str());
    query.append_pair("connection", address.connection.as_str());
    query.append_pair("function", address.sync.as_str());
    query.append_pair("variant", address.variant.as_str());
    visit.url(&format!("runs?{}", query.finish()))
}

fn commands(visit: &Visit, address: &SyncAddress, status: &SyncStatus) -> Markup {
    let command = |name: &str| format!("{}/{name}", address.url(visit));
    html! {
        @if visit.allows(Scope::SyncsExecute) {
            (action_button(visit, &command("run"), "Run now", Look::Primary, None))
            @if status.state == SyncState::Paused {
                (action_button(visit, &command("start"), "Start", Look::Secondary, None))
            } @else {
                (action_button(visit, &command("pause"), "Pause", Look::Secondary, None))
            }
        }
    }
}

fn checkpoint(status: &SyncStatus) -> Markup {
    html! {
        h2 { "Checkpoint" }
        @match &status.checkpoint {
            Some(text) => { pre tabindex="0" { code { (cut(text, CHECKPOINT_BYTES)) } } }
            None => { p.muted { "The sync has no checkpoint, so its next run starts from the beginning." } }
        }
    }
}

fn frequency(visit: &Visit, address: &SyncAddress, status: &SyncStatus) -> Markup {
    let url = address.url(visit);
    html! {
        section.card {
            h2 { "Frequency" }
            (form(visit, &format!("{url}/frequency"), &html! {
                (TextField {
                    name: "frequency",
                    label: "How often the sync runs for this connection",
                    value: status.frequency.as_deref().unwrap_or_default(),
                    hint: "For example: every 10 minutes, every day, or the cron expression 0 6 * * MON-FRI.",
                    is_required: true,
                    ..TextField::default()
                }.render())
                (submit("Change the frequency", Look::Secondary))
            }))
            @if status.has_own_frequency {
                p.hint { "This frequency differs from the one in the deployed bundle." }
                (action_button(visit, &format!("{url}/reset-frequency"), "Use the deployed frequency", Look::Secondary, None))
            }
        }
    }
}

fn variant_table(visit: &Visit, address: &SyncAddress, all: &[SyncStatus]) -> Markup {
    let address_of = |status: &SyncStatus| SyncAddress {
        integration: address.integration.clone(),
        connection: address.connection.clone(),
        sync: status.sync.clone(),
        variant: status.variant.clone(),
    };
    let rows = html! {
        @for status in all {
            tr {
                td {
                    @if status.variant == address.variant { (status.variant) " " span.muted { "(this page)" } }
                    @else { a href=(address_of(status).url(visit)) { (status.variant) } }
                }
                td { (state_badge(status)) }
                td.number { (number(status.record_counts.values().sum())) }
                td.right {
                    @if !status.variant.is_base() && visit.allows(Scope::VariantsDelete) {
                        (action_button(
                            visit,
                            &format!("{}/delete-variant", address_of(status).url(visit)),
                            "Delete",
                            Look::Danger,
                            Some(&format!("Delete the variant {} with its records and its checkpoint?", status.variant)),
                        ))
                    }
                }
            }
        }
    };
    table("Variants", &["Variant", "State", "Records", ""], &rows)
}

fn new_variant(visit: &Visit, address: &SyncAddress) -> Markup {
    html! {
        section.card {
            h2 { "New variant" }
            p { "A variant is a further instance of the sync for this connection, with its own schedule, records and checkpoint." }
            (form(visit, &format!("{}/create-variant", address.url(visit)), &html! {
                (TextField { name: "variant", label: "Name of the new variant", hint: "Letters, digits, - and _.", is_required: true, ..TextField::default() }.render())
                (submit("Create the variant", Look::Secondary))
            }))
        }
    }
}

fn resets(visit: &Visit, address: &SyncAddress) -> Markup {
    let url = address.url(visit);
    html! {
        section.card {
            h2 { "Start over" }
            p { "Both commands cancel a run in progress, clear the checkpoint, and request a run that fetches everything again." }
            div.actions {
                (action_button(
                    visit,
                    &format!("{url}/run-in-full"),
                    "Run in full",
                    Look::Secondary,
                    Some("Clear the checkpoint and fetch everything again? The records are kept."),
                ))
                (action_button(
                    visit,
                    &format!("{url}/empty-and-run"),
                    "Delete the records and run in full",
                    Look::Danger,
                    Some("Delete all records of this sync and fetch everything again? Clients see each record as deleted or added."),
                ))
            }
        }
    }
}
