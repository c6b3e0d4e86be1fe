//! Changes and deletes integrations.

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::post;
use maud::{Markup, html};

use super::credentials::rejected;
use super::lookup::find;
use crate::Dashboard;
use crate::components::{Look, TextField, checkbox, form, submit};
use crate::error::PageError;
use crate::form::{Fields, Form, done};
use crate::pages::addresses::{environment_route, integration_url};
use crate::session::Visit;
use syncline_auth::{IntegrationSettings, Scope};
use syncline_engine::{Integration, IntegrationChange};
use syncline_providers::Provider;
use syncline_providers::webhook::Verification;
use syncline_types::ids::IntegrationKey;
use syncline_types::secret::Secret;

const MAX_NAME_CHARACTERS: usize = 255;
const MAX_SECRET_BYTES: usize = 8192;
/// The name of the setting with which the host verifies webhooks.
const WEBHOOK_SECRET: &str = "webhook_secret";

pub(super) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("integrations/{key}/edit"), post(edit))
        .route(environment_route!("integrations/{key}/delete"), post(delete))
}

/// The field for the secret of the provider's webhooks, if they are verified with one.
pub(super) fn webhook_fields(provider: &Provider, is_new: bool) -> Markup {
    let is_verified = provider
        .webhook
        .as_ref()
        .is_some_and(|webhook| !matches!(webhook.verification, Verification::None(_)));
    let hint = if is_new {
        "The provider shows it when you register the webhook URL. You can enter it later."
    } else {
        "Leave it empty to keep the present one. It is never shown."
    };
    let field = TextField {
        name: WEBHOOK_SECRET,
        label: "Webhook secret",
        kind: "password",
        hint,
        ..TextField::default()
    };
    html! { @if is_verified { (field.render()) } }
}

/// The name for the Connect UI, or `None` if the field is empty.
pub(super) fn display_name(form: &Fields) -> Result<Option<String>, PageError> {
    let Some(name) = form.optional("display_name") else { return Ok(None) };
    if name.chars().count() > MAX_NAME_CHARACTERS || name.contains('\0') {
        return Err(PageError::invalid(
            "Name",
            format!("it must have at most {MAX_NAME_CHARACTERS} characters"),
        ));
    }
    Ok(Some(name.to_owned()))
}

/// The settings that the form sets.
pub(super) fn settings(form: &Fields) -> Result<IntegrationSettings, PageError> {
    let mut settings = IntegrationSettings::default();
    if let Some(secret) = form.optional(WEBHOOK_SECRET) {
        if secret.len() > MAX_SECRET_BYTES {
            return Err(PageError::invalid(
                "Webhook secret",
                format!("it must have at most {MAX_SECRET_BYTES} bytes"),
            ));
        }
        settings.custom.insert(WEBHOOK_SECRET.to_owned(), Secret::from(secret));
    }
    Ok(settings)
}

/// The forms that change and delete an integration.
pub(super) fn forms(visit: &Visit, integration: &Integration, provider: Option<&Provider>) -> Markup {
    let key = &integration.unique_key;
    let url = integration_url(visit, key);
    html! {
        @if visit.allows(Scope::IntegrationsUpdate) {
            section.card {
                h2 { "Edit" }
                (form(visit, &format!("{url}/edit"), &html! {
                    (TextField { name: "unique_key", label: "Key", value: key.as_str(), hint: "Connections, syncs and records stay. Change the key in syncline.toml and in your backend too.", is_required: true, ..TextField::default() }.render())
                    (TextField { name: "display_name", label: "Name", value: integration.display_name.as_deref().unwrap_or_default(), hint: "End users see it in the Connect UI.", ..TextField::default() }.render())
                    @if let Some(provider) = provider { (webhook_fields(provider, false)) }
                    (checkbox("forward_webhooks", "true", "Forward the provider's webhooks to the webhook URL of this environment", integration.forward_webhooks))
                    (submit("Save", Look::Primary))
                }))
            }
        }
        @if visit.allows(Scope::IntegrationsDelete) {
            section.card {
                h2 { "Delete the integration" }
                p { "Its connections, syncs and records are deleted too. This cannot be undone." }
                (form(visit, &format!("{url}/delete"), &html! {
                    (TextField { name: "confirmation", label: "Type the key of the integration", is_required: true, ..TextField::default() }.render())
                    (submit("Delete the integration", Look::Danger))
                }))
            }
        }
    }
}

async fn edit(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, key)): Path<(String, String)>,
    form: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::IntegrationsUpdate)?;
    let integration = find(&app, &visit, &key).await?;
    let unique_key: IntegrationKey = form.parse("unique_key", "Key")?;
    let display_name = display_name(&form)?;
    if display_name.is_none() && integration.display_name.is_some() {
        return Err(PageError::invalid("Name", "it cannot be removed; enter another name"));
    }
    let change = IntegrationChange {
        unique_key: Some(unique_key),
        display_name,
        forward_webhooks: Some(form.is_checked("forward_webhooks")),
        credentials: None,
        settings: settings(&form)?,
    };
    let updated = app
        .integrations
        .update(&visit.environment, &integration.unique_key, change, &visit.actor())
        .await
        .map_err(rejected)?;
    let notice = format!("The integration {} was changed.", updated.unique_key);
    Ok(done(&app, &visit, &integration_url(&visit, &updated.unique_key), &notice))
}

async fn delete(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, key)): Path<(String, String)>,
    form: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::IntegrationsDelete)?;
    let integration = find(&app, &visit, &key).await?;
    if form.text("confirmation") != integration.unique_key.as_str().trim() {
        return Err(PageError::invalid("Confirmation", format!("type `{}`", integration.unique_key)));
    }
    app.integrations.delete(visit.environment.pk, &integration.unique_key, &visit.actor()).await?;
    let notice = format!("The integration {} was deleted.", integration.unique_key);
    Ok(done(&app, &visit, &visit.url("integrations"), &notice))
}
