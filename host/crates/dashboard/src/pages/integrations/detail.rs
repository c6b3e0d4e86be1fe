//! The page of one integration.

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::get;
use maud::{Markup, html};

use super::catalogue::docs_link;
use super::lookup::{find, name_of};
use super::{credentials, editing};
use crate::Dashboard;
use crate::components::{
    Look, Tone, action_button, badge, copyable, empty, facts, form, heading, logo, snippet, submit, table,
};
use crate::error::PageError;
use crate::layout::{Section, page};
use crate::pages::addresses::{connections_url, environment_route, integration_url};
use crate::pages::connections::test_account;
use crate::session::Visit;
use crate::time::{ago, number};
use syncline_auth::Scope;
use syncline_engine::{ConnectionCounts, FunctionDescription, Integration};
use syncline_providers::Provider;
use syncline_types::functions::FunctionKind;
use syncline_types::ids::IntegrationKey;
use syncline_web::addresses::webhook_url;

/// The number of functions that the page shows.
const MAX_FUNCTIONS: usize = 100;

pub(super) fn routes() -> Router<Dashboard> {
    Router::new().route(environment_route!("integrations/{key}"), get(integration))
}

async fn integration(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, key)): Path<(String, String)>,
) -> Result<Response, PageError> {
    visit.require(Scope::IntegrationsRead)?;
    let integration = find(&app, &visit, &key).await?;
    let provider = app.catalogue.find(&integration.provider);
    let provider = provider.as_deref();
    let counts = app.connections.count_by_integration(&[integration.pk]).await?;
    let counts = counts.get(&integration.pk).copied().unwrap_or_default();
    let name = name_of(&app, &integration);
    let content = html! {
        p.breadcrumb { a href=(visit.url("integrations")) { "Integrations" } }
        (heading(&name, &html! { (test_account::button(&visit, Some(&integration.unique_key))) }))
        (about(&visit, &integration, provider, counts))
        (addresses(&app, &visit, &integration, provider).await?)
        @if let Some(provider) = provider { (app_credentials(&app, &visit, &integration, provider)?) }
        @if visit.allows(Scope::IntegrationsListFunctions) { (functions(&app, &visit, &integration.unique_key).await?) }
        (editing::forms(&visit, &integration, provider))
    };
    Ok(page(&app, &visit, Section::Integrations, &name, &content))
}

fn about(
    visit: &Visit,
    integration: &Integration,
    provider: Option<&Provider>,
    counts: ConnectionCounts,
) -> Markup {
    let connections = connections_url(visit, Some(&integration.unique_key), None);
    let failing = connections_url(visit, Some(&integration.unique_key), Some("any"));
    let shown_provider = html! {
        span.named { (logo(&integration.provider)) code { (integration.provider) } }
        @if provider.is_none() { " " (badge(Tone::Bad, "not in the catalogue")) }
    };
    facts(&[
        ("Key", copyable(integration.unique_key.as_str())),
        ("Provider", shown_provider),
        (
            "Auth mode",
            html! { @if let Some(provider) = provider { (provider.auth_mode) } @else { "unknown" } },
        ),
        (
            "Documentation",
            html! { @if let Some(provider) = provider { (docs_link(provider)) } @else { "unknown" } },
        ),
        (
            "Connections",
            html! {
                a href=(connections) { (number(counts.all)) }
                @if counts.failing > 0 {
                    " " a href=(failing) { (badge(Tone::Bad, &format!("{} with errors", number(counts.failing)))) }
                }
            },
        ),
        (
            "Webhooks",
            html! {
                @if integration.forward_webhooks { "forwarded to your backend" } @else { "not forwarded to your backend" }
            },
        ),
        ("Created", ago(integration.created_at)),
        ("Changed", ago(integration.updated_at)),
    ])
}

/// The addresses to register at the provider.
async fn addresses(
    app: &Dashboard,
    visit: &Visit,
    integration: &Integration,
    provider: Option<&Provider>,
) -> Result<Markup, PageError> {
    let Some(provider) = provider else { return Ok(html! {}) };
    let register = credentials::address_to_register(app, visit, provider).await?;
    let has_webhooks = provider.webhook.is_some();
    if register.is_none() && !has_webhooks {
        return Ok(html! {});
    }
    Ok(html! {
        section.card {
            h2 { "Register at " (provider.display_name) }
            @if let Some((label, url)) = register {
                p { "The " (label) " of your app:" br; (copyable(&url)) }
            }
            @if has_webhooks {
                p {
                    "The webhook URL:" br;
                    (copyable(&webhook_url(&app.public_url, visit.environment.id, &integration.unique_key)))
                }
            }
        }
    })
}

fn app_credentials(
    app: &Dashboard,
    visit: &Visit,
    integration: &Integration,
    provider: &Provider,
) -> Result<Markup, PageError> {
    if !credentials::has_app(provider.auth_mode) {
        return Ok(html! {});
    }
    let url = integration_url(visit, &integration.unique_key);
    let can_read = visit.allows(Scope::IntegrationsReadCredentials);
    let stored = match can_read {
        true => app.integrations.app_credentials(&visit.environment, integration)?,
        false => None,
    };
    Ok(html! {
        section.card {
            h2 { "Credentials of the app" }
            @if integration.sealed_credentials.is_none() {
                p { "This integration has no app." }
            } @else if can_read {
                p { "They are stored encrypted." }
                (action_button(visit, &format!("{url}/credentials"), "Show the credentials", Look::Secondary, None))
            } @else {
                p { "They are stored encrypted. Your role does not allow you to see them." }
            }
            @if can_read && visit.allows(Scope::IntegrationsUpdate) {
                details id="replace-credentials" {
                    summary { "Replace the credentials" }
                    (form(visit, &format!("{url}/credentials/replace"), &html! {
                        (credentials::fields(provider.auth_mode, stored.as_ref()))
                        (submit("Replace the credentials", Look::Primary))
                    }))
                }
            }
        }
    })
}

async fn functions(app: &Dashboard, visit: &Visit, key: &IntegrationKey) -> Result<Markup, PageError> {
    let described = app.functions.describe(visit.environment.pk).await.map_err(PageError::internal)?;
    let functions: Vec<_> = described.into_iter().filter(|function| function.integration == *key).collect();
    let rows = html! {
        @for function in functions.iter().take(MAX_FUNCTIONS) {
            tr {
                td { code { (function.name) } }
                td { (kind_name(function.kind)) }
                td { (details_of(function)) }
                td { (ago(function.deployed_at)) }
            }
        }
    };
    Ok(html! {
        h2 { "Functions" }
        @if functions.is_empty() {
            (empty("No function is deployed for this integration", &html! {
                p { "Deploy the project that contains its functions:" }
                (snippet("syncline deploy"))
            }))
        } @else {
            (table("Functions", &["Name", "Kind", "Details", "Deployed"], &rows))
            @if functions.len() > MAX_FUNCTIONS {
                p.muted { "The table shows " (MAX_FUNCTIONS) " of " (functions.len()) " functions." }
            }
        }
    })
}

fn details_of(function: &FunctionDescription) -> Markup {
    html! {
        @if let Some(description) = &function.description { div { (description) } }
        @if let Some(frequency) = &function.frequency { div.muted { "runs " (frequency) } }
        @if !function.returns.is_empty() { div.muted { "models: " (function.returns.join(", ")) } }
        @if !function.subscriptions.is_empty() { div.muted { "events: " (function.subscriptions.join(", ")) } }
    }
}

fn kind_name(kind: FunctionKind) -> &'static str {
    match kind {
        FunctionKind::Sync => "sync",
        FunctionKind::Action => "action",
        FunctionKind::Webhook => "webhook function",
        FunctionKind::Lifecycle => "lifecycle function",
    }
}
