//! The settings of an environment: webhooks, the callback URL, the look of the Connect UI, and signing keys.

mod connect_ui;
mod signing_keys;

use std::str::FromStr;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{get, post};
use maud::{Markup, html};

use super::addresses::environment_route;
use crate::Dashboard;
use crate::components::{Look, TextField, checkbox, copyable, facts, form, heading, submit};
use crate::error::PageError;
use crate::form::{Fields, Form, done};
use crate::layout::{Section, page};
use crate::session::Visit;
use crate::time::ago;
use syncline_auth::{EnvironmentSettings, Scope, SettingsChange};
use syncline_types::environment_settings::HttpUrl;
use syncline_web::addresses::OAUTH_CALLBACK;

pub(crate) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("settings"), get(settings))
        .route(environment_route!("settings/webhooks"), post(save_webhooks))
        .route(environment_route!("settings/callback"), post(save_callback))
        .merge(connect_ui::routes())
        .merge(signing_keys::routes())
}

async fn settings(State(app): State<Dashboard>, visit: Visit) -> Result<Response, PageError> {
    visit.require(Section::Settings.scope())?;
    let settings = app.environments.settings(visit.environment.pk).await?;
    let content = html! {
        (heading("Settings", &html! {}))
        (facts(&[
            ("Environment", html! { (visit.environment.name) }),
            ("Id", copyable(&visit.environment.id.to_string())),
            ("Created", ago(visit.environment.created_at)),
        ]))
        (webhooks(&visit, &settings))
        (signing_keys::card(&app, &visit).await?)
        (callback(&app, &visit, &settings))
        (connect_ui::card(&app, &visit, &settings))
    };
    Ok(page(&app, &visit, Section::Settings, "Settings", &content))
}

/// The kinds of webhooks that can be switched off: the name of the setting, its value and its description.
fn kinds(settings: &EnvironmentSettings) -> [(&'static str, bool, &'static str); 5] {
    [
        ("on_auth_creation", settings.on_auth_creation, "An end user connects or fails to connect"),
        ("on_auth_refresh_error", settings.on_auth_refresh_error, "Credentials cannot be refreshed"),
        (
            "on_sync_completion_always",
            settings.on_sync_completion_always,
            "Every successful sync, even if no record changed",
        ),
        ("on_sync_error", settings.on_sync_error, "A sync fails"),
        (
            "on_async_action_completion",
            settings.on_async_action_completion,
            "An asynchronous action finishes",
        ),
    ]
}

fn webhooks(visit: &Visit, settings: &EnvironmentSettings) -> Markup {
    let can_write = visit.allows(Scope::SettingsUpdate);
    html! {
        section.card {
            h2 { "Outbound webhooks" }
            p { "Syncline reports events to your backend. Deliveries are signed and retried." }
            (editable(visit, can_write, &visit.url("settings/webhooks"), &html! {
                (url_field("webhook_url", "Webhook URL", settings.webhook_url.as_ref(), "Such as https://app.example.com/webhooks/syncline."))
                (url_field("webhook_url_secondary", "Second webhook URL", settings.webhook_url_secondary.as_ref(), "Receives the same webhooks."))
                fieldset {
                    legend { "Send a webhook when" }
                    @for (name, is_on, description) in kinds(settings) { (checkbox(name, "true", description, is_on)) }
                }
                @if can_write { (submit("Save the webhooks", Look::Primary)) }
            }))
        }
    }
}

fn callback(app: &Dashboard, visit: &Visit, settings: &EnvironmentSettings) -> Markup {
    let own = format!("{}{OAUTH_CALLBACK}", app.public_url);
    let can_write = visit.allows(Scope::SettingsUpdate);
    html! {
        section.card {
            h2 { "OAuth callback" }
            p { "Providers redirect end users to this URL. Register it at each provider:" }
            p { (copyable(settings.callback_url.as_ref().map_or(own.as_str(), HttpUrl::as_str))) }
            (editable(visit, can_write, &visit.url("settings/callback"), &html! {
                (url_field("callback_url", "Own callback URL", settings.callback_url.as_ref(), &format!("A page of yours that redirects to {own} with the same query. Empty: that URL itself.")))
                @if can_write { (submit("Save the callback URL", Look::Primary)) }
            }))
        }
    }
}

/// A form, or for people who may not submit it, disabled fields.
fn editable(visit: &Visit, can_write: bool, action: &str, content: &Markup) -> Markup {
    html! {
        @if can_write {
            (form(visit, action, content))
        } @else {
            fieldset.stacked disabled { legend { "Read-only" } (content) }
        }
    }
}

fn url_field(name: &str, label: &str, value: Option<&HttpUrl>, hint: &str) -> Markup {
    let value = value.map_or("", HttpUrl::as_str);
    TextField { name, label, kind: "url", value, hint, ..TextField::default() }.render()
}

/// The value of a setting that an empty field removes.
fn setting<T: FromStr<Err: ToString>>(
    form: &Fields,
    name: &str,
    label: &str,
) -> Result<Option<Option<T>>, PageError> {
    form.parse_optional(name, label).map(Some)
}

async fn save(
    app: &Dashboard,
    visit: &Visit,
    change: &SettingsChange,
    notice: &str,
) -> Result<Response, PageError> {
    app.environments.change_settings(visit.environment.pk, change, &visit.actor()).await?;
    Ok(done(app, visit, &visit.url("settings"), notice))
}

async fn save_webhooks(
    State(app): State<Dashboard>,
    visit: Visit,
    form: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::SettingsUpdate)?;
    let change = SettingsChange {
        webhook_url: setting(&form, "webhook_url", "Webhook URL")?,
        webhook_url_secondary: setting(&form, "webhook_url_secondary", "Second webhook URL")?,
        on_auth_creation: Some(form.is_checked("on_auth_creation")),
        on_auth_refresh_error: Some(form.is_checked("on_auth_refresh_error")),
        on_sync_completion_always: Some(form.is_checked("on_sync_completion_always")),
        on_sync_error: Some(form.is_checked("on_sync_error")),
        on_async_action_completion: Some(form.is_checked("on_async_action_completion")),
        ..SettingsChange::default()
    };
    save(&app, &visit, &change, "The webhooks were saved.").await
}

async fn save_callback(
    State(app): State<Dashboard>,
    visit: Visit,
    form: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::SettingsUpdate)?;
    let change = SettingsChange {
        callback_url: setting(&form, "callback_url", "Own callback URL")?,
        ..SettingsChange::default()
    };
    save(&app, &visit, &change, "The callback URL was saved.").await
}
