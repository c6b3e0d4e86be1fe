//! The active functions of an environment, and the history of its deployments.

mod rollback;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use maud::{Markup, html};

use super::addresses::environment_route;
use crate::Dashboard;
use crate::components::{
    Tone, badge, cut_to_page, empty, filters, heading, integration_filter, pager, snippet, table,
};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::query::Query;
use crate::session::{Visit, segment};
use crate::time::{ago, number};
use syncline_auth::Scope;
use syncline_engine::{DeploymentState, FunctionDescription, PastChange, PastDeployment};
use syncline_types::functions::FunctionKind;
use syncline_types::ids::DeploymentPk;

/// The deployments of a page.
const PAGE: usize = 10;
/// The changes of one deployment that are shown.
const CHANGES: usize = 50;
/// The active functions that are shown.
const FUNCTIONS: usize = 100;

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new().route(environment_route!("deployments"), get(deployments)).merge(rollback::routes())
}

async fn deployments(
    State(app): State<Dashboard>,
    visit: Visit,
    query: Query,
) -> Result<Response, PageError> {
    visit.require(Section::Deployments.scope())?;
    let environment = visit.environment.pk;
    let before = query.parse_optional("before", "Page")?.map(DeploymentPk);
    let history = app.deployments.history(environment, None, before, PAGE as i64 + 1).await;
    let mut history = history.map_err(PageError::internal)?;
    let list = visit.url(Section::Deployments.path());
    let next = cut_to_page(&mut history, PAGE)
        .map(|last| query.address(&list, "before", Some(&last.pk.to_string())));
    let mut functions = app.functions.describe(environment).await.map_err(PageError::internal)?;
    if let Some(integration) = query.optional("integration") {
        functions.retain(|function| function.integration.as_str() == integration);
    }
    let integrations = app.integrations.list(environment).await?;
    let content = html! {
        (heading("Deployments", &html! {}))
        @if history.is_empty() && before.is_none() {
            (empty("Nothing is deployed yet", &html! {
                p { "In the folder of a project with a " code { "syncline.toml" } ", deploy its functions to this environment:" }
                (snippet(&format!(
                    "export SYNCLINE_URL={}\nexport SYNCLINE_SECRET_KEY=sk_syncline_…\nsyncline deploy",
                    app.public_url
                )))
                p { "The command shows what would change, and asks before it deploys." }
            }))
        } @else {
            @if before.is_none() {
                h2 { "Active functions" }
                (filters(&integration_filter(&integrations, query.text("integration"))))
                (function_table(&visit, &functions))
            }
            h2 { "History" }
            @for deployment in &history { (card(&visit, deployment)) }
        }
        (pager(query.first_page(&list, "before").as_deref(), next.as_deref()))
    };
    Ok(page(&app, &visit, Section::Deployments, "Deployments", &content))
}

fn function_table(visit: &Visit, functions: &[FunctionDescription]) -> Markup {
    if functions.is_empty() {
        return html! { p.muted { "No function is deployed." } };
    }
    let rows = html! {
        @for function in functions.iter().take(FUNCTIONS) {
            @let address = format!(
                "runs?integration={}&kind={}&function={}",
                segment(function.integration.as_str()),
                function.kind.as_str(),
                function.name
            );
            tr {
                td {
                    a href=(visit.url(&address)) { (function.name) }
                    @if let Some(description) = &function.description { div.muted { span.clip title=(description) { (description) } } }
                }
                td { (function.kind.as_str()) }
                td { (function.integration) }
                td { (starts_when(function)) }
                td { @for model in &function.models { div { (model) } } }
                td { (function.bundle) div.muted { "version " (function.version) } }
                td { (ago(function.deployed_at)) }
            }
        }
    };
    html! {
        (table("Active functions", &["Function", "Kind", "Integration", "Runs", "Models", "Bundle", "Deployed"], &rows))
        @if functions.len() > FUNCTIONS {
            p.muted {
                "The first " (FUNCTIONS) " of " (number(functions.len() as i64)) " functions. Choose an integration to see its functions."
            }
        }
    }
}

/// When a function runs.
fn starts_when(function: &FunctionDescription) -> String {
    match function.kind {
        FunctionKind::Sync => {
            let frequency = function.frequency.as_deref().unwrap_or("never");
            if function.auto_start {
                frequency.to_owned()
            } else {
                format!("{frequency}, after it is started")
            }
        }
        FunctionKind::Action => "when a client calls it".to_owned(),
        FunctionKind::Webhook => format!("for the webhooks {}", function.subscriptions.join(", ")),
        FunctionKind::Lifecycle => {
            format!("on the event {}", function.event.map_or("of a connection", |event| event.as_str()))
        }
    }
}

fn card(visit: &Visit, deployment: &PastDeployment) -> Markup {
    let changes = &deployment.changes;
    let can_restore = deployment.state == DeploymentState::Superseded && visit.allows(Scope::Deploy);
    html! {
        section.card {
            h3 {
                (deployment.bundle) ", version " (deployment.version) " "
                (state_badge(deployment.state))
            }
            p.muted {
                @match deployment.activated_at {
                    Some(at) => { "Activated " (ago(at)) },
                    None => { "Sent " (ago(deployment.created_at)) },
                }
                " by " (deployment.deployed_by)
                @if let Some(version) = deployment.restored_version { ", restores version " (version) }
                @if let Some(key) = &deployment.signed_by { ", signed with the key " (key) }
                ". " (number(deployment.functions.len() as i64))
                @if deployment.functions.len() == 1 { " function" } @else { " functions" }
                ". Digest "
                code { (deployment.digest.get(..12).unwrap_or(&deployment.digest)) "…" }
            }
            @if changes.is_empty() {
                p { "The definition did not change. The code of the functions may have changed." }
            } @else {
                details open[changes.len() <= 10] {
                    summary { (number(changes.len() as i64)) @if changes.len() == 1 { " change" } @else { " changes" } }
                    ul { @for change in changes.iter().take(CHANGES) { li { (change_text(change)) } } }
                    @if changes.len() > CHANGES { p.muted { "Only the first " (CHANGES) " are shown." } }
                }
            }
            @if can_restore {
                div.actions {
                    a.button href=(rollback::address(visit, &deployment.bundle, deployment.version)) { "Restore this version…" }
                }
            }
        }
    }
}

fn state_badge(state: DeploymentState) -> Markup {
    match state {
        DeploymentState::Staged => badge(Tone::Busy, "preparing"),
        DeploymentState::Active => badge(Tone::Good, "active"),
        DeploymentState::Superseded => badge(Tone::Neutral, "replaced"),
        DeploymentState::Failed => badge(Tone::Bad, "failed"),
    }
}

fn change_text(change: &PastChange) -> Markup {
    change_line(&change.change, &change.kind, change.integration.as_deref(), change.name.as_deref())
}

/// A change of a deployment or of a plan.
fn change_line(change: &str, kind: &str, integration: Option<&str>, name: Option<&str>) -> Markup {
    let verb = match change {
        "add" => "added",
        "remove" => "removed",
        _ => "changed",
    };
    let kind = match kind {
        "environment" => "setting of the environment",
        kind => kind,
    };
    let path: Vec<&str> = integration.into_iter().chain(name).collect();
    html! { (verb) ": " (kind) " " code { (path.join("/")) } }
}
