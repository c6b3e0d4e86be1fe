//! The title and the colour of the Connect UI, with a preview that shows what is typed.

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::post;
use maud::{Markup, html};
use url::Url;

use super::{save, setting};
use crate::Dashboard;
use crate::components::{Look, TextField, action_button, submit};
use crate::error::PageError;
use crate::form::{Form, token_field};
use crate::pages::addresses::environment_route;
use crate::pages::connections::test_account;
use crate::session::Visit;
use syncline_auth::{EnvironmentSettings, Scope, SettingsChange};
use syncline_types::environment_settings::{DEFAULT_UI_COLOR, DEFAULT_UI_TITLE, UiColor, UiTitle};

/// The name of the frame with the preview.
const FRAME: &str = "connect-ui-preview";

pub(super) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("settings/connect-ui"), post(save_look))
        .route(environment_route!("settings/connect-ui/reset"), post(reset))
        .route(environment_route!("settings/connect-ui/preview"), post(preview))
}

pub(super) fn card(app: &Dashboard, visit: &Visit, settings: &EnvironmentSettings) -> Markup {
    let can_write = visit.allows(Scope::SettingsUpdate);
    html! {
        section.card {
            h2 { "Connect UI" }
            p { "The page on which end users connect their accounts." }
            div.settings-with-preview {
                div { (look(visit, settings, can_write)) }
                @if visit.allows(Scope::ConnectSessionsWrite) { (frame(app, visit)) }
            }
        }
    }
}

fn look(visit: &Visit, settings: &EnvironmentSettings, can_write: bool) -> Markup {
    let title = settings.connect_ui_title.as_ref().map_or("", UiTitle::as_str);
    let color = settings.connect_ui_primary_color.as_ref().map_or(DEFAULT_UI_COLOR, UiColor::as_str);
    let is_default = settings.connect_ui_title.is_none() && settings.connect_ui_primary_color.is_none();
    html! {
        form.stacked method="post" action=(visit.url("settings/connect-ui")) data-previewed {
            (token_field(visit))
            (TextField { name: "title", label: "Title", value: title, hint: "1 to 100 characters. Default: “Connect your account”, in the language of the end user.", ..TextField::default() }.render())
            (TextField { name: "color", label: "Colour", kind: "color", value: color, hint: "Of buttons and links. The page adapts it where it would be hard to read.", is_required: true, ..TextField::default() }.render())
            @if can_write { (submit("Save the look", Look::Primary)) }
            p.form-error role="alert" hidden {}
        }
        @if can_write && !is_default {
            p {
                (action_button(visit, &visit.url("settings/connect-ui/reset"), "Restore the defaults", Look::Secondary, Some("Remove the title and the colour of this environment?")))
            }
        }
    }
}

/// The real Connect UI. The script opens it and sends what is typed into the form.
fn frame(app: &Dashboard, visit: &Visit) -> Markup {
    let origin = Url::parse(&app.connect_url).map(|url| url.origin().ascii_serialization());
    html! {
        div {
            iframe.preview name=(FRAME) title="Preview of the Connect UI" data-preview=(origin.unwrap_or_default())
                data-default-title=(DEFAULT_UI_TITLE) {}
            form method="post" action=(visit.url("settings/connect-ui/preview")) target=(FRAME) data-opens-preview {
                (token_field(visit))
                button.button type="submit" { "Load the preview again" }
            }
            p.muted { "This is the real page: an account that you connect in it becomes a connection." }
        }
    }
}

async fn save_look(State(app): State<Dashboard>, visit: Visit, form: Form) -> Result<Response, PageError> {
    visit.require(Scope::SettingsUpdate)?;
    let change = SettingsChange {
        connect_ui_title: setting(&form, "title", "Title")?,
        connect_ui_primary_color: setting(&form, "color", "Colour")?,
        ..SettingsChange::default()
    };
    save(&app, &visit, &change, "The look of the Connect UI was saved.").await
}

async fn reset(State(app): State<Dashboard>, visit: Visit, _: Form) -> Result<Response, PageError> {
    visit.require(Scope::SettingsUpdate)?;
    let change = SettingsChange {
        connect_ui_title: Some(None),
        connect_ui_primary_color: Some(None),
        ..SettingsChange::default()
    };
    save(&app, &visit, &change, "The Connect UI has its default look again.").await
}

/// Opens the Connect UI for the signed-in person, in the frame of the form.
async fn preview(State(app): State<Dashboard>, visit: Visit, _: Form) -> Result<Response, PageError> {
    visit.require(Scope::ConnectSessionsWrite)?;
    let session = test_account::test_session(&visit, None, None);
    let address = test_account::open(&app, &visit.environment, session).await?;
    Ok(Redirect::to(&format!("{address}&preview=true")).into_response())
}
