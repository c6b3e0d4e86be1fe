//! The credentials of an integration's app: form fields, the page that shows them, and the addresses to register.

use axum::Router;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::post;
use maud::{Markup, html};
use serde_json::{Map, Value};

use super::lookup::find;
use crate::Dashboard;
use crate::components::{TextField, copyable, facts, heading, text_area};
use crate::error::PageError;
use crate::form::{Fields, Form, done};
use crate::layout::{Section, page};
use crate::pages::addresses::{environment_route, integration_url};
use crate::session::Visit;
use syncline_auth::{AppCredentials, IntegrationSettings, Scope};
use syncline_engine::{IntegrationChange, IntegrationError};
use syncline_providers::{AuthMode, Provider};
use syncline_web::addresses::{APP_SETUP, OAUTH_CALLBACK};

pub(super) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("integrations/{key}/credentials"), post(show))
        .route(environment_route!("integrations/{key}/credentials/replace"), post(replace))
}

/// The parts that the credentials of an app have.
struct Parts {
    client: bool,
    scopes: bool,
    installation: bool,
}

impl Parts {
    fn of(mode: AuthMode) -> Self {
        Self {
            client: matches!(
                mode,
                AuthMode::OAuth1 | AuthMode::OAuth2 | AuthMode::TokenBased | AuthMode::Custom
            ),
            scopes: matches!(mode, AuthMode::OAuth1 | AuthMode::OAuth2 | AuthMode::TokenBased),
            installation: matches!(mode, AuthMode::App | AuthMode::Custom),
        }
    }
}

/// Whether integrations of this auth mode have an app.
pub(super) fn has_app(mode: AuthMode) -> bool {
    let parts = Parts::of(mode);
    parts.client || parts.installation
}

/// The label of a field that the service rejected.
pub(super) fn label(field: Option<&str>) -> &'static str {
    match field {
        Some("client_id") => "Client id",
        Some("client_secret") => "Client secret",
        Some("scopes") => "Scopes",
        Some("webhook_secret") => "Webhook secret",
        Some("app_id") => "App id",
        Some("app_link") => "App link",
        Some("private_key") => "Private key",
        _ => "Credentials",
    }
}

/// The fields for the credentials of an app. With `stored`, empty secrets stay as they are.
pub(super) fn fields(mode: AuthMode, stored: Option<&AppCredentials>) -> Markup {
    let parts = Parts::of(mode);
    let is_required = AppCredentials::are_required(mode);
    let keeps = stored.is_some();
    let (oauth, app) = (stored.and_then(AppCredentials::oauth), stored.and_then(AppCredentials::app));
    let field = |name, kind, value, hint| TextField {
        name,
        label: label(Some(name)),
        kind,
        value,
        hint,
        is_required: is_required && !(keeps && kind == "password"),
        autocomplete: "off",
    };
    let kept = if keeps { "Leave it empty to keep the present one." } else { "" };
    let scopes = oauth.map(|oauth| oauth.scopes.join(" ")).unwrap_or_default();
    html! {
        @if parts.client {
            (field("client_id", "text", oauth.map_or("", |oauth| &oauth.client_id), "").render())
            (field("client_secret", "password", "", kept).render())
        }
        @if parts.scopes {
            (TextField {
                is_required: false,
                ..field("scopes", "text", &scopes, "Separated by spaces or commas. Default: the scopes of the catalogue.")
            }.render())
        }
        @if parts.installation {
            (field("app_id", "text", app.map_or("", |app| &app.app_id), "").render())
            (field("app_link", "url", app.map_or("", |app| &app.app_link), "The page at the provider where the app is installed.").render())
            (text_area("private_key", "Private key", "", 4))
            p.hint { "An RSA key in PEM. " (kept) }
        }
    }
}

/// Reads the fields. Secrets that are empty come from `stored`. Returns `None` if all are empty and the auth mode does
/// not need an app.
pub(super) fn read(
    mode: AuthMode,
    form: &Fields,
    stored: Option<&AppCredentials>,
) -> Option<Map<String, Value>> {
    let parts = Parts::of(mode);
    let (oauth, app) = (stored.and_then(AppCredentials::oauth), stored.and_then(AppCredentials::app));
    let mut members = Map::new();
    let mut insert = |name: &str, value: &str, kept: Option<&str>| {
        let value = if value.is_empty() { kept.unwrap_or_default() } else { value };
        members.insert(name.to_owned(), value.into());
    };
    if parts.client {
        insert("client_id", form.text("client_id"), None);
        let kept = oauth.map(|oauth| oauth.client_secret.expose().as_str());
        insert("client_secret", form.text("client_secret"), kept);
    }
    if parts.installation {
        insert("app_id", form.text("app_id"), None);
        insert("app_link", form.text("app_link"), None);
        // Browsers send CR LF for a line break.
        let typed = form.text("private_key").replace("\r\n", "\n");
        insert("private_key", &typed, app.map(|app| app.private_key.expose().as_str()));
    }
    let is_empty = members.values().all(|value| value.as_str() == Some(""));
    if members.is_empty() || is_empty && !AppCredentials::are_required(mode) {
        return None;
    }
    if parts.scopes {
        let scopes =
            form.text("scopes").split([',', ' ', '\n', '\r', '\t']).filter(|scope| !scope.is_empty());
        members.insert("scopes".to_owned(), scopes.collect::<Vec<_>>().join(",").into());
        let webhook_secret = oauth.and_then(|oauth| oauth.webhook_secret.as_ref());
        let webhook_secret = webhook_secret.map(|secret| secret.expose().as_str());
        members.insert("webhook_secret".to_owned(), webhook_secret.into());
    }
    members.insert("type".to_owned(), mode.as_str().into());
    Some(members)
}

/// The address to register at the provider, with the provider's term for it. `None` if end users do not sign in there.
pub(super) async fn address_to_register(
    app: &Dashboard,
    visit: &Visit,
    provider: &Provider,
) -> Result<Option<(&'static str, String)>, PageError> {
    Ok(match provider.auth_mode {
        AuthMode::App => Some(("setup URL", format!("{}{APP_SETUP}", app.public_url))),
        AuthMode::OAuth1 | AuthMode::OAuth2 | AuthMode::Custom => {
            let settings = app.environments.settings(visit.environment.pk).await?;
            let own = settings.callback_url.as_ref().map(|url| url.as_str().to_owned());
            Some(("callback URL", own.unwrap_or_else(|| format!("{}{OAUTH_CALLBACK}", app.public_url))))
        }
        _ => None,
    })
}

async fn show(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, key)): Path<(String, String)>,
    _: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::IntegrationsRead)?;
    visit.require(Scope::IntegrationsReadCredentials)?;
    let integration = find(&app, &visit, &key).await?;
    let provider = app.catalogue.find(&integration.provider);
    let actor = visit.actor();
    let stored = app.integrations.reveal_app_credentials(&visit.environment, &integration, &actor).await?;
    let wire = provider.zip(stored).map(|(provider, stored)| stored.to_wire(provider.auth_mode));
    let members = wire.as_ref().and_then(Value::as_object).into_iter().flatten();
    let shown: Vec<_> = members
        .filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)))
        .filter(|(name, value)| *name != "type" && !value.is_empty())
        .collect();
    let pairs: Vec<_> = shown.iter().map(|(name, value)| (label(Some(name)), copyable(value))).collect();
    let title = format!("Credentials of {key}");
    let content = html! {
        p.breadcrumb { a href=(integration_url(&visit, &integration.unique_key)) { (integration.unique_key) } }
        (heading(&title, &html! {}))
        @if pairs.is_empty() {
            p { "This integration has no credentials of an app." }
        } @else {
            (facts(&pairs))
            p.muted { "A value of asterisks stands for a secret that is never shown. Enter a new one to replace it." }
        }
        p { a.button href=(integration_url(&visit, &integration.unique_key)) { "Back to the integration" } }
    };
    Ok(page(&app, &visit, Section::Integrations, &title, &content))
}

async fn replace(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, key)): Path<(String, String)>,
    form: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::IntegrationsUpdate)?;
    let integration = find(&app, &visit, &key).await?;
    let Some(provider) = app.catalogue.find(&integration.provider) else {
        return Err(PageError::invalid("Provider", "it is no longer in the catalogue"));
    };
    let stored = app.integrations.app_credentials(&visit.environment, &integration)?;
    let change = IntegrationChange {
        unique_key: None,
        display_name: None,
        forward_webhooks: None,
        credentials: read(provider.auth_mode, &form, stored.as_ref()),
        settings: IntegrationSettings::default(),
    };
    let key = &integration.unique_key;
    app.integrations.update(&visit.environment, key, change, &visit.actor()).await.map_err(rejected)?;
    let page = integration_url(&visit, &integration.unique_key);
    Ok(done(&app, &visit, &page, "The credentials were replaced."))
}

/// Names the field of a form whose value the service rejected.
pub(super) fn rejected(error: IntegrationError) -> PageError {
    match error {
        IntegrationError::InvalidCredentials(problem) => PageError::invalid(label(problem.field()), &problem),
        IntegrationError::Duplicate(key) => {
            PageError::invalid("Key", format!("another integration has the key `{key}`; choose another"))
        }
        error => error.into(),
    }
}
