//! The keys that sign outbound webhooks.

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::post;
use maud::{Markup, html};

use crate::Dashboard;
use crate::components::{Look, action_button, copyable, heading, table};
use crate::error::PageError;
use crate::form::Form;
use crate::layout::{Section, page};
use crate::pages::addresses::environment_route;
use crate::session::Visit;
use crate::time::ago;
use syncline_auth::{FormerKeys, Scope, SigningKey};

pub(super) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("settings/signing-keys"), post(show))
        .route(environment_route!("settings/signing-keys/rotate"), post(rotate))
}

pub(super) async fn card(app: &Dashboard, visit: &Visit) -> Result<Markup, PageError> {
    let keys = app.environments.signing_keys(visit.environment.pk).await?;
    Ok(html! {
        section.card {
            h2 { "Signing keys" }
            p { "Your backend verifies webhooks with these keys, which follow Standard Webhooks." }
            (key_table(&keys, false))
            div.actions {
                @if visit.allows(Scope::WebhookSigningKeyRead) {
                    (action_button(visit, &visit.url("settings/signing-keys"), "Show the keys", Look::Secondary, None))
                }
                @if visit.allows(Scope::WebhookSigningKeyRotate) {
                    (action_button(
                        visit,
                        &visit.url("settings/signing-keys/rotate"),
                        "Rotate the key",
                        Look::Danger,
                        Some("Create a new signing key? The present one also signs for 24 hours. Change the key in your backend within this time."),
                    ))
                }
            }
        }
    })
}

fn key_table(keys: &[SigningKey], with_keys: bool) -> Markup {
    let rows = html! {
        @for key in keys {
            tr {
                td { @if with_keys { (copyable(key.expose_text())) } @else { code { "whsec_…" } } }
                td { (ago(key.created_at)) }
                td { @match key.expires_at { Some(at) => (ago(at)), None => "not planned" } }
            }
        }
    };
    table("Signing keys", &["Key", "Created", "Expires"], &rows)
}

fn keys_page(app: &Dashboard, visit: &Visit, title: &str, lead: &str, keys: &[SigningKey]) -> Response {
    let content = html! {
        p.breadcrumb { a href=(visit.url("settings")) { "Settings" } }
        (heading(title, &html! {}))
        p { (lead) }
        (key_table(keys, true))
        p { a.button href=(visit.url("settings")) { "Back to the settings" } }
    };
    page(app, visit, Section::Settings, title, &content)
}

async fn show(State(app): State<Dashboard>, visit: Visit, _: Form) -> Result<Response, PageError> {
    visit.require(Scope::WebhookSigningKeyRead)?;
    let keys = app.environments.reveal_signing_keys(visit.environment.pk, &visit.actor()).await?;
    let lead = "Give the newest key to your backend. Keys that have not expired sign all webhooks too.";
    Ok(keys_page(&app, &visit, "Signing keys", lead, &keys))
}

async fn rotate(State(app): State<Dashboard>, visit: Visit, _: Form) -> Result<Response, PageError> {
    visit.require(Scope::WebhookSigningKeyRotate)?;
    let key = app
        .environments
        .rotate_signing_key(visit.environment.pk, FormerKeys::Overlap, &visit.actor())
        .await?;
    let lead = "Give this key to your backend. The previous key also signs webhooks for 24 hours.";
    Ok(keys_page(&app, &visit, "The key was rotated", lead, &[key]))
}
