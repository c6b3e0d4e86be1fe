//! Connects accounts in the Connect UI, as an end user does.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::post;
use maud::{Markup, html};
use serde_json::{Map, Value, json};

use crate::Dashboard;
use crate::error::PageError;
use crate::form::{Form, token_field};
use crate::pages::addresses::{environment_route, parse_names};
use crate::session::{Visit, Visitor};
use syncline_auth::{Environment, Scope};
use syncline_engine::{ConnectionRoute, NewConnectSession};
use syncline_types::ids::IntegrationKey;

/// Longest id of an end user, in characters.
const MAX_ID_CHARACTERS: usize = 255;

pub(super) fn routes() -> Router<Dashboard> {
    Router::new()
        .route(environment_route!("connections/connect"), post(connect))
        .route(environment_route!("connections/{integration}/{id}/reconnect"), post(reconnect))
}

/// The button that opens the Connect UI in a new tab. With `integration`, only that can be connected.
pub(crate) fn button(visit: &Visit, integration: Option<&IntegrationKey>) -> Markup {
    let hidden = html! {
        @if let Some(key) = integration { input type="hidden" name="integration" value=(key); }
    };
    new_tab_button(visit, &visit.url("connections/connect"), "Connect a test account", &hidden)
}

/// The button that opens the Connect UI in a new tab, to renew the credentials of a connection.
pub(super) fn reconnect_button(visit: &Visit, connection_url: &str) -> Markup {
    new_tab_button(visit, &format!("{connection_url}/reconnect"), "Reconnect", &html! {})
}

fn new_tab_button(visit: &Visit, action: &str, label: &str, hidden: &Markup) -> Markup {
    html! {
        @if visit.allows(Scope::ConnectSessionsWrite) {
            form.inline method="post" action=(action) target="_blank" rel="noopener" {
                (token_field(visit))
                (hidden)
                button.button type="submit" { (label) span.visually-hidden { " in a new tab" } }
            }
        }
    }
}

async fn connect(State(app): State<Dashboard>, visit: Visit, form: Form) -> Result<Response, PageError> {
    visit.require(Scope::ConnectSessionsWrite)?;
    let integration: Option<IntegrationKey> = form.parse_optional("integration", "Integration")?;
    if let Some(key) = &integration {
        app.integrations.get(visit.environment.pk, key).await?;
    }
    let session = test_session(&visit, integration, None);
    Ok(Redirect::to(&open(&app, &visit.environment, session).await?).into_response())
}

async fn reconnect(
    State(app): State<Dashboard>,
    visit: Visit,
    Path((_, key, id)): Path<(String, String, String)>,
    _: Form,
) -> Result<Response, PageError> {
    visit.require(Scope::ConnectSessionsWrite)?;
    let (key, id) = parse_names(&key, &id)?;
    let route = app.connection_cache.get(visit.environment.pk, &key, &id).await?;
    // The connection keeps its end user and its tags.
    let session = NewConnectSession {
        end_user: None,
        tags: Map::new(),
        ..test_session(&visit, Some(key), Some(route))
    };
    Ok(Redirect::to(&open(&app, &visit.environment, session).await?).into_response())
}

/// A session for the signed-in person as the end user.
pub(crate) fn test_session(
    visitor: &Visitor,
    integration: Option<IntegrationKey>,
    reconnects: Option<Arc<ConnectionRoute>>,
) -> NewConnectSession {
    let account = &visitor.person.account;
    let id: String = format!("test-{}", account.email).chars().take(MAX_ID_CHARACTERS).collect();
    let tags =
        [("end_user_id", &id), ("end_user_email", &account.email), ("end_user_display_name", &account.name)];
    let tags = tags.into_iter().filter(|(_, value)| !value.is_empty());
    NewConnectSession {
        end_user: Some(json!({
            "id": id,
            "display_name": account.name,
            "email": account.email,
            "tags": null,
            "organization": null,
        })),
        tags: tags.map(|(name, value)| (name.to_owned(), Value::from(value.as_str()))).collect(),
        allowed_integrations: integration.map(|key| vec![key]),
        defaults: BTreeMap::new(),
        overrides: BTreeMap::new(),
        webhook_url_override: None,
        reconnects,
    }
}

/// Creates a connect session, and returns the address of the Connect UI with it.
pub(crate) async fn open(
    app: &Dashboard,
    environment: &Environment,
    session: NewConnectSession,
) -> Result<String, PageError> {
    let created = app.connect_sessions.create(environment, session).await?;
    Ok(format!("{}/?session_token={}", app.connect_url, created.token.expose()))
}
