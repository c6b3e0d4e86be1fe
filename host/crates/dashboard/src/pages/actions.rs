//! The actions: the list, and running one of them.

mod input;
mod job;
mod outcome;
mod run;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use maud::html;

use super::addresses::environment_route;
use crate::Dashboard;
use crate::components::{empty, filters, heading, integration_filter, snippet, table};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::query::Query;
use crate::session::{Visit, segment};
use syncline_types::ids::{FunctionName, IntegrationKey};

const MAX_ACTIONS: usize = 200;

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("actions"), get(actions))
        .route(environment_route!("actions/{integration}/{action}"), get(run::form_page))
        .route(environment_route!("actions/{integration}/{action}/run"), post(run::run))
        .route(environment_route!("action-jobs/{id}"), get(job::job))
        .route(environment_route!("action-jobs/{id}/progress"), get(job::progress))
}

async fn actions(State(app): State<Dashboard>, visit: Visit, query: Query) -> Result<Response, PageError> {
    visit.require(Section::Actions.scope())?;
    let chosen: Option<IntegrationKey> = query.parse_optional("integration", "Integration")?;
    let choice = app.integrations.list(visit.environment.pk).await?;
    let integrations = app.integrations.list(visit.environment.pk).await?;
    let wanted = integrations
        .iter()
        .filter(|integration| chosen.as_ref().is_none_or(|chosen| *chosen == integration.unique_key));
    let actions: Vec<_> = wanted
        .flat_map(|integration| {
            let actions = app.functions.actions_of(integration.pk);
            actions.into_iter().map(move |action| (&integration.unique_key, action))
        })
        .collect();
    let rows = html! {
        @for (integration, action) in actions.iter().take(MAX_ACTIONS) {
            tr {
                td { a href=(action_address(&visit, integration, &action.name)) { (action.name) } }
                td { (integration) }
                td { (action.tool().and_then(|tool| tool.description.as_deref()).unwrap_or_default()) }
            }
        }
    };
    let content = html! {
        (heading("Actions", &html! {}))
        p { "An action is a function that runs on demand for one connection. Choose one to run it." }
        (filters(&integration_filter(&choice, query.text("integration"))))
        @if actions.is_empty() {
            (empty("No action is deployed", &html! {
                p { "Add an action to " code { "syncline.toml" } ", and deploy the bundle:" }
                (snippet("syncline deploy"))
            }))
        } @else {
            (table("Actions", &["Action", "Integration", "Description"], &rows))
            @if actions.len() > MAX_ACTIONS {
                p.muted { "Only the first " (MAX_ACTIONS) " of " (actions.len()) " actions are shown. Choose an integration." }
            }
        }
    };
    Ok(page(&app, &visit, Section::Actions, "Actions", &content))
}

/// The address of the page on which an action is run.
fn action_address(visit: &Visit, integration: &IntegrationKey, action: &FunctionName) -> String {
    visit.url(&format!("actions/{}/{}", segment(integration.as_str()), segment(action.as_str())))
}
