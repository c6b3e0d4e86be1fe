//! The secret keys of an environment. A key is shown once, when it is created.

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use maud::html;
use uuid::Uuid;

use super::addresses::environment_route;
use crate::Dashboard;
use crate::components::{
    Look, TextField, action_button, checkbox, copyable, empty, form, heading, select, snippet, submit, table,
};
use crate::error::PageError;
use crate::form::{Form, done};
use crate::layout::{Section, page};
use crate::session::Visit;
use crate::time::ago;
use syncline_auth::{Scope, ScopePreset, Scopes, check_key_name};

const PRESETS: [(&str, &str); 4] = [
    ("full", "Everything in this environment"),
    ("read-only", "Reading everything except credentials, variables and settings"),
    ("account", "Everything, also creating and deleting environments and keys"),
    ("chosen", "The scopes chosen below"),
];

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("keys"), get(keys).post(create))
        .route(environment_route!("keys/{id}/revoke"), post(revoke))
}

async fn keys(State(app): State<Dashboard>, visit: Visit) -> Result<Response, PageError> {
    visit.require(Section::Keys.scope())?;
    let keys = app.api_keys.list(visit.environment.pk).await?;
    let rows = html! {
        @for key in &keys {
            tr {
                td { (key.name) }
                td { code { (key.prefix) "…" } }
                td { @for scope in &key.scopes { div { code { (scope) } } } }
                td { (ago(key.created_at)) }
                td { @match key.last_used_at { Some(at) => (ago(at)), None => span.muted { "never" } } }
                td.right {
                    @if visit.allows(Scope::ApiKeysDelete) {
                        (action_button(
                            &visit,
                            &visit.url(&format!("keys/{}/revoke", key.id)),
                            "Revoke",
                            Look::Danger,
                            Some(&format!("Revoke the key {}? Clients that use it are rejected at once.", key.name)),
                        ))
                    }
                }
            }
        }
    };
    let content = html! {
        (heading("Secret keys", &html! {}))
        p {
            "Your backend sends a secret key with each request: " code { "Authorization: Bearer sk_syncline_…" } ". \
             Keep keys on your servers."
        }
        @if keys.is_empty() {
            (empty("There is no key yet", &html! { p { "Create one below. It is shown only once." } }))
        } @else {
            (table("Secret keys", &["Name", "Begins with", "Scopes", "Created", "Last used", ""], &rows))
        }
        section.card {
            h2 { "Create a key" }
            (form(&visit, &visit.url("keys"), &html! {
                (TextField { name: "name", label: "Name", hint: "For example the name of the client: backend.", is_required: true, ..TextField::default() }.render())
                (select("preset", "The key allows", &PRESETS, "full"))
                details {
                    summary { "Choose scopes" }
                    fieldset {
                        legend { "Scopes" }
                        @for scope in Scope::ALL.iter().filter(|scope| visit.allows(**scope)) {
                            (checkbox("scopes", scope.as_str(), scope.as_str(), false))
                        }
                    }
                }
                (submit("Create the key", Look::Primary))
            }))
        }
    };
    Ok(page(&app, &visit, Section::Keys, "Secret keys", &content))
}

async fn create(State(app): State<Dashboard>, visit: Visit, form: Form) -> Result<Response, PageError> {
    visit.require(Scope::ApiKeysCreate)?;
    let name = form.text("name");
    check_key_name(name).map_err(|problem| PageError::invalid("Name", problem))?;
    let names = match form.text("preset") {
        "full" => ScopePreset::Full.scopes(),
        "read-only" => ScopePreset::ReadOnly.scopes(),
        "account" => ScopePreset::Account.scopes(),
        _ => form.all("scopes"),
    };
    if names.is_empty() {
        return Err(PageError::invalid("Scopes", "choose at least one"));
    }
    let scopes = Scopes::parse(&names).map_err(|problem| PageError::invalid("Scopes", problem))?;
    if let Some(name) = names.iter().find(|name| !visit.person.scopes().cover(name)) {
        return Err(PageError::invalid("Scopes", format!("your role does not have `{name}`")));
    }
    let created = app.api_keys.create(visit.environment.pk, name, &scopes, &visit.actor()).await?;
    let command = format!(
        "curl {}/integrations \\\n  --header 'Authorization: Bearer {}'",
        app.public_url,
        created.key.expose()
    );
    let content = html! {
        (heading("The key was created", &html! {}))
        section.card {
            p { "Copy the key now. It is not shown again; only its hash is stored." }
            p { (copyable(created.key.expose())) }
            h2 { "Try it" }
            (snippet(&command))
        }
        p { a.button href=(visit.url("keys")) { "Back to the keys" } }
    };
    Ok(page(&app, &visit, Section::Keys, "New key", &content))
}

async fn revoke(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, id)): Path<(String, Uuid)>,
    _: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::ApiKeysDelete)?;
    app.api_keys.revoke(visit.environment.pk, id, &visit.actor()).await?;
    Ok(done(&app, &visit, &visit.url("keys"), "The key was revoked."))
}
