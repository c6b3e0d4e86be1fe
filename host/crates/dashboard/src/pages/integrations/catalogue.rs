//! The catalogue of providers, and the form that sets one up.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::get;
use maud::{Markup, html};

use super::credentials::{self, rejected};
use super::editing;
use crate::Dashboard;
use crate::components::{
    Look, TextField, Tone, badge, checkbox, copyable, empty, facts, filters, form, heading, logo, pager,
    select, submit,
};
use crate::error::PageError;
use crate::form::{Form, done};
use crate::layout::{Section, page};
use crate::pages::addresses::{environment_route, integration_url};
use crate::query::Query;
use crate::session::{Visit, segment};
use syncline_auth::Scope;
use syncline_engine::NewIntegration;
use syncline_providers::Provider;
use syncline_types::ids::IntegrationKey;

const PAGE_SIZE: usize = 60;

pub(super) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("providers"), get(catalogue))
        .route(environment_route!("providers/{provider}"), get(set_up).post(create))
}

/// A link to the documentation of a provider's API.
pub(super) fn docs_link(provider: &Provider) -> Markup {
    html! {
        a href=(provider.docs) target="_blank" rel="noreferrer" aria-label={ "API documentation of " (provider.display_name) } {
            "API documentation"
        }
    }
}

async fn catalogue(State(app): State<Dashboard>, visit: Visit, query: Query) -> Result<Response, PageError> {
    visit.require(Section::Integrations.scope())?;
    let providers = app.catalogue.list();
    let categories: BTreeSet<&str> =
        providers.iter().flat_map(|provider| &provider.categories).map(String::as_str).collect();
    let modes: BTreeSet<&str> = providers.iter().map(|provider| provider.auth_mode.as_str()).collect();
    let (search, mode, category) =
        (query.text("search").to_lowercase(), query.text("mode"), query.text("category"));
    let after = query.text("after");
    let found = providers.iter().filter(|provider| {
        [provider.name.as_str(), &provider.display_name]
            .iter()
            .any(|text| text.to_lowercase().contains(&search))
            && (mode.is_empty() || provider.auth_mode.as_str() == mode)
            && (category.is_empty() || provider.categories.iter().any(|one| one == category))
    });
    let found: Vec<&Arc<Provider>> = found.collect();
    let total = found.len();
    // Providers are ordered by slug.
    let mut behind = found.into_iter().skip_while(|provider| provider.name.as_str() <= after);
    let shown: Vec<_> = behind.by_ref().take(PAGE_SIZE).collect();
    let has_more = behind.next().is_some();
    let address = visit.url("providers");
    let first = (!after.is_empty()).then(|| query.address(&address, "after", None));
    let last = shown.last().filter(|_| has_more);
    let next = last.map(|provider| query.address(&address, "after", Some(provider.name.as_str())));
    let options = |values: BTreeSet<&'_ str>| -> Vec<(String, String)> {
        let all = values.into_iter().map(|value| (value.to_owned(), value.to_owned()));
        std::iter::once((String::new(), "all".to_owned())).chain(all).collect()
    };
    let (categories, modes) = (options(categories), options(modes));
    let content = html! {
        p.breadcrumb { a href=(visit.url("integrations")) { "Integrations" } }
        (heading("Providers", &html! {}))
        (filters(&html! {
            label.field {
                span.label { "Search" }
                input type="search" name="search" value=(query.text("search")) placeholder="Such as Stripe" autofocus;
            }
            (select("category", "Category", &borrowed(&categories), category))
            (select("mode", "Auth mode", &borrowed(&modes), mode))
        }))
        p.muted role="status" { (total) @if total == 1 { " provider" } @else { " providers" } }
        @if shown.is_empty() {
            (empty("No provider matches", &html! {
                p { a href=(address) { "Show all providers" } }
                p {
                    "A provider that the catalogue lacks can be added as a file in the folder that "
                    code { "SYNCLINE_PROVIDERS_DIR" } " names."
                }
            }))
        } @else {
            ul.tiles { @for provider in &shown { (tile(&visit, provider)) } }
            (pager(first.as_deref(), next.as_deref()))
        }
    };
    Ok(page(&app, &visit, Section::Integrations, "Providers", &content))
}

fn borrowed(options: &[(String, String)]) -> Vec<(&str, &str)> {
    options.iter().map(|(value, text)| (value.as_str(), text.as_str())).collect()
}

fn tile(visit: &Visit, provider: &Provider) -> Markup {
    let slug = segment(provider.name.as_str());
    html! {
        li {
            span.named {
                (logo(&provider.name))
                @if visit.allows(Scope::IntegrationsCreate) {
                    a href=(visit.url(&format!("providers/{slug}"))) { (provider.display_name) }
                } @else {
                    (provider.display_name)
                }
            }
            span.more { (badge(Tone::Neutral, provider.auth_mode.as_str())) (docs_link(provider)) }
        }
    }
}

async fn set_up(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, slug)): Path<(String, String)>,
) -> Result<Response, PageError> {
    visit.require(Scope::IntegrationsCreate)?;
    let provider = find_provider(&app, &slug)?;
    let taken = app.integrations.list(visit.environment.pk).await?;
    let is_free = |key: &str| taken.iter().all(|integration| integration.unique_key.as_str() != key);
    let numbered = (2..).map(|number| format!("{}-{number}", provider.name));
    let mut keys = std::iter::once(provider.name.to_string()).chain(numbered);
    let key = keys.find(|key| is_free(key)).unwrap_or_default();
    let address = visit.url(&format!("providers/{}", segment(&slug)));
    let register = credentials::address_to_register(&app, &visit, &provider).await?;
    let content = html! {
        p.breadcrumb { a href=(visit.url("providers")) { "Providers" } }
        (heading(&format!("Set up {}", provider.display_name), &html! {}))
        (facts(&[
            ("Provider", html! { span.named { (logo(&provider.name)) code { (provider.name) } } }),
            ("Auth mode", html! { (provider.auth_mode) }),
            ("Documentation", docs_link(&provider)),
        ]))
        @if let Some((label, url)) = register {
            section.card {
                h2 { "Register your app" }
                p {
                    "End users connect through an app that you register at " (provider.display_name)
                    ". Enter this " (label) " there, and copy the credentials of the app into the form below."
                }
                p { (copyable(&url)) }
            }
        }
        section.card {
            h2 { "Integration" }
            (form(&visit, &address, &html! {
                (TextField { name: "unique_key", label: "Key", value: &key, hint: "Your backend and your functions name the integration by this key.", is_required: true, ..TextField::default() }.render())
                (TextField { name: "display_name", label: "Name", hint: &format!("End users see it in the Connect UI. Default: {}.", provider.display_name), ..TextField::default() }.render())
                (credentials::fields(provider.auth_mode, None))
                (editing::webhook_fields(&provider, true))
                @if provider.webhook.is_some() {
                    (checkbox("forward_webhooks", "true", "Forward the provider's webhooks to the webhook URL of this environment", true))
                }
                (submit("Create the integration", Look::Primary))
            }))
        }
    };
    Ok(page(&app, &visit, Section::Integrations, &format!("Set up {}", provider.display_name), &content))
}

async fn create(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, slug)): Path<(String, String)>,
    form: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::IntegrationsCreate)?;
    let provider = find_provider(&app, &slug)?;
    let unique_key: IntegrationKey = form.parse("unique_key", "Key")?;
    let new = NewIntegration {
        unique_key,
        provider: provider.name.clone(),
        display_name: editing::display_name(&form)?,
        forward_webhooks: provider.webhook.is_none() || form.is_checked("forward_webhooks"),
        credentials: credentials::read(provider.auth_mode, &form, None),
        settings: editing::settings(&form)?,
    };
    let created = app.integrations.create(&visit.environment, new, &visit.actor()).await.map_err(rejected)?;
    let notice = format!("The integration {} was created.", created.unique_key);
    Ok(done(&app, &visit, &integration_url(&visit, &created.unique_key), &notice))
}

fn find_provider(app: &Dashboard, slug: &str) -> Result<Arc<Provider>, PageError> {
    let found = slug.parse().ok().and_then(|slug| app.catalogue.find(&slug));
    found.ok_or_else(|| {
        PageError::NotFound(format!("there is no provider `{slug}` in the catalogue; choose another one"))
    })
}
