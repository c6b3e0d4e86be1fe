//! The list of integrations: providers that are set up in the environment.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use maud::{Markup, html};

use super::first_steps::no_integrations;
use super::lookup::name_of;
use crate::Dashboard;
use crate::components::{Tone, badge, cut_to_page, empty, heading, logo, pager, table};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::pages::addresses::{environment_route, integration_url};
use crate::query::Query;
use crate::session::Visit;
use crate::time::{ago, number};
use syncline_auth::Scope;
use syncline_engine::{ConnectionCounts, Integration};

const PAGE_SIZE: usize = 50;

pub(super) fn routes() -> Router<Dashboard> {
    Router::new().route(environment_route!("integrations"), get(integrations))
}

async fn integrations(
    State(app): State<Dashboard>,
    visit: Visit,
    query: Query,
) -> Result<Response, PageError> {
    visit.require(Section::Integrations.scope())?;
    let search = query.text("search").to_lowercase();
    let mut found = app.integrations.list(visit.environment.pk).await?;
    let has_any = !found.is_empty();
    found.retain(|integration| {
        [integration.unique_key.as_str(), &name_of(&app, integration)]
            .iter()
            .any(|text| text.to_lowercase().contains(&search))
    });
    // The list is in the order of creation, which never changes.
    let after = query.text("after");
    if let Some(index) = found.iter().position(|integration| integration.unique_key.as_str() == after) {
        found.drain(..=index);
    }
    let next = cut_to_page(&mut found, PAGE_SIZE).map(|last| last.unique_key.to_string());
    let pks: Vec<_> = found.iter().map(|integration| integration.pk).collect();
    let counts = app.connections.count_by_integration(&pks).await?;
    let rows = html! {
        @for integration in &found {
            (row(&app, &visit, integration, counts.get(&integration.pk).copied().unwrap_or_default()))
        }
    };
    let address = visit.url("integrations");
    let first = (!after.is_empty()).then(|| query.address(&address, "after", None));
    let next = next.map(|key| query.address(&address, "after", Some(&key)));
    let content = html! {
        (heading("Integrations", &html! {
            @if visit.allows(Scope::IntegrationsCreate) {
                a.button.primary href=(visit.url("providers")) { "Set up a provider" }
            }
        }))
        @if !has_any {
            (no_integrations(&app, &visit))
        } @else {
            form.filters method="get" role="search" {
                label.field {
                    span.label { "Search" }
                    input type="search" name="search" value=(query.text("search")) placeholder="Name or key";
                }
                button.button type="submit" { "Search" }
            }
            @if found.is_empty() {
                (empty("No integration matches", &html! { p { a href=(address) { "Show all integrations" } } }))
            } @else {
                (table("Integrations", &["Integration", "Key", "Auth mode", "Connections", "Created"], &rows))
                (pager(first.as_deref(), next.as_deref()))
            }
        }
    };
    Ok(page(&app, &visit, Section::Integrations, "Integrations", &content))
}

fn row(app: &Dashboard, visit: &Visit, integration: &Integration, counts: ConnectionCounts) -> Markup {
    let mode = app.catalogue.find(&integration.provider).map(|provider| provider.auth_mode);
    html! {
        tr {
            td {
                span.named {
                    (logo(&integration.provider))
                    a href=(integration_url(visit, &integration.unique_key)) { (name_of(app, integration)) }
                }
            }
            td { code { (integration.unique_key) } }
            td {
                @match mode {
                    Some(mode) => (mode),
                    None => (badge(Tone::Bad, "not in the catalogue")),
                }
            }
            td.number {
                (number(counts.all))
                @if counts.failing > 0 { " " (badge(Tone::Bad, &format!("{} with errors", number(counts.failing)))) }
            }
            td { (ago(integration.created_at)) }
        }
    }
}
